"""The items of ``x[i, a:b]`` as they are written."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import UNKNOWN_RANK, CannotBatchError, everything
from npufix.rewriters.graph.modules.syntax import list_indexes

if TYPE_CHECKING:
    from npufix.rewriters.facts.ranks import Rank


def flatten(target: ast.Subscript) -> tuple[ast.expr, ast.expr]:
    """Return ``m[i][a]`` as ``m`` and ``i, a``: one number, then what it leaves."""
    items = list_indexes(target.slice)
    match target.value:
        case ast.Subscript(_, ast.Name() | ast.Constant()) as inner:
            base, before = flatten(inner)
            first = list_indexes(before)
            return base, ast.Tuple([*first, *items], ast.Load())
        case ast.Subscript(base, ast.Tuple([ast.Slice(None, None, None), ast.Name() as row])):
            if len(items) == 1 and not isinstance(items[0], (ast.Constant, ast.Starred)):
                return base, ast.Tuple([items[0], row], ast.Load())  # ``m[:, i][a]`` is ``m[a, i]``
        case ast.Subscript(base, ast.Tuple(before)) if len(items) == 1:
            whole = [n for n, item in enumerate(before) if isinstance(item, ast.Slice)]
            plain = all(isinstance(i, ast.Slice | ast.Name | ast.Constant) for i in before)
            picked = isinstance(items[0], ast.Compare | ast.Name)
            if len(whole) == 1 and plain and picked and ast.unparse(before[whole[0]]) == ":":
                found = [items[0] if n == whole[0] else i for n, i in enumerate(before)]
                return base, ast.Tuple(found, ast.Load())  # ``m[i, :, 1][a]`` is ``m[i, a, 1]``
    return target.value, target.slice


def spell_items(index: ast.expr, rank: Rank) -> list[ast.expr]:
    """Return the items of an index of a tensor, with a ``:`` for each dimension of ``...``."""
    items = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    dots = [n for n, item in enumerate(items) if _is_constant(item, Ellipsis)]
    if not dots:
        return items
    if dots[0] == len(items) - 1:
        return items[:-1]
    taken = sum(not _is_constant(item, None) for item in items) - 1
    if not isinstance(rank, int) or taken > rank:
        raise CannotBatchError(UNKNOWN_RANK)
    return [*items[: dots[0]], *[everything()] * (rank - taken), *items[dots[0] + 1 :]]


def _is_constant(item: ast.expr, value: object) -> bool:
    return isinstance(item, ast.Constant) and item.value is value


def trim(items: list[ast.expr]) -> list[ast.expr]:
    """Return the items without the ``:`` at their end."""
    left = list(items)
    while left and isinstance(left[-1], ast.Slice) and is_all(left[-1]):
        left.pop()
    return left


def is_all(item: ast.Slice) -> bool:
    """Tell whether a slice takes all."""
    return item.lower is None and item.upper is None and item.step is None
