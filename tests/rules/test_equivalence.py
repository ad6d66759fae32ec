"""Pattern and replacement of every form compute the same; plausible mistakes are caught."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.rewriters.verdict import Status, Verdict
from npufix.rewriters.verification.form import verify_form
from npufix.rules.affinity import (
    gather_elements,
    linear_matmul_add,
    masked_assignment,
    one_hot_sum,
    repeat_interleave,
)
from npufix.rules.fusion import eager_rms_norm
from npufix.rules.registry import all_rules
from npufix.rules.substitution import Form

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
    return verify_form(form, seed, rounds)


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
    assert verdict.measures


@pytest.mark.parametrize("form", FORMS)
def test_the_ground_names_what_ran(form: Form) -> None:
    verdict = check(form, seed=3, rounds=4)
    assert verdict.ground.startswith(f"torch {torch.__version__.partition('+')[0]}, CPU")
    assert ("npu_rms_norm" in verdict.ground) == (form.replacement is eager_rms_norm.fused)
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


def mask_inverted(x: Tensor, mask: Tensor, literal_value: float) -> None:
    x.masked_fill_(~mask, literal_value)


def multiplied(x: Tensor, mask: Tensor, literal_value: float) -> None:  # noqa: ARG001
    x *= ~mask


def not_in_place(x: Tensor, mask: Tensor, literal_value: float) -> None:
    x = x.masked_fill(mask, literal_value)


def another_value(x: Tensor, mask: Tensor, literal_value: float) -> None:
    x.masked_fill_(mask, literal_value + 1)


def duplicates_lost(indices: Tensor, classes: int, literal_dim: int) -> Tensor:  # noqa: ARG001
    return indices.new_zeros(*indices.shape[:-1], classes).scatter_(-1, indices, 1)


def counted_in_floats(indices: Tensor, classes: int, literal_dim: int) -> Tensor:  # noqa: ARG001
    zeros = torch.zeros(*indices.shape[:-1], classes)
    return zeros.scatter_add_(-1, indices, torch.ones_like(indices).float())


def one_class_more(indices: Tensor, classes: int, literal_dim: int) -> Tensor:
    return one_hot_sum.add_ones(indices, classes + 1, literal_dim)


def next_row(x: Tensor, index: Tensor) -> Tensor:
    rows = torch.arange(index.size(0), device=index.device)
    return x[(rows + 1) % index.size(0), index.squeeze(1)]


def next_class(x: Tensor, index: Tensor) -> Tensor:
    rows = torch.arange(index.size(0), device=index.device)
    return x[rows, (index.squeeze(1) + 1) % x.size(1)]


def all_rows(x: Tensor, index: Tensor) -> Tensor:
    return x[torch.arange(x.size(0)), index.squeeze(1)]


def column_dropped(x: Tensor, index: Tensor) -> Tensor:
    return gather_elements.pick_flat(x, index)


def selected_twice(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index.flip(0))


def tiled(x: Tensor, repeats: int) -> Tensor:
    return x.reshape(1, -1).expand(repeats, -1).clone().reshape(-1)


def aliased(x: Tensor, repeats: int) -> Tensor:
    return x.reshape(-1, 1).expand(-1, repeats).reshape(-1)


def first_tiled(x: Tensor, repeats: int) -> Tensor:
    return x.repeat(repeats, *[1] * (x.dim() - 1))


def last_aliased(x: Tensor, repeats: int) -> Tensor:
    return x.unsqueeze(-1).expand(*x.shape, repeats).flatten(-2)


def next_dimension(x: Tensor, repeats: int, literal_dim: int) -> Tensor:
    return x.repeat_interleave(repeats, min(literal_dim + 1, x.dim() - 1))


def bias_forgotten(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # noqa: ARG001
    return torch.mm(x, weight.t())


def bias_twice(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight.t(), beta=2)


def rounded(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias.half(), x.half(), weight.t().half()).to(x.dtype)


NORM = (eager_rms_norm.cast_then_weight, eager_rms_norm.inputs)
FILL = (masked_assignment.literal_value, masked_assignment.literal_inputs)
COUNT = (one_hot_sum.counted, one_hot_sum.inputs)
FLAT = (gather_elements.column_flat, gather_elements.column_inputs)
LINEAR = (linear_matmul_add.by_hand, linear_matmul_add.inputs)
MISTAKES = [
    (*NORM, eps_dropped),
    (*NORM, eps_outside),
    (*NORM, weight_forgotten),
    (*NORM, reciprocal_returned),
    (*NORM, over_the_rows),
    (*NORM, mean_subtracted),
    (*NORM, dtype_changed),
    (*NORM, gradient_cut),
    (*FILL, mask_inverted),
    (*FILL, multiplied),
    (*FILL, not_in_place),
    (*FILL, another_value),
    (*COUNT, duplicates_lost),
    (*COUNT, counted_in_floats),
    (*COUNT, one_class_more),
    (*FLAT, next_row),
    (*FLAT, next_class),
    (*FLAT, all_rows),
    (gather_elements.column, gather_elements.column_inputs, column_dropped),
    (gather_elements.vector, gather_elements.vector_inputs, selected_twice),
    (repeat_interleave.flattened, repeat_interleave.inputs, tiled),
    (repeat_interleave.flattened, repeat_interleave.inputs, aliased),
    (repeat_interleave.along_first, repeat_interleave.inputs, first_tiled),
    (repeat_interleave.along_last, repeat_interleave.inputs, last_aliased),
    (repeat_interleave.along, repeat_interleave.dim_inputs, next_dimension),
    (*LINEAR, bias_forgotten),
    (*LINEAR, bias_twice),
    (*LINEAR, rounded),
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


def test_without_duplicates_setting_counts() -> None:
    """``scatter_`` is right where the indices of a row differ: the other form's condition."""
    form = Form(one_hot_sum.counted, duplicates_lost, one_hot_sum.unique_inputs)
    assert check(form, seed=0).status is Status.EQUIVALENT
