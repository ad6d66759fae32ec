"""``npu_dynamic_quant_asymmetric``: rows spread over all numbers of int8, and rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import NoReferenceKernelError, accept_chip
from npufix.rewriters.verification.kernels.npu_dynamic_quant import smooth
from npufix.rewriters.verification.kernels.quantisation import find_dtype, round_to

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_dynamic_quant_asymmetric"
_STEPS = 255
_LARGEST = 127


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rounded rows, and scale and offset of each in float32."""
    accept_chip(_NAME, "A2", "A3", "A5")
    if quant_mode != "pertoken" or dst_type_max or dst_type not in {None, 1, torch.int8}:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} like this")
    x = smooth(_NAME, input, smooth_scales, group_index)
    scale = (x.amax(-1) - x.amin(-1)) / _STEPS
    safe = scale.masked_fill(scale == 0, 1.0)
    offset = _LARGEST - x.amax(-1) / safe
    dtype = find_dtype(_NAME, dst_type, torch.int8)
    return round_to(x / safe[..., None] + offset[..., None], dtype), scale, offset
