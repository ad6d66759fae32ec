"""Values that a function computes twice: equal to begin with, but each a tensor of its own.

``a = x + 1; b = x + 1`` are one node of the graph. Once something may have written to one of them,
the node no longer tells what the other one holds.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.torch_names import FRESH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Node

# What the result of shares the memory of.
VIEWS = frozenset(
    {"T", "broadcast_to", "chunk", "data", "detach", "diagonal", "expand", "expand_as", "imag",
     "mT", "movedim", "narrow", "permute", "real", "select", "split", "squeeze", "swapaxes",
     "swapdims", "t", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as"}
)  # fmt: skip
# What nobody can write to, or is another one at each call.
_NO_TENSORS = frozenset(
    {"again", "attr", "augmented", "call", "const", "def", "dtype", "dtype_of", "either",
     "global", "item", "param", "phi", "py:len", "rank", "shape", "size",
     "slice", "tuple"}
)  # fmt: skip
# The result shares nothing with the operands.
_NEW = frozenset(
    {"add", "sub", "mul", "div", "pow", "floordiv", "mod", "matmul", "and", "or", "xor", "invert",
     "eq", "ne", "lt", "le", "gt", "ge", "not", "neg", "compare", "square", "sqrt", "rsqrt", "sum",
     "mean", "exp", "log", "abs", "cat", "stack", "where", "softmax", "log_softmax", "linear",
     "bmm", "embedding", "masked_fill", "gather", "index_select", "repeat", "one_hot", "clone",
     "nonzero", "isnan", "isinf", "cumsum", "tanh", "sigmoid", "any", "all", "numel", "item",
     "tolist", "argmax", "argsort", "arange", "linspace", "rand", "randn", "randint"}
) | FRESH  # fmt: skip
_COUNTED = frozenset(
    {"boolop", "const", "counter", "in", "is", "isnot", "not", "notin", "py:bool", "py:float",
     "py:hasattr", "py:int", "py:isinstance", "py:issubclass", "py:len", "py:range", "py:round",
     "py:str", "py:type", "rank", "shape", "size"}
)  # fmt: skip
CONTAINERS = (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set, ast.SetComp)
_SPELLED_OUT = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, *CONTAINERS)


def tells_twins_apart(flow: FunctionFlow, root: Node) -> bool:
    """Tell whether what a match reads is certain to be what its node says."""
    twins = flow.twins
    if not twins:
        return True
    operands = [node for node in _read_by(root) if node in twins]
    if not operands:
        return True
    written = set(_written(root)) if root in flow.writes else set()
    return not any(
        node in written or (node.epoch != root.epoch and node in flow.shared) for node in operands
    )


def made_twice(flow: FunctionFlow) -> frozenset[Node]:
    """Return the values that several expressions make a tensor of."""
    first: dict[Node, ast.AST] = {}
    found: set[Node] = set()
    for evaluation in flow.evaluations:
        node, code = evaluation.node, evaluation.code
        if isinstance(code, CONTAINERS) and _is_named(code, evaluation.statement):
            continue  # the reader knows one from the other
        if isinstance(code, _SPELLED_OUT) or (isinstance(code, ast.Subscript) and copies(node)):
            known = first.setdefault(node, code)
            if known is not code and not _is_plain(node) and node.op not in _NO_TENSORS | VIEWS:
                found.add(node)
    return frozenset(found)


def _is_named(code: ast.AST, statement: ast.stmt) -> bool:
    """Tell whether a list is what an assignment gives a name to."""
    match statement:
        case ast.Assign(_, ast.Tuple(items)):
            return any(item is code for item in items)
        case ast.Assign(_, value):
            return value is code
    return False


def _is_plain(node: Node) -> bool:
    """Tell whether a value is a number or a truth value, which nothing changes."""
    if node.op in _COUNTED or node.op.startswith("py:math."):
        return True
    combined = node.op in _NEW or node.op == "list"
    return combined and bool(node.args) and all(map(_is_plain, node.args))


def copies(node: Node) -> bool:
    """Tell whether a subscript makes a new tensor: its index is one."""
    if node.op != "getitem":
        return False
    index = node.args[1]
    items = index.args if index.op == "tuple" else (index,)
    return not all(item.op == "slice" or _is_plain(item) for item in items)


def exposed(flow: FunctionFlow) -> frozenset[Node]:
    """Return the values that something may write to: in this function or where they are passed."""
    found: set[Node] = set()
    for seen in flow.observables:
        if seen.kind not in {"return", "random"}:
            found.update(_exposed_by(seen.node))
    return frozenset(found)


def _exposed_by(node: Node) -> Iterator[Node]:
    """Yield what an effect may write to, or keep for others to write to."""
    if node.op.endswith("_") and not node.op.startswith("_"):
        yield from _written(node)  # ``x.masked_fill_(mask, value)`` keeps nothing
    else:
        for arg in node.args:
            yield from _aliases(arg)


def _written(node: Node) -> Iterator[Node]:
    """Yield what a write changes: its first operand, and what shares memory with it."""
    target = node.args[0]
    # of ``x[mask] += 1`` the tensor, not the copy
    is_part = node.op == "augment" and target.op == "getitem"
    yield from _aliases(target.args[0] if is_part else target)


def _aliases(node: Node) -> Iterator[Node]:
    """Yield the values that may be the same tensor as a value, or share its memory."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            yield current
            if current.op in VIEWS or (current.op == "getitem" and not copies(current)):
                stack.append(current.args[0])  # what is left are lengths and positions
            elif current.op not in _NEW and current.op not in {"again", "getitem"}:
                stack.extend(current.args[1:] if current.op == "phi" else current.args)


def _read_by(root: Node) -> Iterator[Node]:
    """Yield the values that a match and the code of its operands may read."""
    seen: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            if node.op not in {"again", "call"} or node is root:
                stack.extend(node.args)
