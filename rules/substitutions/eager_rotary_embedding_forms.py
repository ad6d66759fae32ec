"""Rotary position embedding in layouts of its own.

A flag decides at run time in ``rotate_half(x, interleaved)`` of flash-attn, which esm, Nomic and
others have copied. DeepSeek reads pairs and returns halves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, either

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def either_way(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate neighbours or halves, as a flag says."""
    x1, x2 = x.chunk(2, dim=-1)
    halves = torch.cat((-x2, x1), dim=-1)
    pairs = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    rotated = either(pairs if interleaved else halves, halves if not interleaved else pairs)
    return x * cos + rotated * sin


def fused_either_way(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate with one kernel that takes the layout as a setting."""
    return torch_npu.npu_rotary_mul(
        x, cos, sin, rotary_mode="interleave" if interleaved else "half"
    )


def fused_either_way_promoted(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate with one kernel, in the dtype that eager code promotes to."""
    return torch_npu.npu_rotary_mul(
        x.to(cos.dtype), cos, sin, rotary_mode="interleave" if interleaved else "half"
    )


def pairs_to_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs, and return all first elements before all second ones (DeepSeek, GLM)."""
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


def fused_pairs_to_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Put the pairs into halves by one copy, and rotate these with one kernel."""
    return torch_npu.npu_rotary_mul(
        x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2),  # type: ignore[no-untyped-call]  # of torch
        torch.cat((cos, cos), dim=-1),
        torch.cat((sin, sin), dim=-1),
    )


def flagged(given: dict[str, Any], draw: Draw) -> dict[str, Any]:
    """Return operands with a flag beside them."""
    return {**given, "interleaved": draw.choice([False, True])}
