"""``npu_add_rms_norm``: the sum is rounded, and the normalised sum again before gamma.

So on the A2 and A3; the A5 rounds only its result. The new residual is the last result, the
normalised tensor the first.
"""

from __future__ import annotations

import torch

from npufix.rewriters.verification.kernels.common import (
    accept,
    accept_chip,
    accept_dims,
    accept_dtypes,
    accept_elements,
    accept_tail,
    chip,
    tail,
    wide,
)

BACKWARD = "raises"
_NAME = "npu_add_rms_norm"


def forward(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the normalised sum, the reciprocal root mean square and the sum."""
    accept_chip(_NAME, "A2", "A3", "A5", "310P")
    accept_dtypes(_NAME, x1, x2, gamma)
    accept(_NAME, x1.shape == x2.shape, f"x1 {tuple(x1.shape)} and x2 {tuple(x2.shape)} differ")
    accept_dims(_NAME, x1, 1, 8)
    accept_tail(_NAME, x1, gamma)
    accept_elements(_NAME, x1)
    x = wide(x1) + wide(x2)
    total = x.to(x1.dtype)
    rounds = chip() != "A5"
    if rounds:
        x = wide(total)
    rstd = torch.rsqrt(x.pow(2).mean(tail(gamma), keepdim=True) + epsilon)
    normalised = wide((x * rstd).to(x1.dtype)) if rounds else x * rstd
    return (normalised * wide(gamma)).to(x1.dtype), rstd, total
