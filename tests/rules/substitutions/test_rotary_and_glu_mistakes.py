"""Mistakes in rotary embeddings, gated units and activations that the rules' inputs catch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from rule_checks import each_mistake, refuted

from npufix.rules.substitutions import (
    eager_geglu,
    eager_rotary_embedding,
    eager_swiglu,
    written_out_silu,
)

if TYPE_CHECKING:
    import torch_npu  # noqa: TC004 - the verifier supplies it
    from rule_checks import Mistake
    from torch import Tensor

# --- deliberate mistakes, each on the inputs that the rule itself offers


def tables_swapped(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch_npu.npu_rotary_mul(x, sin, cos)


def other_mode(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch_npu.npu_rotary_mul(x, cos, sin, rotary_mode="interleave")


def half_mode(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch_npu.npu_rotary_mul(x, cos, sin)


def other_direction(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch_npu.npu_rotary_mul(x, cos, -sin)


def halves_swapped(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch_npu.npu_rotary_mul(torch.cat((x2, x1), dim=-1), cos, sin)


def rounded_first(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch_npu.npu_rotary_mul(x, cos, sin).float()


def gradient_cut(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch_npu.npu_rotary_mul(x.detach(), cos, sin)


def repeated_side_by_side(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = [t.repeat_interleave(2, dim=-1) for t in (cos, sin)]
    return torch_npu.npu_rotary_mul(x, *wide)


def repeated_as_a_whole(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = [torch.cat((t, t), dim=-1) for t in (cos, sin)]
    return torch_npu.npu_rotary_mul(x, *wide, rotary_mode="interleave")


def second_half_activated(x: Tensor, literal_dim: int) -> Tensor:
    gate, up = x.chunk(2, dim=literal_dim)
    return torch_npu.npu_swiglu(torch.cat((up, gate), dim=literal_dim), dim=literal_dim)


def last_dimension(x: Tensor, literal_dim: int) -> Tensor:  # noqa: ARG001
    return torch_npu.npu_swiglu(x, dim=-1)


def gelu_instead(x: Tensor, literal_dim: int) -> Tensor:
    return torch_npu.npu_geglu(x, dim=literal_dim, activate_left=True)[0]


def joined_the_other_way(gate: Tensor, up: Tensor) -> Tensor:
    return torch_npu.npu_swiglu(torch.cat((up, gate), dim=-1), dim=-1)


def other_half(x: Tensor, literal_dim: int) -> Tensor:
    return torch_npu.npu_geglu(x, dim=literal_dim, approximate=0, activate_left=True)[0]


def default_approximation(x: Tensor, literal_dim: int) -> Tensor:
    return torch_npu.npu_geglu(x, dim=literal_dim)[0]


def activated_half_returned(x: Tensor, literal_dim: int) -> Tensor:
    return torch_npu.npu_geglu(x, dim=literal_dim, approximate=0)[1]


def without_gradient(gate: Tensor, up: Tensor) -> Tensor:
    return torch_npu.npu_gelu_mul(torch.cat((gate, up), dim=-1))


def sigmoid_alone(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def fast_instead(x: Tensor) -> Tensor:
    return torch_npu.npu_fast_gelu(x)


def tanh_instead(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def erf_instead(x: Tensor) -> Tensor:
    return F.gelu(x)


def silu_instead(x: Tensor) -> Tensor:
    return F.silu(x)


R, S, G, W = eager_rotary_embedding, eager_swiglu, eager_geglu, written_out_silu
MISTAKES = [
    (R.halves, R.inputs, tables_swapped),
    (R.halves, R.pair_inputs, other_mode),
    (R.halves, R.inputs, other_direction),
    (R.halves, R.inputs, halves_swapped),
    (R.halves, R.inputs, rounded_first),
    (R.halves, R.inputs, gradient_cut),
    (R.halves_then_cast, R.wide_inputs, half_mode),
    (R.halves_apart, R.narrow_inputs, repeated_side_by_side),
    (R.pairs, R.pair_inputs, half_mode),
    (R.pairs, R.pair_inputs, tables_swapped),
    (R.pairs_apart, R.narrow_pair_inputs, repeated_as_a_whole),
    (S.halves, S.inputs, second_half_activated),
    (S.halves, S.inputs, last_dimension),
    (S.halves, S.inputs, gelu_instead),
    (S.projections, S.projection_inputs, joined_the_other_way),
    (G.right, G.inputs, other_half),
    (G.right, G.inputs, default_approximation),
    (G.right, G.inputs, activated_half_returned),
    (G.projections, G.projection_inputs, without_gradient),
    (W.sigmoid_product, W.inputs, sigmoid_alone),
    (W.sigmoid_product, W.inputs, fast_instead),
    (W.scaled_sigmoid_product, W.inputs, silu_instead),
    (W.gelu, W.moderate_inputs, tanh_instead),
    (W.gelu_tanh, W.inputs, erf_instead),
    (W.mish, W.inputs, silu_instead),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_refuted(mistake: Mistake) -> None:
    refuted(*mistake)
