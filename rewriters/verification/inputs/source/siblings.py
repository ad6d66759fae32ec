"""What docstrings of other functions say of arguments that are passed on as they came.

``_loss(self, out0, out1)`` without a docstring is called as ``self._loss(out0, out1)`` by
``forward``, which says that both are (batch, width); a method that overrides one of a base class
takes what that says.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.verification.inputs.source.usage import (
    Function,
    find_last_line,
    list_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sibling(NamedTuple):
    """A function of the same module, with the names that it has for arguments of another."""

    text: str
    """What it says, beside its class."""
    names: dict[str, str]
    """Its own names, by those of the other."""
    arguments: list[str]
    """All of its own, of which its text speaks."""


def list_siblings(tree: ast.Module, function: Function, qualname: str) -> Iterator[Sibling]:
    """Yield the functions that hand their arguments on to one, and those that it overrides."""
    own = [arg.arg for arg in list_arguments(function)]
    owner = qualname.rpartition(".")[0]
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    held = classes.get(owner)
    for base in held.bases if held is not None else ():
        above = classes.get(ast.unparse(base).rpartition(".")[2])
        for other in above.body if above is not None else ():
            if isinstance(other, ast.FunctionDef) and other.name == function.name:
                shared = [arg.arg for arg in list_arguments(other)]
                yield Sibling(_text(other, above), {n: n for n in own if n in shared}, shared)
    scopes: list[ast.ClassDef | ast.Module] = [tree] if held is None else [held, tree]
    for scope in (*scopes, *(classes.values() if held is None else ())):
        for other in scope.body:
            if not isinstance(other, ast.FunctionDef | ast.AsyncFunctionDef) or other is function:
                continue
            names = _handed_on(other, function, method=scope is held)
            if names:
                every = [arg.arg for arg in list_arguments(other)]
                yield Sibling(_text(other, scope), names, every)


def _text(function: Function, scope: ast.ClassDef | ast.Module | None) -> str:
    said = ast.get_docstring(function) or ""
    calls = function.name in {"forward", "__call__"} and isinstance(scope, ast.ClassDef)
    return f"{said}\n{ast.get_docstring(scope) or ''}" if calls and scope is not None else said


def _handed_on(caller: Function, function: Function, *, method: bool) -> dict[str, str]:
    """Return the caller's names for the arguments that it passes on as they came."""
    last = {arg.arg: find_last_line(caller, arg.arg) for arg in list_arguments(caller)}
    for node in walk(caller):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        bound = isinstance(called, ast.Attribute) and ast.unparse(called.value) in {"self", "cls"}
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name != function.name or bound is not method:
            continue
        places = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        places = places[1:] if places[:1] in (["self"], ["cls"]) else places
        given = [*zip(places, node.args, strict=False)]
        given += [(k.arg, k.value) for k in node.keywords if k.arg is not None]
        found = {
            n: v.id
            for n, v in given
            if isinstance(v, ast.Name) and node.lineno <= last.get(v.id, 0)
        }
        if found:
            return found
    return {}
