"""Who calls a function, in all files of a source tree: what only builds a model is no step.

``_wigner_nj`` is called by ``U_matrix_real`` of the same file, and that by the ``__init__`` of a
module in another one.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING
from zlib import crc32

from npufix.advisor.project.cold_files import is_cold, is_test
from npufix.rewriters.graph.modules.scopes import MODULE, scopes
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from npufix.advisor.project.kept.stored import Store
    from npufix.advisor.project.source_tree import SourceFile
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.graph.modules.scopes import Scope

_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MOST_CALLERS = 8
"""Who is called by more than that, or named in more files, is not followed: a step may call it."""
_TESTS = re.compile(r"_*test(_|s?\d*$)")
"""What a module has to try its kernels with: ``test_rms_norm``, ``test1``."""
_RUNS_ONCE = re.compile(
    r"_*(predict|infer|inference|generate)"
    r"(_(from|on|file|image|video|text|audio|dir|folder|path|one|once)\w*)?"
    r"|__getitem__|_*(data_)?collat(e|or)\w*|\w+_collate(_fn)?|_*(export|save|plot|visuali[sz]e)(_\w+)?"
    r"|_*(slide|sliding|whole)_inference|_*(load|evaluate|validate|test|from_pretrained)"
    r"(_(all|checkpoint|dataset|epoch|file|image|images|model|one|pretrained|state\w*|weights))?"
)
"""What runs once for an image or a text, or beside the steps: ``predict``, not ``predict_step``,
``load_model``, not ``load_balancing_loss``."""
_TRAINS_LONG = re.compile(r"_*(train|run|fit|do)_(\w+_)?epochs?")
_PARTS = 16
_HANDED_ON, _NAMED, _BUILDS, _BESIDE = "<step>", "<name>", "<building>", "<beside>"
"""What stand among the names of callers: a step, a name that nobody calls, building, examples."""
_STARTS = "__main__"
"""What a file says that is a script."""
_PACKS = ("setup.py", "setup.cfg", "pyproject.toml")
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_A_PATH = re.compile(r"[\w.:/-]+")


@dataclass(frozen=True, slots=True)
class Mention:
    """What a program may say somewhere in its code."""

    words: str
    """A regular expression: what is known of it needs none to be compiled."""
    parts: Sequence[str]
    """Texts in small letters, of which one stands in whatever the words are found in: they are
    looked for first, in a hundredth of the time."""
    shared: Sequence[str] = ()
    """Such texts besides, which many mentions share: where they stand is found out once."""


_LOOKS_UP = Mention(

        r"globals\(\)|(?<!self\.)__dict__\[|getattr\(\s*(importlib\.)?import_module|getmembers"
        r"|\b_target_\b|\binstantiate\(|\bvars\((?!(self|args?|config|cfg|opts?)\b)"
        r"|(?<!def )(?<![.\w])eval\("
        r"|getattr\((?!(self|args?|config|cfg|opts?|torch|nn|F|np)\b)[\w.]+, *(?![\"'\s])",
    ("globals()", "__dict__[", "vars(", "getmembers", "_target_", "instantiate(", "eval(",
     "getattr("),
)  # fmt: skip
"""How a program finds a class by a text that may stand anywhere: ``getattr(models, name)``.

Not so the import of a module alone, which only registers what is decorated.
"""


class Callers:
    """The calls of functions in a source tree, by the names of the functions."""

    def __init__(self, files: Mapping[str, SourceFile], store: Store | None = None) -> None:
        parts: list[dict[str, SourceFile]] = [{} for _ in range(_PARTS)]
        for name, file in sorted(files.items()):
            if file.is_python and not is_test(name):
                parts[_part_of(name)][name] = file
        self._parts = [_Part(part, store) for part in parts]
        self._of = cache(self._callers_of)
        self._users_of = cache(self._users)
        self._calling_of = cache(self._calling)
        self._settings = [f.text for f in files.values() if not f.is_python]
        self._is_program = _is_program(files)

    def mention(self, wanted: Mention) -> bool:
        """Tell whether any file of the tree that a step may run has these words in its code."""
        return any(part.mentions(wanted) for part in self._parts)

    def keep(self) -> None:
        """Keep what was asked for the next time."""
        for part in self._parts:
            part.keep()

    def set_up(self, function: str, file: str) -> bool:
        """Tell whether a function (its qualified name) runs where something is built, only there.

        Everybody who calls it by its name does so from the ``__init__`` of a module or the like,
        and nobody hands it on; a function that nobody calls may be called by anyone.
        """
        if "<" in function:
            return False
        return self._all_end_in(function, _BUILDS, lambda name: self._of(name, file))

    def beside_steps(self, site: Site, file: str) -> bool:
        """Tell whether the function of a site is used, but, as far as names tell, in no step.

        ``world_to_pix`` of a renderer that a plot calls; what nobody uses may be there for others.
        What is safe is kept where it is handed on, ``{"quick": quick_gelu}``, and who calls it.
        """
        if site.is_hot:
            return False
        called = site.safety is Safety.SAFE
        names, used = [site.function.partition(".<locals>")[0].rpartition(".")[2]], False
        for name in names:  # grows
            if name in {"main", MODULE} or name.startswith("__") or len(names) > _MOST_CALLERS:
                return False
            callers = self._of(name, file)
            if _HANDED_ON in callers or (called and (not callers or _NAMED in callers)):
                return False
            used = used or bool(callers)
            names += sorted(callers - {*names, _NAMED, _BUILDS, _BESIDE})
        return used

    def only_inferred(self, function: str) -> bool:
        """Tell whether all that call a function run once for an image or a text, or save a model.

        ``predict(self, image)`` calls ``self._rescale(boxes)``; what a loop of it calls runs often.
        """
        outer = function.partition(".<locals>")[0]
        return self._all_end_in(outer, _BESIDE, partial(self._calling_of, how="inferring"))

    def only_between(self, function: str) -> bool:
        """Tell whether all that call a function do so beside their steps: once an epoch."""
        return self._all_end_in(function, _BESIDE, partial(self._calling_of, how="between"))

    @staticmethod
    def _all_end_in(function: str, end: str, ask: Callable[[str], frozenset[str]]) -> bool:
        """Tell whether who follows the callers of a function comes to ``end`` and nowhere else."""
        names, ends = [function.rpartition(".")[2]], False
        for name in names:  # grows
            # torch calls ``forward``, whoever else does
            if name == "forward" or name.startswith("__") or len(names) > _MOST_CALLERS:
                return False
            callers = ask(name)
            if not callers or callers & {_HANDED_ON, _NAMED}:
                return False
            ends = ends or end in callers
            names += sorted(callers - {*names, _BUILDS, _BESIDE})
        return ends

    def unused(self, function: str) -> bool:
        """Tell whether nothing in a program mentions a function, or the class of a method.

        Who only stands in what is unused itself does not count: ``drop_block`` of a ``DropBlock``
        that no model has. Of a package others may use everything, and of a program that looks
        names up nobody knows.
        """
        name = function.partition(".")[0]
        if not (self._is_program and name.isidentifier()) or self.mention(_LOOKS_UP):
            return False
        names = [name]
        for each in names:  # grows
            users = self._users_of(each)
            if _NAMED in users or len(names) > _MOST_CALLERS:
                return False
            names += sorted(users - {*names})
        return True

    def built_once(self, method: str) -> bool:
        """Tell whether a program makes one layer of the class of a method, as far as code tells.

        Not so if a loop makes it, or what it is a part of: ``[Block(d) for _ in range(n)]``, or if
        somebody else may do so with the class or the layer that he is handed.
        """
        owner, _, name = method.partition(".")
        names = [owner] if name and owner.isidentifier() else []
        for each in names:  # grows
            if len(names) > _MOST_CALLERS or self.mention(_made_again(each)):
                return False
            for part in self._parts:
                users = (part.users(each, relative) for relative in part.naming(each))
                names += sorted(frozenset().union(*users) - {_NAMED, *names})
        made = Mention(rf"(?<!class )\b{owner}\(", (owner.lower(),))
        return bool(names) and self.mention(made)

    def _calling(self, name: str, how: str) -> frozenset[str]:
        """Return who calls a function anywhere, ``_BESIDE`` for all that run once."""
        files: list[tuple[_Part, str]] = []
        for part in self._parts:
            files += ((part, relative) for relative in part.naming(name))
            if len(files) > _MOST_CALLERS:
                return frozenset({_HANDED_ON})
        found: frozenset[str] = frozenset()
        for part, relative in files:
            found |= part.calls(name, relative, how)
            if found & {_HANDED_ON, _NAMED}:
                break  # what others do changes nothing
        return found - {name}

    def _users(self, name: str) -> frozenset[str]:
        """Return the definitions that mention a name, ``_NAMED`` for what runs or is set."""
        if any(re.search(rf"\b{name}\b", text) for text in self._settings):
            return frozenset({_NAMED})
        found: frozenset[str] = frozenset()
        for part in self._parts:
            named = part.naming(name)
            if len(named) > _MOST_CALLERS:
                return frozenset({_NAMED})
            found = found.union(*(part.users(name, relative) for relative in named))
            if _NAMED in found:
                break
        return found

    def _callers_of(self, name: str, file: str) -> frozenset[str]:
        """Return who calls a function; the first step that does, mostly beside it, ends it."""
        found, naming = self._parts[_part_of(file)].calls(name, file), 0
        for part in self._parts:
            named = part.naming(name)
            naming += len(named)
            if naming > _MOST_CALLERS:
                return frozenset({_HANDED_ON})
            for relative in () if _HANDED_ON in found else named:
                found |= part.calls(name, relative)
            if _HANDED_ON in found:
                break
        return found - {name}


class _Part:
    """Some files of a tree: of a change, one of many is asked again."""

    def __init__(self, files: Mapping[str, SourceFile], store: Store | None) -> None:
        self._files = files
        self._store = store
        self._grown = False
        self._holding_any: dict[tuple[str, ...], Sequence[tuple[str, str]]] = {}

    @cached_property
    def _key(self) -> tuple[bytes, bytes]:
        files = "\n".join(f"{name} {file.sha256}" for name, file in self._files.items())
        return b"calls", hashlib.sha256(files.encode("utf-8", "surrogateescape")).digest()

    @cached_property
    def _known(self) -> dict[str, list[str]]:
        """Return answers by question, from the last time."""
        data = self._store.get(*self._key) if self._store else None
        known: dict[str, list[str]] = {} if data is None else json.loads(data)
        return known

    @cached_property
    def _warm(self) -> Sequence[tuple[str, str]]:
        """Return the texts that a step may run, as they are and in small letters.

        Every question is about all of them: to make letters small takes twenty times as long as to
        look for a word. Code for an NPU counts wherever it lies: ``converters/rms_norm.py``.
        """
        files = self._files.items()
        texts = (f.text for name, f in files if not is_cold(name) or "torch_npu." in f.text)
        return [(text, text.lower()) for text in texts]

    def _holding(self, parts: tuple[str, ...]) -> Sequence[tuple[str, str]]:
        """Return those of them that hold one of some texts: each class asks for the same ones."""
        if parts not in self._holding_any:
            self._holding_any[parts] = [pair for pair in self._warm if _holds_any(pair[1], parts)]
        return self._holding_any[parts]

    def keep(self) -> None:
        """Keep the answers, if there are new ones."""
        if self._store and self._grown:
            self._store.put(json.dumps(self._known).encode(), *self._key)

    def _ask(self, find: Callable[[], Iterable[str]], *words: str) -> list[str]:
        question = "\n".join(words)
        if question not in self._known:
            self._known[question] = sorted(find())
            self._grown = True
        return self._known[question]

    def mentions(self, wanted: Mention) -> bool:
        """Tell whether a file that a step may run has these words outside of comments."""

        def find() -> Iterator[str]:
            likely = self._holding(tuple(wanted.shared)) if wanted.shared else self._warm
            texts = (text for text, low in likely if _holds_any(low, wanted.parts))
            found = (m for text in texts for m in re.finditer(wanted.words, text))
            before = (m.string[m.string.rfind("\n", 0, m.start()) + 1 : m.start()] for m in found)
            if any("#" not in line for line in before):
                yield _NAMED

        return bool(self._ask(find, "mentions", wanted.words))

    def naming(self, name: str) -> list[str]:
        """Return the files that have a name, or one more than are followed."""
        held = ((n, f.text) for n, f in self._files.items() if name in f.text)
        files = (n for n, text in held if re.search(rf"\b{name}\b", text))
        return self._ask(lambda: islice(files, _MOST_CALLERS + 1), "names", name)

    def users(self, name: str, relative: str) -> frozenset[str]:
        """Return the definitions of a file that mention a name."""
        text = self._files[relative].text
        return frozenset(self._ask(lambda: _users_in(text, name), "users", name, relative))

    def calls(self, name: str, relative: str, how: str = "calls") -> frozenset[str]:
        """Return who calls a function in a file; but for ``calls`` one name for what runs once."""
        text, tell = self._files[relative].text, _TELL[how]
        callers = self._ask(lambda: _callers_in(text, name, tell), how, name, relative)
        return frozenset({_BESIDE} if callers and is_cold(relative) else callers)


def _made_again(name: str) -> Mention:
    """Return how code says that a class is made several times, or is handed on."""
    made = rf"(?<!class )\b{name}\("
    words = (
        rf"{made}(?:(?!\n\s*def |\nclass )[\s\S]){{0,800}}?\)\s*for \w"
        rf"|\.(append|add_module|insert|extend)\([^\n]*(\n[^\n]*)?{made}"
        rf"|(clones?|deepcopy|repeat)\w*\(\s*{made}|layer\w*\s*=\s*{made}|{made}[\s\S]*{made}"
        rf"|(?m:^(?!\s*(from|import|class)\b)[^\n]*[=(,\[:]\s*{name}(?=\s*[,)\]}}]|$))"
    )
    return Mention(words, (name.lower(),))


def _is_program(files: Mapping[str, SourceFile]) -> bool:
    """Tell whether a tree has a script, and neither it nor a folder above is a package."""
    if "__init__.py" in files or not any(
        f.is_python and _STARTS in f.text and not is_cold(name) for name, f in files.items()
    ):
        return False
    name, file = next(iter(files.items()))
    root = file.path.absolute().parents[name.count("/")]
    for folder in (root, *root.parents):
        if folder.name in _INSTALLED or any((folder / made).exists() for made in _PACKS):
            return False
        if (folder / ".git").exists():
            break
    return True


def _holds_any(text: str, parts: Sequence[str]) -> bool:
    return any(part in text for part in parts)


def _part_of(file: str) -> int:
    return crc32(file.encode("utf-8", "surrogateescape")) % _PARTS


def _callers_in(
    text: str, name: str, tell: Callable[[Scope, ast.Module, str], str]
) -> frozenset[str]:
    """Return what ``tell`` calls the functions of a module that call one, ``_HANDED_ON`` a step."""
    try:
        module = _read(text)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset({_HANDED_ON})
    left = module.mentions[name]
    found: set[str] = set()
    for scope, calls in module.calls.get(name, ()) if left else ():
        left -= calls
        found.add(tell(scope, module.tree, name))
    return frozenset({*found, _NAMED} if left else found)


def _tell_step(scope: Scope, tree: ast.Module, _name: str) -> str:
    """Return what a caller is: a step, what builds or tries things, or somebody with a name."""
    from npufix.rewriters.facts.occasions import is_hot, sets_up

    if sets_up(scope):
        return _BUILDS
    if _TESTS.match(scope.function.name):
        return _BESIDE
    return _HANDED_ON if is_hot(scope, tree) else scope.function.name


def _tell_once(scope: Scope, _tree: ast.Module, name: str) -> str:
    """Return ``_BESIDE`` for a caller that runs once."""
    from npufix.rewriters.facts.occasions import EACH_STEP

    own = scope.function.name
    once = _RUNS_ONCE.fullmatch(own) is not None
    often = _is_called_in_loop(scope, name) or own in {"main", MODULE}
    if often or not (once or EACH_STEP.isdisjoint(own.lower().split("_"))):
        return _HANDED_ON
    return _BESIDE if once else own


def _tell_between(scope: Scope, _tree: ast.Module, name: str) -> str:
    """Return ``_BESIDE`` for who calls it once for many steps: ``run_epoch``, behind its loop."""
    often = _TRAINS_LONG.fullmatch(scope.function.name) is None or _is_called_in_loop(scope, name)
    return _HANDED_ON if often else _BESIDE


_TELL = {"calls": _tell_step, "inferring": _tell_once, "between": _tell_between}


def _is_called_in_loop(scope: Scope, name: str) -> bool:
    """Tell whether a function calls another one several times: for each batch of a loader."""
    several = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.GeneratorExp, ast.DictComp)
    loops = (n for n in walk(*scope.function.body) if isinstance(n, several))
    inside = (n for loop in loops for n in walk(loop))
    return any(isinstance(n, ast.Call) and _name(n.func) == name for n in inside)


def _users_in(text: str, name: str) -> frozenset[str]:
    """Return what mentions a name in a module, but for imports and what has the name itself."""
    try:
        module = _read(text)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset({_NAMED})
    if name not in module.mentions and not re.search(rf"(def|class) {name}\b|\b{name} as ", text):
        # an import alone, or a comment; or a part of a text, which may be a path to it
        words = (word for word in module.mentions if "." in word or ":" in word)
        return frozenset({_NAMED} if any(name in re.split(r"\W", w) for w in words) else ())
    found: set[str] = set()
    for statement in module.tree.body:
        if _is_export(statement):
            continue
        own = getattr(statement, "name", None)
        if own == name:
            registers = any(map(_may_register, getattr(statement, "decorator_list", ())))
            found |= {_NAMED} if registers else set()
        elif any(_says(node, name) for node in walk(statement)):
            found.add(own or _NAMED)
    return frozenset(found)


def _is_export(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and _exports(statement)


def _may_register(decorator: ast.expr) -> bool:
    code = decorator.func if isinstance(decorator, ast.Call) else decorator
    return not ast.unparse(code).startswith(("torch.", "functools.", "dataclass"))


def _says(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Constant(str(text)):
            return _A_PATH.fullmatch(text) is not None and name in re.split(r"\W", text)
        case ast.keyword(arg) | ast.arg(arg):
            return arg == name
        case ast.alias(full, asname):  # ``from layers import Encoder as PixelEncoder``
            return full.rpartition(".")[2] == name and asname not in {None, name}
    return _name(node) == name


@dataclass(frozen=True, slots=True)
class _Module:
    """What a module says of names: it is walked once, however many of them are asked for."""

    tree: ast.Module
    mentions: Counter[str]
    """How often it mentions each name, in a text of that name as well."""
    calls: Mapping[str, Sequence[tuple[Scope, int]]]
    """The functions that call each name, with how often they do."""


@lru_cache(maxsize=64)
def _read(text: str) -> _Module:
    module = ast.parse(text)
    exports = [n for n in module.body if isinstance(n, ast.Assign) and _exports(n)]
    mentions = Counter[str]()
    for node in walk(*(n for n in module.body if n not in exports)):
        name = node.value if isinstance(node, ast.Constant) else _name(node)
        if isinstance(name, str):
            mentions[name] += 1
    calls: dict[str, list[tuple[Scope, int]]] = {}
    for scope in scopes(module):
        inner = walk(*scope.function.body, closed=_LATER)
        called = Counter(_name(node.func) for node in inner if isinstance(node, ast.Call))
        for name, times in called.items():
            if name is not None:
                calls.setdefault(name, []).append((scope, times))
    return _Module(module, mentions, calls)


def _exports(statement: ast.Assign) -> bool:
    return any(_name(target) == "__all__" for target in statement.targets)


def _name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return None
