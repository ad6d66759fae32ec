"""The syntax tree of a function after an edit: enough to judge it, in a tenth of libcst's time.

A scan asks whether a change can be made; only a patch needs its text. What is not edited is shared
with the original, which stays as it is.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import CannotSpliceError, holds_comment, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.edit import Edit
    from npufix.rewriters.graph.modules.names import FunctionNode

_BLOCKS = ("body", "orelse", "finalbody")
_PARTS = ("handlers", "cases")


def edit_function(
    source: str, lines: Sequence[str], function: FunctionNode, block: list[ast.stmt], edit: Edit
) -> FunctionNode:
    """Return a function with one edit made in it; ``block`` is the one that changes.

    Raises:
        CannotSpliceError: the text could not be edited like that either.

    """
    if holds_comment(source, lines, edit.replace):
        raise CannotSpliceError("a comment stands inside the expression")
    whole = edit.replace is edit.statement
    removed = {id(s) for s in edit.remove if _stands_alone(s, lines)}
    adds = edit.hoisted or edit.guard
    apart = _stands_alone(edit.statement, lines) or (not whole and _is_suite(block, lines))
    if (whole or adds) and not apart:
        raise CannotSpliceError("the statement shares its line with another one")
    new: list[ast.stmt] = []
    for statement in block:
        if statement is edit.statement:
            texts = [f"{name} = {text}" for name, text in edit.hoisted]
            new += [s for text in texts for s in _parse(text, statement)]
            new += _change(statement, edit)
        elif id(statement) not in removed:
            new.append(statement)
    found = _with_block(function, block, new)
    if found is None:
        raise CannotSpliceError("the statement is not where it should be")
    return found  # type: ignore[return-value]  # a copy of the function


def _change(statement: ast.stmt, edit: Edit) -> list[ast.stmt]:
    """Return what the statement with the match becomes."""
    parsed = _parse(edit.text, statement)
    if edit.replace is statement:
        return parsed
    match parsed:
        case [ast.Expr(value)]:
            return [_exchange(statement, edit.replace, value)]  # type: ignore[list-item]
    raise CannotSpliceError(f"{edit.text!r} cannot stand there")


def _parse(text: str, place: ast.stmt) -> list[ast.stmt]:
    """Return the statements of a new text, on the line of the one that they stand for."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise CannotSpliceError(f"{text!r} cannot stand there") from error
    return [ast.increment_lineno(s, place.lineno - 1) for s in tree.body]


def _stands_alone(statement: ast.stmt, lines: Sequence[str]) -> bool:
    """Tell whether a statement shares its lines with no other one."""
    first, start, last, end = span(statement, lines)
    rest = lines[last - 1][end:].strip()
    return not lines[first - 1][:start].strip() and (rest in {"", ";"} or rest[0] == "#")


def _is_suite(block: Sequence[ast.stmt], lines: Sequence[str]) -> bool:
    """Tell whether one statement is all behind a colon: ``def f(x): return x``."""
    if len(block) != 1:
        return False
    first, start, last, end = span(block[0], lines)
    rest = lines[last - 1][end:].strip()
    return lines[first - 1][:start].rstrip().endswith(":") and (not rest or rest[0] == "#")


def _with_block(node: ast.AST, block: list[ast.stmt], new: list[ast.stmt]) -> ast.AST | None:
    """Return a copy of a statement with another block in it, ``None`` if it does not hold it."""
    for name in (*_BLOCKS, *_PARTS):
        inner = getattr(node, name, None)
        if not isinstance(inner, list):
            continue  # no such block, or the expression of a conditional or a lambda
        if inner is block:
            return _copy(node, {name: new})
        for at, child in enumerate(inner):
            found = _with_block(child, block, new)
            if found is not None:
                return _copy(node, {name: [*inner[:at], found, *inner[at + 1 :]]})
    return None


def _exchange(node: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    """Return a node with one below it exchanged; what does not hold that one is shared."""
    if node is old:
        return new
    changes: dict[str, object] = {}
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            other = _exchange(value, old, new)
            if other is not value:
                changes[name] = other
        elif isinstance(value, list):
            items = [_exchange(v, old, new) if isinstance(v, ast.AST) else v for v in value]
            if any(a is not b for a, b in zip(items, value, strict=True)):
                changes[name] = items
    return _copy(node, changes) if changes else node


def _copy(node: ast.AST, changes: dict[str, object]) -> ast.AST:
    return type(node)(**{**vars(node), **changes})
