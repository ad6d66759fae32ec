"""Who calls a function, in all files of a source tree: what only builds a model is no step.

``_wigner_nj`` is called by ``U_matrix_real`` of the same file, and that by the ``__init__`` of a
module in another one.
"""

from __future__ import annotations

import ast
import hashlib
import re
from functools import cache, cached_property, lru_cache, partial
from typing import TYPE_CHECKING

from npufix.advisor.project.cold_files import is_cold, is_test
from npufix.rewriters.facts.occasions import is_hot, sets_up
from npufix.rewriters.graph.modules.scopes import MODULE, scopes
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npufix.advisor.project.source_tree import SourceFile
    from npufix.advisor.project.stored import Store
    from npufix.rewriters.edit.site import Site

_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MOST_CALLERS = 8
"""Who is called by more than that, or named in more files, is not followed: a step may call it."""
_HANDED_ON, _NAMED, _BUILDS, _BESIDE = "<step>", "<name>", "<building>", "<beside>"
"""What stand among the names of callers: a step, a name that nobody calls, building, examples."""


class Callers:
    """The calls of functions in a source tree, by the names of the functions."""

    def __init__(self, files: Mapping[str, SourceFile], store: Store | None = None) -> None:
        self._files = {n: f for n, f in files.items() if f.is_python and not is_test(n)}
        self._store = store
        self._known: dict[str, frozenset[str]] = {}
        self.mention = cache(self._mention)

    def _mention(self, words: re.Pattern[str]) -> bool:
        """Tell whether any file of the tree that a step may run has these words in its code."""

        def find() -> frozenset[str]:
            texts = (f.text for name, f in self._files.items() if not is_cold(name))
            found = (m for text in texts for m in words.finditer(text))
            before = (m.string[m.string.rfind("\n", 0, m.start()) + 1 : m.start()] for m in found)
            return frozenset({_NAMED} if any("#" not in line for line in before) else ())

        return bool(self._read_kept((b"mention", words.pattern.encode(), self._tree), find))

    def set_up(self, function: str, file: str) -> bool:
        """Tell whether a function (its qualified name) runs where something is built, only there.

        Everybody who calls it by its name does so from the ``__init__`` of a module or the like,
        and nobody hands it on; a function that nobody calls may be called by anyone.
        """
        names, built = [function.rpartition(".")[2]], False
        if "<" in function or names == ["forward"]:  # torch calls it, whoever else does
            return False
        for name in names:  # grows
            callers = self._of(name, file)
            if name.startswith("__") or not callers or callers & {_HANDED_ON, _NAMED}:
                return False
            built = built or _BUILDS in callers
            names += sorted(callers - {*names, _BUILDS, _BESIDE})
            if len(names) > _MOST_CALLERS:
                return False
        return built

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

    def _of(self, name: str, file: str) -> frozenset[str]:
        """Return who calls a function, remembered."""
        if name not in self._known:
            key = b"calling", name.encode(), self._tree
            self._known[name] = self._read_kept(key, partial(self._callers_of, name, file))
        return self._known[name]

    @cached_property
    def _tree(self) -> bytes:
        """Return what tells the files from any others."""
        files = (f"{name} {file.sha256}" for name, file in sorted(self._files.items()))
        return hashlib.sha256("\n".join(files).encode("utf-8", "surrogateescape")).digest()

    def _callers_of(self, name: str, file: str) -> frozenset[str]:
        """Return who calls a function; the first step that does, mostly beside it, ends it."""
        word = re.compile(rf"\b{name}\b")
        found: set[str] = set()
        naming = 0
        for relative in sorted(self._files, key=lambda other: other != file):
            text = self._files[relative].text
            if name in text and word.search(text):
                naming += 1
                if naming > _MOST_CALLERS:
                    return frozenset({_HANDED_ON})
                key = b"calling", name.encode(), self._files[relative].sha256.encode()
                callers = self._read_kept(key, partial(_callers_in, text, name))
                found |= {_BESIDE} if callers and is_cold(relative) else callers
                if _HANDED_ON in found:
                    break
        return frozenset(found - {name})

    def _read_kept(
        self, key: tuple[bytes, ...], find: Callable[[], frozenset[str]]
    ) -> frozenset[str]:
        """Return what is found, as far as possible from the last time."""
        known = self._store.get(*key) if self._store else None
        if known is not None:
            return frozenset(known.decode().split())
        found = find()
        if self._store:
            self._store.put(" ".join(sorted(found)).encode(), *key)
        return found


def _callers_in(text: str, name: str) -> frozenset[str]:
    """Return the functions of a module that call one, ``_HANDED_ON`` for a step."""
    try:
        module, mentions = _read(text)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset({_HANDED_ON})
    left = mentions.get(name, 0)
    found: set[str] = set()
    for scope in scopes(module) if left else ():
        inner = walk(*scope.function.body, closed=_LATER)
        calls = [n for n in inner if isinstance(n, ast.Call) and _name(n.func) == name]
        left -= len(calls)
        if calls and sets_up(scope):
            found.add(_BUILDS)
        elif calls:
            found.add(_HANDED_ON if is_hot(scope, module) else scope.function.name)
    return frozenset({*found, _NAMED} if left else found)


@lru_cache(maxsize=64)
def _read(text: str) -> tuple[ast.Module, Mapping[str, int]]:
    """Return a module, and how often it mentions each name, in a text of that name as well."""
    module = ast.parse(text)
    found: dict[str, int] = {}
    exports = [n for n in module.body if isinstance(n, ast.Assign) and _exports(n)]
    for node in walk(*(n for n in module.body if n not in exports)):
        name = node.value if isinstance(node, ast.Constant) else _name(node)
        if isinstance(name, str):
            found[name] = found.get(name, 0) + 1
    return module, found


def _exports(statement: ast.Assign) -> bool:
    return any(_name(target) == "__all__" for target in statement.targets)


def _name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return None
