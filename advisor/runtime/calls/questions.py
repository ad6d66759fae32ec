"""Which conditions a call can answer, from which operands; torch is not needed to know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "__npufix__"
"""What ``at_run_time.holds`` is called in the modules that were changed."""
WITHIN_ONE = "cosines-within-one"
"""The one question about values: it may be answered by reading two tables (``tables``)."""
NEW_EACH_TIME = "tables of cosines that are new at each call are not read"
NOT_READ_HERE = "tables of cosines are not read in a captured or traced call"
"""Why nothing was read: the old code runs."""
FITS_MORE = frozenset({"table-dtype"})
"""Conditions that hold for more calls than those of the plainer form of the same rule."""


def checkable(rule: str, condition: str) -> frozenset[str] | None:
    """Return the operands that decide about a condition at run time; ``None``: nothing can."""
    needed = _NEEDED.get(condition, {})
    found = needed.get(rule, needed.get(""))
    return None if found is None else frozenset(found)


def always_asked(condition: str) -> bool:
    """Tell whether the proof of a condition from source is no more than a default."""
    return condition.startswith("activation-is-")


_NORM = ("x", "weight")
_ATTENTION = ("q", "k", "v")
_NEEDED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    WITHIN_ONE: {"NPU102": ("cos", "sin")},
    "activation-is-gelu": {"": ("act",)},
    "activation-is-gelu-tanh": {"": ("act",)},
    "activation-is-silu": {"": ("act",)},
    "four-dimensional": {"NPU104": _ATTENTION},
    "int-repeats": {"": ("repeats",)},
    "inference": {"NPU107": ("x", "residual", "weight"), "NPU108": _NORM},
    "interleave-limits": {"NPU102": ("x", "cos", "sin")},
    "number-eps": {"": ("eps",)},
    "one-dimensional-weight": {"": _NORM},
    "rotary-limits": {"NPU102": ("x", "cos", "sin")},
    "same-dtype": {
        "NPU101": _NORM,
        "NPU102": ("x", "cos", "sin"),
        "NPU104": _ATTENTION,
        "NPU107": ("x", "residual", "weight"),
        "NPU108": _NORM,
    },
    "same-heads": {"NPU104": _ATTENTION},
    "same-heads-third": {"NPU104": _ATTENTION},
    "same-shape": {"NPU103": ("gate", "up"), "NPU107": ("x", "residual"), "NPU110": ("gate", "up")},
    "table-dtype": {"NPU102": ("x", "cos", "sin")},
    "weight-given": {"": ("weight",)},
}
"""By rule; "" stands for those not named. Only where these operands mean the same in all forms."""
