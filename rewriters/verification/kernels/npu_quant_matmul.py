"""``npu_quant_matmul``: an exact product of integers, scaled in float32, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_chip,
)
from npufix.rewriters.verification.kernels.quantisation import (
    find_dtype,
    integers,
    pack_scale,
    read_scale,
    round_to,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_quant_matmul"
_PACKS_SCALE = (torch.int8, torch.float16)


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: Sequence[int] | None = None,
    y_scale: Tensor | None = None,
) -> Tensor:
    """Return the product, of int8 unless ``output_dtype`` says otherwise."""
    accept_chip(_NAME, "A2", "A3", "A5", "310P")
    others = (x1_dtype, x2_dtype, pertoken_scale_dtype, scale_dtype, y_scale)
    if any(option is not None for option in others) or any(group_sizes or ()) or scale.dim() > 1:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} in groups")
    if x1.dtype != x2.dtype or x1.dtype not in {torch.int8, torch.int32}:
        raise RuntimeError(f"{_NAME}: no kernel for {x1.dtype} and {x2.dtype}")
    left, right = integers(x1), integers(x2)
    dtype = find_dtype(_NAME, output_dtype, torch.int8)
    accept(_NAME, left.shape[-1] == right.shape[-2], f"{left.shape} and {right.shape} do not match")
    columns = right.shape[-1]
    accept(_NAME, scale.numel() in {1, columns}, f"{scale.numel()} scales for {columns} columns")
    product = left @ right
    if bias is not None and bias.dtype == torch.int32:
        product, bias = product + bias, None
    if dtype == torch.int32:
        return product.to(dtype)
    # Without scales of rows the kernel is given what ``npu_trans_quant_param`` makes of it.
    packs = pertoken_scale is None and dtype in _PACKS_SCALE and scale.dtype == torch.float32
    factor, shift = read_scale(pack_scale(scale) if packs else scale, offset)
    shift = offset.float() if offset is not None else shift
    y = product.float() * factor
    if pertoken_scale is not None:
        rows = pertoken_scale.numel()
        accept(_NAME, rows == left.shape[-2], f"{rows} scales for {left.shape[-2]} rows")
        y = y * pertoken_scale.float().reshape(-1, 1)
    if bias is not None:
        y = y + bias.float()
    return round_to(y if shift is None or dtype != torch.int8 else y + shift, dtype)
