"""``npu_clipped_swiglu``: SwiGLU of clamped parts, with a factor and an offset; inference only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import (
    accept,
    accept_chip,
    accept_dims,
    accept_dtypes,
    accept_elements,
    accept_even,
    wide,
)

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_clipped_swiglu"


def forward(  # noqa: PLR0913 - the operator's schema
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> Tensor:
    """Return a tensor with ``dim`` halved; gate and up alternate there, or are its halves."""
    accept_chip(_NAME, "A2", "A3", "A5")
    accept_dtypes(_NAME, x)
    accept_dims(_NAME, x, 1, 8)
    accept_even(_NAME, x, dim)
    accept_elements(_NAME, x)
    accept(_NAME, group_index is None, "without group_index: rows behind the groups are undefined")
    last = wide(x).movedim(dim, -1)
    gate, up = (last[..., ::2], last[..., 1::2]) if interleaved else last.chunk(2, -1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    made = gate * torch.sigmoid(alpha * gate) * (up + bias)
    return made.movedim(-1, dim).to(x.dtype)
