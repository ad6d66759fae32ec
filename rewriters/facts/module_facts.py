"""What the constructor of a submodule was given: ``nn.LayerNorm(hidden_size, eps=1e-5)``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.attributes import assigned_values, number_of_lengths
from npufix.rewriters.graph.modules.wrapped_modules import made_by_factory
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.names import FunctionNode
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.match.matching import Match

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "Dropout": ("p", "inplace"),
    "GroupNorm": ("num_groups", "num_channels", "eps", "affine"),
    "LayerNorm": ("normalized_shape", "eps", "elementwise_affine", "bias"),
    "RMSNorm": ("normalized_shape", "eps", "elementwise_affine"),
}
_WITHOUT_GRADIENTS = frozenset({"torch.no_grad", "torch.inference_mode"})


def setting(flow: FunctionFlow, node: Node, parameter: str) -> str | None:
    """Return the code of an argument of a submodule's constructor, "" if it has its default.

    ``None`` where the class does not say, or says different things.
    """
    found = {
        "" if value is None else ast.unparse(value) for _, value in _given(flow, node, parameter)
    }
    return found.pop() if len(found) == 1 else None


def normalized_dims(flow: FunctionFlow, node: Node) -> int | None:
    """Return over how many dimensions a norm computes its mean, ``None`` if that is not clear."""
    found = {
        None if value is None else number_of_lengths(value, method, flow.names)
        for method, value in _given(flow, node, "normalized_shape")
    }
    return found.pop() if len(found) == 1 else None


def _given(
    flow: FunctionFlow, node: Node, parameter: str
) -> Iterator[tuple[FunctionNode, ast.expr | None]]:
    """Yield the argument in each construction of ``self.norm``; ``None`` for its default."""
    is_own = node.op == Op.ATTR and node.args[0].op == Op.PARAM and node.args[0].value == "self"
    if not is_own or flow.cls is None:
        return
    for method, made in assigned_values(flow.names, flow.cls, str(node.value)):
        if not isinstance(made, ast.Call):
            continue
        call = made_by_factory(made, flow.names) or made
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        arguments = dict(zip(_PARAMETERS.get(name, ()), call.args, strict=False))
        arguments |= {k.arg: k.value for k in call.keywords if k.arg is not None}
        yield method, arguments.get(parameter)


def is_without_gradients(flow: FunctionFlow, match: Match) -> bool | None:
    """Tell whether the code says that no gradient is wanted; ``None`` if it says nothing."""
    line = match.evaluation.statement.lineno
    contexts = [*flow.function.decorator_list]
    for part in ast.walk(flow.function):
        if isinstance(part, ast.With) and part.lineno <= line <= (part.end_lineno or part.lineno):
            contexts += [item.context_expr for item in part.items]
    functions = [c.func if isinstance(c, ast.Call) else c for c in contexts]
    return any(flow.names.dotted(f) in _WITHOUT_GRADIENTS for f in functions) or None
