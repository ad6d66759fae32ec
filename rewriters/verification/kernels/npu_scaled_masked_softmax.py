"""``npu_scaled_masked_softmax``: masked scores become -10000, not minus infinity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import accept, accept_dtypes, wide

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "npu_scaled_masked_softmax"
_FILL = -10000.0
_DIMS = 4
_STEP = 32
_LONGEST = 4096


def forward(
    x: Tensor,
    mask: Tensor,
    scale: float = 1,
    fixed_triu_mask: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
) -> Tensor:
    """Return the softmax over the last dimension; True in ``mask`` drops a score."""
    accept_dtypes(_NAME, x)
    if mask.dtype != torch.bool:
        raise RuntimeError(f"{_NAME}: the mask is {mask.dtype}, not bool")
    if fixed_triu_mask:
        raise RuntimeError(f"{_NAME}: fixed_triu_mask must be False")
    accept(_NAME, x.dim() == mask.dim() == _DIMS, "x and mask must have 4 dimensions")
    for size in x.shape[-2:]:
        accept(
            _NAME,
            _STEP <= size <= _LONGEST and size % _STEP == 0,
            f"the last two dimensions of {tuple(x.shape)} are not multiples of 32 up to 4096",
        )
    accept(
        _NAME,
        mask.shape[-2:] == x.shape[-2:]
        and all(own in {1, size} for own, size in zip(mask.shape[:2], x.shape[:2], strict=True)),
        f"mask {tuple(mask.shape)} does not go with x {tuple(x.shape)}",
    )
    scores = (wide(x) * scale).masked_fill(mask, _FILL)
    return torch.softmax(scores, -1).to(x.dtype)
