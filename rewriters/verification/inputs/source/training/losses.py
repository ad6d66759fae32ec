"""What a loss is given beside predictions and labels: weights of classes, a label to ignore."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

_WEIGHING = frozenset({"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"})
"""What takes a weight for each class: by name, or after the labels."""
IGNORED = (
    r"(^|_)(ignored?|void|invalid|missing|pad(ding)?)_?(index|idx|label|id|token|value)(_id)?$"
    r"|^(ignored?|void)$"
)
"""A number that labels have where there is none."""
_NOTHING = (
    r"(?:where|for|if|marks?|means?|is) (?:\w+ )*?(?:ignored?|not|no|none|nothing|pad\w*|masked)\b"
)
"""What a text says of a number that names no class."""
_METHODS = frozenset({"eq", "ne", "lt", "ge", "not_equal"})
_USUAL_VOID = 255
"""Of labels that are bytes."""


def list_class_weights(node: ast.Call) -> list[ast.expr]:
    """Return what a call passes to a loss as weights of the classes."""
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called not in _WEIGHING:
        return []
    at = 0 if called.endswith("Loss") else 2
    return [*node.args[at : at + 1], *(k.value for k in node.keywords if k.arg == "weight")]


def find_class_weights(tree: ast.AST) -> set[str]:
    """Return the names, also those of attributes, that weigh classes somewhere in a text."""
    calls = (node for node in walk(tree) if isinstance(node, ast.Call))
    held = (weight for call in calls for weight in list_class_weights(call))
    return {getattr(w, "attr", getattr(w, "id", "")) for w in held} - {""}


def find_void_numbers(function: ast.AST, name: str) -> set[int]:
    """Return the numbers that a function compares an argument with, as no class has them.

    -1 for ``labels == -1`` and ``labels >= 0``, -100 for ``y.view(-1).ne(-100)``, and for what is
    said: ``labels (B, T), -100 where there is none``.
    """
    derived = {name}
    for node in walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            derived |= {node.targets[0].id} if _mentions(node.value, derived) else set()
    found = {n for left, n in _list_compared(function) if _mentions(left, derived)}
    text = ast.get_docstring(function) if isinstance(function, ast.FunctionDef) else None
    said = re.search(rf"\b{re.escape(name)}\b[^;:\n]*?(-\d+) {_NOTHING}", text or "")
    return {n for n in (*found, *(map(int, said.groups()) if said else ())) if _is_void(n)}


def _is_void(number: int) -> bool:
    return number < 0 or number == _USUAL_VOID


def _mentions(node: ast.AST, names: set[str]) -> bool:
    """Say whether this is one of the names, or made of one by methods alone.

    A name may be that of a part, ``batch["labels"]``.
    """
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Subscript) and getattr(node.slice, "value", None) in names:
            return True
        of = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(node, ast.Attribute) and node.attr in {"shape", "ndim", "size", "dim"}:
            return False
        node = of
    return isinstance(node, ast.Name) and node.id in names


def _list_compared(function: ast.AST) -> Iterator[tuple[ast.expr, int]]:
    for node in walk(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = node.left, node.comparators[0]
            below = isinstance(node.ops[0], ast.Lt | ast.GtE)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            left, right = node.func.value, node.args[0]
            below = node.func.attr in {"lt", "ge"}
            if node.func.attr not in _METHODS:
                continue
        else:
            continue
        number = _number(right)
        if number is not None:
            yield left, number - (below and not number)


def _number(node: ast.expr) -> int | None:
    sign = -1 if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else 1
    value = getattr(node.operand if isinstance(node, ast.UnaryOp) else node, "value", None)
    return sign * value if type(value) is int else None


def is_ignored(name: str) -> bool:
    """Say whether a setting of this name is the label that is ignored."""
    return re.search(IGNORED, name.lower()) is not None
