"""What the host would wait for, counted on the host."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification import Job  # noqa: E402 - after the test that torch is there
from npufix.rewriters.verification.calls.observe import Way  # noqa: E402 - same
from npufix.rewriters.verification.judge.verify_function import verify_function  # noqa: E402 - same

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def counted(compute: Callable[[Tensor], object]) -> list[str]:
    names: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(Way(waits=names).entered())
        compute(torch.tensor([1.0, -2.0, 3.0]))
    return names


@pytest.mark.parametrize(
    ("compute", "names"),
    [
        (lambda x: x.sum().item(), ["item"]),
        (lambda x: max(x.sum(), 1.0), ["item"]),
        (lambda x: float(x[0]) + int(x[1]), ["item", "item"]),
        (lambda x: 1 if (x > 0).any() else 0, ["item"]),
        (lambda x: x[x > 0], ["nonzero"]),
        (lambda x: x.masked_select(x > 0), ["masked_select"]),
        (lambda x: (x > 0).nonzero(), ["nonzero"]),
        (lambda x: x.unique(), ["unique"]),
        (lambda x: x.tolist(), ["tolist"]),
        (lambda x: x[1:].cpu().numpy().tolist(), ["cpu"]),
        (lambda x: x.to("cpu").sum().item(), ["cpu"]),
        (lambda x: x.repeat_interleave(torch.tensor([1, 2, 1])), ["repeat_interleave"]),
    ],
)
def test_what_the_host_waits_for_is_counted(
    compute: Callable[[Tensor], object], names: list[str]
) -> None:
    assert counted(compute) == names


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.sum().clamp(min=1.0) * x,
        lambda x: torch.where(x > 0, x, 0).sum() / (x > 0).sum(),
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x[:2].view(-1).shape[0],
        lambda x: x.to(torch.float64),
        lambda x: x.repeat_interleave(2),
    ],
)
def test_what_stays_on_the_device_is_not(compute: Callable[[Tensor], object]) -> None:
    assert counted(compute) == []


def test_a_verdict_counts_them_before_and_after() -> None:
    text = "import torch\n\ndef f(x: torch.Tensor, w: torch.Tensor):\n    return x / {}\n"
    job = Job(
        path="/user/model.py",
        root="/user",
        original=text.format("max((w > 0).sum(), 1)"),
        patched=text.format("(w > 0).sum().clamp(min=1)"),
        qualname="f",
        lines_original=(4,),
        lines_patched=(4,),
    )
    found = verify_function(job).verdict
    assert found.status.value == "equivalent", found.reason
    assert found.synchronisations is not None
    assert found.synchronisations.original == ("item",)
    assert found.synchronisations.patched == ()
    assert found.synchronisations.saved == 1
