"""Values that a function computes twice: equal to begin with, but each a tensor of its own.

``a = x + 1; b = x + 1`` are one node of the graph. Once something may have written to one of them,
the node no longer tells what the other one holds.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npufix.rewriters.graph.nodes import Evaluation, Node, Observable

# What nobody can write to, or is another one at each call.
_NO_TENSORS = frozenset(
    {Op.AGAIN, Op.ATTR, Op.AUGMENTED, Op.CALL, Op.CONST, Op.DEF, Op.DTYPE, Op.DTYPE_OF, Op.EITHER,
     Op.GLOBAL, Op.ITEM, Op.PARAM, Op.PHI, "py:len", Op.RANK, Op.SHAPE, Op.SIZE, Op.SLICE, Op.TUPLE}
)  # fmt: skip
_SHARED = _NO_TENSORS | operators.VIEWS
# The result shares nothing with the operands.
_NEW = operators.NEW | {Op.NOT, Op.COMPARE, Op.ITEM}
_COUNTED = frozenset(
    {Op.BOOLOP, Op.CONST, Op.COUNTER, Op.IN, Op.IS, Op.IS_NOT, Op.NOT, Op.NOT_IN, Op.RANK, Op.SHAPE,
     Op.SIZE, "py:bool", "py:float", "py:hasattr", "py:int", "py:isinstance", "py:issubclass",
     "py:len", "py:range", "py:round", "py:str", "py:type"}
)  # fmt: skip
CONTAINERS = (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set, ast.SetComp)
_SPELLED_OUT = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, *CONTAINERS)


def duplicates(evaluations: Iterable[Evaluation]) -> frozenset[Node]:
    """Return the values that several expressions make a tensor of."""
    first: dict[Node, ast.AST] = {}
    found: set[Node] = set()
    for evaluation in evaluations:
        node, code = evaluation.node, evaluation.code
        if is_new_container(code) and _is_named(code, evaluation.statement):
            continue  # the reader knows one from the other
        if isinstance(code, _SPELLED_OUT) or (isinstance(code, ast.Subscript) and copies(node)):
            known = first.setdefault(node, code)
            if known is not code and not _is_plain(node) and node.op not in _SHARED:
                found.add(node)
    return frozenset(found)


def is_new_container(code: ast.AST) -> bool:
    """Tell whether code makes a list, dictionary or set: ``[]``, ``set()``."""
    match code:
        case ast.Call(ast.Name("dict" | "list" | "set"), [], []):
            return True
    return isinstance(code, CONTAINERS)


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
    combined = node.op in _NEW or node.op == Op.LIST
    return combined and bool(node.args) and all(map(_is_plain, node.args))


def copies(node: Node) -> bool:
    """Tell whether a subscript makes a new tensor: its index is one."""
    if node.op != Op.GETITEM:
        return False
    index = node.args[1]
    items = index.args if index.op == Op.TUPLE else (index,)
    return not all(item.op == Op.SLICE or _is_plain(item) for item in items)


def find_exposed(observables: Iterable[Observable]) -> frozenset[Node]:
    """Return the values that something may write to: in this function or where they are passed."""
    found: set[Node] = set()
    for seen in observables:
        if seen.kind not in {"return", "random"}:
            found.update(_find_exposed_by(seen.node))
    return frozenset(found)


def _find_exposed_by(node: Node) -> Iterator[Node]:
    """Yield what an effect may write to, or keep for others to write to."""
    if node.op.endswith("_") and not node.op.startswith("_"):
        yield from list_written_by(node)  # ``x.masked_fill_(mask, value)`` keeps nothing
    else:
        for arg in node.args:
            yield from _aliases(arg)


def list_written_by(node: Node) -> Iterator[Node]:
    """Yield what a write changes: its first operand, and what shares memory with it."""
    target = node.args[0]
    # of ``x[mask] += 1`` the tensor, not the copy
    is_part = node.op == Op.AUGMENT and target.op == Op.GETITEM
    yield from _aliases(target.args[0] if is_part else target)


def _aliases(node: Node) -> Iterator[Node]:
    """Yield the values that may be the same tensor as a value, or share its memory."""
    return node.walk(_list_shared)


def _list_shared(node: Node) -> Iterable[Node]:
    if node.op in operators.VIEWS or (node.op == Op.GETITEM and not copies(node)):
        return node.args[:1]  # what is left are lengths and positions
    if node.op in _NEW or node.op in {Op.AGAIN, Op.GETITEM}:
        return ()
    return node.args[1:] if node.op == Op.PHI else node.args


def read_by(root: Node) -> Iterator[Node]:
    """Yield the values that a match and the code of its operands may read."""
    closed = {Op.AGAIN, Op.CALL}
    return root.walk(lambda node: () if node.op in closed and node is not root else node.args)
