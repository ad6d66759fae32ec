"""The smallest and the largest of what a mask picks, and counts: more forms of nonzero_reduction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Site, either

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def coordinates(mask: Tensor) -> int:
    """Find the positions and count their coordinates, of which each has one."""
    return mask.nonzero().numel()


def count_of_vector(mask: Tensor) -> int:
    """Count without finding positions."""
    return torch.count_nonzero(mask).item()  # type: ignore[return-value]  # int64: an int


def flag_inputs(draw: Draw) -> dict[str, Any]:
    """Return a vector, empty at times."""
    return {"mask": draw.booleans(draw.integer(0, 5))}


def _is_vector(site: Site) -> bool | None:
    return None if (n := site.ndim("mask")) is None else n == 1


ONE_COORDINATE = Condition("vector-mask", "the mask has one dimension", _is_vector)


FLOATS = Condition(
    "floating-point",
    "the tensor is of floating point: integers have no infinity",
    lambda site: None if (d := site.dtype("x")) is None else d.startswith(("float", "bfloat")),
)

SOME_PICKED = Condition(
    "some-picked",
    "the mask picks something: of nothing there is no smallest element, which is an error",
    lambda _site: None,
)


def least_picked(x: Tensor, mask: Tensor) -> Tensor:
    """Pick elements, then look for the smallest."""
    return either(x[mask].min(), x.masked_select(mask).min())


def least_masked(x: Tensor, mask: Tensor) -> Tensor:
    """Look for it among all, with infinity in place of what is not picked."""
    return torch.where(mask, x, float("inf")).min()


def greatest_picked(x: Tensor, mask: Tensor) -> Tensor:
    """Pick elements, then look for the largest."""
    return either(x[mask].max(), x.masked_select(mask).max())


def greatest_masked(x: Tensor, mask: Tensor) -> Tensor:
    """Look for it among all, with minus infinity in place of what is not picked."""
    return torch.where(mask, x, float("-inf")).max()


def extreme_inputs(draw: Draw) -> dict[str, Any]:
    """Return floats that are NaN or infinite outside of a mask, and the mask: one place at least."""
    import torch

    shape = draw.choice([(5,), (1,), (3, 4)])
    mask = draw.booleans(*shape)
    mask.view(-1)[draw.integer(0, mask.numel() - 1)] = True
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    kept, other = draw.floats(*shape, dtype=dtype), draw.wild(*shape, dtype=dtype)
    return {"x": torch.where(mask, kept, other), "mask": mask}
