"""``if`` in a loop, of which each round takes one arm: ``torch.where`` for all rounds.

``if n[i] > most: n[i] = most`` is ``n.masked_fill_(n > most, most)``.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.filling import ask_for_value
from npufix.rewriters.edit.loops.values import (
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Value,
    at_dimension,
    everything,
    like,
    method,
    parse,
    shift,
    subscript,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.edit.loops.statements import Body

BRANCH = "which branch it takes depends on the round: torch.where computes both"
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
    if not all(isinstance(a, (ast.Assign, ast.AugAssign)) and _never_fails(a.value) for a in arms):
        raise CannotBatchError(BRANCH)
    mask = _truth(body.of, test)
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


def pick(body: Body, name: str, test: ast.expr) -> list[ast.stmt]:
    """Return what gives a name to the numbers of the rounds that pass a test.

    Raises:
        CannotBatchError: the test is no comparison of numbers.

    """
    found = method(method(_truth(body.of, test).code, "nonzero"), "squeeze", 1)
    start = body.of.domain.start
    code = ast.BinOp(found, ast.Add(), ast.Constant(start)) if start else found
    return [ast.Assign([ast.Name(name, ast.Store())], code, lineno=0)]


def _never_fails(code: ast.expr) -> bool:
    """Tell whether code reads rows by their counter alone, and adds or multiplies them."""
    match code:
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult(), right):
            return _never_fails(left) and _never_fails(right)
        case ast.UnaryOp(ast.USub(), operand):
            return _never_fails(operand)
        case ast.Subscript(base, ast.Name() | ast.Constant()):
            return _never_fails(base)
        case ast.Subscript(base, ast.Tuple(items)):
            plain = (ast.Name, ast.Constant, ast.Slice)
            return _never_fails(base) and all(isinstance(item, plain) for item in items)
    return isinstance(code, (ast.Name, ast.Attribute, ast.Constant))


def _truth(of: Expressions, code: ast.expr) -> Value:
    """Return the outcome of a test as a vector: what a round tests is one number."""
    match code:
        case ast.UnaryOp(ast.Not(), operand):
            value = _truth(of, operand)
            return like(value, ast.UnaryOp(ast.Invert(), value.code), fresh=True)
        case ast.BoolOp(op, [left, right]):
            both = ast.BitAnd() if isinstance(op, ast.And) else ast.BitOr()
            first, second = _truth(of, left), _truth(of, right)
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
    of_host = value.kind is Kind.NUMBER or of.facts.is_tensor(value.code) is False
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
    codes, whole = body.of.aligner.together(mask, *rows)
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
    if place.ragged or not place.is_view or not isinstance(own, int):
        raise CannotBatchError(UNKNOWN_RANK)
    if body.facts.is_tensor(base) is not True:
        body.of.ask_for_tensor(base)
    index: list[ast.expr] = [everything()] if place.is_whole else place.items
    written = base if place.is_whole else subscript(base, index)
    chosen = at_dimension(mask.code, own - place.axis)
    body.of.expected, body.of.carrier = own, base
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
