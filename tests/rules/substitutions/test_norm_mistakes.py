"""Norms: deliberate mistakes, each on the inputs that the rule itself offers."""

# ruff: noqa: ARG001, FBT001 - a mistake takes what its pattern takes, and may ignore it
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812 - the field's name
from rule_checks import each_mistake, refuted

from npufix.rules.shared.operands import norms
from npufix.rules.substitutions import (
    add_layer_norm,
    add_rms_norm,
    cast_layer_norm_cast,
    dropout_add_layer_norm,
    dropout_add_rms_norm,
    eager_rms_norm,
    group_norm_silu,
)

if TYPE_CHECKING:
    import mindspeed  # type: ignore[import-not-found]  # noqa: TC004 - the verifier supplies it
    import torch_npu  # noqa: TC004 - the verifier supplies it
    from rule_checks import Mistake
    from torch import Tensor, nn


def one_forgotten(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]


def one_added_twice(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch_npu.npu_gemma_rms_norm(x, 1.0 + weight, epsilon=eps)[0]


def gemma_in_training(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch_npu.npu_gemma_rms_norm(x, weight, epsilon=eps)[0]


def flag_ignored(
    x: Tensor,
    weight: Tensor,
    eps: float,
    dim: int,
    offset: bool,
) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight.float(), epsilon=eps)[0]


def default_eps(
    x: Tensor,
    weight: Tensor,
    eps: float,
    shape: tuple[int, ...],
) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight)[0]


def reciprocal(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch_npu.npu_add_rms_norm(x, residual, weight, epsilon=eps)[1]


def the_sum(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch_npu.npu_add_rms_norm(x, residual, weight, epsilon=eps)[2]


def residual_forgotten(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]


def dropped_in_evaluation(
    x: Tensor, residual: Tensor, drop: nn.Dropout, norm: nn.LayerNorm
) -> Tensor:
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        x, residual, norm.weight, norm.bias, drop.p, norm.eps
    )


def operands_swapped(x: Tensor, residual: Tensor, drop: nn.Dropout, norm: nn.LayerNorm) -> Tensor:
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        residual, x, norm.weight, norm.bias, drop.p if drop.training else 0.0, norm.eps
    )


def bias_lost(x: Tensor, residual: Tensor, drop: nn.Dropout, norm: nn.LayerNorm) -> Tensor:
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        x, residual, norm.weight, None, drop.p if drop.training else 0.0, norm.eps
    )


def two_results(x: Tensor, residual: Tensor, drop: nn.Dropout, norm: nn.LayerNorm) -> Tensor:
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        x,
        residual,
        norm.weight,
        norm.bias,
        drop.p if drop.training else 0.0,
        norm.eps,
        prenorm=True,
    )


def scaled_after_dropout_only(
    x: Tensor, residual: Tensor, scale: Tensor, drop: nn.Dropout, norm: nn.LayerNorm
) -> Tensor:
    return norm((drop(x) + residual) * scale)


def mean_subtracted(x: Tensor, residual: Tensor, drop: nn.Dropout, norm: nn.RMSNorm) -> Tensor:
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        x, residual, norm.weight, None, drop.p if drop.training else 0.0, norm.eps
    )


def second_result(x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
    return torch_npu.npu_add_layer_norm(x, residual, norm.weight, norm.bias, norm.eps)[1]


def weights_swapped(x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
    return torch_npu.npu_add_layer_norm(x, residual, norm.bias, norm.weight, norm.eps)[0]


def eps_of_the_operator(x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
    return torch_npu.npu_add_layer_norm(x, residual, norm.weight, norm.bias)[0]


def without_silu(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    return norm(x)


def one_group(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    return torch_npu.npu_group_norm_swish(x, 1, norm.weight, norm.bias, eps=norm.eps)[0]


def silu_in_training(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    return torch_npu.npu_group_norm_silu(x, norm.weight, norm.bias, norm.num_groups, norm.eps)[0]


def result_in_float32(
    x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    return F.layer_norm(x.float(), shape, weight.float(), bias.float(), eps)


GEMMA = (eager_rms_norm.one_plus_weight, norms.inputs)
SUM = (add_rms_norm.cast_then_weight, add_rms_norm.summands)
DROPOUT = (dropout_add_layer_norm.of_submodules, dropout_add_layer_norm.submodule_inputs)
ADD = (add_layer_norm.of_submodule, add_layer_norm.submodule_inputs)
IMAGE = (group_norm_silu.of_submodule, group_norm_silu.submodule_inputs)
MISTAKES = [
    (*GEMMA, one_forgotten),
    (*GEMMA, one_added_twice),
    (*GEMMA, gemma_in_training),
    (eager_rms_norm.unit_offset, eager_rms_norm.offset_or_not, flag_ignored),
    (eager_rms_norm.torch_rms_norm, norms.with_shape, default_eps),
    (*SUM, reciprocal),
    (*SUM, the_sum),
    (*SUM, residual_forgotten),
    (*DROPOUT, dropped_in_evaluation),
    (*DROPOUT, operands_swapped),
    (*DROPOUT, bias_lost),
    (*DROPOUT, two_results),
    (
        dropout_add_layer_norm.with_column_scale,
        dropout_add_layer_norm.column_inputs,
        scaled_after_dropout_only,
    ),
    (
        dropout_add_rms_norm.of_submodules,
        dropout_add_rms_norm.submodule_inputs,
        mean_subtracted,
    ),
    (*ADD, second_result),
    (*ADD, weights_swapped),
    (*ADD, eps_of_the_operator),
    (*IMAGE, without_silu),
    (*IMAGE, one_group),
    (*IMAGE, silu_in_training),
    (cast_layer_norm_cast.in_float32, cast_layer_norm_cast.inputs, result_in_float32),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_refuted(mistake: Mistake) -> None:
    refuted(*mistake)
