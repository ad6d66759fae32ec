"""What a loss is given beside predictions and labels: weights of classes, a label to ignore."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Literal

from npufix.rewriters.graph.modules.syntax import last_name, list_stored_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

_WEIGHING = frozenset({"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"})
"""What takes a weight for each class: by name, or after the labels."""
_MEASURES = {
    **dict.fromkeys(("mse_loss", "MSELoss", "l1_loss", "L1Loss", "huber_loss", "HuberLoss")),
    **dict.fromkeys(("smooth_l1_loss", "SmoothL1Loss", "kl_div", "KLDivLoss")),
    **dict.fromkeys(("poisson_nll_loss", "PoissonNLLLoss", "gaussian_nll_loss")),
    **dict.fromkeys(("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"), 1),
    **dict.fromkeys(("binary_cross_entropy", "BCELoss"), 0),
}
"""What takes floats alone, and from which argument on these are shares, from 0 to 1."""
_SIDES = ("input", "target")
"""The names of both that it measures."""
_CLASSES_OF = {"bincount": (9, "minlength"), "one_hot": (1, "num_classes")}
"""What takes whole numbers, and where it takes what they are less than."""
_TARGET = re.compile(r"(^|_)(targets?|labels?|gt|y|truth)(_|$)")
_GUESS = re.compile(r"(^|_)(pred\w*|outputs?|outs?|logits|inputs?|estimates?|recon\w*)(_|$)|hat$")
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


def find_bound(node: ast.Call) -> str:
    """Return the name of what numbers of classes are less than: ``one_hot(x, self.classes)``."""
    at, keyword = _CLASSES_OF.get(last_name(node.func), (0, ""))
    given = [*node.args[at : at + 1], *(k.value for k in node.keywords if k.arg == keyword)]
    text = ast.unparse(given[0]).removeprefix("self.") if keyword and given else ""
    return text if re.fullmatch(r"\w+", text) else ""


def list_measured(
    function: ast.FunctionDef | ast.AsyncFunctionDef, init: ast.AST | None
) -> Iterator[tuple[str, Literal["float", "share"]]]:
    """Yield the names that a loss measures, and whether they are shares: ``F.mse_loss(x, y)``.

    ``self.bce(logits, labels)``, with ``self.bce = nn.BCEWithLogitsLoss()``, and what is written
    out: ``(pred - target).abs()``.
    """
    kept: dict[str, str] = {}
    for node in walk(init) if init is not None else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            kept |= {ast.unparse(t): last_name(node.value.func) for t in node.targets}
    as_given = {a.arg for a in function.args.args} - list_stored_names(function)
    for node in walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            one, other = (getattr(side, "id", "") for side in (node.left, node.right))
            for guess, target in ((one, other), (other, one)):
                if _GUESS.search(guess) and _TARGET.search(target) and {target, guess} <= as_given:
                    yield from ((name, "float") for name in (guess, target))
        if not isinstance(node, ast.Call):
            continue
        called = kept.get(ast.unparse(node.func)) or last_name(
            node.func.func if isinstance(node.func, ast.Call) else node.func
        )
        for at, given in _list_sides(node) if called in _MEASURES else ():
            first = _MEASURES[called]
            if isinstance(given, ast.Name) and given.id in as_given:
                yield given.id, "float" if first is None or at < first else "share"


def _list_sides(node: ast.Call) -> list[tuple[int, ast.expr]]:
    """Return what a loss holds against each other, also as ``F.mse_loss(input=x, target=y)``."""
    named = {k.arg: k.value for k in node.keywords}
    by_name = [(at, named[name]) for at, name in enumerate(_SIDES) if name in named]
    return [*enumerate(node.args[:2]), *by_name]


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
