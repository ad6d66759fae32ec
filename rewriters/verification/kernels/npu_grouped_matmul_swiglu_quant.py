"""``npu_grouped_matmul_swiglu_quant``: products of int8 in groups, SwiGLU, and back to int8."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_chip,
)
from npufix.rewriters.verification.kernels.quantisation import round_to

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_grouped_matmul_swiglu_quant"
_LARGEST = 127
_CUBE = 3


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    weight_scale: Tensor,
    x_scale: Tensor,
    bias: Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return int8 rows, their scales and no offsets; rows behind the last group are zero."""
    accept_chip(_NAME, "A2", "A3")
    if bias is not None or offset is not None:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} of int4")
    ends = [int(end) for end in group_list]
    return *multiply(_NAME, (x, weight), (x_scale, weight_scale), ends), x_scale.new_empty(())


def multiply(
    operator: str,
    factors: tuple[Tensor, Tensor],
    scales: tuple[Tensor, Tensor],
    ends: list[int],
) -> tuple[Tensor, Tensor]:
    """Return the rows, rounded to int8, and their scales; ``ends`` says where groups end."""
    x, weight = factors
    x_scale, weight_scale = scales
    if x.dtype != torch.int8 or weight.dtype != torch.int8 or weight.dim() != _CUBE:
        raise NoReferenceKernelError(
            f"there is no reference kernel for {operator} of {x.dtype} and {weight.dim()}-D "
            f"{weight.dtype}"
        )
    groups, inner, columns = weight.shape
    accept(operator, x.shape[-1] == inner, f"{tuple(x.shape)} and {tuple(weight.shape)}")
    accept(operator, len(ends) == groups, f"{len(ends)} groups for {groups} weights")
    accept(operator, weight_scale.shape == (groups, columns), "weight_scale is not (E, N)")
    rows = x.new_zeros(x.shape[0], columns // 2, dtype=torch.float32)
    for group, (start, end) in enumerate(pairwise([0, *ends])):
        product = (x[start:end].double() @ weight[group].double()).float()
        product = product * weight_scale[group].float() * x_scale[start:end].float()[:, None]
        gate, up = product.chunk(2, -1)
        rows[start:end] = F.silu(gate) * up
    scale = rows.abs().amax(-1) / _LARGEST
    return round_to(rows / scale.masked_fill(scale == 0, 1.0)[:, None], torch.int8), scale
