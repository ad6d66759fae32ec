"""Sizes and bounds that code raises without: ``if y.shape != torch.Size([n]): raise``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator


def list_refused(function: ast.AST) -> Iterator[tuple[str, int, tuple[str, ...] | None, str]]:
    """Yield what code raises for: the name, the line, the axes that it wants, a bound of numbers.

    ``("n",)`` of ``if y.shape != torch.Size([n]): raise``, ``"2"`` of ``if y.max() > 1: raise``.
    """
    for line, part, raises in list_guards(function):
        op, right = part.ops[0], part.comparators[0]
        name, asked = _asked(part.left)
        axes = _read_axes(right) if isinstance(op, ast.NotEq if raises else ast.Eq) else None
        if asked == "shape" and axes is not None:
            yield name, line, axes, ""
        elif asked in {"max", "amax"}:
            yield name, line, None, _bound_by(op, right, raises=raises)


def list_guards(function: ast.AST) -> Iterator[tuple[int, ast.Compare, bool]]:
    """Yield comparisons that lead on or raise: their line, what is compared, whether it raises."""
    for node in walk(function):
        match node:
            case ast.If(test=test, body=[*_, ast.Raise()]):
                raises = True
            case ast.Assert(test=test):
                raises = False
            case _:
                continue
        joined = isinstance(getattr(test, "op", None), ast.Or if raises else ast.And)
        for part in test.values if joined and isinstance(test, ast.BoolOp) else [test]:
            if isinstance(part, ast.Compare) and len(part.ops) == 1:
                yield node.lineno, part, raises


def _read_axes(node: ast.expr) -> tuple[str, ...] | None:
    """Return ``("n", "3")`` for ``(n, 3)`` and ``torch.Size([n, 3])``."""
    if isinstance(node, ast.Call) and last_name(node.func) == "Size" and node.args:
        node = node.args[0]
    if not isinstance(node, ast.Tuple | ast.List):
        return None
    starred = any(isinstance(n, ast.Starred) for n in node.elts)
    return None if starred else tuple(map(ast.unparse, node.elts))


def _asked(node: ast.expr) -> tuple[str, str]:
    """Return ``("y", "max")`` for ``y.max().item()`` and ``torch.max(y)``, and of ``y.shape``."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("torch"), asked), [ast.Name(name)], []):
            return name, asked
        case ast.Attribute(ast.Name(name), "shape") | ast.Call(
            ast.Attribute(ast.Name(name), "size"), [], []
        ):
            return name, "shape"
        case ast.Call(ast.Attribute(ast.Name(name), asked), [], []):
            return name, asked
        case ast.Call(ast.Attribute(inner, "item"), [], []):
            return _asked(inner)
    return "", ""


def _bound_by(op: ast.cmpop, right: ast.expr, *, raises: bool) -> str:
    """Return what numbers are less than: ``n`` for ``>= n``, 2 for ``> 1`` where that raises."""
    match right:
        case ast.Constant(int(most)) if isinstance(op, ast.Gt if raises else ast.LtE):
            return str(most + 1)
        case ast.Constant(int(most)) if isinstance(op, ast.GtE if raises else ast.Lt):
            return str(most)
        case ast.Name(most) | ast.Attribute(ast.Name("self"), most) if isinstance(
            op, ast.GtE if raises else ast.Lt
        ):
            return most
    return ""
