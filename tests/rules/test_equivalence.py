"""Verifying a form: its verdict says what ran, and plausible mistakes are refuted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from rule_checks import each_mistake, refuted

from npufix.rewriters.verification.judge.verify_rule import verify_rule
from npufix.rules.substitutions import eager_rms_norm

if TYPE_CHECKING:
    import torch_npu  # noqa: TC004 - the verifier supplies it
    from rule_checks import Mistake
    from torch import Tensor


def test_a_verdict_says_what_ran() -> None:
    (form, *_) = eager_rms_norm.RULE.forms
    verdict = verify_rule(form, seed=3, rounds=4)
    assert verdict.ground.startswith(f"torch {torch.__version__.partition('+')[0]}, CPU")
    assert verdict.scope.endswith(form.pattern.__name__)


# --- deliberate mistakes, each on the inputs that the rule itself offers


def eps_dropped(x: Tensor, weight: Tensor, eps: float) -> Tensor:  # noqa: ARG001
    return torch_npu.npu_rms_norm(x, weight, epsilon=0.0)[0]


def eps_outside(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x / (x.pow(2).mean(-1, keepdim=True).sqrt() + eps))


def weight_forgotten(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch_npu.npu_rms_norm(x, torch.ones_like(weight), epsilon=eps)[0]


def reciprocal_returned(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[1]


def over_the_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-2, keepdim=True) + eps))


def mean_subtracted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, eps=eps)


def dtype_changed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0].float()


def gradient_cut(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight.detach(), epsilon=eps)[0]


NORM = (eager_rms_norm.cast_then_weight, eager_rms_norm.inputs)
MISTAKES = [
    (*NORM, eps_dropped),
    (*NORM, eps_outside),
    (*NORM, weight_forgotten),
    (*NORM, reciprocal_returned),
    (*NORM, over_the_rows),
    (*NORM, mean_subtracted),
    (*NORM, dtype_changed),
    (*NORM, gradient_cut),
]


@pytest.mark.parametrize("seed", [0, 1000])
@each_mistake(MISTAKES)
def test_a_mistake_is_refuted(mistake: Mistake, seed: int) -> None:
    assert refuted(*mistake, seed).reason
