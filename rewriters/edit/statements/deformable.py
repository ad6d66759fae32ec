"""Multi-scale deformable attention written out, whatever it is called: by what it computes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import last_name, list_names, walk

if TYPE_CHECKING:
    from npufix.rewriters.graph.modules.names import FunctionNode

_OPERANDS = 4
_SAMPLES = "grid_sample"
"""How the name of what samples ends: it may be wrapped (``_bilinear_grid_sample``)."""


def find_sampling(function: FunctionNode) -> ast.Call | None:
    """Return the call in a loop that samples one level of features, ``None`` if there is none.

    ::

        parts = value.split([h * w for h, w in shapes], dim=1)
        for level, (h, w) in enumerate(shapes):
            sampled.append(F.grid_sample(parts[level]..., grids[:, :, :, level]...))
        return (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)
    """
    nodes = list(walk(*function.body))
    calls = {last_name(n.func) for n in nodes if isinstance(n, ast.Call)}
    samples = [name for name in calls if name.endswith(_SAMPLES)]
    if not samples or not {"split", "sum"} <= calls or not _is_weighted_sum(nodes):
        return None
    loops = [n for n in nodes if isinstance(n, (ast.For, ast.ListComp))]
    found = (n for loop in loops for n in walk(loop) if isinstance(n, ast.Call))
    return next((call for call in found if last_name(call.func) in samples), None)


def list_operands(function: FunctionNode) -> list[str]:
    """Return what its parameters are, in their order: value, shapes, locations and weights.

    Nothing where that is not all of them, or in another order.
    """
    given = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if len(given) < _OPERANDS:
        return []
    nodes = list(walk(*function.body))
    value, shapes, locations, weights = given[:_OPERANDS]
    is_value = any(
        isinstance(n, ast.Call) and last_name(n.func) == "split" and value in list_names(n.func)
        and _is_along_one(n)
        for n in nodes
    )
    of_levels = any(
        shapes in list_names(n.iter) for n in nodes if isinstance(n, (ast.For, ast.comprehension))
    )
    scaled = any(
        isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) and locations in list_names(n)
        and any(isinstance(side, ast.Constant) and side.value == 2 for side in (n.left, n.right))  # noqa: PLR2004 - from [0, 1] to [-1, 1]
        for n in nodes
    )  # fmt: skip
    used = any(isinstance(n, ast.Name) and n.id == weights for n in nodes)
    return given[:_OPERANDS] if is_value and of_levels and scaled and used else []


def _is_along_one(split: ast.Call) -> bool:
    """Tell whether levels are parts of (batch, positions, heads, channels), not of another order."""
    given = [*split.args[1:], *(k.value for k in split.keywords if k.arg == "dim")]
    return any(isinstance(dim, ast.Constant) and dim.value == 1 for dim in given)


def _is_weighted_sum(nodes: list[ast.AST]) -> bool:
    """Tell whether products are added up: ``(sampled * weights).sum(-1)``."""
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "sum"
        and isinstance(n.func.value, ast.BinOp) and isinstance(n.func.value.op, ast.Mult)
        for n in nodes
    )  # fmt: skip
