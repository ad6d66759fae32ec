"""Turn the text of a user's module into a namespace that holds the function to verify.

Only the definitions that the function needs are executed: that is faster than the whole module
(``transformers`` imports for seconds), survives imports that are missing here, and does not
start a training script. Where that fails the whole module is executed, and at last the needed
definitions again: what cannot be imported is then taken from the neighbouring files in the same
way, and has a placeholder where even that fails.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import importlib
import linecache
import re
import sys
import sysconfig
import types
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from npufix.rewriters.edit.job import PROBE
from npufix.rewriters.graph.modules.packages import package_of
from npufix.rewriters.graph.modules.syntax import parse_once
from npufix.rewriters.verification.calls.named_device import take_names_in
from npufix.rewriters.verification.inputs.objects.lightning import find_lightning
from npufix.rewriters.verification.inputs.objects.openmmlab.functions import find_openmmlab
from npufix.rewriters.verification.inputs.objects.placeholders import (
    HOLDS_NONE,
    ModuleOfFiles,
    Placeholder,
    find_answer,
    while_loading,
)
from npufix.rewriters.verification.inputs.objects.progress import find_progress
from npufix.rewriters.verification.inputs.overlay import find_text
from npufix.rewriters.verification.inputs.source.slicing import (
    IMPORTS,
    list_bound_names,
    list_used_names,
    slice_module,
)
from npufix.rewriters.verification.sandbox.preloading import wants_compiler
from npufix.rewriters.verification.sandbox.remote import passes_on, runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

files_read: set[str] = set()
"""Files whose definitions were taken without importing them; a verdict stands on them as well."""
_looked_at: set[str] = set()
"""The modules that need not be asked again for their files: those of the server, in its forks."""
_own: set[str] = set()
"""The files of the user that those are from."""
_IMPORT_S = 30.0
_OURS = "__npufix__"
_Decorated: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef"
_DECORATED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_HERE = Path(__file__).parents[3]
_INSTALLED = ("site-packages", "dist-packages")
_DEEPEST = 9
"""How many files away a definition is looked for."""
_CONFIG_BASE = r"^Pre[tT]rained\w*Config$"
"""Its own file needs half of the package; a configuration needs nothing of it here."""


@passes_on
class LoadError(Exception):
    """The text cannot be brought to life here; the message says why."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module of the user, or the part of it that was needed."""

    namespace: dict[str, object]
    filename: str
    """What its code objects carry: tells the lines of two versions of one file apart."""
    missing: tuple[str, ...] = ()
    """Imports that a placeholder stands for."""
    names: tuple[str, ...] = ()
    """Everything that the file defines or imports, executed or not."""
    find: Callable[[str], object] = field(default=lambda _: None)
    """Return one of ``names``, executing what it needs; None if that is not possible."""
    way: Literal["exactly", "whole", "partly"] = "exactly"
    """What of the file was executed; partly: what could not be imported was replaced."""


@dataclass(slots=True)
class _Package:
    """The files of the user's package that were read so far."""

    folders: tuple[Path, ...]
    files: dict[Path, _Module] = field(default_factory=dict)


@cache
def can_import(package: str, folder: Path) -> bool:
    """Say whether a package imports, and is the one that the user's file belongs to."""
    failed = try_call(lambda: importlib.import_module(package), _IMPORT_S).error
    top = package.partition(".")[0]
    found = getattr(sys.modules.get(top), "__path__", None) or [""]
    return not failed and Path(found[0]).resolve() == (folder / top).resolve()


def make_importable(*folders: Path) -> None:
    """Put folders behind the standard library and before installed packages."""
    at = next(
        (i for i, entry in enumerate(sys.path) if entry.endswith(("site-packages", "-packages"))),
        len(sys.path),
    )
    for folder in folders:
        if str(folder) not in sys.path:
            sys.path.insert(at, str(folder))


def load(text: str, path: str, root: str, qualname: str, tag: str) -> Loaded:
    """Execute what ``qualname`` needs of ``text``.

    Raises:
        LoadError: nothing works; it says what has failed first.

    """
    if wants_compiler(text):
        # It takes longer than a call may.
        importlib.import_module("torch._dynamo")
    take_names_in(text)
    _, folder = package_of(Path(path))
    make_importable(folder, Path(root))
    try:
        module = _Module(text, Path(path), tag, _Package((folder, Path(root))))
    except (SyntaxError, ValueError) as error:
        raise LoadError(f"the text does not compile: {error}") from None
    target = qualname.partition(".")[0]
    needed = slice_module(module.tree, target)
    if not any(target in list_bound_names(statement) for statement in needed):
        raise LoadError(f"{target} is not defined in this file")
    reasons: list[str] = []
    for execute in (
        lambda: module.exactly(needed),
        module.whole,
        lambda: module.as_far_as_possible([target]),
    ):
        outcome = try_call(execute, _IMPORT_S)
        loaded = outcome.value
        if isinstance(loaded, Loaded) and target in loaded.namespace:
            return loaded
        reasons.append(outcome.error or f"{target} is not there after the import")
    raise LoadError(f"the definitions cannot be executed: {reasons[0]}")


def import_whole(text: str, path: str, root: str, tag: str) -> str:
    """Execute ``text`` as an import would; return what it raises, "" if nothing."""
    _, folder = package_of(Path(path))
    make_importable(folder, Path(root))
    try:
        module = _Module(text, Path(path), tag, _Package((folder, Path(root))))
    except (SyntaxError, ValueError) as error:
        return f"it does not compile: {error}"
    return try_call(module.whole, _IMPORT_S).error


@runs_with_target
def list_own_files() -> list[str]:
    """Return the files of the user that were executed in this process, in whole or in part."""
    installed = (*_INSTALLED, sysconfig.get_path("stdlib"), str(_HERE))
    new = [name for name in list(sys.modules) if name not in _looked_at]
    modules = [m for m in map(sys.modules.get, new) if not hasattr(m, _OURS)]
    files = {str(getattr(m, "__file__", None) or "") for m in modules}
    _own.update(f for f in files if f.endswith(".py") and not any(i in f for i in installed))
    _looked_at.update(new)
    return sorted(_own | files_read)


class _Module:
    def __init__(self, text: str, path: Path, tag: str, package: _Package, depth: int = 0) -> None:
        self.tree = parse_once(text)
        self._path = path
        # Statements may be compiled one by one, where a future import would bind only itself.
        lazy = "from __future__ import annotations" in text
        self._flags = __future__.annotations.compiler_flag if lazy else 0
        self._inside, self._folder = package_of(path)
        self._name = f"{self._inside}.{path.stem}" if self._inside else path.stem
        self._filename = f"{path} ({tag})"
        self._package = package
        self._depth = depth
        self._live: types.ModuleType | None = None
        self._done: set[int] = set()
        self._missing: set[str] = set()
        self._sought: set[str] = set()
        self._is_loaded = False
        linecache.cache[self._filename] = (
            len(text),
            None,
            text.splitlines(keepends=True),
            self._filename,
        )

    def _fresh(self) -> types.ModuleType:
        module = types.ModuleType(self._name)
        module.__file__ = str(self._path)
        module.__package__ = self._inside
        module.__dict__[_OURS] = True
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import_late}
        module.__dict__["__getattr__"] = self._find_late
        self._live, self._done = module, set()
        # Dataclasses and typing look their module up by name. A real module of that name stays:
        # a user's ``random.py`` must not replace the library's.
        previous = sys.modules.get(self._name)
        if previous is None or hasattr(previous, _OURS):
            sys.modules[self._name] = module
        return module

    def _execute(self, body: list[ast.stmt], module: types.ModuleType) -> None:
        code = compile(
            ast.Module(body, []), self._filename, "exec", flags=self._flags, dont_inherit=True
        )
        exec(code, module.__dict__)  # noqa: S102 - running the user's code is this package's purpose

    def _load(self, module: types.ModuleType, way: Literal["exactly", "whole", "partly"]) -> Loaded:
        names = sorted(set[str]().union(*map(list_bound_names, self.tree.body)))
        missing = tuple(sorted(self._missing))
        self._is_loaded = True
        return Loaded(module.__dict__, self._filename, missing, tuple(names), self.find, way)

    def whole(self) -> Loaded:
        """Execute every statement, as an import would."""
        if self._inside and not can_import(self._inside, self._folder):
            raise ImportError(f"{self._inside} cannot be imported here")
        module = self._fresh()
        self._execute(self.tree.body, module)
        self._done = set(map(id, self.tree.body))
        return self._load(module, "whole")

    def exactly(self, statements: Sequence[ast.stmt]) -> Loaded:
        """Execute ``statements``, imports included; any of them may raise."""
        module = self._fresh()
        for statement in statements:
            own = isinstance(statement, ast.ImportFrom) and statement.level > 0
            if own and not can_import(self._inside, self._folder):
                raise ImportError(f"{self._inside} cannot be imported here")
            self._execute([statement], module)
            self._done.add(id(statement))
        return self._load(module, "exactly")

    def find(self, name: str) -> object:
        """Return one more definition; None if it cannot be had.

        Files that import each other may ask for what is only about to be there. ``Plane/Vector`` is
        what the class ``Plane`` calls so, in the file that it is of.
        """
        first, _, inner = name.partition("/")
        if inner:
            return find_beside(self.find(first), inner)
        known = self._live is not None and name in self._live.__dict__
        if not known and name not in self._sought:
            self._sought.add(name)
            try_call(lambda: self.as_far_as_possible([name], again=False), _IMPORT_S)
            self._sought.discard(name)
        found = self._live.__dict__.get(name) if self._live is not None else None
        return None if isinstance(found, Placeholder) else found

    def holds_none(self, name: str) -> bool:
        """Say whether a definition that was sought is there, and is None."""
        held = {} if self._live is None else self._live.__dict__
        return name in held and held[name] is None

    def _find_late(self, name: str) -> object:
        """Return what a package wants of this file, whose other file a function imports."""
        found = None if name.startswith("__") or not self._is_loaded else self.find(name)
        if found is None:
            raise AttributeError(f"module {self._name!r} has no attribute {name!r}")
        return found

    def as_far_as_possible(self, names: Sequence[str], *, again: bool = True) -> Loaded:
        """Execute what ``names`` need, with something else for what cannot be imported."""
        module = self._live if self._live is not None and not again else self._fresh()
        statements = [s for name in names for s in slice_module(self.tree, name)]
        wanted = set(names).union(*map(list_used_names, statements))
        with while_loading():
            for statement in statements:
                if id(statement) in self._done:
                    continue
                if isinstance(statement, IMPORTS):
                    self._import(statement, wanted, module)
                    continue
                self._done.add(id(statement))
                failed = try_call(lambda s=statement: self._execute([s], module), _IMPORT_S).error  # type: ignore[misc] # a default binds it
                made = vars(module).get(getattr(statement, "name", ""))
                if isinstance(statement, _DECORATED) and (failed or isinstance(made, Placeholder)):
                    self._define_bare(statement, module)
        return self._load(module, "partly")

    def _define_bare(self, statement: _Decorated, module: types.ModuleType) -> None:
        """Execute a definition without those of its decorators that fail."""
        bare = copy.deepcopy(statement)
        bare.decorator_list = []
        if isinstance(bare, ast.ClassDef):
            for method in bare.body:
                if isinstance(method, _DECORATED):
                    kept = [d for d in method.decorator_list if self._decorates(d, module)]
                    method.decorator_list = kept
        if try_call(lambda: self._execute([bare], module), _IMPORT_S).error:
            return
        for decorator in reversed(statement.decorator_list):
            known = vars(module)[statement.name]
            call = ast.Call(decorator, [ast.Name(statement.name, ast.Load())], [])
            again = ast.Assign([ast.Name(statement.name, ast.Store())], call)
            again = ast.fix_missing_locations(ast.copy_location(again, decorator))
            failed = try_call(lambda s=again: self._execute([s], module), _IMPORT_S).error  # type: ignore[misc] # a default binds it
            if failed or isinstance(vars(module)[statement.name], Placeholder):
                vars(module)[statement.name] = known
                self._leave_out(decorator)

    def _decorates(self, decorator: ast.expr, module: types.ModuleType) -> bool:
        """Say whether a decorator of a method works; that of another part of a property does."""
        if getattr(decorator, "attr", "") in {"setter", "deleter"}:
            return True
        nothing = ast.parse("lambda *given, **named: None", mode="eval").body
        call = ast.Expr(ast.Call(decorator, [nothing], []))
        tried = ast.fix_missing_locations(ast.copy_location(call, decorator))
        if not try_call(lambda: self._execute([tried], module), _IMPORT_S).error:
            return True
        self._leave_out(decorator)
        return False

    def _leave_out(self, decorator: ast.expr) -> None:
        self._missing.add(f"@{ast.unparse(decorator).partition('(')[0]}")

    def _import(
        self,
        statement: ast.Import | ast.ImportFrom,
        wanted: Iterable[str],
        module: types.ModuleType,
    ) -> None:
        for alias in statement.names:
            (name,) = list_bound_names(ast.Import([alias]))
            if name in module.__dict__ or (name != "*" and name not in wanted):
                continue
            if self._imports(statement, alias, module):
                continue
            if name == "*" and isinstance(statement, ast.ImportFrom):
                self._import_all(statement, wanted, module)
                continue
            found = self._find_imported(statement, alias)
            if found is None and (found := find_answer(alias.name)) is not None:
                self._missing.add(f"{name}, taken for False")
            of = statement.module or "" if isinstance(statement, ast.ImportFrom) else alias.name
            if found is None and (found := find_openmmlab(of, alias.name)) is not None:
                self._missing.add(f"{of}.{alias.name} by what it is known to do")
            if found is not None:
                module.__dict__[name] = None if found is HOLDS_NONE else found
                continue
            module.__dict__[name] = Placeholder(name)
            where = of if of != name else ""
            self._missing.add(f"{name} of {where}" if where else name)

    def _find_imported(self, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> object:
        """Return a name out of the files of the user, or what is known to stand for it."""
        of: str | None = None
        if isinstance(statement, ast.Import):
            known = alias.name if alias.asname else alias.name.partition(".")[0]
            found: object = self._of_files(known, 0)
        else:
            of, found = statement.module, None
            if not re.search(_CONFIG_BASE, alias.name):
                found = self._neighbour(statement, alias.name)
                inner = ".".join(filter(None, (of, alias.name)))
                found = self._of_files(inner, statement.level) if found is None else found
        names = [n for n in (of, alias.name) if n]
        return find_progress(*names) or find_lightning(*names) if found is None else found

    def _import_all(
        self,
        statement: ast.ImportFrom,
        wanted: Iterable[str],
        module: types.ModuleType,
    ) -> None:
        """Take what nothing else in the file defines from where everything was to come from.

        What one such file has not, the next may have: only then it is missing.
        """
        own = set[str]().union(*map(list_bound_names, self.tree.body))
        held = {n for n, value in vars(module).items() if not isinstance(value, Placeholder)}
        for name in sorted({*wanted} - own - {PROBE} - vars(builtins).keys() - held):
            found = self._neighbour(statement, name)
            known = None if found is HOLDS_NONE else found
            module.__dict__[name] = Placeholder(name) if found is None else known
            self._missing = self._missing - {name} | ({name} if found is None else set())

    def _imports(
        self, statement: ast.Import | ast.ImportFrom, alias: ast.alias, module: types.ModuleType
    ) -> bool:
        """Import one name for real, if the package that it comes from can be imported."""
        alone: ast.stmt = ast.copy_location(ast.Import([alias]), statement)
        if isinstance(statement, ast.ImportFrom):
            own = statement.level > 0
            if own and not can_import(self._inside, self._folder):
                return False
            made = ast.ImportFrom(statement.module, [alias], statement.level)
            alone = ast.copy_location(made, statement)
        return not try_call(lambda: self._execute([alone], module), _IMPORT_S).error

    def _import_late(
        self,
        name: str,
        scope: Mapping[str, object] | None = None,
        held: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        """Import inside a function: out of the files of the user, where nothing else works."""

        def imported() -> object:
            return builtins.__import__(name, scope, held, fromlist or (), level)

        if not self._is_loaded:
            return imported()
        try:
            found = imported()
        except ImportError:
            found = None
        if found is None or hasattr(found, _OURS):  # a part of a file, as far as it was needed
            files = self._of_files(name if fromlist else name.partition(".")[0], level)
            return imported() if files is None else files
        return found

    def _neighbour(self, statement: ast.ImportFrom, name: str) -> object:
        """Return a definition out of another file of the user, without importing its package."""
        if self._depth == _DEEPEST:
            return None
        for path in self._files_of(statement):
            other = self._package.files.get(path)
            if other is None:
                outcome = try_call(lambda p=path: self._read(p), _IMPORT_S)  # type: ignore[misc] # a default binds it
                if not isinstance(outcome.value, _Module):
                    continue
                other = self._package.files[path] = outcome.value
            found = other.find(name)
            if found is not None:
                return found
            if other.holds_none(name):
                return HOLDS_NONE
        return None

    def _of_files(self, dotted: str, level: int) -> ModuleOfFiles | None:
        """Return a module of the user, or a folder of such, for ``from . import boxes``."""
        if self._depth == _DEEPEST:
            return None
        parts = dotted.split(".")
        bases = [self._path.parents[level - 1]] if level else self._package.folders
        places = [place for base in bases if (place := base.joinpath(*parts)).is_dir()]
        named = ast.ImportFrom(dotted, [], level)
        if not places and not self._files_of(named):
            return None

        def find(name: str) -> object:
            found = self._neighbour(named, name)
            if found is None:
                return self._of_files(f"{dotted}.{name}", level)
            return found

        return ModuleOfFiles(dotted, find)

    def _read(self, path: Path) -> _Module:
        text = find_text(path) or path.read_text(encoding="utf-8")
        files_read.add(str(path))
        return _Module(text, path, "neighbour", self._package, self._depth + 1)

    def _files_of(self, statement: ast.ImportFrom) -> list[Path]:
        parts = (statement.module or "").split(".") if statement.module else []
        bases = list(self._package.folders)
        if statement.level:
            bases = [self._path.parents[statement.level - 1]]
        places = [base.joinpath(*parts) for base in bases]
        files = [f for p in places for f in (p.with_suffix(".py"), p / "__init__.py")]
        return [file for file in dict.fromkeys(files) if file.is_file()]


def find_beside(owner: object, names: str) -> object:
    """Return what the file of a class has under a name."""
    first, _, inner = names.partition("/")
    found = getattr(getattr(owner, "__init__", None), "__globals__", {}).get(first)
    return find_beside(found, inner) if inner else found
