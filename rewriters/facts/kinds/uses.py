"""What values must be because of what the function does with them: only tensors have it.

``y = x.unsqueeze(0)`` behind ``x[mask] = 0`` says as much of ``x`` as in front of it, where the one
never runs without the other: with an array the function fails in either case.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.facts.index_facts import is_comparison_method
from npufix.rewriters.facts.module_facts import returns_tensor
from npufix.rewriters.facts.shapes import SAME_SHAPE
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import nodes_of
from npufix.rewriters.graph.modules.torch_names import TORCH_FUNCTIONS
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Evaluation, Node

# The first argument of these can only be a tensor: NumPy arrays and lists have no such method.
_PROVES_TENSOR = operators.OF_TENSORS_ONLY | {Op.CAST}
# An array has an attribute of this name, or none, but no such method.
_METHODS_OF_TENSORS = frozenset({"size", "dim", "numel"})
_TAKES_ANYTHING = re.compile(
    r"is_|tensor$|as_|from_|get_|set_|full|arange|zeros$|ones$|empty$"
    # lists of tensors: ``rows += [x]``, ``torch.stack(rows)``
    r"|(cat|concat(enate)?|([dhv]|column_|row_)?stack|block_diag|cartesian_prod|meshgrid|einsum)$"
    r"|broadcast_tensors$|_foreach|atleast_"
)
_OF_BOOLS = frozenset({"masked_fill", "masked_fill_", "masked_scatter", "masked_select"})
"""What takes no mask but one of dtype bool."""
_JUMPS = (ast.Break, ast.Continue, ast.Yield, ast.YieldFrom)
# With an array, or a number, these give an array or a number.
_OF_TWO = operators.SYMBOLS - {"matmul"}
_OF_ONE = (SAME_SHAPE | operators.KEEPS | {"invert", "neg", "pos", Op.SETITEM}) - {
    *(Op.AGAIN, Op.AUGMENTED),
    *("data", "mT", "t"),  # what other classes have as well: ``packed.data``
}


def list_tensors(
    flow: FunctionFlow,
    site: ast.stmt,
    counts: Callable[[Evaluation], bool],
    is_number: Callable[[Node], bool],
) -> frozenset[Node]:
    """Return what is a tensor on each path through a statement, because of what is done with it.

    Of ``(overlaps > 0.5).float()`` that is the comparison, and so ``overlaps``.
    """
    proving = _on_path(flow, site, tuple(e for e in _proving(flow) if counts(e)))
    known = [given for user in proving for given in _given(flow, user)]
    for node in known:  # grows
        known += _tensors_in(node, is_number)
    return frozenset(known)


def list_masks(flow: FunctionFlow, site: ast.stmt) -> frozenset[Node]:
    """Return what is a tensor of bools on each path through a statement.

    ``pad`` is in ``y = x.masked_fill(~pad[..., None], 0)``, and so it is in ``x[pad] = 0``.
    """
    users = (e for op in _OF_BOOLS for e in flow.by_operation.get(op, ()))
    certain = tuple(e for e in users if e.certain and len(e.node.args) > 1)
    known = [user.node.args[1] for user in _on_path(flow, site, certain)]
    for node in known:  # grows
        known += node.args[:1] if node.op in operators.KEEPS | {"invert"} else ()
    return frozenset(known)


def list_iterated(flow: FunctionFlow, element: Node) -> list[Node | None]:
    """Return what the loops go over that give a name to an element, ``None`` where that is unknown.

    Of ``for i, row in enumerate(rows)`` that is ``rows``.
    """
    _, name = element.value if isinstance(element.value, tuple) else (0, "")
    bound = [n for n in flow.name_nodes if isinstance(n.ctx, ast.Store) and n.id == name]
    nodes = {id(e.code): e.node for e in flow.evaluations}
    found: list[Node | None] = []
    for node in nodes_of(flow.function):
        match node:
            case ast.For(ast.Name(own), over) | ast.For(
                ast.Tuple([_, ast.Name(own)]), ast.Call(ast.Name("enumerate"), [over])
            ) if own == name:
                found.append(nodes.get(id(over)))
    return found if len(found) == len(bound) else [None]


def _given(flow: FunctionFlow, user: Evaluation) -> tuple[Node, ...]:
    """Return what only tensors are given to: the first argument, and that of a module."""
    made_by_module = user.node.op == Op.CALL or user.node.op.startswith("module:")
    if made_by_module and returns_tensor(flow, user.node):
        return user.node.args[1:2]
    return user.node.args[:1]


def _tensors_in(node: Node, is_number: Callable[[Node], bool]) -> tuple[Node, ...]:
    """Return the operands that are tensors if a value is one."""
    if node.op in _OF_ONE:
        return node.args[:1]
    if node.op not in _OF_TWO:
        return ()
    others = [arg for arg in node.args if arg.op != Op.CONST and not is_number(arg)]
    return (others[0],) if len(others) == 1 else ()


def _on_path(
    flow: FunctionFlow, site: ast.stmt, found: tuple[Evaluation, ...]
) -> Iterator[Evaluation]:
    """Yield those that run whenever a statement does: in its block, or in one around it."""
    last = site.end_lineno or site.lineno
    around: dict[int, bool] = {}
    """Whether a block is the one of the site, or one around it."""
    for evaluation in found:
        block = evaluation.block
        if id(block) not in around:
            ends = ((s.lineno, s.end_lineno or s.lineno) for s in block)
            around[id(block)] = any(a <= site.lineno and last <= b for a, b in ends)
        line = evaluation.code.lineno
        if around[id(block)] and (line <= last or line < _first_way_out(flow, last)):
            yield evaluation


def _first_way_out(flow: FunctionFlow, line: int) -> int:
    """Return the first line behind one from which on code may not be reached any more."""
    return next((at for at in _ways_out(flow) if at > line), sys.maxsize)


@lru_cache(maxsize=4)
def _ways_out(flow: FunctionFlow) -> tuple[int, ...]:
    """Return the lines where a function is left, or where what is caught may be raised."""
    found = set()
    for node in nodes_of(flow.function):
        if isinstance(node, ast.Return):  # what it returns is computed before
            found.add((node.end_lineno or node.lineno) + 1)
        elif isinstance(node, _JUMPS):
            found.add(node.lineno)
        elif isinstance(node, ast.Try) and node.handlers:
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return tuple(sorted(found))


@lru_cache(maxsize=4)
def _proving(flow: FunctionFlow) -> tuple[Evaluation, ...]:
    """Return what a function certainly computes and only tensors have; every site asks for it."""
    certain = (e for e in flow.evaluations if e.certain and e.node.args)
    return tuple(e for e in certain if proves_tensor(flow, e))


def proves_tensor(flow: FunctionFlow, evaluation: Evaluation) -> bool:
    """Tell whether only a tensor can be given to an operation, as what ``_given`` tells."""
    code, node = evaluation.code, evaluation.node
    if not isinstance(code, ast.Call):
        return False  # ``a[:, None]`` may be an array
    if node.op in _PROVES_TENSOR or is_comparison_method(code) or _has_method(code, node):
        return True
    # A function of torch takes nothing but tensors, unless it asks or converts.
    dotted = flow.names.dotted(code.func)
    module, _, name = (dotted or "").rpartition(".")
    if module in TORCH_FUNCTIONS:
        return not _TAKES_ANYTHING.match(name)
    return len(node.args) > 1 and returns_tensor(flow, node)


def _has_method(code: ast.Call, node: Node) -> bool:
    """Tell whether a method is called that only tensors have, or that takes this only there."""
    match code:
        case ast.Call(ast.Attribute(_, attr)) if attr in _METHODS_OF_TENSORS:
            return True
        case ast.Call(ast.Attribute(_, "view"), [_, *_]) if node.op == "view":
            # Of an array it takes a dtype: ``x.view(np.int32)``.
            return any(type(arg.value) is int or arg.op == Op.SIZE for arg in node.args[1:])
        case ast.Call(ast.Attribute(), [], [ast.keyword(arg="dim")]):
            return node.op in operators.TABLE  # NumPy calls it ``axis``
    return False
