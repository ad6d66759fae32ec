"""``where`` on the comparison of the two values it chooses from.

What: ``torch.where(x < y, y, x)`` and its variants, which pick the larger or the smaller of two
values; with a number instead of the second tensor, a limit.

Why it is slow on the NPU: Less writes a mask and SelectV2 reads it again with both operands; the
backward pass selects twice more. ``maximum``, ``minimum`` and ``clamp`` are one vector kernel.

Safety: exact for integers. ``where(x < c, c, x)`` with a number has the values of ``clamp``, NaN
included, for every dtype that can hold the number (``value-fits-dtype``), and its gradient except
where ``x`` is NaN (``no-nan``). The other spellings let ``c`` win over NaN, or stop the gradient
where ``x == c`` (``ties-without-gradient``). ``maximum`` and ``minimum`` return NaN if either
operand is NaN, and share the gradient between equal operands, where ``where`` gives all of it to
one: both conditions must hold. The official recipe, ``lerp`` with the comparison as the weight, is
not used: it raises for half precision and integers, and turns infinities and large differences
into NaN.

References: "where operator" in the performance tuning guide of Ascend Extension for PyTorch;
torch.maximum; torch.clamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Rewritten,
    Site,
    Substitution,
    either,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LARGEST_HALF = 65504
_EXACT = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64"})
_WIDE = _EXACT | {"float32", "float64"}


def larger(x: Tensor, y: Tensor) -> Tensor:
    """Choose the larger of two values."""
    return either(
        torch.where(x > y, x, y),
        torch.where(x >= y, x, y),
    )


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Take the maximum."""
    return torch.maximum(x, y)


def smaller(x: Tensor, y: Tensor) -> Tensor:
    """Choose the smaller of two values."""
    return either(
        torch.where(x < y, x, y),
        torch.where(x <= y, x, y),
    )


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Take the minimum."""
    return torch.minimum(x, y)


def raised(x: Tensor, limit: float) -> Tensor:
    """Replace what is below a limit."""
    return torch.where(x < limit, limit, x)


def raised_elsewhere(x: Tensor, limit: float) -> Tensor:
    """Replace what is not above a limit; some spellings replace NaN too."""
    return either(
        torch.where(x >= limit, x, limit),
        torch.where(x > limit, x, limit),
        torch.where(x <= limit, limit, x),
    )


def at_least(x: Tensor, limit: float) -> Tensor:
    """Clamp from below."""
    return x.clamp(min=limit)


def lowered(x: Tensor, limit: float) -> Tensor:
    """Replace what is above a limit."""
    return torch.where(x > limit, limit, x)


def lowered_elsewhere(x: Tensor, limit: float) -> Tensor:
    """Replace what is not below a limit; some spellings replace NaN too."""
    return either(
        torch.where(x <= limit, x, limit),
        torch.where(x < limit, x, limit),
        torch.where(x >= limit, limit, x),
    )


def at_most(x: Tensor, limit: float) -> Tensor:
    """Clamp from above."""
    return x.clamp(max=limit)


def pair_inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors that can be broadcast: integers with ties, or floats without."""
    import torch

    rows, columns = draw.integer(1, 4), draw.integer(1, 5)
    other = draw.choice([(rows, columns), (columns,), (1, columns), ()])
    if draw.choice([False, True]):
        x = draw.integers(rows, columns, low=-3, high=3)
        return {"x": x, "y": draw.integers(*other, low=-3, high=3)}
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    x, y = (draw.floats(*shape, dtype=dtype) for shape in ((rows, columns), other))
    # An offset by a fraction that the other one cannot have: no ties.
    return {"x": (x * 4).round(), "y": (y * 4).round() + 0.5}


def limit_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor with infinities and entries equal to the limit, and that limit."""
    import torch

    shape = draw.choice([(5,), (3, 4), (0, 3)])
    limit = draw.choice([0, 1, -2, 0.5])
    if draw.choice([False, False, True]):
        return {"x": draw.integers(*shape, low=-3, high=3), "limit": limit}
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    x = draw.wild(*shape, dtype=dtype)
    tied = draw.booleans(*shape) | x.isnan()
    return {"x": torch.where(tied, x.new_full((), limit), x), "limit": limit}


def apart_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor that is nowhere NaN or equal to the limit, and that limit."""
    import torch

    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    x = draw.floats(draw.integer(1, 4), draw.integer(1, 5), dtype=dtype)
    return {"x": (x * 4).round() + 0.5, "limit": draw.choice([0, 1, -2, 3.0])}


def _are_exact(site: Site, *names: str) -> bool:
    return all(site.dtype(name) in _EXACT for name in names)


def _are_tensors(site: Site) -> bool | None:
    found = [site.is_tensor("x"), site.is_tensor("y")]
    if False in found or site.is_number("x") or site.is_number("y"):
        return False
    return True if all(found) else None


def _fits(site: Site) -> bool | None:
    value = site.literal("limit")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        small = abs(value) <= _LARGEST_HALF or abs(value) == float("inf")
        return True if small or site.dtype("x") in _WIDE else None
    if site.is_number("limit") is not True:
        return False
    return True if site.dtype("x") in _WIDE else None


ARE_TENSORS = Condition("are-tensors", "both values are torch tensors", _are_tensors)
IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", lambda site: site.is_tensor("x"))
NO_NAN = Condition(
    "no-nan", "neither value is ever NaN", lambda site: _are_exact(site, "x", "y") or None
)
TIES = Condition(
    "ties-without-gradient",
    "no gradient flows where the two values are equal",
    lambda site: _are_exact(site, "x", "y") or None,
)
NEVER_NAN = Condition(
    "no-nan",
    "the tensor never holds NaN (for a plain limit: or needs no gradient)",
    lambda site: _are_exact(site, "x") or None,
)
NO_TIES = Condition(
    "ties-without-gradient",
    "no gradient flows where the tensor equals the limit",
    lambda site: _are_exact(site, "x") or None,
)
FITS = Condition(
    "value-fits-dtype", "the limit is a number that the dtype of the tensor can hold", _fits
)
PAIR = (ARE_TENSORS, NO_NAN, TIES)
LIMIT = (IS_TENSOR, FITS, NEVER_NAN)

RULE = Substitution(
    id="NPU208",
    name="where-on-own-comparison",
    summary="where that picks the larger or the smaller value",
    table="affinity",
    forms=(
        Form(raised, at_least, limit_inputs, LIMIT),
        Form(lowered, at_most, limit_inputs, LIMIT),
        Form(raised_elsewhere, at_least, apart_inputs, (*LIMIT, NO_TIES)),
        Form(lowered_elsewhere, at_most, apart_inputs, (*LIMIT, NO_TIES)),
        Form(larger, maximum, pair_inputs, PAIR),
        Form(smaller, minimum, pair_inputs, PAIR),
    ),
    replaces=("Less", "LessEqual", "Greater", "GreaterEqual", "Select", "SelectV2"),
    becomes=("Maximum", "Minimum", "ClipByValueV2"),
    passes=(3, 3),
    requires="torch_npu>=2.1",
    needs_whole=True,
    valid=(
        # another tensor is chosen
        """
def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor):
    return torch.where(x < y, z, x)
""",
        # NaN and the gradient of ties are not known
        """
def f(x: torch.Tensor, y: torch.Tensor):
    return torch.where(x < y, y, x)
""",
        # the limit replaces NaN too
        """
def f(x: torch.Tensor):
    return torch.where(x > 0, x, 0)
""",
        # the largest half precision number is smaller than this
        """
def f(x: torch.Tensor):
    return torch.where(x < -1e9, -1e9, x)
""",
        # neither a limit nor a choice of the compared values
        """
def f(x: torch.Tensor):
    return torch.where(x < 0, 1, x)
""",
    ),
    rewritten=(
        Rewritten(
            """
def f(steps: torch.Tensor, last: torch.Tensor):
    steps, last = steps.long(), last.long()
    return torch.where(steps < last, steps, last)
""",
            """
def f(steps: torch.Tensor, last: torch.Tensor):
    steps, last = steps.long(), last.long()
    return torch.minimum(steps, last)
""",
        ),
        Rewritten(
            """
def f(mask: torch.Tensor):
    lengths = mask.sum(-1).int()
    return torch.where(lengths < 1, 1, lengths)
""",
            """
def f(mask: torch.Tensor):
    lengths = mask.sum(-1).int()
    return lengths.clamp(min=1)
""",
        ),
    ),
)
