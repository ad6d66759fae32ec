"""What each call is asked, answered from what tensors know about themselves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from npufix.advisor.runtime.calls import at_run_time
from npufix.advisor.runtime.calls.at_run_time import holds

if TYPE_CHECKING:
    from collections.abc import Iterator

X = torch.ones(2, 4, 6, 8)
HALF = torch.bfloat16
TABLE = torch.ones(1, 1, 6, 8)


@pytest.fixture
def as_on_npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(at_run_time, "must_stay", lambda *_: False)
    yield
    at_run_time.taken.clear()
    at_run_time.refused.clear()


class _Own(nn.SiLU):
    pass


@pytest.mark.usefixtures("as_on_npu")
@pytest.mark.parametrize(
    ("condition", "operands", "expected"),
    [
        ("same-dtype", {"x": X, "weight": X[0]}, True),
        ("same-dtype", {"x": X.to(HALF), "weight": X[0]}, False),
        ("same-dtype", {"x": X.double(), "weight": X[0].double()}, False),
        ("one-dimensional-weight", {"x": X, "weight": torch.ones(8)}, True),
        ("one-dimensional-weight", {"x": X, "weight": torch.ones(1)}, False),
        ("one-dimensional-weight", {"x": X, "weight": None}, False),
        ("number-eps", {"eps": 1e-6}, True),
        ("number-eps", {"eps": torch.tensor(1e-6)}, False),
        ("rotary-limits", {"x": X, "cos": TABLE, "sin": TABLE}, True),
        ("rotary-limits", {"x": X[0], "cos": TABLE, "sin": TABLE}, False),
        ("rotary-limits", {"x": X, "cos": TABLE[..., :1], "sin": TABLE[..., :1]}, False),
        ("rotary-limits", {"x": torch.ones(1000, 1, 1, 8), "cos": X[:1, :1, :1], "sin": X}, False),
        ("rotary-limits", {"x": X[..., :7], "cos": X[:1, :1, :, :7], "sin": X}, False),
        ("same-heads", {"q": X, "k": X[:, :, :3], "v": X[:, :, :3]}, True),
        ("same-heads", {"q": X, "k": X[:, :2], "v": X[:, :2]}, False),
        ("same-heads-third", {"q": X, "k": X[:, :2], "v": X[:, :2]}, True),
        ("same-shape", {"gate": X, "up": X}, True),
        ("same-shape", {"gate": X, "up": X[:1]}, False),
        ("same-shape", {"gate": X, "up": X.to(HALF)}, False),
        ("table-dtype", {"x": X.to(HALF), "cos": TABLE, "sin": TABLE}, True),
        ("table-dtype", {"x": X, "cos": TABLE.to(HALF), "sin": TABLE.to(HALF)}, False),
        ("table-dtype", {"x": X, "cos": TABLE, "sin": TABLE.to(HALF)}, False),
        ("activation-is-silu", {"act": nn.SiLU()}, True),
        ("activation-is-silu", {"act": functional.silu}, True),
        ("activation-is-silu", {"act": _Own()}, False),
        ("activation-is-silu", {"act": [functional.silu]}, False),
        ("activation-is-gelu", {"act": nn.GELU()}, True),
        ("activation-is-gelu", {"act": nn.GELU("tanh")}, False),
        ("activation-is-gelu-tanh", {"act": nn.GELU("tanh")}, True),
        ("activation-is-gelu-tanh", {"act": partial(functional.gelu, approximate="tanh")}, True),
    ],
)
def test_conditions(condition: str, operands: dict[str, Any], expected: bool) -> None:  # noqa: FBT001
    assert holds("here", (condition,), X, **operands) is expected
    assert at_run_time.taken["here"] == int(expected)
    assert at_run_time.refused["here", condition] == int(not expected)


@pytest.mark.usefixtures("as_on_npu")
def test_a_hook_of_the_user_on_the_activation_would_not_run() -> None:
    act = nn.SiLU()
    act.register_forward_hook(lambda *_: None)
    assert not holds("here", ("activation-is-silu",), X, act=act)


@pytest.mark.usefixtures("as_on_npu")
def test_gradients_decide_about_inference() -> None:
    weight = torch.ones(8, requires_grad=True)
    assert not holds("here", ("inference",), X, x=X, weight=weight)
    with torch.no_grad():
        assert holds("here", ("inference",), X, x=X, weight=weight)


@pytest.mark.usefixtures("as_on_npu")
def test_tensors_of_a_kind_of_their_own_keep_the_old_code() -> None:
    class Sharded(torch.Tensor):
        pass

    assert not holds("here", (), X, x=X.as_subclass(Sharded))


def test_nothing_is_ours_on_another_device_or_in_a_transformed_call() -> None:
    meta = X.to("meta")
    assert at_run_time.must_stay(X)
    assert at_run_time.must_stay("no tensor")
    assert at_run_time.must_stay(meta)
    seen = []
    torch.func.vmap(lambda x: seen.append(at_run_time._is_transformed()) or x)(X)
    assert seen == [True]
    assert not at_run_time._is_transformed()
