"""``npu_moe_token_unpermute``: rows back in order, weighted and added up in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_chip,
    wide,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_NAME = "npu_moe_token_unpermute"
_MATRIX = 2


def forward(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
    restore_shape: Sequence[int] | None = None,  # noqa: ARG001 - for padded mode only
) -> Tensor:
    """Return the tokens; rows that were left out count as zero."""
    accept_chip(_NAME, "A2", "A3", "A5")
    if padded_mode:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} in padded mode")
    accept(_NAME, permuted_tokens.dim() == _MATRIX, "permuted_tokens must have 2 dimensions")
    each = 1 if probs is None else probs.shape[1]
    accept(
        _NAME,
        sorted_indices.dim() == 1 and (probs is None or probs.numel() == sorted_indices.numel()),
        f"{sorted_indices.numel()} sorted_indices are not one for each of probs",
    )
    count, width = permuted_tokens.shape
    places = sorted_indices.long()
    rows = wide(permuted_tokens)[places.clamp(max=max(count - 1, 0))]
    rows = rows * (places < count)[:, None]
    rows = rows.reshape(-1, each, width)
    if probs is not None:
        rows = rows * wide(probs)[..., None]
    return rows.sum(1).to(permuted_tokens.dtype)
