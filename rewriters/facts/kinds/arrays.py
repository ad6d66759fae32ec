"""What NumPy and its like make, and what they are given."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Node

_OF_NUMPY = re.compile(
    r"(import alias\(name='|from 0 )?(numpy|np|scipy|cv2|skimage|PIL|networkx|pandas|sklearn)\b"
)
"""A module without tensors, or what a function imports: ``from scipy import sparse``."""


def is_of_numpy(node: Node) -> bool:
    """Tell whether a value is an array: made by NumPy, or by a method that only arrays have."""
    while node.op in operators.VIEWS | {Op.GETITEM, Op.SETITEM}:  # ``x.numpy().reshape(2, 1)[0]``
        node = node.args[0]
    # ``x.np``, and ``lib.isnan(x)`` of either library
    if node.op == "numpy" or (node.op, node.value) in ((Op.ATTR, "np"), (Op.GLOBAL, "numpy")):
        return True
    if node.op != Op.CALL:
        return False
    made = root = node.args[0]
    while root.op == Op.ATTR:
        root = root.args[0]
    # the function around it may import, ``np``
    imported = root.op in {Op.GLOBAL, Op.OUTSIDE} and _OF_NUMPY.match(str(root.value))
    return bool(imported) or (made.op != Op.GLOBAL and made.value in {"astype", "copy"})


@lru_cache(maxsize=4)
def list_given_to_numpy(flow: FunctionFlow) -> frozenset[Node]:
    """Return what NumPy certainly computes with: ``std`` of ``if np.any(std == 0)``."""
    calls = (e.node for e in flow.by_operation.get(Op.CALL, ()) if e.certain)
    given = [arg for call in calls if is_of_numpy(call) for arg in call.args[1:]]
    for node in given:  # grows: ``np.concatenate([boxes[:, :3], ones])``
        inside = node.args if node.op in operators.COMPARISONS | {Op.LIST} else ()
        given += node.args[:1] if node.op == Op.GETITEM else inside
    return frozenset(given)
