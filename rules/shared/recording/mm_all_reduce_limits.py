"""The input limits of ``npu_mm_all_reduce_add_rms_norm``, one by one, against recorded tensors.

The operator computes ``y = allReduce(x1 @ x2 + bias) + residual`` and ``RMSNorm(y) * gamma`` in one
kernel. Its page lists limits for three scenarios: no quantisation, full quantisation (int8 times
int8) and weight-only quantisation (int8 weights). Each limit is an entry of ``LIMITS`` with the
sentence a person reads; it answers True, False, or None where the dump does not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TYPE_CHECKING

from npufix.rules.substitution import all_hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HALF = frozenset({"FLOAT16", "BF16"})
_MATRIX, _BATCHED = 2, 3
_INT_MAX = (1 << 31) - 1
_LARGEST_AXIS = 65535
_GROUP_UNIT = 32
CARDS = (2, 4, 8)
"""Ranks in the group, on Atlas A2."""


class Scenario(str, Enum):
    """What is quantised; the operator has other rules for each."""

    NONE = "no quantisation"
    FULL = "full quantisation"
    WEIGHTS = "weight-only quantisation"


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as the dump recorded it; ``None`` is not recorded."""

    shape: tuple[int, ...]
    dtype: str
    layout: str | None = None
    """The format: ``ND``, ``FRACTAL_NZ``."""
    contiguous: bool | None = None
    transposed: bool = False
    """Whether the last two axes are swapped in memory; ``shape`` is as the product reads it."""


@dataclass(frozen=True, slots=True)
class Call:
    """The operands of matrix product, reduction, addition and norm; ``None`` is not there."""

    x1: Operand
    x2: Operand
    residual: Operand
    gamma: Operand
    bias: Operand | None = None
    antiquant_scale: Operand | None = None
    antiquant_offset: Operand | None = None
    dequant_scale: Operand | None = None
    antiquant_group_size: int | None = 0
    reduce_op: str | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """One sentence of the page, and what decides it."""

    name: str
    text: str
    holds: Callable[[Call], bool | None]
    scenarios: tuple[Scenario, ...] = tuple(Scenario)


def scenario_of(call: Call) -> Scenario:
    """Return which of the three scenarios the dtypes of a product make."""
    if call.x2.dtype != "INT8":
        return Scenario.NONE
    return Scenario.FULL if call.x1.dtype == "INT8" else Scenario.WEIGHTS


def check_limits(call: Call) -> Iterator[tuple[Limit, bool | None]]:
    """Yield each limit of the scenario with its verdict."""
    scenario = scenario_of(call)
    for limit in LIMITS:
        if scenario in limit.scenarios:
            yield limit, limit.holds(call)


def _rows(operand: Operand) -> int:
    return prod(operand.shape[:-1])


def _columns(call: Call) -> int | None:
    return call.x2.shape[-1] if len(call.x2.shape) == _MATRIX else None


def _depth(call: Call) -> int | None:
    return call.x2.shape[0] if len(call.x2.shape) == _MATRIX else None


def _operands(call: Call) -> list[Operand]:
    optional = (call.bias, call.antiquant_scale, call.antiquant_offset, call.dequant_scale)
    given = [operand for operand in optional if operand is not None]
    return [call.x1, call.x2, call.residual, call.gamma, *given]


def _is_plain(call: Call) -> bool | None:
    return all_hold(None if o.layout is None else o.layout == "ND" for o in _operands(call))


def _are_contiguous(call: Call) -> bool | None:
    others = [operand for operand in _operands(call) if operand is not call.x2]
    return all_hold(False if o.transposed else o.contiguous for o in others)


def _one_half_dtype(*operands: Operand | None) -> bool:
    dtypes = {operand.dtype for operand in operands if operand is not None}
    return len(dtypes) == 1 and dtypes <= _HALF


def _no_scales(call: Call) -> bool | None:
    scales = (call.antiquant_scale, call.antiquant_offset, call.dequant_scale)
    return all_hold([scales == (None, None, None), _no_groups(call)])


def _no_groups(call: Call) -> bool | None:
    return None if call.antiquant_group_size is None else call.antiquant_group_size == 0


def _plain_dtypes(call: Call) -> bool:
    return _one_half_dtype(call.x1, call.x2, call.bias, call.residual, call.gamma)


def _full_dtypes(call: Call) -> bool:
    return (
        call.x1.dtype == call.x2.dtype == "INT8"
        and (call.bias is None or call.bias.dtype == "INT32")
        and _one_half_dtype(call.residual, call.gamma)
    )


def _dequant_dtype(call: Call) -> bool:
    if call.dequant_scale is None:
        return False
    wanted = {"FLOAT16": {"INT64", "UINT64"}, "BF16": {"BF16"}}
    return call.dequant_scale.dtype in wanted.get(call.residual.dtype, set())


def _per_tensor_or_channel(scale: Operand | None, call: Call) -> bool:
    columns = _columns(call)
    return scale is not None and scale.shape in {(1,), (1, columns), (columns,)}


def _weight_dtypes(call: Call) -> bool:
    others = (call.bias, call.antiquant_scale, call.antiquant_offset)
    return call.x2.dtype == "INT8" and _one_half_dtype(call.x1, call.residual, call.gamma, *others)


def _axes_in_range(call: Call) -> bool:
    axes = (_depth(call), _columns(call))
    return all(axis is not None and 1 <= axis <= _LARGEST_AXIS for axis in axes)


def _antiquant_shape(call: Call) -> bool | None:
    scale, depth, columns = call.antiquant_scale, _depth(call), _columns(call)
    if scale is None:
        return False
    if _per_tensor_or_channel(scale, call):
        return True
    if call.antiquant_group_size is None:
        return None
    groups = -(-(depth or 0) // (call.antiquant_group_size or 1))
    return call.antiquant_group_size > 0 and scale.shape == (groups, columns)


def _same_shape_as_scale(call: Call) -> bool:
    if call.antiquant_offset is None:
        return True
    return call.antiquant_scale is not None and (
        call.antiquant_offset.shape == call.antiquant_scale.shape
    )


def _group_size(call: Call) -> bool | None:
    size, depth = call.antiquant_group_size, _depth(call)
    if size is None or size == 0:  # 0 is "not per group"
        return None if size is None else True
    largest = min((depth or 0) - 1, _INT_MAX)
    return size % _GROUP_UNIT == 0 and _GROUP_UNIT <= size <= largest


_NONE, _FULL, _WEIGHTS = ((scenario,) for scenario in Scenario)

LIMITS = (
    Limit("plain-format", "all inputs are in the format ND", _is_plain),
    Limit(
        "contiguous-inputs", "x1, residual, gamma and the others are contiguous", _are_contiguous
    ),
    Limit(
        "weight-at-most-transposed",
        "x2 is contiguous, or has its last two axes swapped",
        lambda call: True if call.x2.transposed else call.x2.contiguous,
    ),
    Limit(
        "x1-of-two-or-three-axes",
        "x1 is (s, k) or (b, s, k)",
        lambda call: len(call.x1.shape) in {_MATRIX, _BATCHED},
    ),
    Limit("x2-of-two-axes", "x2 is (k, n)", lambda call: len(call.x2.shape) == _MATRIX),
    Limit(
        "same-k",
        "x1 and x2 have the same k, and it is not 0",
        lambda call: (
            bool(call.x1.shape) and call.x1.shape[-1] == _depth(call) and _depth(call) != 0
        ),
    ),
    Limit(
        "bias-of-one-axis",
        "the bias, if there is one, is (n)",
        lambda call: call.bias is None or call.bias.shape == (_columns(call),),
    ),
    Limit(
        "residual-of-three-axes",
        "the residual is (b, s, n)",
        lambda call: len(call.residual.shape) == _BATCHED,
    ),
    Limit(
        "residual-rows",
        "b * s of the residual are the rows of x1",
        lambda call: (
            len(call.residual.shape) == _BATCHED and _rows(call.residual) == _rows(call.x1)
        ),
    ),
    Limit(
        "residual-columns",
        "the last axis of the residual is that of x2",
        lambda call: bool(call.residual.shape) and call.residual.shape[-1] == _columns(call),
    ),
    Limit("gamma-of-one-axis", "gamma is (n)", lambda call: len(call.gamma.shape) == 1),
    Limit(
        "gamma-columns",
        "gamma is as long as the last axis of the residual",
        lambda call: call.gamma.shape[-1:] == call.residual.shape[-1:],
    ),
    Limit(
        "sum-reduction",
        "the reduction is a sum",
        lambda call: None if call.reduce_op is None else call.reduce_op == "sum",
    ),
    Limit(
        "two-four-or-eight-cards",
        "2, 4 or 8 cards reduce",
        lambda call: None if call.ranks is None else call.ranks in CARDS,
    ),
    Limit(
        "one-half-dtype",
        "x1, x2, bias, residual and gamma are all float16 or all bfloat16",
        _plain_dtypes,
        _NONE,
    ),
    Limit("no-scales", "no scales, no offset and no groups are given", _no_scales, _NONE),
    Limit(
        "int8-product",
        "x1 and x2 are int8, the bias int32, residual and gamma both float16 or both bfloat16",
        _full_dtypes,
        _FULL,
    ),
    Limit(
        "dequant-dtype",
        "dequant_scale is int64 or uint64 (from npu_trans_quant_param) where the residual is "
        "float16, bfloat16 where that is bfloat16",
        _dequant_dtype,
        _FULL,
    ),
    Limit(
        "dequant-shape",
        "dequant_scale is (1), (1, n) or (n)",
        lambda call: _per_tensor_or_channel(call.dequant_scale, call),
        _FULL,
    ),
    Limit(
        "no-antiquant",
        "antiquant_scale, antiquant_offset and groups are not given",
        lambda call: all_hold(
            [call.antiquant_scale is None and call.antiquant_offset is None, _no_groups(call)]
        ),
        _FULL,
    ),
    Limit(
        "int8-weight",
        "x2 is int8; x1, bias, residual, gamma, antiquant_scale and antiquant_offset are all "
        "float16 or all bfloat16",
        _weight_dtypes,
        _WEIGHTS,
    ),
    Limit("axes-in-range", "k and n are from 1 to 65535", _axes_in_range, _WEIGHTS),
    Limit(
        "antiquant-shape",
        "antiquant_scale is (1), (1, n), (n) or (ceil(k / group), n)",
        _antiquant_shape,
        _WEIGHTS,
    ),
    Limit(
        "offset-shape",
        "antiquant_offset, if there is one, has the shape of antiquant_scale",
        _same_shape_as_scale,
        _WEIGHTS,
    ),
    Limit(
        "group-size",
        "antiquant_group_size is 0, or a multiple of 32 from 32 to min(k - 1, INT_MAX)",
        _group_size,
        _WEIGHTS,
    ),
    Limit(
        "no-dequant",
        "dequant_scale is not given",
        lambda call: call.dequant_scale is None,
        _WEIGHTS,
    ),
)
