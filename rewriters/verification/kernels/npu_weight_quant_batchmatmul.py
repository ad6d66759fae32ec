"""``npu_weight_quant_batchmatmul``: a product with int8 weights that are scaled on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_chip,
    accept_dtypes,
    wide,
)

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_weight_quant_batchmatmul"
_LARGEST = 65_535


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> Tensor:
    """Return ``x @ ((weight + offset) * scale)``, the weight scaled in the dtype of ``x``."""
    accept_chip(_NAME, "A2", "A3", "A5", "310P")
    others = (quant_scale, quant_offset, weight_dtype)
    if any(given is not None for given in others) or antiquant_group_size or inner_precise:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} with these options")
    if weight.dtype != torch.int8:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} of {weight.dtype}")
    accept_dtypes(_NAME, x, antiquant_scale, antiquant_offset)
    if x.dtype not in {torch.float16, torch.bfloat16}:
        raise RuntimeError(f"{_NAME}: no kernel for {x.dtype}")
    accept(_NAME, x.dim() == weight.dim() == 2, "both operands must have 2 dimensions")  # noqa: PLR2004
    (depth, columns) = weight.shape
    accept(_NAME, x.shape[1] == depth, f"{tuple(x.shape)} and {tuple(weight.shape)} do not match")
    accept(_NAME, 1 <= depth <= _LARGEST and 1 <= columns <= _LARGEST, "K or N is out of range")
    for given in (antiquant_scale, antiquant_offset):
        if given is not None:
            accept(
                _NAME,
                tuple(given.shape) in {(1, columns), (columns,), (1,)},
                f"{tuple(given.shape)} does not scale {columns} columns",
            )
    scaled = weight.to(x.dtype)
    if antiquant_offset is not None:
        scaled = scaled + antiquant_offset
    y = wide(x) @ wide(scaled * antiquant_scale)
    if bias is not None:
        y = y + wide(bias)
    return y.to(x.dtype)
