"""Windows of one width that a loop takes of its rows: one ``gather`` for all of them.

::

    for i in range(x.size(0)):              a = starts.to(x.device)[:, None]
        a = starts[i]                       at = a[:, None] + torch.arange(w, device=x.device)
        out[i] = x[i, :, a : a + w]         out[:] = x.gather(2, at.expand(-1, x.shape[1], -1))
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.filling import Pieces, statements_of
from npufix.rewriters.edit.loops.given.values import parse
from npufix.rewriters.edit.loops.rows.columns import Columns, NotAColumnError
from npufix.rewriters.graph.modules.syntax import list_names

if TYPE_CHECKING:
    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop


def read_windows(loop: Loop, facts: Facts) -> Pieces | None:
    """Return what a loop is that only copies a window of each row, ``None`` for any other loop."""
    if not isinstance(loop.statement, ast.For) or loop.lists or loop.total or loop.picked:
        return None
    match loop.body:
        case [
            *bound,
            ast.Assign(
                [ast.Subscript(ast.Name() as out, ast.Name() as row)],
                ast.Subscript(
                    ast.Name() as x,
                    ast.Tuple([ast.Name() as own, *between, ast.Slice(low, high, None)]),
                ),
            ),
        ] if low is not None and high is not None:
            pass
        case _:
            return None
    try:
        columns = Columns(loop, facts, f"{x.id}.device")
        if not (columns.is_counter(row) and columns.is_counter(own)):
            return None
        for statement in bound:
            match statement:
                case ast.Assign([ast.Name(name)], value):
                    columns.bind(name, value)
                case _:
                    return None
        return _written(columns, out, x, between, (low, high))
    except NotAColumnError:
        return None


def _written(
    columns: Columns,
    out: ast.Name,
    x: ast.Name,
    between: list[ast.expr],
    ends: tuple[ast.expr, ast.expr],
) -> Pieces | None:
    facts, dim = columns.facts, len(between) + 1
    nodes = facts.node(out), facts.node(x)
    rank = facts.rank(x)
    whole = all(isinstance(i, ast.Slice) and ast.unparse(i) == ":" for i in between)
    if not whole or False in {facts.is_tensor(out), facts.is_tensor(x)} or None in nodes:
        return None
    assert nodes[0] is not None  # noqa: S101 - asked above
    assert nodes[1] is not None  # noqa: S101 - same
    shares = facts.may_share(nodes[0], nodes[1])
    low, width = columns.read(ends[0]), columns.width(*ends)
    if shares or not low.differs or (isinstance(rank, int) and rank != dim + 1):
        return None
    columns.require_positive(low)
    columns.require_apart(out)
    conditions = dict.fromkeys([*columns.conditions, "whole-pieces"])
    shown = columns.shown()
    last = columns.spelled(low)
    shown["left"] = parse(f"{x.id}.shape[{dim}] - ({width}) - int(({last}).max())")
    if shares is None:
        conditions["separate-memory"] = None
    if facts.is_tensor(out) is None or facts.is_tensor(x) is None:
        conditions["is-tensor"] = None
        shown |= {"tensor0": out, "tensor1": x}
    if not isinstance(rank, int):
        conditions["known-dimensions"] = None
        shown[f"dims{dim + 1}_1"] = x
    at = f"{low.operand}{'[:' + ', None' * (dim - 1) + ']' if dim > 1 else ''}"
    index = f"{at} + torch.arange({width}, device={x.id}.device)"
    if dim > 1:
        sizes = ", ".join(f"{x.id}.shape[{n}]" for n in range(1, dim))
        index = f"({index}).expand(-1, {sizes}, -1)"
    lines = [f"{out.id}[:{columns.rounds}] = {x.id}.gather({dim}, {index})"]
    for line in reversed(columns.lines):  # where each window ends nobody needs
        name = line.partition(" = ")[0]
        if any(name in list_names(ast.parse(other)) for other in lines):
            lines.insert(0, line)
    return Pieces(statements_of(*lines), tuple(conditions), shown)
