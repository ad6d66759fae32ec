"""``torch.stack`` and ``torch.cat`` of what the rounds of a loop make."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    SHARED,
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Value,
    at_dimension,
    integer,
    method,
    parse,
)
from npufix.rewriters.edit.loops.ragged import joined
from npufix.rewriters.graph.modules.syntax import last_name, list_names
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.edit.loops.given.facts import Facts

SAME_EACH = "each round makes the same"
UNKNOWN_JOIN = "along which dimension its rows are joined is not written out"


def join_rounds(call: ast.Call, made: ast.expr, of: Expressions) -> ast.expr:
    """Return what a call that joins the values of all rounds returns.

    Raises:
        CannotBatchError: it is no tensor of rows.

    """
    is_sum = isinstance(call.func, ast.Name) and call.func.id == "sum"
    value = rows_of(made, of, is_joined=not is_sum)
    if is_sum:
        of.conditions["adds-floats"] = None
    return join(call, value)


def rows_of(made: ast.expr, of: Expressions, *, is_joined: bool = True) -> Value:
    """Return what is joined, or else added up, as rows.

    Raises:
        CannotBatchError: it is no tensor of rows.

    """
    of.joined = made if is_joined else None
    value = of.read(made, parts=True)
    if value.part is not None and isinstance(made, ast.Subscript) and is_joined:
        lengths = next((m for m, known in of.parts.names.items() if known == value.part.known), "")
        if "torch.as_tensor(" in lengths:  # views, and one launch, where the host has the lengths
            raise CannotBatchError(LENGTHS)
    if value.kind is Kind.REPEATED:
        return value
    if value.kind is Kind.SAME:
        raise CannotBatchError(SAME_EACH)
    return of.aligner.tensor(value)


def add_up(
    total: str, made: ast.expr, of: Expressions, *, in_place: bool, chosen: Value | None = None
) -> list[ast.stmt]:
    """Return the statements that add to a name what all rounds make; ``in_place``: as ``+=`` does.

    ``chosen`` -- which of the rounds do so, all of them if that is not told.

    Raises:
        CannotBatchError: it is no tensor of rows.

    """
    value = of.aligner.tensor(rows_of(made, of, is_joined=False))
    if value.part is not None or (chosen is not None and list_names(made) & of.means):
        raise CannotBatchError(LENGTHS)
    of.conditions["adds-floats"] = None
    if chosen is not None:
        value = of.aligner.in_front(value)
        if not isinstance(value.rank, int):
            raise CannotBatchError(UNKNOWN_RANK)
        mask = at_dimension(chosen.code, value.rank)
        picked = ast.Call(parse("torch.where"), [mask, value.code, ast.Constant(0)], [])
        value = replace(value, code=picked)
    code = sum_into(total, made, value, of, in_place=in_place)
    target = ast.Name(total, ast.Store())
    new: ast.stmt = ast.AugAssign(target, ast.Add(), code)
    if not in_place:
        whole = ast.BinOp(ast.Name(total, ast.Load()), ast.Add(), code)
        new = ast.Assign([target], whole, lineno=0)
    return [*of.aligner.statements, new]


def sum_into(
    total: str, made: ast.expr, value: Value, of: Expressions, *, in_place: bool
) -> ast.Call:
    """Return the sum of all rounds, in no narrower dtype than each was added to the total in."""
    code = method(value.code, "sum", value.axis)
    facts = of.facts
    begun = facts.before(total)
    if begun is None or not (facts.shapes.is_number(begun) or facts.is_as_wide(made, begun)):
        if in_place and begun is not None and facts.is_wide(begun):
            code.keywords = [ast.keyword("dtype", parse(f"{total}.dtype"))]
        else:
            of.ask_for_dtype(ast.Name(total, ast.Load()), value.code)
    return code


def grow(
    total: str, call: ast.Call | None, made: ast.expr, of: Expressions, *, begins: bool = False
) -> list[ast.stmt]:
    """Return the statements that put behind a tensor, in one ``torch.cat``, what all rounds make.

    ``begins`` -- the first round makes the tensor; without a ``call`` the others add to it.

    Raises:
        CannotBatchError: it is no tensor of rows, or the first round makes no new one.

    """
    value = rows_of(made, of, is_joined=call is not None)
    before = of.facts.before(total)
    if begins and (value.part is not None or (before is not None and before.op != Op.UNSET)):
        raise CannotBatchError(LENGTHS)
    if begins and not (value.fresh or isinstance(made, ast.BinOp)):
        raise CannotBatchError(SHARED)  # what changes ``x[0]`` would change ``x``
    if call is None:
        of.conditions["adds-floats"] = None
        value = of.aligner.tensor(value)
    code = method(value.code, "sum", value.axis) if call is None else join(call, value)
    if call is not None and not begins:
        parts = ast.Tuple([ast.Name(total, ast.Load()), code], ast.Load())
        code = ast.Call(call.func, [parts, *call.args[1:]], call.keywords)
    new = ast.Assign([ast.Name(total, ast.Store())], code, lineno=0)
    return [*of.aligner.statements, new]


def join(call: ast.Call, value: Value) -> ast.expr:
    """Return what a call makes of rows that it joins.

    Raises:
        CannotBatchError: along which dimension is not known.

    """
    words = {k.arg: k.value for k in call.keywords}
    dims = [*call.args[1:], *(words[w] for w in ("dim", "axis") if w in words)]
    dim = integer(dims[0]) if dims else 0
    if dim is None or len(dims) > 1 or set(words) - {"dim", "axis"}:
        raise CannotBatchError(UNKNOWN_JOIN)
    is_sum = isinstance(call.func, ast.Name) and call.func.id == "sum"
    if value.part is not None:
        if is_sum or last_name(call.func) == "stack":
            raise CannotBatchError(LENGTHS)
        return joined(value, dim)
    if is_sum:
        return method(value.code, "sum", value.axis)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if value.kind is Kind.REPEATED:
        if dim or name == "stack":
            raise CannotBatchError(LENGTHS)
        return value.code
    return _stack(value, dim) if name == "stack" else _concatenate(value, dim)


def _stack(value: Value, dim: int) -> ast.expr:
    if dim < 0 and isinstance(value.rank, int):
        dim += value.rank + 1
    if dim < -1:
        raise CannotBatchError(UNKNOWN_RANK)
    if dim == value.axis:
        return value.code if value.fresh else method(value.code, "clone")
    return method(_move(value, dim), "contiguous")


def _concatenate(value: Value, dim: int) -> ast.expr:
    if isinstance(value.rank, int):
        if value.rank == 0 or not -value.rank <= dim < value.rank:
            raise CannotBatchError(UNKNOWN_JOIN)
        dim %= value.rank
    if dim < 0:  # ``-1`` of one round is the last of all rounds too: the rounds go before it
        return method(_move(value, dim - 1), "flatten", dim - 1, dim)
    if dim == value.axis == 0 and (rows := _rows_behind(value.code)) is not None:
        return rows if value.fresh else method(rows, "clone")
    own = value.code if value.fresh or dim != value.axis else method(value.code, "clone")
    code = own if dim == value.axis else _move(value, dim)
    if dim != value.axis and _are_pieces(value.code):
        # One copy, also where the pieces have a length of one and flattening would not copy.
        words = ast.keyword("memory_format", parse("torch.contiguous_format"))
        code = ast.Call(ast.Attribute(code, "clone", ast.Load()), [], [words])
    return method(code, "flatten", dim, dim + 1)


def _rows_behind(code: ast.expr) -> ast.expr | None:
    """Return ``x`` of ``x[:, None]``, whose rows are joined to what they are: ``row[None]``."""
    match code:
        case ast.Subscript(x, ast.Tuple([ast.Slice() as rows, ast.Constant(None)])):
            whole = rows.lower is rows.upper is rows.step is None
            return x if whole else ast.Subscript(x, rows, ast.Load())
        case ast.Call(ast.Attribute(x, "unsqueeze"), [dim], []) if integer(dim) == 1:
            return x
    return None


def _are_pieces(code: ast.expr) -> bool:
    match code:
        case ast.Call(ast.Attribute(_, "unflatten")):
            return True
    return False


def _move(value: Value, dim: int) -> ast.expr:
    if {value.axis, dim} == {0, 1}:
        return method(value.code, "transpose", 0, 1)
    return method(value.code, "movedim", value.axis, dim)


def is_only_joined(facts: Facts, name: str) -> bool:
    """Tell whether a list is made empty, filled at one place, and else only joined."""
    flow = facts.flow
    function, joins = flow.function, 0
    named = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
    for node in ast.walk(function):
        match node:
            case ast.Assign([ast.Name(one)], ast.List([])) if one == name:
                joins += 1
            case ast.Call(ast.Attribute(ast.Name(one), "append"), [_], []) if one == name:
                joins += 1
            case ast.Call(func, [ast.Name(one), *_]) if one == name:
                joins += flow.names.dotted(func) in {"torch.stack", "torch.cat"}
    return joins == len(named) == 3  # noqa: PLR2004 - made, filled, joined
