"""Numbers that are written out: ``float("-inf")``, ``-math.inf``, ``1 / 3``."""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npufix.rewriters.graph.nodes import Node

_NAMED: Mapping[str, float] = {
    f"{module}.{name}": value
    for module in ("math", "numpy", "torch")
    for name, value in (("inf", math.inf), ("nan", math.nan), ("pi", math.pi), ("e", math.e))
}
_OPERATORS: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "pow": operator.pow,
}


@lru_cache(maxsize=8192)  # operands share operands: without it the time doubles with each of them
def number(node: Node) -> int | float | None:  # noqa: PLR0911 - one case a spelling
    """Return the number that an expression of literals is, ``None`` if it is something else."""
    if node.op == Op.CONST:
        found = node.value
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        return found if is_number else None  # type: ignore[return-value]  # narrowed above
    if node.op == Op.GLOBAL:
        return _NAMED.get(str(node.value))
    if node.op == "py:float" and len(node.args) == 1:
        return _as_float(node.args[0])
    if node.op not in _OPERATORS and node.op not in {"neg", "square"}:
        return None
    values = [number(arg) for arg in node.args]
    if not values or None in values:
        return None
    if node.op == "neg":
        return -values[0]  # type: ignore[operator]  # no ``None`` among them
    if node.op == "square":
        return values[0] * values[0]  # type: ignore[operator]
    try:
        return _OPERATORS[node.op](*values)  # type: ignore[arg-type]
    except (KeyError, ArithmeticError, TypeError):
        return None


def _as_float(node: Node) -> float | None:
    value = node.value if node.op == Op.CONST else number(node)
    try:
        return float(value) if isinstance(value, (str, int, float)) else None
    except (ValueError, OverflowError):
        return None
