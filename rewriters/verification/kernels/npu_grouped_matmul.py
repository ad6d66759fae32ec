"""``npu_grouped_matmul``: several products in one kernel, each rounded once; inference only.

Of integers, with scales for columns and rows; or of floats and integers that are scaled first.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_chip,
    accept_dtypes,
    wide,
)
from npufix.rewriters.verification.kernels.quantisation import (
    find_dtype,
    integers,
    read_scale,
    round_to,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_grouped_matmul"
_BY_COLUMNS = 2
_MATRIX = 2
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
    tuning_config: Sequence[int] | None = None,  # noqa: ARG001 - how the kernel is scheduled
    output_dtype: int | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[Tensor]:
    """Return one product for each group, or all of them as one tensor."""
    activated = (activation_input, activation_quant_scale, activation_quant_offset)
    types = (x_dtype, weight_dtype, scale_dtype, per_token_scale_dtype)
    if any(given for given in (offset, *activated)) or act_type or set(types) != {None}:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} with activation")
    accept_chip(_NAME, "A2", "A3", "A5")
    accept(_NAME, len(x) > 0 and len(weight) > 0, "there are no matrices")
    ends = _ends(group_list, group_list_type)
    weights = _each(weight, _CUBE)
    parts = _split(x, ends, group_type)
    if group_type == _BY_COLUMNS and len(weights) == 1 and ends is not None:
        weights = [weights[0][start:end] for start, end in pairwise([0, *ends])]
    nothing = [None] * len(weights)
    of_columns = (bias, scale, antiquant_scale, antiquant_offset)
    given: list[list[Any]] = [
        parts,
        weights,
        *(_each(several, _MATRIX) if several else nothing for several in of_columns),
        _split(per_token_scale, ends, None) if per_token_scale else nothing,
    ]
    counts = [len(several) for several in given]
    accept(
        _NAME,
        len(set(counts)) == 1,
        f"{counts[0]} matrices, {counts[1]} weights, {counts[2]} biases and "
        f"{counts[3:]} scales do not match",
    )
    products = [_product(Factors(*own), output_dtype) for own in zip(*given, strict=True)]
    if group_type == _BY_COLUMNS:
        return [torch.stack(products)]
    return [torch.cat(products)] if split_item in _ONE_RESULT else products


def _each(several: Sequence[Tensor], dims: int) -> list[Tensor]:
    """Return one tensor for each group, which may be stacked in one of so many dimensions."""
    stacked = len(several) == 1 and several[0].dim() == dims
    return list(several[0]) if stacked else list(several)


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


class Factors(NamedTuple):
    """What the product of one group is made of."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    scale: Tensor | None
    antiquant_scale: Tensor | None
    antiquant_offset: Tensor | None
    row_scale: Tensor | None


def _product(own: Factors, output_dtype: int | None) -> Tensor:
    if own.x.dtype in {torch.int8, torch.int32}:
        return _product_of_integers(own, output_dtype)
    if own.scale is not None or own.row_scale is not None:
        raise RuntimeError(f"{_NAME}: no kernel for scales of {own.x.dtype}")
    weight = own.weight
    if own.antiquant_scale is not None:
        weight = integers(weight).float()
        if own.antiquant_offset is not None:
            weight = weight + wide(own.antiquant_offset)
        weight = (weight * wide(own.antiquant_scale)).to(own.x.dtype)
    accept_dtypes(_NAME, own.x, weight)
    _check(own.x, weight)
    product = wide(own.x) @ wide(weight)
    if own.bias is not None:
        product = product + wide(own.bias)
    return product.to(find_dtype(_NAME, output_dtype, own.x.dtype))


def _product_of_integers(own: Factors, output_dtype: int | None) -> Tensor:
    """Multiply exactly, scale in float32, round once."""
    left, right, bias = integers(own.x), integers(own.weight), own.bias
    _check(left, right)
    dtype = find_dtype(_NAME, output_dtype, torch.int8)
    product = left @ right
    if bias is not None and bias.dtype == torch.int32:
        product, bias = product + bias, None
    if dtype == torch.int32:
        return product.to(dtype)
    accept(_NAME, own.scale is not None, "integers want a scale")
    assert own.scale is not None  # noqa: S101 - accepted above
    factor, shift = read_scale(own.scale)
    y = product.float() * factor
    if own.row_scale is not None:
        y = y * own.row_scale.float().reshape(-1, 1)
    if bias is not None:
        y = y + bias.float()
    return round_to(y if shift is None or dtype != torch.int8 else y + shift, dtype)


def _check(x: Tensor, weight: Tensor) -> None:
    accept(
        _NAME,
        x.shape[-1] == weight.shape[0],
        f"{tuple(x.shape)} and {tuple(weight.shape)} are no product",
    )
