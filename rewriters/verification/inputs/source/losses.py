"""What a loss is given beside predictions and labels: a weight for each class."""

from __future__ import annotations

import ast

_WEIGHING = frozenset({"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"})
"""What takes a weight for each class: by name, or after the labels."""


def list_class_weights(node: ast.Call) -> list[ast.expr]:
    """Return what a call passes to a loss as weights of the classes."""
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called not in _WEIGHING:
        return []
    at = 0 if called.endswith("Loss") else 2
    return [*node.args[at : at + 1], *(k.value for k in node.keywords if k.arg == "weight")]


def find_class_weights(tree: ast.AST) -> set[str]:
    """Return the names, also those of attributes, that weigh classes somewhere in a text."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    held = (weight for call in calls for weight in list_class_weights(call))
    return {getattr(w, "attr", getattr(w, "id", "")) for w in held} - {""}
