"""``npu_group_norm_silu``: GroupNorm and SiLU in float32, rounded once; for inference only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import (
    accept,
    accept_dims,
    accept_dtypes,
    accept_floating,
    chip,
    wide,
)

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_group_norm_silu"


def forward(
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    weight: Tensor | None,
    bias: Tensor | None,
    group: int,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result, and mean and reciprocal deviation of every group."""
    given = [tensor for tensor in (weight, bias) if tensor is not None]
    accept_dtypes(_NAME, *(given or [input]))
    accept_floating(_NAME, input)
    if any(torch.promote_types(input.dtype, tensor.dtype) != tensor.dtype for tensor in given):
        raise RuntimeError(f"{_NAME}: weight and bias are less precise than {input.dtype}")
    if eps <= 0:
        raise RuntimeError(f"{_NAME}: eps must be positive")
    y, mean, rstd = normalise(_NAME, input, weight, bias, group, eps)
    # The A5 keeps them as precise as the weight; the other chips round them like the result.
    dtype = given[0].dtype if given and chip() == "A5" else input.dtype
    return F.silu(y).to(input.dtype), mean.to(dtype), rstd.to(dtype)


def normalise(  # noqa: PLR0913, PLR0917 - the operator's schema
    operator: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return GroupNorm in wide precision, mean and reciprocal deviation."""
    accept_dims(operator, x, 2, 8)
    accept(operator, x.numel() > 0, "the input has no elements")
    channels = x.shape[1]
    accept(
        operator,
        groups > 0 and channels % groups == 0,
        f"{channels} channels cannot be divided into {groups} groups",
    )
    for tensor in (weight, bias):
        accept(operator, tensor is None or tensor.shape == (channels,), "not one weight a channel")
    grouped = wide(x).reshape(x.shape[0], groups, -1)
    mean = grouped.mean(-1)
    rstd = torch.rsqrt((grouped - mean[..., None]).pow(2).mean(-1) + eps)
    y = ((grouped - mean[..., None]) * rstd[..., None]).reshape(x.shape)
    per_channel = (1, channels, *[1] * (x.dim() - 2))
    if weight is not None:
        y = y * weight.to(y.dtype).reshape(per_channel)
    if bias is not None:
        y = y + bias.to(y.dtype).reshape(per_channel)
    return y, mean, rstd
