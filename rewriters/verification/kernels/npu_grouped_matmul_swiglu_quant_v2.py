"""``npu_grouped_matmul_swiglu_quant_v2``: int8 weights with a scale for each of their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import NoReferenceKernelError, accept_chip
from npufix.rewriters.verification.kernels.npu_grouped_matmul_swiglu_quant import multiply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_grouped_matmul_swiglu_quant_v2"
_FLOAT32, _INT8 = 6, 1


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    x: Tensor,
    weight: Sequence[Tensor],
    weight_scale: Sequence[Tensor],
    x_scale: Tensor,
    group_list: Tensor,
    smooth_scale: Tensor | None = None,
    weight_assist_matrix: Sequence[Tensor] | None = None,
    bias: Tensor | None = None,
    dequant_mode: int | None = 0,
    dequant_dtype: int | None = _FLOAT32,
    quant_mode: int | None = 0,
    quant_dtype: int | None = _INT8,
    group_list_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,  # noqa: ARG001 - how the kernel is scheduled
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    weight_scale_dtype: int | None = None,
    x_scale_dtype: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return int8 rows and their scales."""
    accept_chip(_NAME, "A2", "A3", "A5")
    options = (smooth_scale, weight_assist_matrix, bias)
    types = (x_dtype, weight_dtype, weight_scale_dtype, x_scale_dtype)
    plain = not dequant_mode and not quant_mode and (dequant_dtype, quant_dtype) == (6, 1)
    if any(option is not None for option in (*options, *types)) or not plain:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} like this")
    numbers = group_list.cumsum(0) if group_list_type == 1 else group_list
    weights = weight[0] if len(weight) == 1 else torch.stack(list(weight))
    scales = weight_scale[0] if len(weight_scale) == 1 else torch.stack(list(weight_scale))
    ends = [int(end) for end in numbers]
    return multiply(_NAME, (x, weights), (x_scale, scales), ends)
