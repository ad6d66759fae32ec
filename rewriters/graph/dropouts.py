"""Dropouts that a helper does under a condition: ``F.dropout(x, p) if training else x``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.graph.nodes import Graph, Node


def dropout_under(graph: Graph, test: Node, then: Node, other: Node) -> Node | None:
    """Return one dropout for a choice between a dropout and its operand, if it is that."""
    if then.op != "dropout" or len(then.args) != 4 or then.args[0] is not other:  # noqa: PLR2004
        return None
    x, p, training, inplace = then.args
    # A dropout of nothing changes nothing: ``p > 0`` only saves a call.
    tests = [part for part in _conjuncts(test) if not _is_positive(part, p)]
    if training.op != Op.CONST:
        tests.append(training)
    elif training.value is not True:
        return None
    if not tests:
        training = graph.constant(True)  # noqa: FBT003 - a literal
    elif len(tests) == 1:
        training = tests[0]
    else:
        epoch = max(part.epoch for part in tests)
        training = graph.node(Op.BOOLOP, *tests, value="And", epoch=epoch)
    return graph.node("dropout", x, p, training, inplace, value=then.value, epoch=then.epoch)


def _conjuncts(test: Node) -> list[Node]:
    if test.op == Op.BOOLOP and test.value == "And":
        return [part for arg in test.args for part in _conjuncts(arg)]
    return [test]


def _is_positive(test: Node, p: Node) -> bool:
    """Tell whether a test is ``p > 0``."""
    zero = test.args[1] if test.op == "gt" and test.args[0] is p else None
    return zero is not None and zero.op == Op.CONST and zero.value == 0
