"""``npu_group_norm_swish``: GroupNorm, then ``y * sigmoid(scale * y)``, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import accept, accept_chip, accept_dtypes
from npufix.rewriters.verification.kernels.npu_group_norm_silu import normalise

if TYPE_CHECKING:
    from torch import Tensor

NOT_DIFFERENTIABLE = (1, 2)
_NAME = "npu_group_norm_swish"
_MOST_CHANNELS_OF_A_GROUP = 4000


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    num_groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result, and mean and reciprocal deviation of every group."""
    accept_chip(_NAME, "A2", "A3", "A5")
    accept_dtypes(_NAME, input, weight, bias)
    y, mean, rstd = normalise(_NAME, input, weight, bias, num_groups, 1e-5 if eps is None else eps)
    scale = 1.0 if swish_scale is None else swish_scale
    result = (y * torch.sigmoid(scale * y)).to(input.dtype)
    return result, mean.to(weight.dtype), rstd.to(weight.dtype)


def check_backward(
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    num_groups: int,
    *_others: object,
) -> None:
    """Refuse what only the backward kernel refuses."""
    accept(
        _NAME,
        input.shape[1] // num_groups <= _MOST_CHANNELS_OF_A_GROUP,
        f"a group has more than {_MOST_CHANNELS_OF_A_GROUP} channels, too many for a gradient",
    )
