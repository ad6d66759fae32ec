"""A mask that is repeated along the last dimension before it chooses.

What: ``torch.where(f.unsqueeze(-1).repeat(1, 1, x.size(-1)) > 0, x, 0)`` and ``masked_fill`` with a
mask repeated like that.

Why it is slow on the NPU: Tile writes the mask in the size of the tensor, Greater reads it and
writes it again, and SelectV2 reads it a third time. The operators broadcast: what is repeated need
not be written at all. At extreme shapes the repetition costs more than everything else.

Safety: exact; the repetition fills the last dimension of the tensor that is chosen from, which
broadcasting does as well. (The multiplication with ``mask.float()`` that is often recommended keeps
NaN under the mask, and is not used here.)

References: "SelectV2" in the common performance issues of the MindStudio guide; torch.where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Rewritten,
    Substitution,
    either,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def repeated(mask: Tensor, x: Tensor) -> Tensor:
    """Repeat a mask along the last dimension of a tensor."""
    return either(
        mask.unsqueeze(either(-1, 2)).repeat(1, 1, either(x.size(-1), x.size(2))),
        mask[:, :, None].repeat(1, 1, either(x.size(-1), x.size(2))),
    )


def compared(f: Tensor, x: Tensor, limit: float, other: float) -> Tensor:
    """Repeat, compare, choose."""
    return torch.where(
        repeated(f, x) > limit,
        x,
        other,
    )


def compared_once(f: Tensor, x: Tensor, limit: float, other: float) -> Tensor:
    """Compare, choose."""
    return torch.where(f.unsqueeze(-1) > limit, x, other)


def chosen(mask: Tensor, x: Tensor, other: float) -> Tensor:
    """Repeat a mask, choose."""
    return torch.where(
        repeated(mask, x),
        x,
        other,
    )


def chosen_once(mask: Tensor, x: Tensor, other: float) -> Tensor:
    """Choose."""
    return torch.where(mask.unsqueeze(-1), x, other)


def filled(mask: Tensor, x: Tensor, other: float) -> Tensor:
    """Repeat a mask, fill."""
    return x.masked_fill(
        repeated(mask, x),
        other,
    )


def filled_once(mask: Tensor, x: Tensor, other: float) -> Tensor:
    """Fill."""
    return x.masked_fill(mask.unsqueeze(-1), other)


def _shape(draw: Draw) -> tuple[int, int, int]:
    return draw.integer(1, 3), draw.integer(1, 3), draw.integer(1, 4)


def compared_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor with NaN and infinities, weights, a limit and a value."""
    import torch

    shape = _shape(draw)
    return {
        "f": draw.integers(*shape[:2], low=-1, high=2).float(),
        "x": draw.wild(*shape, dtype=torch.float32),
        "limit": draw.choice([0, 1]),
        "other": draw.choice([0, -1.5]),
    }


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor with NaN and infinities, a mask and a value."""
    import torch

    shape = _shape(draw)
    return {
        "mask": draw.booleans(*shape[:2]),
        "x": draw.wild(*shape, dtype=torch.float32),
        "other": draw.choice([0, -1.5]),
    }


THREE = Condition(
    "three-dimensions",
    "the tensor has three dimensions",
    lambda site: None if (n := site.ndim("x")) is None else n == 3,  # noqa: PLR2004 - dimensions
)

RULE = Substitution(
    id="NPU213",
    name="repeated-mask",
    summary="a mask repeated along the last dimension before it chooses",
    table="affinity",
    forms=(
        Form(compared, compared_once, compared_inputs, (THREE,)),
        Form(chosen, chosen_once, inputs, (THREE,)),
        Form(filled, filled_once, inputs, (THREE,)),
    ),
    replaces=("Tile", "TileD", "Greater", "Select", "SelectV2", "MaskedFill"),
    becomes=("Greater", "SelectV2", "MaskedFill"),
    passes=(2, 2),
    requires="torch_npu>=2.1",
    needs_whole=True,
    valid=(
        # repeated to another length
        """
def f(f: torch.Tensor, x: torch.Tensor, n: int):
    b, s, d = x.shape
    return torch.where(f.unsqueeze(-1).repeat(1, 1, n) > 0, x, 0)
""",
        # repeated along another dimension
        """
def f(f: torch.Tensor, x: torch.Tensor):
    b, s, d = x.shape
    return torch.where(f.unsqueeze(1).repeat(1, x.size(1), 1) > 0, x, 0)
""",
        # the repeated mask is a result
        """
def f(f: torch.Tensor, x: torch.Tensor):
    b, s, d = x.shape
    mask = f.unsqueeze(-1).repeat(1, 1, x.size(-1)) > 0
    return torch.where(mask, x, 0), mask
""",
    ),
    rewritten=(
        Rewritten(
            """
def f(weights: torch.Tensor, x: torch.Tensor):
    b, s, d = x.shape
    mask = weights[:, :, None].repeat(1, 1, d)
    return torch.where(mask > 0, x, 0)
""",
            """
def f(weights: torch.Tensor, x: torch.Tensor):
    return torch.where(weights.unsqueeze(-1) > 0, x, 0)
""",
        ),
        Rewritten(
            """
def f(padding: torch.Tensor, x: torch.Tensor):
    b, s, d = x.shape
    return x.masked_fill(padding.unsqueeze(-1).repeat(1, 1, x.size(-1)), 0.0)
""",
            """
def f(padding: torch.Tensor, x: torch.Tensor):
    b, s, d = x.shape
    return x.masked_fill(padding.unsqueeze(-1), 0.0)
""",
        ),
    ),
)
