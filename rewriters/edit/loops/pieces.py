"""A number written to the pieces between borders: ``mask[c[i]:c[i + 1], c[i]:c[i + 1]] = 0``.

What packs sequences of several lengths into one keeps where each begins, in a vector ``c``. The
number of borders at or before a position tells its piece.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.values import CannotBatchError

if TYPE_CHECKING:
    from npufix.rewriters.edit.loops.facts import Facts
    from npufix.rewriters.edit.loops.reading import Loop

_MOST_SLICES = 2
_SMALLEST_LARGEST = 127
_NAMES = frozenset({"borders", "in_piece", "piece", "places"})
_TAKEN = "the function has other values called borders, places, piece or in_piece"


@dataclass(frozen=True)
class Pieces:
    """What a loop over pieces becomes, and what nobody has proven about it."""

    statements: list[ast.stmt]
    conditions: tuple[str, ...]
    vector: str
    """The borders, which conditions are about."""


def read_pieces(loop: Loop, facts: Facts) -> Pieces | None:
    """Return what a loop is that only fills pieces between borders, ``None`` for any other loop.

    Raises:
        CannotBatchError: it is one, but names that are needed are taken.

    """
    if not loop.is_statement or loop.lists or loop.total or len(loop.body) != 1:
        return None
    match loop.body[0], loop.target:
        case ast.Assign([ast.Subscript(ast.Name() as base, index)], value), ast.Name(counter):
            pass
        case _:
            return None
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    first_in_front = bool(items) and isinstance(items[0], ast.Constant) and items[0].value is ...
    slices = items[1:] if first_in_front else items
    borders = {_borders(item, counter) for item in slices}
    if len(slices) > _MOST_SLICES or len(borders) != 1 or None in borders:
        return None
    (found,) = borders
    assert found is not None  # noqa: S101 - asked above
    vector, offset = found
    if not _counts(loop.items, vector, offset) or not facts.is_tensor(base):
        return None
    number = _number(value, counter, offset)
    if number is None or (number == "" and len(slices) > 1):
        return None
    return _written(base, vector, facts, slices, number, in_front=first_in_front)


def _borders(item: ast.expr, counter: str) -> tuple[str, int] | None:
    """Return the vector of ``c[i]:c[i + 1]`` and what is added to the counter for the first."""
    match item:
        case ast.Slice(
            ast.Subscript(ast.Name(vector), low), ast.Subscript(ast.Name(other), high), None
        ) if vector == other:
            first, second = _offset(low, counter), _offset(high, counter)
            if first is not None and second == first + 1 and first in {-1, 0}:
                return vector, first
    return None


def _offset(code: ast.expr, counter: str) -> int | None:
    match code:
        case ast.Name(name) if name == counter:
            return 0
        case ast.BinOp(ast.Name(name), ast.Add() | ast.Sub() as op, ast.Constant(int(more))):
            if name == counter:
                return more if isinstance(op, ast.Add) else -more
    return None


def _counts(items: ast.expr, vector: str, offset: int) -> bool:
    """Tell whether a loop runs over all pieces: ``range(len(c) - 1)``, ``range(1, len(c))``."""
    lengths = {f"len({vector})", f"{vector}.numel()", f"{vector}.shape[0]", f"{vector}.size(0)"}
    match items:
        case ast.Call(ast.Name("range"), [ast.BinOp(count, ast.Sub(), ast.Constant(1))], []):
            return offset == 0 and ast.unparse(count) in lengths
        case ast.Call(ast.Name("range"), [ast.Constant(1), count], []):
            return offset == -1 and ast.unparse(count) in lengths
    return False


def _number(value: ast.expr, counter: str, offset: int) -> str | None:
    """Return a number that is written out, or "" for that of the piece, counted from 0."""
    match value:
        case ast.Constant(bool() | int() | float() as number):
            return repr(number)
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float())):
            return ast.unparse(value)
    return "" if _offset(value, counter) == offset else None


def _written(  # noqa: PLR0913 - what is written, and where
    target: ast.Name,
    vector: str,
    facts: Facts,
    slices: list[ast.expr],
    number: str,
    *,
    in_front: bool,
) -> Pieces | None:
    base = ast.unparse(target)
    if _NAMES & set(facts.flow.bound):
        raise CannotBatchError(_TAKEN)
    rank = facts.rank(target)
    if isinstance(rank, int) and (rank < len(slices) or (rank > len(slices) and not in_front)):
        return None
    several = len(slices) == _MOST_SLICES
    sizes = f"{base}.shape[-2:]" if several else f"{base}.shape[{-1 if in_front else 0}]"
    count = f"max({sizes})" if several else sizes
    statements = statements_of(
        f"borders = torch.as_tensor({vector}, device={base}.device)",
        f"places = torch.arange({count}, device={base}.device)",
        "piece = torch.bucketize(places, borders, right=True)",
        "in_piece = (piece > 0) & (piece < borders.shape[0])",
    )
    if several:
        statements += statements_of(
            f"{base}.masked_fill_((piece[:{base}.shape[-2], None] == piece[:{base}.shape[-1]])"
            f" & in_piece[:{base}.shape[-1]], {number})"
        )
    elif number:
        statements += statements_of(f"{base}.masked_fill_(in_piece, {number})")
    else:
        statements += statements_of(f"{base}[...] = torch.where(in_piece, piece - 1, {base})")
    conditions = ["ascending-borders", "nonnegative-lengths"]
    conditions += [] if in_front or isinstance(rank, int) else ["known-dimensions"]
    conditions += [] if _is_small(number) else ["value-fits-dtype"]
    return Pieces(statements, tuple(conditions), vector)


def statements_of(*lines: str) -> list[ast.stmt]:
    """Return the syntax of lines of code."""
    return [statement for line in lines for statement in ast.parse(line).body]


def _is_small(number: str) -> bool:
    """Tell whether every dtype holds a number."""
    return not number or abs(ast.literal_eval(number)) <= _SMALLEST_LARGEST
