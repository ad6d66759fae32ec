"""Where a value comes from: out of a sine, out of two layers of one width, out of no tensor."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of
from npufix.rewriters.graph.special import Op
from npufix.rewriters.graph.submodules import submodule

if TYPE_CHECKING:
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Node

_COPIES = operators.KEEPS | {Op.CAST, "to", "cat", Op.GETITEM, Op.ITEM, "stack"}
_TENSOR_CLASS = re.compile(r"\w*Tensor|Parameter|Buffer")
_WIDTH = 1  # ``nn.Linear(in_features, out_features)``


def is_sinusoid(node: Node) -> bool:
    """Tell whether all elements of a tensor are sines or cosines, unscaled."""
    while node.op in _COPIES and node.args:
        if node.args[0].op == Op.TUPLE:
            return all(map(is_sinusoid, node.args[0].args))
        node = node.args[0]
    return node.op in {"cos", "sin"}


def same_projection(flow: FunctionFlow, first: Node, second: Node) -> bool | None:
    """Tell whether two tensors are results of layers of one input and width.

    Halves of one are not: where no pattern of halves fits, they would be joined again.
    """
    if first is second:
        return False
    if any(map(_is_broadcast, (first, second))) or _is_part(first) or _is_part(second):
        return False
    widths = [_width(flow, node) for node in (first, second)]
    if None in widths or first.args[1] is not second.args[1]:
        return None
    return True if widths[0] == widths[1] else None


def _is_part(node: Node) -> bool:
    """Tell whether a tensor is cut out of a wider one: no layer made it alone.

    ``x, z = in_proj(h).split(...)``; ``out_norm(scan(x) * silu(z))`` gates, and is no SwiGLU.
    """
    while node.op in operators.SAME_SHAPE | {"view", "reshape", "transpose"}:
        node = node.args[0]
    return node.op == Op.ITEM and node.args[0].op in {"chunk", "split"}


def _is_broadcast(node: Node) -> bool:
    """Tell whether a factor is a parameter, or was given a dimension of length one for this."""
    while node.op in operators.SAME_SHAPE or (
        # ``squeeze_excite``: layers keep a dimension of length one
        len(node.args) == 2  # noqa: PLR2004 - a layer and its input
        and (node.op == Op.CALL or node.op.startswith("module:"))
    ):
        node = node.args[0] if node.op in operators.SAME_SHAPE else node.args[1]
    if node.op.startswith("adaptive_avg_pool"):
        return True
    if node.op in {"mean", "sum"} and len(node.args) > 2:  # noqa: PLR2004 - x, dim, keepdim
        return node.args[2].value is True
    return node.op in {Op.ATTR, "unsqueeze"}


def _width(flow: FunctionFlow, node: Node) -> str | None:
    """Return the code of the number of features that a linear layer returns, and its class."""
    if not (node.op.startswith("module:") and "Linear" in node.op) or flow.cls is None:
        return None
    layer = node.args[0]
    if layer.op != Op.ATTR or layer.args[0].op != Op.PARAM or layer.args[0].value != "self":
        return None
    made = submodule(flow.names, flow.cls, str(layer.value))
    if made is None or made.call is None:
        return None
    named = {k.arg: k.value for k in made.call.keywords}
    size = named.get("out_features")
    if size is None and len(made.call.args) > _WIDTH:
        size = made.call.args[_WIDTH]
    return None if size is None else f"{made.name}({ast.unparse(size)})"


def left_out(test: Node) -> Node | None:
    """Return the argument that may be left out: ``if w is None: w = x.new_ones(n)`` tells of it."""
    if test.op not in {Op.IS, Op.IS_NOT} or test.args[0].op != Op.PARAM:
        return None
    return test.args[0] if test.args[1].op == Op.CONST and test.args[1].value is None else None


@lru_cache(maxsize=4)
def list_holding_none(flow: FunctionFlow) -> frozenset[str]:
    """Return the names of what may hold ``None``: ``states`` of ``if states[0] is None``."""
    found: set[str] = set()
    for code in nodes_of(flow.function):
        match code:
            case ast.Compare(
                ast.Subscript(ast.Name(name)), [ast.Is() | ast.IsNot()], [ast.Constant(None)]
            ):
                found.add(name)
    return frozenset(found)


@lru_cache(maxsize=4)
def list_of_other_classes(flow: FunctionFlow) -> frozenset[str]:
    """Return what a function says is no tensor: ``assert isinstance(data, TensorDict)``."""
    found: set[str] = set()
    for code in nodes_of(flow.function):
        match code:
            case ast.Assert(ast.Call(ast.Name("isinstance"), [ast.Name(name), kinds], [])):
                classes = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
                if not any(_TENSOR_CLASS.fullmatch(last_name(c) or "") for c in classes):
                    found.add(name)
    return frozenset(found)
