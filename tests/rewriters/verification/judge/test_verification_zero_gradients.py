"""A gradient that is zero in exact arithmetic is rounding noise in any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.calls.observe import CallRecord  # noqa: E402 - same
from npufix.rewriters.verification.judge.judge import Judge  # noqa: E402 - needs torch

if TYPE_CHECKING:
    from torch import Tensor

EXACT = "gradient of self.query"


def judged(original: float, patched: float, oracle: float, others: float) -> Judge:
    def seen(value: float, dtype: torch.dtype) -> CallRecord:
        tensors: dict[str, Tensor | None] = {
            "gradient of self.key.bias": torch.full((3,), value, dtype=dtype),
            EXACT: torch.full((3,), others, dtype=dtype),
        }
        return CallRecord(tensors)

    judge = Judge()
    judge.add(
        "case",
        3,
        seen(original, torch.float32),
        seen(patched, torch.float32),
        lambda: seen(oracle, torch.float64),
    )
    judge.decide()
    return judge


@pytest.mark.parametrize(
    ("original", "oracle"), [(0.0, 0.0), (3e-9, -2e-17), (0.0, 1e-17), (-1e-8, 0.0)]
)
def test_noise_in_a_gradient_that_is_zero_refutes_nothing(original: float, oracle: float) -> None:
    assert judged(original, 4e-8, oracle, others=1.0).differences == []


@pytest.mark.parametrize(
    ("patched", "others"), [(1e-4, 1.0), (float("nan"), 1.0), (float("inf"), 1.0), (4e-8, 1e-3)]
)
def test_more_than_noise_is_a_difference(patched: float, others: float) -> None:
    (difference,) = judged(0.0, patched, 0.0, others).differences
    assert difference.what == "gradient of self.key.bias"


def test_a_small_gradient_that_is_not_zero_is_compared_as_before() -> None:
    assert judged(1e-9, 5e-9, 1e-9, others=1.0).differences


@pytest.mark.parametrize(
    ("patched", "kept"), [(74.1875, 0), (50.0, 1), (float("nan"), 0), (float("inf"), 1)]
)
def test_what_the_original_loses_may_be_there(patched: float, kept: int) -> None:
    def seen(value: float, dtype: torch.dtype) -> CallRecord:
        return CallRecord({"gradient of y": torch.tensor([1.0, value], dtype=dtype)})

    judge = Judge()
    runs = seen(float("nan"), torch.float16), seen(patched, torch.float16)
    judge.add("case", 2, *runs, lambda: seen(74.3557, torch.float64))
    judge.decide()
    assert len(judge.differences) == kept
