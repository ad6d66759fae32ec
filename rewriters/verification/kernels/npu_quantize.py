"""``npu_quantize``: divided by a scale or multiplied with it, shifted and rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import accept, accept_floating
from npufix.rewriters.verification.kernels.quantisation import (
    find_dtype,
    is_int4,
    round_to,
    round_to_int4,
)

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_quantize"


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,  # noqa: FBT001, FBT002 - the operator's schema
) -> Tensor:
    """Return integers of the type; eight int4 in each int32."""
    accept_floating(_NAME, input)
    x, scale, shift = input.float(), _along(input, scales, axis), _along(input, zero_points, axis)
    assert scale is not None  # noqa: S101 - only zero_points may be left out
    x = x / scale if div_mode else x * scale
    if shift is not None:
        x = x + shift
    if is_int4(dtype):
        accept(_NAME, not div_mode, "int4 wants div_mode=False")
        return round_to_int4(_NAME, x)
    return round_to(x, find_dtype(_NAME, dtype, torch.int8))


def _along(x: Tensor, values: Tensor | None, axis: int) -> Tensor | None:
    """Return values of one axis so that they broadcast to ``x``."""
    if values is None:
        return None
    if values.dim() != 1:
        return values.float()
    accept(_NAME, -x.dim() <= axis < x.dim(), f"axis {axis} of {x.dim()} dimensions")
    accept(_NAME, values.numel() in {1, x.shape[axis]}, f"{values.numel()} scales for axis {axis}")
    shape = [1] * x.dim()
    shape[axis] = values.numel()
    return values.float().reshape(shape)
