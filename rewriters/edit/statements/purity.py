"""Values that cost nothing to compute at another time: they change nothing, and stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import is_plain_attribute
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

LEAVES = frozenset({Op.CONST, Op.DTYPE, Op.GLOBAL, Op.PARAM, Op.AFTER, Op.CARRIED, Op.ELEMENT})
METADATA = frozenset(
    {Op.SHAPE, Op.SIZE, Op.RANK, Op.DTYPE_OF, Op.TUPLE, Op.SLICE, Op.ITEM, Op.GETITEM, Op.CAST,
     Op.PHI, Op.AGAIN, Op.COMPARE, Op.NOT, Op.IS, Op.IS_NOT, Op.BOOLOP, Op.ATTR, Op.AUGMENTED}
)  # fmt: skip
_MAY_RAISE = frozenset({"cat", "stack", "item", "tolist", "linalg.inv", "inverse", "cholesky"})
_UNFIT = operators.RANDOM | operators.STATEFUL


def is_pure(here: Surroundings, node: Node) -> bool:
    """Tell whether computing a value changes nothing, and gives the same every time."""
    parts = set(node.walk())
    made = [part for part in parts if part.op in operators.FACTORIES]
    parts -= {sizes for part in made for sizes in part.args if sizes.op == Op.LIST}
    return all(
        is_repeatable(here, part) and part.op.removesuffix("(*)") not in _MAY_RAISE
        for part in parts
    )


def is_repeatable(here: Surroundings, part: Node) -> bool:
    """Tell whether one operator changes nothing, and gives the same of the same every time."""
    op = part.op.removesuffix("(*)")
    if op in LEAVES or (op in METADATA and op != Op.ATTR):
        return True
    if op == "py:float" and all(arg.op == Op.CONST for arg in part.args):
        return True  # ``float("-inf")``
    if op.startswith("py:math."):
        return True
    if op == Op.ATTR:
        of_tensor = part.value in {"device", "dtype", "T", "mT", "is_cuda"}
        return of_tensor or _is_setting(here, part)
    return not (op not in operators.TABLE or op in _UNFIT or op.endswith("_") or _writes(part))


def _writes(node: Node) -> bool:
    """Tell whether the result goes into a tensor that is there already."""
    return isinstance(node.value, tuple) and "out" in node.value


def _is_setting(here: Surroundings, node: Node) -> bool:
    return bool(is_plain_attribute(here.flow, node))
