"""The source of what is loaded, and the proof that it is its source.

A function may have been decorated, replaced, or its file edited since it was imported. What is
rewritten is the source, so only a function whose code is that of the source is exchanged.
"""

from __future__ import annotations

import ast
import linecache
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from npufix.advisor.runtime.process.applying import current
from npufix.advisor.runtime.process.hook import concerns
from npufix.advisor.runtime.source.rewriting import change_tree, functions
from npufix.rewriters.graph.modules.syntax import statements_below

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.advisor.runtime.modules.facts import Facts
    from npufix.advisor.runtime.source.places import NewImport, RulePlace
    from npufix.advisor.runtime.source.selection import RuleSelection

    Definition = ast.FunctionDef | ast.AsyncFunctionDef

_MOST_WRAPPERS = 16


class LoadedFile:
    """A Python file as it was loaded: its functions, and what the rules would change in it."""

    def __init__(
        self, path: str, data: bytes, selection: RuleSelection, known: frozenset[str]
    ) -> None:
        self.path = path
        self.known = known
        """The conditions of ``selection`` that the model proves."""
        code = compile(data, path, "exec", dont_inherit=True)
        self._codes: dict[str, list[CodeType]] = {}
        for name, function in functions(code):
            self._codes.setdefault(name, []).append(function)
        found, tree = change_tree(path, data, selection)
        self.problem = found.problem
        self.places: tuple[RulePlace, ...] = found.places
        self.imports: tuple[NewImport, ...] = found.imports
        self._own = ast.parse(data)
        self._new = tree

    def holds(self, function: FunctionType) -> bool:
        """Tell whether the code of a function is the one that this file says."""
        return function.__code__ in self._codes.get(_qualname(function), ())

    def places_in(self, function: FunctionType) -> list[RulePlace]:
        """Return the places of the rules inside a function, whatever becomes of them."""
        name = _qualname(function)
        node = self._node(self._own, function)
        if node is None:  # it was loaded from another version of the file
            return [place for place in self.places if place.function == name]
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return [place for place in self.places if place.line in lines]

    def definition(self, function: FunctionType, *, new: bool) -> tuple[Definition, str] | None:
        """Return the tree of a function and the name of its class, of the changed file if ``new``.

        The trees have the positions of the file on disk.
        """
        tree = self._new if new else self._own
        found = None if tree is None else self._node(tree, function)
        parts = _qualname(function).split(".")
        is_method = len(parts) > 1 and parts[-2] != "<locals>"
        return None if found is None else (found, parts[-2] if is_method else "")

    @staticmethod
    def _node(tree: ast.Module, function: FunctionType) -> Definition | None:
        name, line = _qualname(function), function.__code__.co_firstlineno
        for qualname, node in _definitions(tree.body, ""):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if qualname == name and first == line:
                return node
        return None


def _qualname(function: FunctionType) -> str:
    # What a decorator says about itself may be that of another function; the code's own is not.
    return str(getattr(function.__code__, "co_qualname", function.__qualname__))


def _definitions(block: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
    """Yield the functions below some statements, by their ``__qualname__``."""
    for statement in block:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{statement.name}"
            yield name, statement
            yield from _definitions(statement.body, f"{name}.<locals>.")
        elif isinstance(statement, ast.ClassDef):
            yield from _definitions(statement.body, f"{prefix}{statement.name}.")
        else:
            yield from _definitions(statements_below(statement), prefix)


class LoadedFiles:
    """The files of loaded functions, each read once."""

    def __init__(self, selection: RuleSelection, facts: Facts) -> None:
        self._selection = selection
        self._facts = facts
        self._files: dict[str, LoadedFile | None] = {}

    def of(self, function: FunctionType) -> LoadedFile | None:
        """Return the file that a function comes from, ``None`` if nothing in it can be changed."""
        return self._look_up(function.__code__.co_filename, function.__globals__)

    def of_class(self, cls: type) -> LoadedFile | None:
        """Return the file that a class comes from, as its module says."""
        module = sys.modules.get(cls.__module__)
        path = getattr(module, "__file__", None)
        return self._look_up(path, vars(module)) if module and isinstance(path, str) else None

    def _look_up(self, path: str, variables: dict[str, Any]) -> LoadedFile | None:
        if path not in self._files:
            self._files[path] = self._read(path, variables)
        return self._files[path]

    def _read(self, path: str, variables: dict[str, Any]) -> LoadedFile | None:
        module = str(variables.get("__name__"))
        data = _data(path, variables)
        if data is None or not concerns(module, path, data):
            return None
        try:
            has_waves = b"cos" in data and b"sin" in data
            known = self._facts.proven(module, ast.parse(data)) if has_waves else frozenset()
            allow = self._selection.allow | known
            found = _load(path, data, replace(self._selection, allow=allow), known)
        except (SyntaxError, ValueError, RecursionError):  # then it is not what was loaded
            return None
        return None if found.problem else found


@lru_cache(maxsize=64)
def _load(path: str, data: bytes, selection: RuleSelection, known: frozenset[str]) -> LoadedFile:
    return LoadedFile(path, data, selection, known)


def _data(path: str, variables: dict[str, Any]) -> bytes | None:
    """Return the source of a file, or of a cell of a notebook."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError):
        lines = linecache.getlines(path, variables)
        return "".join(lines).encode() if lines else None


def why_changed(file: LoadedFile, function: FunctionType) -> str:
    """Return why a function is not the one that its file says, "" if it is."""
    if file.holds(function):
        return ""
    if current() is not None:
        return "apply_fused_kernels() without a model has changed it already"
    return "what is loaded is not what its file says"


def innermost(function: object) -> list[FunctionType]:
    """Return a function and what it wraps (``functools.wraps``), the outermost first.

    Empty if one of them is no plain Python function: nothing is known about what it does.
    """
    chain: list[FunctionType] = []
    while isinstance(function, FunctionType) and len(chain) < _MOST_WRAPPERS:
        chain.append(function)
        if "__wrapped__" not in vars(function):
            return chain
        function = vars(function)["__wrapped__"]
    return []
