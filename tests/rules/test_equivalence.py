"""Pattern and replacement of every form compute the same; plausible mistakes are caught."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.rewriters.verification.judge.verify_rule import verify_rule
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rules.registry import all_rules
from npufix.rules.substitution import Form
from npufix.rules.substitutions import eager_rms_norm

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch_npu  # noqa: TC004 - the verifier supplies it
    from torch import Tensor

FORMS = [
    pytest.param(form, id=f"{rule.id}-{form.pattern.__name__}-{form.replacement.__name__}")
    for rule in all_rules()
    for form in rule.forms
]


def check(form: Form, seed: int, rounds: int = 24) -> Verdict:
    return verify_rule(form, seed, rounds)


@pytest.mark.parametrize("form", FORMS)
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
)
@given(seed=st.integers(0, 2**31))
def test_pattern_and_replacement_are_equivalent(form: Form, seed: int) -> None:
    verdict = check(form, seed, rounds=12)
    assert verdict.status is Status.EQUIVALENT, verdict
    assert verdict.cases > 0
    # Numbers and truth values are compared as they are; there is nothing to measure.
    assert verdict.measures or form.pattern.__annotations__["return"] in {"bool", "int"}


@pytest.mark.parametrize("form", FORMS)
def test_the_ground_names_what_ran(form: Form) -> None:
    verdict = check(form, seed=3, rounds=4)
    assert verdict.ground.startswith(f"torch {torch.__version__.partition('+')[0]}, CPU")
    called = re.findall(
        r"\b(?:torch_npu|mindspeed[\w.]*)\.(npu_\w+)\(", inspect.getsource(form.replacement)
    )
    assert set(re.findall(r"\bnpu_\w+", verdict.ground)) == set(called)
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
@pytest.mark.parametrize(
    ("pattern", "inputs", "mistake"), [pytest.param(*m, id=m[2].__name__) for m in MISTAKES]
)
def test_a_mistake_is_refuted(
    pattern: Callable[..., Any],
    inputs: Callable[..., Any],
    mistake: Callable[..., Any],
    seed: int,
) -> None:
    verdict = check(Form(pattern, mistake, inputs), seed)
    assert verdict.status is Status.REFUTED, verdict
    assert verdict.counterexample
    assert verdict.reason
