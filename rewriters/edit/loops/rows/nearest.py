"""As many of the smallest of each row as a number says, which one ``topk`` marks in all rows.

::

    for i in range(n):                          counts = k[:n].tolist()
        _, at = cost[i].topk(k[i])              at = cost[:n].topk(max(counts, default=0), dim=1)...
        chosen[i][at] = 1                       chosen[:n].scatter_(1, at, ...)

The first ``k[i]`` of those that the row with most of them needs are the ones of row ``i``. The host
waits once for how many that is.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.filling import Pieces, statements_of
from npufix.rewriters.edit.loops.given.subscripts import flatten
from npufix.rewriters.edit.loops.given.values import at_dimension, parse
from npufix.rewriters.edit.loops.rows.moving import read_moved
from npufix.rewriters.graph.modules.syntax import (
    find_unused_name,
    last_name,
    list_indexes,
    nodes_of,
)

if TYPE_CHECKING:
    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop

_STATEMENTS = 2
_MATRIX = 2


@dataclass(frozen=True)
class _Picked:
    """``_, at = cost[i].topk(k[i], largest=False)``."""

    name: str
    tensor: ast.expr
    dim: int
    """Along which dimension of the matrix, whose other one the rounds count."""
    counts: ast.Name
    largest: str


def read_elements(loop: Loop, facts: Facts) -> Pieces | None:
    """Return what a loop is that only moves or marks elements of rows, ``None`` for others.

    Raises:
        CannotBatchError: it is one, but its rows are not known well enough.

    """
    return read_moved(loop, facts) or _read_nearest(loop, facts)


def _read_nearest(loop: Loop, facts: Facts) -> Pieces | None:
    if not loop.is_statement or loop.lists or loop.total or len(loop.body) != _STATEMENTS:
        return None
    match loop.target, loop.items, loop.body[1]:
        case (
            ast.Name(counter),
            ast.Call(ast.Name("range"), [stop], []),
            ast.Assign(
                [ast.Subscript() as target], ast.Constant(bool() | int() | float()) as value
            ),
        ):
            found = _read_topk(loop.body[0], counter)
        case _:
            return None
    if found is None or _is_read_behind(loop, facts, found.name):
        return None
    base, index = flatten(target)
    wanted = [counter, found.name] if found.dim else [found.name, counter]
    if [ast.unparse(item) for item in list_indexes(index)] != wanted:
        return None
    return _mark(facts, found, base, stop, value)


def _read_topk(code: ast.stmt, counter: str) -> _Picked | None:
    match code:
        case ast.Assign([ast.Tuple([ast.Name(), ast.Name(name)])], ast.Call() as call):
            pass
        case ast.Assign([ast.Name(name)], ast.Attribute(ast.Call() as call, "indices")):
            pass
        case ast.Assign([ast.Name(name)], ast.Subscript(ast.Call() as call, ast.Constant(1))):
            pass
        case _:
            return None
    words = {k.arg: k.value for k in call.keywords}
    given = list(call.args)
    if ast.unparse(call.func) != "torch.topk" and isinstance(call.func, ast.Attribute):
        given.insert(0, call.func.value)
    largest = words.pop("largest", ast.Constant(value=True))
    if len(given) == 1 and "k" in words:
        given.append(words.pop("k"))
    if last_name(call.func) != "topk" or words or len(given) != _STATEMENTS:
        return None
    counts = _read_count(given[1], counter)
    match given[0]:
        case ast.Subscript(ast.Name() as tensor, ast.Name(row)) if row == counter:
            dim = 1
        case ast.Subscript(
            ast.Name() as tensor, ast.Tuple([ast.Slice(None, None, None), ast.Name(row)])
        ) if row == counter:
            dim = 0
        case _:
            return None
    if counts is None or not isinstance(largest, ast.Constant):
        return None
    return _Picked(name, tensor, dim, counts, ast.unparse(largest))


def _read_count(code: ast.expr, counter: str) -> ast.Name | None:
    """Return ``k`` of ``k[i]``, ``k[i].item()`` and ``int(k[i])``."""
    match code:
        case ast.Call(ast.Attribute(inner, "item"), [], []) | ast.Call(
            ast.Name("int"), [inner], []
        ):
            return _read_count(inner, counter)
        case ast.Subscript(ast.Name() as counts, ast.Name(row)) if row == counter:
            return counts
    return None


def _is_read_behind(loop: Loop, facts: Facts, name: str) -> bool:
    """Tell whether anybody but the loop reads a name; ``del`` may, which is bound as before."""
    own = {id(n) for s in loop.body for n in ast.walk(s)}
    return name in facts.flow.captured or any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        for n in nodes_of(facts.flow.function)
        if id(n) not in own
    )


def _mark(
    facts: Facts, found: _Picked, base: ast.expr, stop: ast.expr, value: ast.Constant
) -> Pieces | None:
    """Return what marks in all rows what each picks, in a matrix that was made as large."""
    made, given, end = facts.node(base), facts.node(found.tensor), facts.node(stop)
    rank = facts.rank(found.tensor)
    if made is None or given is None or end is None or (isinstance(rank, int) and rank != _MATRIX):
        return None
    if not facts.is_alike(made, given) or facts.may_share(made, given) is not False:
        return None
    numbers = facts.node(found.counts)
    if numbers is None or facts.is_tensor(found.tensor) is False:
        return None
    dim, rounds = found.dim, ast.unparse(stop)
    spans = facts.spans(end, given, 1 - dim)
    part = "" if spans else f"[:{rounds}]" if dim else f"[:, :{rounds}]"
    tensor, target = ast.unparse(found.tensor), f"{ast.unparse(base)}{part}"
    counts = find_unused_name("counts", facts.flow.bound)
    places = find_unused_name("places", facts.flow.bound)
    surely = facts.is_tensor(found.counts) is True
    listed = found.counts.id if surely else f"torch.as_tensor({found.counts.id})"
    listed = f"{listed}[:{rounds}].tolist()"
    if numbers.op == "tolist":
        listed = f"{found.counts.id}[:{rounds}]"
    number = f"torch.arange({found.name}.shape[{dim}], device={tensor}.device)"
    many = f"torch.as_tensor({counts}, device={tensor}.device)"
    columns = at_dimension(parse(places), 1 - dim), at_dimension(parse(many), dim)
    is_picked = ast.unparse(ast.Compare(columns[0], [ast.Lt()], [columns[1]]))
    statements = statements_of(
        f"{counts} = {listed}",
        f"{found.name} = torch.topk({tensor}{part}, max({counts}, default=0), dim={dim}, "
        f"largest={found.largest}).indices",
        f"{places} = {number}",
        f"{target}.scatter_({dim}, {found.name}, {target}.gather({dim}, {found.name})"
        f".masked_fill({is_picked}, {ast.unparse(value)}))",
    )
    conditions = ["no-ties"]
    conditions += [] if facts.is_tensor(found.tensor) else ["is-tensor"]
    conditions += [] if rank == _MATRIX else ["known-dimensions"]
    conditions += [] if facts.is_count(end) else ["nonnegative-count"]
    return Pieces(statements, tuple(conditions), {}, frozenset({found.name}))
