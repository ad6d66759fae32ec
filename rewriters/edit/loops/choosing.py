"""``if`` in a loop, of which each round takes one arm: ``torch.where`` for all rounds.

``if n[i] > most: n[i] = most`` is ``n.masked_fill_(n > most, most)``; so is a write to the elements
that a mask of the round picks::

    for i in range(n):                      near = offsets.abs() < r
        near = offsets[:, i].abs() < r      out.masked_fill_(near, 1)
        out[near, i] = 1                    turns[:] = torch.where(near, offsets * 2, turns)
        turns[near, i] = offsets[near, i] * 2
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.filling import ask_for_value, compare, rows_written
from npufix.rewriters.edit.loops.given.subscripts import trim
from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Value,
    at_dimension,
    everything,
    like,
    method,
    new_axis,
    owned,
    parse,
    shift,
    subscript,
    view_in_front,
)
from npufix.rewriters.facts.ranks import RelativeRank
from npufix.rewriters.graph.modules.syntax import last_name, list_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.edit.loops.given.places import Place
    from npufix.rewriters.edit.loops.statements import Body

BRANCH = "which branch it takes depends on the round: torch.where computes both"
_OF_EACH = (ast.Add, ast.Sub, ast.Mult)
_NEVER_FAIL = frozenset(
    {"abs", "clamp", "l1_loss", "mean", "mse_loss", "relu", "sigmoid", "square", "sum", "tanh"}
)
"""Those that take any numbers and have a gradient everywhere."""
_MEANS = frozenset({"l1_loss", "mean", "mse_loss"})
_NAMES = ("chosen", "chosen_rows", "is_chosen")


def choose(
    body: Body, test: ast.expr, then: list[ast.stmt], other: list[ast.stmt]
) -> Iterator[ast.stmt]:
    """Yield what two arms become of which each round takes one.

    Both are computed for all rounds. So they are of numbers and rows, and sums and products of
    them, which never fail and have a gradient everywhere: not ``x[i] / n[i]`` where ``n[i] > 0``.

    Raises:
        CannotBatchError: an arm does something else, or the test is no comparison of numbers.

    """
    arms = [*then, *other]
    if not all(isinstance(a, (ast.Assign, ast.AugAssign)) and never_fails(a.value) for a in arms):
        raise CannotBatchError(BRANCH)
    if any(list_names(a.value) & body.of.means for a in arms if not isinstance(a.value, ast.Name)):  # type: ignore[attr-defined] # see above
        raise CannotBatchError(BRANCH)
    mask = read_truth(body.of, test)
    match then, other:
        case [ast.Assign([ast.Name(name)], left)], [ast.Assign([ast.Name(same)], right)]:
            if name == same:
                yield from _bind(body, name, mask, left, right)
                return
    if len(arms) > 1:
        taken = body.facts.flow.taken
        if taken.issuperset(_NAMES):
            raise CannotBatchError(BRANCH)
        name = next(n for n in _NAMES if n not in taken)
        yield ast.Assign([ast.Name(name, ast.Store())], mask.code, lineno=0)
        mask = replace(mask, code=ast.Name(name, ast.Load()))
    inverse = replace(mask, code=ast.UnaryOp(ast.Invert(), mask.code))
    for arm in arms:
        assert isinstance(arm, (ast.Assign, ast.AugAssign))  # noqa: S101 - asked above
        target = arm.targets[0] if isinstance(arm, ast.Assign) else arm.target
        if not isinstance(target, ast.Subscript):
            raise CannotBatchError(BRANCH)
        yield from _write(body, target, arm, mask if arm in then else inverse)


def choose_value(of: Expressions, test: ast.expr, left: ast.expr, right: ast.expr) -> Value:
    """Return one of two values that each round chooses: ``x[i] if n[i] > 0 else y``.

    Raises:
        CannotBatchError: one of them may fail where it is not chosen.

    """
    if not of.depends(test) or not (never_fails(left) and never_fails(right)):
        raise CannotBatchError(BRANCH)
    mask = read_truth(of, test)
    values = [of.read(left), of.read(right)]
    if any(v.kind not in {Kind.ROWS, Kind.SAME} or of.facts.is_number(v.code) for v in values):
        raise CannotBatchError(BRANCH)
    if of.expected is None:  # what is written fits there, whichever it is
        if len({v.rank for v in values}) > 1:
            raise CannotBatchError(BRANCH)  # of one round it would have other dimensions
        if not isinstance(values[0].rank, int):
            raise CannotBatchError(UNKNOWN_RANK)
    of.ask_for_dtype(*(v.asked for v in values))
    codes, whole = of.aligner.together(mask, *values)
    return like(whole, ast.Call(parse("torch.where"), codes, []), fresh=True)


def pick(body: Body, name: str, test: ast.expr) -> list[ast.stmt]:
    """Return what gives a name to the numbers of the rounds that pass a test.

    Raises:
        CannotBatchError: the test is no comparison of numbers.

    """
    found = method(method(read_truth(body.of, test).code, "nonzero"), "squeeze", 1)
    start = body.of.domain.start
    code = ast.BinOp(found, ast.Add(), ast.Constant(start)) if start else found
    return [ast.Assign([ast.Name(name, ast.Store())], code, lineno=0)]


def never_fails(code: ast.expr) -> bool:
    """Tell whether code reads rows by their counter alone, and adds or multiplies them."""
    match code:
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult(), right):
            return never_fails(left) and never_fails(right) and not has_mean_of_part(code)
        case ast.UnaryOp(ast.USub(), operand):
            return never_fails(operand)
        case ast.Subscript(base, ast.Name() | ast.Constant()):
            return never_fails(base)
        case ast.Subscript(base, ast.Tuple(items)):
            plain = (ast.Name, ast.Constant, ast.Slice)
            return never_fails(base) and all(isinstance(item, plain) for item in items)
        case ast.Call(func, args, words) if last_name(func) in _NEVER_FAIL:
            owner = [func.value] if isinstance(func, ast.Attribute) else []
            given = [*owner, *args, *(w.value for w in words)]
            return all(never_fails(one) and not has_mean_of_part(one) for one in given)
    return isinstance(code, (ast.Name, ast.Attribute, ast.Constant))


def has_mean_of_part(code: ast.AST) -> bool:
    """Tell whether code takes the mean of a part: what is computed of that has no gradient.

    Of an empty part it is NaN, and a gradient of zero times NaN is NaN too.
    """
    return any(
        isinstance(node, ast.Call)
        and last_name(node.func) in _MEANS
        and any(isinstance(n, ast.Slice) and (n.lower or n.upper) for n in ast.walk(node))
        for node in ast.walk(code)
    )


def read_truth(of: Expressions, code: ast.expr) -> Value:
    """Return the outcome of a test as a vector: what a round tests is one number."""
    match code:
        case ast.UnaryOp(ast.Not(), operand):
            value = read_truth(of, operand)
            return like(value, ast.UnaryOp(ast.Invert(), value.code), fresh=True)
        case ast.BoolOp(op, [left, right]):
            both = ast.BitAnd() if isinstance(op, ast.And) else ast.BitOr()
            first, second = read_truth(of, left), read_truth(of, right)
            return like(first, ast.BinOp(first.code, both, second.code), fresh=True)
        case ast.Compare(left, [ast.In()], [right]):
            one, row = _number(of, left), of.operand(right)
            row = replace(row, rank=of.facts.assume(row.rank, 1, row.asked))
            if row.axis or one.kind is not Kind.ROWS or not isinstance(row.rank, int):
                raise CannotBatchError(UNKNOWN_RANK)
            alike = ast.Compare(row.code, [ast.Eq()], [at_dimension(one.code, row.rank)])
            flat = alike if row.rank == 1 else method(alike, "flatten", 1)
            return Value(Kind.ROWS, method(flat, "any", 1), 0, fresh=True)
        case ast.Compare(left, [sign], [right]) if not isinstance(
            sign, (ast.In, ast.NotIn, ast.Is, ast.IsNot)
        ):
            first, second = _number(of, left), _number(of, right)
            made = ast.Compare(first.code, [sign], [second.code])
            rows = first if first.kind is Kind.ROWS else second
        case _:
            rows = _number(of, code)
            made = ast.Compare(rows.code, [ast.NotEq()], [ast.Constant(0)])
    if rows.kind is not Kind.ROWS:
        raise CannotBatchError(BRANCH)
    return Value(Kind.ROWS, made, 0, fresh=True)


def _number(of: Expressions, code: ast.expr) -> Value:
    """Return what is one number in each round, or in all of them."""
    value = of.read(code)
    if value.kind is Kind.SAME:
        if not of.facts.is_number(code):
            of.ask_for_dtype(code)
        return value
    of_host = (
        value.kind is Kind.NUMBER or value.is_listed or of.facts.is_tensor(value.code) is False
    )
    if of_host or value.axis:
        raise CannotBatchError(BRANCH)
    if of.facts.is_tensor(value.code) is not True and value.kind is Kind.ENTRY:
        of.ask_for_tensor(value.code)
    value = replace(value, rank=of.facts.assume(value.rank, 0, value.asked))
    if value.rank != 0:
        raise CannotBatchError(UNKNOWN_RANK)
    return replace(value, kind=Kind.ROWS)


def _bind(
    body: Body, name: str, mask: Value, left: ast.expr, right: ast.expr
) -> Iterator[ast.stmt]:
    """Yield what gives a name to one of two values."""
    values = [body.of.read(left), body.of.read(right)]
    rows = [v for v in values if v.kind is Kind.ROWS]
    numbers = [v for v in values if v.kind is Kind.SAME and body.facts.is_number(v.code)]
    if not rows or len(rows) + len(numbers) < len(values) or len({v.rank for v in rows}) > 1:
        raise CannotBatchError(BRANCH)
    codes, whole = _beside(body, mask, rows)
    if numbers and whole.rank != 0:
        raise CannotBatchError(BRANCH)  # of one round it would be a number
    given = iter(codes[1:])
    arms = [next(given) if v.kind is Kind.ROWS else v.code for v in values]
    body.of.ask_for_dtype(*(v.asked for v in rows))
    made = ast.Call(parse("torch.where"), [codes[0], *arms], [])
    yield ast.Assign([ast.Name(name, ast.Store())], made, lineno=0)
    body.bound.add(name)
    body.of.env[name] = Value(Kind.ROWS, ast.Name(name, ast.Load()), whole.rank, whole.axis)


def _write(
    body: Body, target: ast.Subscript, arm: ast.Assign | ast.AugAssign, mask: Value
) -> Iterator[ast.stmt]:
    """Yield what writes to the rows of the rounds that take an arm."""
    base, items = body.parts(target)
    place = body.of.indexer.place(base, items, None, base)
    own = shift(body.facts.rank(base), place.kept - place.consumed) if place.is_known else None
    if not place.is_view:
        raise CannotBatchError(UNKNOWN_RANK)
    if place.ragged:
        yield from _write_part(body, base, place, arm, mask)
        return
    if not isinstance(own, int) and (place.axis or len(place.items) != 1):
        raise CannotBatchError(UNKNOWN_RANK)
    if body.facts.is_tensor(base) is not True:
        body.of.ask_for_tensor(base)
    index: list[ast.expr] = [everything()] if place.is_whole else place.items
    written = base if place.is_whole else subscript(base, index)
    if isinstance(own, int):
        chosen = at_dimension(mask.code, own - place.axis)
    else:
        chosen = view_in_front(mask.code, f"({owned(base)}.dim() - 1)")
    body.of.expected, body.of.carrier = own if isinstance(own, int) else None, base
    value = body.of.read(arm.value)
    body.of.expected = body.of.carrier = None
    if isinstance(arm, ast.Assign) and value.kind is Kind.SAME and value.rank == 0:
        ask_for_value(body, base, value)
        yield ast.Expr(method(written, "masked_fill_", chosen, value.code))
        return
    new = body.fit(value, place, own, base)
    if isinstance(arm, ast.AugAssign):
        new = ast.BinOp(written, arm.op, new)
    body.of.ask_for_dtype(base, value.asked)
    stored = subscript(base, index)
    assert isinstance(stored, ast.Subscript)  # noqa: S101 - it was made so
    stored.ctx = ast.Store()
    yield ast.Assign([stored], ast.Call(parse("torch.where"), [chosen, new, written], []), lineno=0)


def _write_part(
    body: Body, base: ast.expr, place: Place, arm: ast.Assign | ast.AugAssign, mask: Value
) -> Iterator[ast.stmt]:
    """Yield what writes a number to parts of the rows of the rounds that take an arm."""
    own = shift(body.facts.rank_of(body.facts.rank(base)), place.kept - place.consumed)
    value = body.of.read(arm.value)
    one = isinstance(arm, ast.Assign) and value.kind is Kind.SAME and value.rank == 0
    if not one or place.axis or place.pieces is not None or not isinstance(own, int):
        raise CannotBatchError(UNKNOWN_RANK)
    if body.facts.is_tensor(base) is not True:
        body.of.ask_for_tensor(base)
    statements, part = compare(body, base, place)
    yield from statements
    ask_for_value(body, base, value)
    chosen = method(mask.code, "to", parse(f"{owned(base)}.device"))  # as the lengths are
    both = ast.BinOp(part, ast.BitAnd(), subscript(chosen, [everything(), *[new_axis()] * own]))
    yield ast.Expr(method(rows_written(base, place), "masked_fill_", both, value.code))


def _beside(body: Body, mask: Value, rows: Sequence[Value]) -> tuple[list[ast.expr], Value]:
    """Return a mask and rows that it chooses among, brought to one shape, and the result."""
    rank = rows[0].rank
    unknown = isinstance(rank, RelativeRank) and all(v.rank == rank and not v.axis for v in rows)
    asked = rows[0].asked
    if not isinstance(rank, RelativeRank) or not unknown:
        return body.of.aligner.together(mask, *rows)
    if body.facts.node(asked) is not rank.base:
        raise CannotBatchError(UNKNOWN_RANK)
    dims = f"({owned(asked)}.dim() {'-' if rank.more < 0 else '+'} {abs(rank.more)})"
    return [view_in_front(mask.code, dims), *(v.code for v in rows)], rows[0]


def mask_among(of: Expressions, items: Sequence[ast.expr]) -> int | None:
    """Return which item of an index is a mask that depends on the round, ``None`` if none is."""
    for at, item in enumerate(items):
        if isinstance(item, (ast.Slice, ast.Constant)) or not of.depends(item):
            continue
        if of.facts.is_mask(item):
            return at
    return None


def write_masked(
    body: Body, target: ast.Subscript, code: ast.expr, op: ast.operator | None
) -> Iterator[ast.stmt]:
    """Yield what writes to the elements that the masks of all rounds pick.

    Raises:
        CannotBatchError: the masks are not over one dimension, or what is written is not computed
            element by element of what the same mask picks.

    """
    of = body.of
    base, items = body.parts(target)
    at = mask_among(of, items)
    assert at is not None  # noqa: S101 - the caller has looked
    mask_code = items[at]
    mask = _read_mask(of, mask_code)
    mask = Value(mask.kind, mask.code, of.facts.assume(mask.rank, 1, mask.asked), mask.axis)
    rest = [everything() if n == at else item for n, item in enumerate(items)]
    place = of.indexer.place(base, rest, None, base)
    own = shift(body.facts.rank(base), place.kept - place.consumed) if place.is_known else None
    own = of.facts.assume(own, 1, base)
    if mask.kind is not Kind.ROWS or mask.rank != 1 or own != 1 or not place.is_view:
        raise CannotBatchError(UNKNOWN_RANK)
    if place.ragged or place.pieces is not None or not _is_of_each(of, code, mask_code):
        raise CannotBatchError(LENGTHS)
    if of.facts.dtype(mask_code) not in {None, "bool"}:
        raise CannotBatchError(LENGTHS)
    if body.facts.is_tensor(base) is not True:
        of.ask_for_tensor(base)
    chosen = mask.code if mask.axis == place.axis else method(mask.code, "transpose", 0, 1)
    index: list[ast.expr] = trim(place.items) or [everything()]
    written = base if place.is_whole else subscript(base, index)
    of.under, of.expected, of.carrier = ast.unparse(mask_code), 1, base
    value = of.read(code)
    of.under, of.expected, of.carrier = "", None, None
    if op is None and value.kind is Kind.SAME and value.rank == 0:
        ask_for_value(body, base, value)
        yield ast.Expr(method(written, "masked_fill_", chosen, value.code))
        return
    value = replace(value, rank=of.facts.assume(value.rank, 0, value.asked))
    one = value.kind is Kind.ROWS and value.rank == 0
    new = at_dimension(value.code, own - place.axis) if one else body.fit(value, place, own, base)
    new = new if op is None else ast.BinOp(written, op, new)
    of.ask_for_dtype(base, value.asked)
    stored = subscript(base, index)
    assert isinstance(stored, ast.Subscript)  # noqa: S101 - it was made so
    stored.ctx = ast.Store()
    yield ast.Assign([stored], ast.Call(parse("torch.where"), [chosen, new, written], []), lineno=0)


def _read_mask(of: Expressions, code: ast.expr) -> Value:
    """Return a mask; what it compares a row with is one number where nothing else is known."""
    of.is_masking = True
    try:
        return of.read(code)
    except CannotBatchError:
        match code:
            case ast.Compare(left, [_], [right]) if of.facts.assumes:
                values = [of.read(left), of.read(right)]
                known = [v for v in values if isinstance(v.rank, int) and v.rank]
                if len(known) != 1:
                    raise
                for value in values:
                    of.facts.assume(value.rank, 0, value.asked)
                return of.read(code)
        raise
    finally:
        of.is_masking = False


def _is_of_each(of: Expressions, code: ast.expr, mask: ast.expr) -> bool:
    """Tell whether code adds and multiplies what the mask picks, and numbers.

    What the mask leaves out is computed as well, so nothing may fail there.
    """
    match code:
        case ast.BinOp(left, op, right) if isinstance(op, _OF_EACH):
            return _is_of_each(of, left, mask) and _is_of_each(of, right, mask)
        case ast.UnaryOp(ast.USub(), operand):
            return _is_of_each(of, operand, mask)
        case ast.Subscript(base, index) if ast.unparse(index) == ast.unparse(mask):
            return never_fails(base)
        case ast.Subscript(base, index):  # one number of each round
            value = of.read(code)
            one = of.facts.assume(value.rank, 0, value.asked) == 0
            return one and value.kind is Kind.ROWS and not value.axis and never_fails(code)
    return isinstance(code, ast.Constant) or (
        (not list_names(code) & set(of.env)) and (of.facts.is_number(code))
    )
