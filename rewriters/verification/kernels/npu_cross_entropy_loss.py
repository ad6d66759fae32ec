"""``npu_cross_entropy_loss``: the loss has one dimension even when it is one number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 — the field's name

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_dtypes,
    wide,
)

if TYPE_CHECKING:
    from torch import Tensor

NOT_DIFFERENTIABLE = (1, 2, 3)
_NAME = "npu_cross_entropy_loss"
_MATRIX = 2


def forward(  # noqa: PLR0913, PLR0917 — the operator's schema
    input: Tensor,  # noqa: A002 — the name in the operator's schema
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,  # noqa: FBT001, FBT002 — the operator's schema
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return loss, log-probabilities, z-loss and the log-sum-exp of every row."""
    accept_dtypes(_NAME, input)
    accept(
        _NAME,
        input.dim() == _MATRIX and target.shape == input.shape[:1],
        f"input {tuple(input.shape)} and target {tuple(target.shape)} are not (N, C) and (N,)",
    )
    if target.dtype not in {torch.int32, torch.int64}:
        raise RuntimeError(f"{_NAME}: the target is {target.dtype}")
    if return_zloss or lse_square_scale_for_zloss:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} with z-loss")
    scores = wide(input)
    loss = F.cross_entropy(
        scores,
        target.long(),
        None if weight is None else weight.to(scores.dtype),
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    lse = torch.logsumexp(scores, -1)
    log_prob = (scores - lse[:, None]).to(input.dtype)
    return loss.reshape(-1).to(input.dtype), log_prob, input.new_zeros(0), lse
