"""Numbers that are written to parts of rows, and to pieces between borders, for all rounds.

``m[i, :n[i]] = c`` is a comparison of positions with the lengths, and a fill. What packs sequences
into one keeps where each begins in a vector ``b``: ``m[b[i]:b[i + 1]] = c`` fills the positions by
the number of borders at or before them, which tells the piece. ``out[i, :n[i]] = x[i, :n[i]]``
chooses by the same comparison: ``out[:] = torch.where(known, x[:, :w], out)``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.subscripts import flatten, spell_items, trim
from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    SHARED,
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Value,
    at_dimension,
    everything,
    method,
    parse,
    shift,
    subscript,
)
from npufix.rewriters.graph.modules.syntax import list_indexes

_LARGEST_HALF = 65504
_MOST_SLICES = 2
_SMALLEST_LARGEST = 127
_NAMES = frozenset({"borders", "in_piece", "piece", "places"})
_TAKEN = "the function has other values called borders, places, piece or in_piece"

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.places import Place, Ragged
    from npufix.rewriters.edit.loops.given.reading import Loop
    from npufix.rewriters.edit.loops.statements import Body


def fill(body: Body, base: ast.expr, place: Place, value: Value) -> Iterator[ast.stmt]:
    """Yield the statements that write one number to the first ``n[i]`` elements of row ``i``.

    Raises:
        CannotBatchError: the elements are new ones in each row, or cannot be compared at once.

    """
    plain = place.is_view and place.pieces is None
    if value.kind is not Kind.SAME or value.rank != 0 or not plain:
        raise CannotBatchError(LENGTHS)
    statements, mask = compare(body, base, place)
    ask_for_value(body, base, value)
    yield from statements
    yield ast.Expr(method(rows_written(base, place), "masked_fill_", mask, value.code))


def rows_written(base: ast.expr, place: Place) -> ast.expr:
    """Return the rows of all rounds of what is written to: ``m``, ``m[:n]``."""
    index = trim(_without_whole(place, base))
    return subscript(base, index) if index else base


def compare(  # noqa: C901 - a vector for each limit of each slice
    body: Body, base: ast.expr, place: Place
) -> tuple[list[ast.stmt], ast.expr]:
    """Return which elements lie before the ``n[i]`` of their row, and what that needs before it.

    Raises:
        CannotBatchError: they cannot be compared at once.

    """
    own = shift(body.facts.rank(base), place.kept - place.consumed)
    if not isinstance(own, int) and not body.facts.assumes:
        raise CannotBatchError(UNKNOWN_RANK)  # what is written for any number is hard to read
    masks = []
    shared = _name_lengths(body, base, place)

    def behind(dim: int, vector: ast.expr, *, column: bool = False) -> ast.expr:
        """Return a vector along one dimension of what is filled."""
        if isinstance(own, int):
            if not column or own == dim:
                return at_dimension(vector, own - dim)
            return method(vector, "reshape", -1, *[1] * (own - dim))
        # How many dimensions follow shows when it runs: those of the tensor that are not indexed.
        gone = place.consumed - place.kept + dim
        name = ast.unparse(base)
        ones = parse(f"f(*[1] * ({name}.dim() - {gone}))" if gone else f"f(*[1] * {name}.dim())")
        assert isinstance(ones, ast.Call)  # noqa: S101 - it was written so
        return method(vector, "reshape", -1, *ones.args)

    def limit_of(part: Ragged, given: Value) -> ast.expr:
        """Return the limits of all rounds, in front of the dimensions of what is filled."""
        bound = _without_sign(given)
        limit = bound.code
        if bound.kind is not Kind.SAME:
            name = _key(bound)
            code = parse(f"{name}_tensor") if name in shared else limits(body.of, base, bound)
            limit = behind(place.axis, code, column=bound.rank != 0)
        if bound is given:
            ask_for_sign(body.of, bound)
            return limit
        body.of.conditions["positive-lengths"] = None
        body.of.shown.setdefault("counted", _tensor_of(bound))
        length = parse(f"{ast.unparse(base)}.shape[{part.source}]")
        return ast.BinOp(length, ast.Sub(), limit)

    for part in place.ragged:
        written = ast.unparse(base)
        positions = parse(f"torch.arange({written}.shape[{part.source}], device={written}.device)")
        for bound, op in ((part.lower, ast.GtE()), (part.upper, ast.Lt())):
            if bound is None:
                continue
            at = part.dim + (part.dim >= place.axis)
            masks.append(ast.Compare(behind(at, positions), [op], [limit_of(part, bound)]))
    mask: ast.expr = masks[0]
    for other in masks[1:]:
        mask = ast.BinOp(mask, ast.BitAnd(), other)
    return list(shared.values()), mask


def _without_whole(place: Place, base: ast.expr) -> list[ast.expr]:
    """Return the items of an index with ``:`` for the ``:x.shape[0]`` that begins one of ``x``."""
    match place.items:
        case [ast.Slice(None, ast.expr() as upper, None), *rest] if (
            ast.unparse(upper) == f"{ast.unparse(base)}.shape[0]"
        ):
            return [ast.Slice(), *rest]
    return list(place.items)


def _without_sign(bound: Value) -> Value:
    """Return ``n[i]`` of ``m[i, -n[i]:]``: it counts from the end, but for an ``n[i]`` of zero."""
    match bound.code:
        case ast.UnaryOp(ast.USub(), counted) if bound.kind is not Kind.NUMBER:
            return replace(bound, code=counted)
    return bound


def _key(bound: Value) -> str:
    return ast.unparse(bound.asked) if bound.kind is Kind.ENTRY else ""


def _name_lengths(body: Body, base: ast.expr, place: Place) -> dict[str, ast.stmt]:
    """Return, for lengths that are needed more than once, what brings them to the device."""
    bounds = [b for part in place.ragged for b in (part.lower, part.upper) if b is not None]
    keys = [_key(b) for b in bounds]
    found: dict[str, ast.stmt] = {}
    for bound, key in zip(bounds, keys, strict=True):
        if (
            key.isidentifier()
            and keys.count(key) > 1
            and f"{key}_tensor" not in body.facts.flow.bound
        ):
            target = ast.Name(f"{key}_tensor", ast.Store())
            found[key] = ast.Assign([target], limits(body.of, base, bound), lineno=0)
    return found


def limits(of: Expressions, base: ast.expr, bound: Value) -> ast.expr:
    """Return the lengths of all rounds as a vector on the device."""
    device = parse(f"{ast.unparse(base)}.device")
    if bound.axis or (isinstance(bound.rank, int) and bound.rank):
        raise CannotBatchError(LENGTHS)
    if bound.kind is Kind.NUMBER:
        if not bound.integer:
            raise CannotBatchError(LENGTHS)
        return of.aligner.index(bound, base)
    if bound.kind is Kind.ROWS:
        return method(bound.code, "to", device)
    made = parse("torch.as_tensor()")
    assert isinstance(made, ast.Call)  # noqa: S101 - it was written so
    made.args, made.keywords = [bound.code], [ast.keyword("device", device)]
    return method(made, "long") if bound.is_cut else made


def ask_for_sign(of: Expressions, bound: Value) -> None:
    """Ask whether a length may be negative: a slice counts from the end then."""
    match bound.code:
        case ast.Constant(int(number)) if number >= 0:
            return
    counts = bound.kind is Kind.NUMBER and bound.offset is not None
    if counts and of.domain.start + (bound.offset or 0) >= 0:
        return
    if ast.unparse(bound.code) in of.positive:
        return
    of.conditions["nonnegative-lengths"] = None
    known = sum(name.startswith("ind") for name in of.shown)
    name = "index" if "index" not in of.shown else f"indices{known}"
    of.shown[name] = _tensor_of(bound)


def _tensor_of(bound: Value) -> ast.expr:
    if bound.kind is not Kind.ENTRY:
        return bound.code
    return parse(f"torch.as_tensor({ast.unparse(bound.code)})")


def _is_small(code: ast.expr) -> bool:
    """Tell whether float16 can hold a number that is written out."""
    match code:
        case ast.UnaryOp(ast.USub(), operand):
            return _is_small(operand)
        case ast.Constant(float(number) | int(number)):
            return abs(number) <= _LARGEST_HALF
        case ast.Call(ast.Name("float"), [ast.Constant(str(text))]):
            return text.lstrip("+-") in {"inf", "nan"}
    return False


def ask_for_value(body: Body, base: ast.expr, value: Value) -> None:
    """Ask for a number that float16 holds: an assignment makes infinity of it, a fill raises."""
    dtype = body.facts.dtype(base) or "float16"
    if dtype == "float16" and not _is_small(value.code):
        body.of.conditions["value-fits-dtype"] = None


@dataclass(frozen=True)
class Pieces:
    """What a loop over pieces becomes, and what nobody has proven about it."""

    statements: list[ast.stmt]
    conditions: tuple[str, ...]
    shown: Mapping[str, ast.expr]
    """What conditions are about."""
    binds: frozenset[str] = frozenset()
    """The names that it leaves as the loop does."""


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
    items = list_indexes(index)
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
    return _fill(base, vector, facts, slices, number, in_front=first_in_front)


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


def _fill(  # noqa: PLR0913 - what is written, and where
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
    conditions += [] if _fits_all(number) else ["value-fits-dtype"]
    return Pieces(statements, tuple(conditions), {"index": ast.Name(vector, ast.Load())})


def statements_of(*lines: str) -> list[ast.stmt]:
    """Return the syntax of lines of code."""
    return [statement for line in lines for statement in ast.parse(line).body]


def _fits_all(number: str) -> bool:
    """Tell whether every dtype holds a number."""
    return not number or abs(ast.literal_eval(number)) <= _SMALLEST_LARGEST


def read_copied(body: Body, written: list[ast.expr], code: ast.expr) -> ast.expr | None:
    """Return ``x`` of ``out[i, :n[i]] = x[i, :n[i]]``: both sides have one index."""
    if not isinstance(code, ast.Subscript):
        return None
    base, index = flatten(code)
    if not isinstance(base, ast.Name | ast.Attribute) or body.of.depends(base):
        return None
    read = spell_items(index, body.facts.rank(base))
    return base if _texts(read) == _texts(written) else None


def copy_rows(body: Body, base: ast.expr, place: Place, source: ast.expr) -> Iterator[ast.stmt]:
    """Yield what copies the first elements of all rows.

    Raises:
        CannotBatchError: both may be one tensor, another round writes what is copied, or it is not
            known where the elements are.

    """
    facts = body.facts
    body.of.indexer.require_own_row(source, place)
    nodes = facts.node(base), facts.node(source)
    shares = True if nodes[0] is None or nodes[1] is None else facts.may_share(nodes[0], nodes[1])
    if shares:
        raise CannotBatchError(SHARED)
    if shares is None:
        body.of.conditions["separate-memory"] = None
    plain = all(isinstance(item, ast.Slice) for item in place.items)
    bounds = [b for part in place.ragged for b in (part.lower, part.upper) if b is not None]
    plain &= place.is_view and place.pieces is None
    if not plain or any(isinstance(b.code, ast.UnaryOp) for b in bounds):
        raise CannotBatchError(LENGTHS)  # ``x[i, :-n[i]]`` of another width is another part
    ranks = facts.rank(base), facts.rank(source)
    if all(isinstance(rank, int) for rank in ranks) and ranks[0] != ranks[1]:
        raise CannotBatchError(UNKNOWN_RANK)
    if not all(isinstance(rank, int) for rank in ranks):
        body.of.conditions["no-broadcasting"] = None
    statements, mask = compare(body, base, place)
    yield from statements
    written = rows_written(base, place)
    target = written if isinstance(written, ast.Subscript) else subscript(written, [everything()])
    assert isinstance(target, ast.Subscript)  # noqa: S101 - it was made so
    stored = ast.Subscript(target.value, target.slice, ast.Store())
    new = ast.Call(parse("torch.where"), [mask, _read(body, base, place, source), written], [])
    yield ast.Assign([stored], new, lineno=0)


def _read(body: Body, base: ast.expr, place: Place, source: ast.expr) -> ast.expr:
    """Return what is read for all rows, as wide as what it is written to: ``x[:, :out.shape[1]]``.

    What was made with the shape of the other one is as wide anyway.
    """
    facts = body.facts
    items: list[ast.expr] = list(place.items)
    rows, wide = facts.node(source), facts.node(base)
    assert rows is not None  # noqa: S101 - asked before
    assert wide is not None  # noqa: S101 - same
    at = items[place.source_dim]
    if isinstance(at, ast.Slice) and facts.spans(body.of.domain.stop_node, rows, place.source_dim):
        items[place.source_dim] = everything()
    elif isinstance(at, ast.Slice) and at.lower is None and at.upper is None:
        items[place.source_dim] = ast.Slice(None, body.of.domain.stop, None)
    if not facts.is_alike(wide, rows):
        for part in place.ragged:
            width = parse(f"{ast.unparse(base)}.shape[{part.source}]")
            items[part.source] = ast.Slice(None, width, None)
        body.of.conditions["as-wide"] = None
        number = sum(name.startswith("wide") for name in body.of.shown)
        body.of.shown[f"wide{number}"] = parse(f"{ast.unparse(base)}.shape")
        body.of.shown[f"read{number}"] = parse(f"{ast.unparse(source)}.shape")
    index = trim(items)
    read = subscript(source, index) if index else source
    # A store converts what it copies; ``where`` would make integers that meet floats float32.
    return read if facts.is_made_by(wide, rows) else method(read, "to", base)


def _texts(items: list[ast.expr]) -> list[str]:
    return [ast.unparse(item) for item in trim(items)]
