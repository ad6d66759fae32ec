"""``npu_trans_quant_param``: 19 bits of a scale and 9 bits of an offset in one int64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_elements,
)
from npufix.rewriters.verification.kernels.quantisation import pack_scale

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_trans_quant_param"
_MATRIX = 2


def forward(scale: Tensor, offset: Tensor | None = None, round_mode: int | None = 0) -> Tensor:
    """Return an int64 for each scale, or for each offset if there is one scale."""
    if round_mode:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} that rounds")
    for tensor in (scale, offset):
        if tensor is not None and tensor.dtype != torch.float32:
            raise RuntimeError(f"{_NAME}: no kernel for {tensor.dtype}, only for float32")
    accept_elements(_NAME, scale)
    accept(_NAME, 1 <= scale.dim() <= _MATRIX, f"scale has {scale.dim()} dimensions")
    return pack_scale(scale, offset)
