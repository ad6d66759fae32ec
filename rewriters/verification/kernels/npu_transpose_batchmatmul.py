"""``npu_transpose_batchmatmul``: a batched product of permuted operands; inference only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import accept, accept_dtypes, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_transpose_batchmatmul"
_DIMS = 3


def forward(  # noqa: PLR0913, PLR0917 — the operator's schema
    input: Tensor,  # noqa: A002 — the name in the operator's schema
    weight: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:
    """Return the product, by default with batch and rows exchanged."""
    accept_dtypes(_NAME, input, weight)
    if bias is not None or scale is not None or batch_split_factor not in {None, 1}:
        raise RuntimeError(f"{_NAME}: only without bias, scale and batch_split_factor")
    accept(_NAME, input.dim() == weight.dim() == _DIMS, "both operands must have 3 dimensions")
    first = list(perm_x1 or (0, 1, 2))
    second = list(perm_x2 or (0, 1, 2))
    result = list(perm_y or (1, 0, 2))
    if first not in [[0, 1, 2], [1, 0, 2]] or second != [0, 1, 2] or result != [1, 0, 2]:
        raise RuntimeError(f"{_NAME}: no kernel for {first}, {second} and {result}")
    product = torch.bmm(wide(input).permute(*first), wide(weight).permute(*second))
    return product.permute(*result).contiguous().to(input.dtype)
