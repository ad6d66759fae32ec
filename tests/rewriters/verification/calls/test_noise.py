"""The same computation with other roundings: how far it spreads, and what must not move."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.calls.noise import SEEDS, round_otherwise  # noqa: E402 - same

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def spread(compute: Callable[[], Tensor]) -> Tensor:
    plain = compute()
    most = torch.zeros_like(plain)
    for seed in SEEDS:
        with round_otherwise(seed):
            most = most.maximum((compute() - plain).abs())
    return most


def test_a_sum_that_cancels_is_uncertain_by_what_was_summed() -> None:
    x = torch.tensor([1000.0, 0.1, -1000.0, -0.1])
    off = spread(x.sum)
    assert 1e-6 < off < 1e-2


def test_the_gradient_of_a_softmax_over_one_key_is_rounding_alone() -> None:
    q, k, v = (torch.full((1, 8), c, requires_grad=True) for c in (0.3, 0.7, 1.1))

    def gradient() -> Tensor:
        return torch.autograd.grad(((q @ k.T).softmax(-1) @ v).sum(), q)[0]

    assert not gradient().any()
    assert 0 < spread(gradient).max() < 1e-4


def test_the_gradients_of_a_softmax_are_uncertain_by_what_they_were_summed_of() -> None:
    q, k = torch.full((1, 2), 0.3, requires_grad=True), torch.full((2, 2), 0.7)
    v = torch.tensor([[99.7, 99.6], [99.9, 99.8]])

    def gradient(upstream: Tensor) -> Tensor:
        return torch.autograd.grad((q @ k.T).softmax(-1) @ v, q, upstream)[0]

    cancels, adds = torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    off = [spread(partial(gradient, upstream)).max() for upstream in (cancels, adds)]
    assert off[1] / 16 < off[0] < off[1] < 1e-3


def test_a_gradient_in_bfloat16_may_be_summed_in_parts() -> None:
    bias = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.tensor([[100.0], [0.5], [-100.0], [-0.5]], dtype=torch.bfloat16)

    def gradient() -> Tensor:
        return torch.autograd.grad(bias.expand(4, 1), bias, upstream)[0]

    assert 0.01 < spread(gradient) < 4
    assert spread(upstream.sum) < 1e-3  # forward, kernels sum in float32


def test_a_long_sum_may_be_added_one_by_one() -> None:
    x = torch.rand(1 << 14, generator=torch.Generator().manual_seed(0)) - 0.5
    one_by_one = x.cumsum(0)[-1]
    assert (one_by_one - x.double().sum()).abs() < 8 * spread(x.sum) < 1e-2


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 0.5,  # exact: no rounding makes another number of it
        lambda x: torch.floor(x + 0.5),
        torch.round,
        lambda x: x.masked_fill(x > 1, -1e9),
        lambda x: torch.cat([x, x]).index_select(0, torch.tensor([2, 0])),
    ],
)
def test_what_is_exact_or_merely_moved_stays(compute: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([0.5, 1.5, 2.5])
    assert not spread(partial(compute, x)).any()


def test_each_number_is_rounded_in_the_dtype_that_it_has() -> None:
    x = torch.linspace(0.1, 0.9, 64)
    wide, low = spread(lambda: x * 0.3).max(), spread(lambda: x.half() * 0.3).max()
    assert wide < 1e-6 < low.float() < 1e-2


def test_what_a_mask_fills_with_still_swallows_a_score() -> None:
    scores = torch.tensor([[0.3, 0.2]]) + torch.full((1, 2), -1e9)
    plain = scores.softmax(-1)
    with round_otherwise(0):
        again = (torch.tensor([[0.3, 0.2]]) + torch.full((1, 2), -1e9)).softmax(-1)
    assert torch.allclose(plain, again, atol=1e-5)


def test_a_sum_that_is_exact_may_be_a_part_of_one_that_other_orders_round() -> None:
    a, b, c = (torch.tensor([n]) for n in (0.7001953125, -0.69921875, 0.0010000002))
    longer = torch.tensor([0.30000001])  # 0.3 in float32
    assert not spread(lambda: torch.tensor([3.0]) + torch.tensor([4.0])).any()
    assert not spread(lambda: torch.tensor([1000.0]) + torch.tensor([1.0])).any()
    assert not spread(lambda: torch.tensor([0.5]) - torch.tensor([0.25])).any()
    assert not spread(lambda: a.bfloat16() + b.bfloat16()).any()
    assert 0 < spread(lambda: longer - longer.clone()) < 1e-7
    assert spread(lambda: (a + b) + c) > spread(lambda: c * 1.1)


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [(torch.float16, 1e-4, 0.02), (torch.float32, 0, 1e-5)]
)
def test_the_sum_of_a_row_is_taken_from_what_attention_has_written(
    dtype: torch.dtype, least: float, most: float
) -> None:
    # All keys are alike: what is left of the gradient of a query is rounding of its row.
    q = torch.full((3, 4), 0.3, dtype=dtype, requires_grad=True)
    k, v = torch.full((5, 4), 0.7, dtype=dtype), torch.full((5, 4), 1.1, dtype=dtype)

    def gradient() -> Tensor:
        weights = (q @ k.T).softmax(-1, dtype=torch.float32).to(dtype)
        return torch.autograd.grad((weights @ v).sum(), q)[0]

    assert not gradient().double().abs().gt(1e-6).any()
    assert least <= spread(gradient).max() < most
