"""Rounds that add to rows which tensors pick, whatever rounds pick the same one.

``out[index[i]] += x[i]`` is ``out.index_put_((index,), x, accumulate=True)``.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import (
    CannotBatchError,
    Kind,
    method,
    parse,
    shift,
)
from npufix.rewriters.edit.loops.indexing import OTHER_ROUND
from npufix.rewriters.facts.host_tensors import is_made_on_host
from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.loops.given.places import Place
    from npufix.rewriters.edit.loops.given.values import Value
    from npufix.rewriters.edit.loops.statements import Body


def adds_to_picked(
    body: Body, base: ast.expr, items: Sequence[ast.expr], op: ast.operator | None
) -> bool:
    """Tell whether rounds only add to what is indexed with numbers of tensors, and else read none.

    ``items`` are the indexes of what is written to.
    """
    of = body.of
    if not isinstance(op, (ast.Add, ast.Sub)) or any(isinstance(i, ast.Slice) for i in items):
        return False
    key = ast.unparse(base)
    named = [n for n in walk(*body.code) if isinstance(n, ast.expr) and ast.unparse(n) == key]
    kinds = [of.read(i).kind for i in items if of.depends(i)]
    picked = len(kinds) == len(items) and not {*kinds} - {Kind.ENTRY, Kind.ROWS}
    return picked and len(named) == 1


def add_to_picked(
    body: Body, base: ast.expr, place: Place, value: Value, op: ast.operator | None
) -> ast.stmt:
    """Return the statement that adds what all rounds have made: rows, or one number for all.

    Raises:
        CannotBatchError: what is added is no row, or may be no tensor.

    """
    facts, name = body.facts, ast.unparse(base)
    is_same = value.kind is Kind.SAME
    is_number = is_same and facts.is_number(value.code)
    if is_same and (value.rank != 0 or not (is_number or facts.is_tensor(value.code))):
        raise CannotBatchError(OTHER_ROUND)
    own = shift(facts.rank(base), place.kept - place.consumed) if place.is_known else None
    new = body.fit(value, place, own, base)
    new = ast.UnaryOp(ast.USub(), new) if isinstance(op, ast.Sub) else new
    made = method(new, "to", base)
    if is_number:
        words = (ast.keyword(word, parse(f"{name}.{word}")) for word in ("dtype", "device"))
        made = ast.Call(parse("torch.full"), [ast.Tuple([], ast.Load()), new], [*words])
    body.of.conditions["adds-floats"] = None
    node, items = facts.node(base), place.items
    if node is not None and is_made_on_host(node):  # which takes no index of the device
        items = [method(item, "to", parse(f"{name}.device")) for item in items]
    call = method(base, "index_put_", ast.Tuple(items, ast.Load()), made)
    call.keywords = [ast.keyword("accumulate", ast.Constant(value=True))]
    return ast.Expr(call)
