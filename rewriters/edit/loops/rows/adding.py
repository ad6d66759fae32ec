"""Rounds that add to rows which tensors pick, whatever rounds pick the same one.

``out[index[i]] += x[i]`` is ``out.index_put_((index,), x, accumulate=True)``.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import Kind, method, parse
from npufix.rewriters.facts.host_tensors import is_made_on_host
from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.edit.loops.indexing import Place


def adds_to_picked(
    of: Expressions,
    code: Sequence[ast.stmt],
    target: tuple[ast.expr, list[ast.expr]],
    op: ast.operator | None,
) -> bool:
    """Tell whether rounds only add to what is indexed with numbers of tensors, and else read none.

    ``code`` are the statements of a round, ``target`` what is written to and its indexes.
    """
    base, items = target
    if not isinstance(op, (ast.Add, ast.Sub)) or any(isinstance(i, ast.Slice) for i in items):
        return False
    key = ast.unparse(base)
    named = [n for n in walk(*code) if isinstance(n, ast.expr) and ast.unparse(n) == key]
    kinds = [of.read(i).kind for i in items if of.depends(i)]
    picked = len(kinds) == len(items) and not {*kinds} - {Kind.ENTRY, Kind.ROWS}
    return picked and len(named) == 1


def add_to_picked(
    of: Expressions, base: ast.expr, place: Place, new: ast.expr, *, is_number: bool
) -> ast.stmt:
    """Return the statement that adds what all rounds have made: rows, or one number for all."""
    of.conditions["adds-floats"] = None
    name = ast.unparse(base)
    if is_number:
        made = parse(f"torch.full((), 0, dtype={name}.dtype, device={name}.device)")
        assert isinstance(made, ast.Call)  # noqa: S101 - it was written so
        made.args[1] = new
    else:
        made = method(new, "to", base)
    node, items = of.facts.node(base), place.items
    if node is not None and is_made_on_host(node):  # which takes no index of the device
        items = [method(item, "to", parse(f"{name}.device")) for item in items]
    index = ast.Tuple(items, ast.Load())
    call = method(base, "index_put_", index, made)
    call.keywords = [ast.keyword("accumulate", ast.Constant(value=True))]
    return ast.Expr(call)
