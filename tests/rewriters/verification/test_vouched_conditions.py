"""What a user vouches for decides which invented calls count."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.vouched import meets  # noqa: E402 - it needs torch


@pytest.mark.parametrize(
    ("values", "fits"),
    [([1, 2, 3], True), ([2**30, 2**30], False), ([-(2**31)], False), ([], True)],
)
def test_sums_that_fit_32_bits(values: list[int], *, fits: bool) -> None:
    assert meets(["sums-fit-int32"], {"x": torch.tensor(values), "dim": -1}) is fits


def test_a_condition_on_the_program_alone_leaves_out_no_call() -> None:
    assert meets(["mindspeed-installed"], {"x": torch.tensor([2**62, 2**62])})
