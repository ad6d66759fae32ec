"""``npu_dynamic_quant``: rows scaled to the largest number of the type, and rounded."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import (
    HALF,
    NoReferenceKernelError,
    accept,
    accept_chip,
)
from npufix.rewriters.verification.kernels.quantisation import (
    find_dtype,
    is_int4,
    round_to,
    round_to_int4,
)

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_dynamic_quant"
_LARGEST_INT4, _LARGEST_INT8 = 7, 127
_MATRIX = 2


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the rounded rows, and the scale of each in float32."""
    accept_chip(_NAME, "A2", "A3", "A5")
    if quant_mode != "pertoken" or dst_type_max:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} {quant_mode}")
    few = is_int4(dst_type)
    if not few and find_dtype(_NAME, dst_type, torch.int8) != torch.int8:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} to {dst_type}")
    x = smooth(_NAME, input, smooth_scales, group_index)
    scale = x.abs().amax(-1) / (_LARGEST_INT4 if few else _LARGEST_INT8)
    scaled = x / scale.masked_fill(scale == 0, 1.0)[..., None]
    return round_to_int4(_NAME, scaled) if few else round_to(scaled, torch.int8), scale


def smooth(operator: str, x: Tensor, scales: Tensor | None, groups: Tensor | None) -> Tensor:
    """Multiply with one scale for each column; with groups, rows up to each end with their own."""
    if x.dtype not in HALF:
        raise RuntimeError(f"{operator}: no kernel for {x.dtype}, only for float16 and bfloat16")
    accept(operator, x.dim() >= _MATRIX, "the input must have 2 dimensions or more")
    if scales is None:
        return x.float()
    if groups is None:
        accept(operator, scales.shape == x.shape[-1:], "smooth_scales are not one for each column")
        return x.float() * scales.float()
    accept(
        operator,
        scales.shape == (groups.numel(), x.shape[-1]),
        "smooth_scales are not one row for each of group_index",
    )
    rows = x.float().reshape(-1, x.shape[-1]).clone()
    for number, (start, end) in enumerate(pairwise([0, *groups.tolist()])):
        rows[start:end] *= scales[number].float()
    return rows.reshape(x.shape)
