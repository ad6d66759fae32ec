"""``npu_grouped_matmul``: several products in one kernel, each rounded once; inference only."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification.kernels.common import (
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
_NAME = "npu_grouped_matmul"
_BY_ROWS, _BY_COLUMNS = 0, 2
_CUBE = 3
_ONE_RESULT = (2, 3)


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Sequence[Tensor] | None = None,
    scale: Sequence[Tensor] | None = None,
    offset: Sequence[Tensor] | None = None,
    antiquant_scale: Sequence[Tensor] | None = None,
    antiquant_offset: Sequence[Tensor] | None = None,
    per_token_scale: Sequence[Tensor] | None = None,
    group_list: Tensor | Sequence[int] | None = None,
    activation_input: Sequence[Tensor] | None = None,
    activation_quant_scale: Sequence[Tensor] | None = None,
    activation_quant_offset: Sequence[Tensor] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    *_tuning: object,
    **_more_tuning: object,
) -> list[Tensor]:
    """Return one product for each group, or all of them as one tensor."""
    quantised = (scale, offset, antiquant_scale, antiquant_offset, per_token_scale)
    activated = (activation_input, activation_quant_scale, activation_quant_offset)
    if any(given for given in (*quantised, *activated)) or act_type:
        raise NoReferenceKernelError(
            f"there is no reference kernel for {_NAME} quantised or with activation"
        )
    accept_chip(_NAME, "A2", "A3", "A5")
    accept(_NAME, len(x) > 0 and len(weight) > 0, "there are no matrices")
    accept_dtypes(_NAME, *x, *weight)
    ends = _ends(group_list, group_list_type)
    weights = list(weight[0]) if len(weight) == 1 and weight[0].dim() == _CUBE else list(weight)
    parts = _split(x, ends, group_type)
    if group_type == _BY_COLUMNS and len(weights) == 1 and ends is not None:
        weights = [weights[0][start:end] for start, end in pairwise([0, *ends])]
    biases: list[Any] = [None] * len(weights)
    if bias:
        biases = list(bias) if len(bias) == len(weights) else list(bias[0])
    accept(
        _NAME,
        len(parts) == len(weights) == len(biases),
        f"{len(parts)} matrices, {len(weights)} weights and {len(biases)} biases",
    )
    products = [_product(*own) for own in zip(parts, weights, biases, strict=True)]
    if group_type == _BY_COLUMNS:
        return [torch.stack(products)]
    return [torch.cat(products)] if split_item in _ONE_RESULT else products


def _ends(groups: Tensor | Sequence[int] | None, kind: int | None) -> list[int] | None:
    """Return where each group ends; ``kind`` 1 gives how long they are."""
    if groups is None:
        return None
    numbers = torch.as_tensor(groups, dtype=torch.int64)
    if kind not in {None, 0, 1}:
        raise NoReferenceKernelError(
            f"there is no reference kernel for {_NAME} of list type {kind}"
        )
    return (numbers.cumsum(0) if kind == 1 else numbers).tolist()


def _split(x: Sequence[Tensor], ends: list[int] | None, kind: int | None) -> list[Tensor]:
    if len(x) != 1 or ends is None:
        return list(x)
    spans = list(pairwise([0, *ends]))
    if kind == _BY_COLUMNS:
        return [x[0][:, start:end] for start, end in spans]
    return [x[0][start:end] for start, end in spans]


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    accept(
        _NAME,
        x.shape[-1] == weight.shape[0],
        f"{tuple(x.shape)} and {tuple(weight.shape)} are no product",
    )
    product = wide(x) @ wide(weight)
    return (product if bias is None else product + wide(bias)).to(x.dtype)
