"""``npu_add_rms_norm_cast``: the sum rounded, the product with gamma before and after rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import (
    HALF,
    accept,
    accept_chip,
    accept_dims,
    accept_dtypes,
    accept_elements,
    accept_tail,
    tail,
    wide,
)

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_add_rms_norm_cast"


def forward(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the normalised sum in float32 and in the dtype of the input, ``rstd`` and the sum."""
    accept_chip(_NAME, "A2", "A3", "A5")
    accept_dtypes(_NAME, x1, x2, gamma)
    if x1.dtype not in {*HALF, torch.float64}:
        raise RuntimeError(f"{_NAME}: no kernel for {x1.dtype}, only for float16 and bfloat16")
    accept(_NAME, x1.shape == x2.shape, f"x1 {tuple(x1.shape)} and x2 {tuple(x2.shape)} differ")
    accept_dims(_NAME, x1, 1, 8)
    accept_tail(_NAME, x1, gamma)
    accept_elements(_NAME, x1)
    total = (wide(x1) + wide(x2)).to(x1.dtype)
    x = wide(total)
    rstd = torch.rsqrt(x.pow(2).mean(tail(gamma), keepdim=True) + epsilon)
    y = x * rstd * wide(gamma)
    return y, y.to(x1.dtype), rstd, total
