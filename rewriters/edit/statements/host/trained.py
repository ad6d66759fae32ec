"""Losses that training steps by: tensors of floating point, whatever has computed them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import is_named_loss
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_SUMS = frozenset({"add", "sub", "mul", "div", "mean", "sum", "detach", Op.AUGMENTED, Op.PHI})


def is_trained_on(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a gradient is asked of a value, or of a sum that it is part of.

    ``loss = a + 0.5 * b`` and then ``loss.backward()``: the three are tensors of floating point,
    on one device. So does ``accelerator.backward(loss)``, ``scaler.scale(loss).backward()``.
    """
    _, value = here.place_of(code)
    if value is None:
        return False
    stack = [node for n in here.nodes if (node := _differentiated(here, n)) is not None]
    named = is_named_loss(code)
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node is value:
            return True
        if node not in seen and node.op in _SUMS:
            seen.add(node)
            stack += _terms(node, named=named)
    return False


def _terms(node: Node, *, named: bool) -> Sequence[Node]:
    """Return what a sum is made of; not the count that one is divided by, or weighed with.

    Where neither factor is a number, the one that is called a loss is one.
    """
    if node.op == "div":
        return node.args[:1]
    if node.op == "mul" and not named and not any(a.op == Op.CONST for a in node.args):
        return ()
    return node.args


def _differentiated(here: Surroundings, code: ast.AST) -> Node | None:
    match code:
        case ast.Call(ast.Attribute(ast.Call(ast.Attribute(_, "scale"), [loss]), "backward"), []):
            return here.value(loss)
        case ast.Call(ast.Attribute(loss, "backward"), []):
            return here.value(loss)
        case ast.Call(ast.Attribute(_, "backward" | "manual_backward"), [loss]):
            return here.value(loss) if is_named_loss(loss) else None
    return None
