"""``npu_add_layer_norm``: sum and LayerNorm in float32, rounded once."""

from __future__ import annotations

import torch

from npufix.rewriters.verification.kernels.common import (
    accept,
    accept_dims,
    accept_dtypes,
    accept_floating,
    accept_tail,
    tail,
    wide,
)

NOT_DIFFERENTIABLE = (1, 2)
_NAME = "npu_add_layer_norm"


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float = 1e-5,
    additional_output: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the normalised sum, mean, reciprocal deviation, and the sum if asked for."""
    accept_dtypes(_NAME, gamma, beta)
    accept_floating(_NAME, x1, x2)
    accept(_NAME, x1.shape == x2.shape, f"x1 {tuple(x1.shape)} and x2 {tuple(x2.shape)} differ")
    accept_dims(_NAME, x1, 1, 8)
    accept_tail(_NAME, x1, gamma)
    accept(_NAME, gamma.shape == beta.shape, "gamma and beta differ in shape")
    x = wide(x1) + wide(x2)
    mean = x.mean(tail(gamma), keepdim=True)
    rstd = torch.rsqrt((x - mean).pow(2).mean(tail(gamma), keepdim=True) + epsilon)
    y = (x - mean) * rstd * gamma.to(x.dtype) + beta.to(x.dtype)
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    return y.to(dtype), mean, rstd, x.to(dtype) if additional_output else x1.new_empty(0)
