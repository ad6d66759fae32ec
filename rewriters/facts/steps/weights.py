"""Loops over the weights of a model: averages, target networks, and what optimizers go over."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import last_name, list_names, nodes_of, root_name, walk

if TYPE_CHECKING:
    from npufix.rewriters.graph.modules.names import FunctionNode

WEIGHTS = (
    "each round launches kernels for one weight: change all of them at once, for "
    "a.mul_(decay).add_(b, alpha=1 - decay) torch._foreach_mul_(averages, decay) and "
    "torch._foreach_add_(averages, weights, alpha=1 - decay), under torch.no_grad(), with lists "
    "of one dtype that are made once; integers such as num_batches_tracked are copied by "
    "themselves; CANN documents such kernels for Atlas A2 training: elsewhere measure it first"
)
"""``.data`` goes round autograd, a list of parameters does not: without ``no_grad`` torch refuses.

No ``_foreach_lerp_``: ``aclnnForeachLerpScalar`` is reported to be refused on some devices.
"""
_LISTS = frozenset({"named_parameters", "parameters", "state_dict"})
_CHANGES = frozenset({"add_", "addcmul_", "div_", "lerp_", "mul_", "sub_"})
_BETWEEN = frozenset({*_CHANGES, "clone", "copy_", "detach", "is_floating_point", "to"})
OF_STEPS = re.compile(r"(?i)(^|_)(ema|momentum|polyak|soft|step|train\w*|update)(\d|_|$)")
"""Names of functions that change weights in each step, whoever calls them."""
_MOST = 6
"""Statements of a round."""
_OF_LISTS = re.compile(r"_?foreach_\w+")
"""What takes lists of tensors, of torch or written around it: ``foreach_lerp_(averages, x)``."""


def changes_weights(loop: ast.AST) -> bool:
    """Tell whether each round does nothing but change a weight: ``p.mul_(d).add_(q, alpha=1 - d)``.

    So does ``p.copy_(d * p + (1 - d) * q)``; a round that copies alone is no work for kernels.
    """
    if not isinstance(loop, ast.For) or len(loop.body) > _MOST or not _are_weights(loop.iter):
        return False
    own = list_names(loop.target)
    calls = [node for node in walk(*loop.body) if isinstance(node, ast.Call)]
    changed = any(_is_changed(node, own) for node in walk(*loop.body))
    return changed and all(last_name(call.func) in _BETWEEN for call in calls)


def _are_weights(items: ast.expr) -> bool:
    match items:
        case ast.Call(ast.Name("zip"), [_, *_] as several):
            return all(map(_are_weights, several))
        case ast.Call(ast.Attribute(of, "items" | "values"), [], []):
            return last_name(getattr(of, "func", of)) == "state_dict"
        case ast.Call(ast.Attribute(_, name)):
            return name in _LISTS
    return False


def _is_changed(code: ast.AST, own: set[str]) -> bool:
    """Tell whether a statement computes with a weight and writes the result into one."""
    match code:
        case ast.Assign([ast.Attribute(weight, "data")], value):  # ``k.data = k.data * m + q.data``
            return root_name(weight) in own and isinstance(value, ast.BinOp)
        case ast.AugAssign(ast.Name(name), ast.Add() | ast.Mult() | ast.Sub()):
            return name in own
        case ast.Call(ast.Attribute(weight, how), given) if root_name(weight) in own:
            computes = any(isinstance(node, ast.BinOp) for arg in given for node in ast.walk(arg))
            return how in _CHANGES or (how == "copy_" and computes)
    return False


def takes_lists(function: FunctionNode, items: ast.expr) -> bool:
    """Tell whether a loop goes over a list of tensors of any shapes: no rows of one tensor.

    ``for root in roots:`` beside ``roots = torch._foreach_sqrt(squares)``.
    """
    match items:
        case ast.Call(ast.Name("zip" | "enumerate"), several):
            return any(takes_lists(function, each) for each in several)
    return ast.unparse(items) in _list_handed_to_foreach(function)


@lru_cache(maxsize=4)
def _list_handed_to_foreach(function: FunctionNode) -> frozenset[str]:
    """Return the texts of the lists that a function hands to such operators, or gets from one."""
    found: set[str] = set()
    for node in nodes_of(function):
        match node:
            case ast.Call(called, given) if _OF_LISTS.fullmatch(last_name(called)):
                found.update(map(ast.unparse, given))
            case ast.Assign(targets, ast.Call(called)) if _OF_LISTS.fullmatch(last_name(called)):
                found.update(map(ast.unparse, targets))
    return frozenset(found)
