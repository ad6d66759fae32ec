"""One change of several in a module: what two versions of one function differ in."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ADDED = (ast.Import, ast.ImportFrom, ast.Try, ast.FunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_function(tree: ast.Module, qualname: str) -> _Function | None:
    """Return the function of a name, ``Head.targets``; None if there is none, or several."""
    body: list[ast.stmt] = tree.body
    found: ast.AST | None = None
    for name in qualname.split("."):
        if name == "<locals>":
            continue
        named = [s for s in body if getattr(s, "name", None) == name]
        if len(named) != 1:
            return None
        found = named[0]
        body = getattr(found, "body", [])
    return found if isinstance(found, _Function) else None


def leave_one_change(tree: ast.Module, other: ast.Module, qualname: str) -> ast.Module | None:
    """Return a version of a module that differs in one function, and in what is new in it.

    That is the version itself, or where the bodies of other functions differ too, one in which they
    do what they did; None where anything else differs.
    """
    if _is_alike(tree, other, qualname):
        return other
    made = _undo_others(tree, other, qualname)
    return made if _is_alike(tree, made, qualname) else None


def _is_alike(tree: ast.Module, other: ast.Module, qualname: str) -> bool:
    """Tell whether two modules are the same but for one body, and for what is new in the other."""
    mine, others = (_without_body(t, qualname) for t in (tree, other))
    known = {getattr(s, "name", "") for s in tree.body}
    at = 0
    for statement, text in others:
        if at < len(mine) and text == mine[at][1]:
            at += 1
        elif not isinstance(statement, _ADDED) or getattr(statement, "name", None) in known:
            return False
    return at == len(mine)


def _without_body(tree: ast.Module, qualname: str) -> list[tuple[ast.stmt, str]]:
    changed = copy.deepcopy(tree)
    function = find_function(changed, qualname)
    if function is not None:
        function.body = [ast.Pass()]
    return [(statement, ast.dump(statement)) for statement in changed.body]


def _undo_others(tree: ast.Module, other: ast.Module, qualname: str) -> ast.Module:
    made = copy.deepcopy(other)
    mine, theirs = ([*_list_functions(version.body)] for version in (tree, made))
    named = Counter(path for path, _ in mine)
    bodies = {path: function.body for path, function in mine if named[path] == 1}
    for path, function in theirs:
        if path != qualname and not qualname.startswith(f"{path}."):
            function.body = bodies.get(path, function.body)
    return made


def _list_functions(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, _Function]]:
    for statement in body:
        if isinstance(statement, _Function):
            yield owner + statement.name, statement
        elif isinstance(statement, ast.ClassDef):
            yield from _list_functions(statement.body, f"{owner}{statement.name}.")
