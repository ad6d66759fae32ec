"""``npu_cross_entropy_loss``: the loss has one dimension even when it is one number.

A negative ``ignore_index`` leaves nothing out: then every label has to be a class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import (
    accept,
    accept_chip,
    accept_dtypes,
    wide,
)

if TYPE_CHECKING:
    from torch import Tensor

NOT_DIFFERENTIABLE = (1, 2, 3)
_NAME = "npu_cross_entropy_loss"
_MATRIX = 2
_MOST_ROWS = 200_000


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return loss, log-probabilities, and two results for z-loss, which are empty."""
    _check(input, target, weight, reduction, label_smoothing)
    _check_labels(target, input.shape[1], ignore_index)
    if return_zloss or lse_square_scale_for_zloss:
        raise RuntimeError(f"{_NAME}: z-loss is not supported")
    scores = wide(input)
    loss = F.cross_entropy(
        scores,
        target,
        None if weight is None else weight.to(scores.dtype),
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    log_prob = torch.log_softmax(scores, -1).to(input.dtype)
    empty = input.new_zeros(0)
    return loss.reshape(-1).to(input.dtype), log_prob, empty, empty.clone()


def check_backward(  # noqa: PLR0913, PLR0917 - the operator's schema
    input: Tensor,  # noqa: A002, ARG001 - the operator's schema
    target: Tensor,  # noqa: ARG001 - the operator's schema
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    *_others: object,
) -> None:
    """Refuse the options that the operator has without a gradient only."""
    given = ["label_smoothing"] if label_smoothing else []
    if reduction == "mean":
        given += ["weight"] if weight is not None else []
        given += ["ignore_index"] if ignore_index >= 0 else []
    if given:
        options = ", ".join(given)
        raise RuntimeError(f"{_NAME}: no gradient of {reduction!r} with {options}")


def _check(
    scores: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> None:
    accept_chip(_NAME, "A2", "A3", "A5")
    accept_dtypes(_NAME, scores)
    accept(
        _NAME,
        scores.dim() == _MATRIX and target.shape == scores.shape[:1],
        f"input {tuple(scores.shape)} and target {tuple(target.shape)} are not (N, C) and (N,)",
    )
    rows, classes = scores.shape
    accept(_NAME, 0 < rows <= _MOST_ROWS, f"input has {rows} rows, 1 to {_MOST_ROWS} are supported")
    accept(_NAME, classes > 0, "input has no classes")
    if target.dtype != torch.int64:
        raise RuntimeError(f"{_NAME}: the target is {target.dtype}, not int64")
    if weight is not None:
        accept(
            _NAME, weight.shape == (classes,), f"weight {tuple(weight.shape)} is not ({classes},)"
        )
        if weight.dtype not in {torch.float32, torch.float64}:
            raise RuntimeError(f"{_NAME}: the weight is {weight.dtype}, not float32")
    if reduction not in {"mean", "sum", "none"}:
        raise RuntimeError(f"{_NAME}: reduction is mean, sum or none, not {reduction!r}")
    if not 0 <= smoothing < 1:
        raise RuntimeError(f"{_NAME}: label_smoothing is {smoothing}, not in [0, 1)")


def _check_labels(target: Tensor, classes: int, ignore_index: int) -> None:
    if ignore_index >= classes:
        raise RuntimeError(f"{_NAME}: ignore_index is {ignore_index}, not below {classes}")
    if bool(((target < 0) | (target >= classes)).any()):
        raise RuntimeError(
            f"{_NAME}: a label is outside of [0, {classes}); "
            "a negative ignore_index leaves no label out"
        )
