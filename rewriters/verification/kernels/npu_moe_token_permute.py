"""``npu_moe_token_permute``: rows ordered by expert, and where each of them went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_chip,
)

if TYPE_CHECKING:
    from torch import Tensor

NOT_DIFFERENTIABLE = (1,)
_NAME = "npu_moe_token_permute"
_MATRIX = 2


def forward(
    tokens: Tensor,
    indices: Tensor,
    num_out_tokens: int | None = None,
    padded_mode: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
) -> tuple[Tensor, Tensor]:
    """Return the rows, and the *inverse* of the permutation in int32."""
    accept_chip(_NAME, "A2", "A3", "A5")
    if padded_mode:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} in padded mode")
    accept(_NAME, tokens.dim() == _MATRIX, f"tokens have {tokens.dim()} dimensions, not 2")
    accept(
        _NAME,
        indices.dim() in {1, _MATRIX} and indices.shape[0] == tokens.shape[0],
        f"indices {tuple(indices.shape)} do not go with tokens {tuple(tokens.shape)}",
    )
    each = 1 if indices.dim() == 1 else indices.shape[1]
    order = torch.argsort(indices.flatten(), stable=True)
    count = order.numel()
    wanted = num_out_tokens or count
    kept = min(wanted, count) if wanted > 0 else max(count + wanted, 0)
    return tokens.index_select(0, order[:kept] // max(each, 1)), torch.argsort(order).int()
