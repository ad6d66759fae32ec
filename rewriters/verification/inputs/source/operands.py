"""Arguments by what they stand beside: scores that they are added to, counters of loops.

``scores + attention_mask`` takes flags as well, 1 for True, yet no caller means that; what fused
attention does with flags is something else, and no counterexample. ``chosen == expert`` in a loop
over experts says that it holds their numbers.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PLACES = frozenset(
    ["unsqueeze", "squeeze", "expand", "expand_as", "contiguous", "view", "reshape"]
)
"""Methods that keep every number."""
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def find_summed(function: ast.AST, names: Collection[str]) -> frozenset[str]:
    """Return those that only stand in sums, cut or placed before: ``scores + mask[:, None, :t]``.

    Asking whether there is one, and what shape it has, is no other use.
    """
    nodes = list(walk(function))
    owners = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    summed: set[str] = set()
    other: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            if _is_summed(node, owners):
                summed.add(node.id)
            elif _says(node, owners):
                other.add(node.id)
    return frozenset(summed - other)


def _is_summed(name: ast.Name, owners: dict[ast.AST, ast.AST]) -> bool:
    node: ast.AST = name
    owner = owners.get(node)
    while owner is not None and _keeps(owner, node):
        node, owner = owner, owners.get(owner)
    if isinstance(owner, ast.BinOp | ast.AugAssign):
        return isinstance(owner.op, ast.Add)
    if isinstance(owner, ast.Call) and node in owner.args:
        called = owner.func.attr if isinstance(owner.func, ast.Attribute) else ""
        return called in {"add", "add_"}
    return False


def _keeps(owner: ast.AST, node: ast.AST) -> bool:
    """Say whether this is a part of ``node``, or the same numbers in another shape."""
    if isinstance(owner, ast.Subscript | ast.Attribute):
        return owner.value is node and (isinstance(owner, ast.Subscript) or owner.attr in _PLACES)
    return isinstance(owner, ast.Call) and owner.func is node


def _says(name: ast.Name, owners: dict[ast.AST, ast.AST]) -> bool:
    """Say whether a use says more than that there is one: not for ``mask is not None``."""
    owner = owners.get(name)
    if isinstance(owner, ast.Compare):
        return not all(isinstance(op, ast.Is | ast.IsNot) for op in owner.ops)
    return not (isinstance(owner, ast.Attribute) and owner.attr in {"shape", "size", "dim", "ndim"})


def list_compared_with_counters(function: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield ``chosen`` for ``torch.where(chosen == e)`` in a loop of e over a range.

    With what its numbers are less than, for ``range(n)``: what is more belongs nowhere. Not for
    ``if layer == i:``, which asks for a number.
    """
    loops = [n for n in walk(function) if isinstance(n, ast.For | ast.comprehension)]
    counted = {"range": lambda t: t, "enumerate": lambda t: getattr(t, "elts", [t])[0]}
    counters: dict[str, str] = {}
    for loop in loops:
        made = loop.iter
        if not isinstance(made, ast.Call) or getattr(made.func, "id", "") not in counted:
            continue
        kind = getattr(made.func, "id", "")
        name = getattr(counted[kind](loop.target), "id", "")
        whole = kind == "range" and len(made.args) == 1
        bound = ast.unparse(made.args[0]).removeprefix("self.") if whole else ""
        counters[name] = bound if re.fullmatch(r"\w+", bound) else ""
    for node in walk(function):
        held = node.args if isinstance(node, ast.Call) else [getattr(node, "value", None)]
        held = [node.slice] if isinstance(node, ast.Subscript) else held
        for one in held:
            if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Eq):
                sides = [n.id for n in (one.left, one.comparators[0]) if isinstance(n, ast.Name)]
                known = next((counters[n] for n in sides if n in counters), None)
                yield from ((n, known) for n in sides if n not in counters and known is not None)


def list_deciding(function: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Yield those whose size decides alone: ``if score < self.best`` after ``score = -loss``.

    They are numbers: a tensor of several says neither yes nor no.
    """
    same = {name: name for name in names}
    for node in walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value.operand if isinstance(node.value, ast.UnaryOp) else node.value
            if isinstance(value, ast.Name) and value.id in same:
                same[node.targets[0].id] = same[value.id]
    for node in walk(function):
        if not isinstance(node, ast.If | ast.IfExp | ast.While):
            continue
        parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        for part in parts:
            if isinstance(part, ast.Compare) and isinstance(part.ops[0], _ORDERS):
                sides = (part.left, *part.comparators)
                yield from (same[s.id] for s in sides if isinstance(s, ast.Name) and s.id in same)


def list_looped_twice(function: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Yield those that hold what is gone through: ``layer`` of ``for layer in past``."""
    loops = [n for n in walk(function) if isinstance(n, ast.For | ast.comprehension)]
    within = {getattr(loop.iter, "id", "") for loop in loops}
    for loop in loops:
        if getattr(loop.target, "id", "") in within and getattr(loop.iter, "id", "") in names:
            yield ast.unparse(loop.iter)
