"""``npu_transpose_batchmatmul``: a batched product of permuted operands; inference only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import (
    FLOATING,
    NoReferenceKernelError,
    accept,
    accept_chip,
    accept_dtypes,
    wide,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_transpose_batchmatmul"
_DIMS = 3
_STEP = 16
_LARGEST = 65_536


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    weight: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:
    """Return the product, by default with batch and rows exchanged."""
    accept_chip(_NAME, "A2", "A3", "A5")
    for name, tensor in (("input", input), ("weight", weight)):
        if tensor.dtype not in FLOATING:
            raise RuntimeError(
                f"{_NAME}: {name}'s type supported for float16, float32 and bfloat16, "
                f"not {tensor.dtype}"
            )
    accept_dtypes(_NAME, input, weight)
    if scale is not None:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} with scale")
    if bias is not None:
        raise RuntimeError(f"{_NAME}: bias is not supported")
    accept(_NAME, input.dim() == weight.dim() == _DIMS, "both operands must have 3 dimensions")
    first = list(perm_x1 or (0, 1, 2))
    given = {
        "perm_x1": (first, [[0, 1, 2], [1, 0, 2]]),
        "perm_x2": (list(perm_x2 or (0, 1, 2)), [[0, 1, 2]]),
        "perm_y": (list(perm_y or (1, 0, 2)), [[1, 0, 2]]),
    }
    for name, (perm, known) in given.items():
        if perm not in known:
            choices = " or ".join(map(str, known))
            raise RuntimeError(f"{_NAME}: {name} should be {choices}, not {perm}")
    left = input.permute(*first)
    parts = 1 if batch_split_factor is None else batch_split_factor
    _check(left, weight, parts, turned=first != [0, 1, 2])
    product = torch.bmm(wide(left), wide(weight)).transpose(0, 1).to(input.dtype)
    if parts > 1:
        product = product.reshape(product.shape[0], parts, -1).transpose(0, 1)
    return product.contiguous()


def _check(left: Tensor, weight: Tensor, parts: int, *, turned: bool) -> None:
    batch, _, inner = left.shape
    columns = weight.shape[-1]
    accept(
        _NAME,
        weight.shape[:2] == (batch, inner),
        f"{tuple(left.shape)} and {tuple(weight.shape)} are no product",
    )
    for name, size in (("K", inner), ("N", columns)):
        accept(_NAME, size % _STEP == 0, f"{name} is {size}, no multiple of {_STEP}")
    sizes = {
        "B": batch,
        "N": columns,
        "B * K" if turned else "K": batch * inner if turned else inner,
    }
    for name, size in sizes.items():
        accept(_NAME, 0 < size < _LARGEST, f"{name} is {size}, not in [1, {_LARGEST})")
    accept(
        _NAME,
        1 <= parts <= max(columns, 1) and columns % max(parts, 1) == 0,
        f"batch_split_factor {parts} does not divide {columns} columns",
    )
