"""Code that names a device which is not there: ``x.cuda()``, ``device="cuda"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
from tests.rewriters.verification.changed_programs import verdict

from npufix.rewriters.verification.calls import named_device
from npufix.rewriters.verification.verdict import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")

MASKED = """
def mask(x: torch.Tensor) -> torch.Tensor:
    ones = torch.arange(x.shape[0]).cuda()
    return x * ones.unsqueeze(-1)
"""


@pytest.fixture
def _known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    meant = named_device._Meant()
    monkeypatch.setattr(named_device, "_MEANT", meant)
    for kind in (torch.Tensor, torch.nn.Module):
        for name in ("cuda", "npu"):
            monkeypatch.setattr(kind, name, getattr(kind, name, None), raising=False)
    named_device.understand("cuda", "npu")
    yield
    if meant.is_entered:
        meant.__exit__(None, None, None)


@pytest.mark.usefixtures("_known")
def test_a_name_is_the_device_that_a_call_runs_on() -> None:
    x, net = torch.ones(2, 3), torch.nn.Linear(3, 1)
    assert x.cuda() is x
    assert net.npu(0)(x.npu(non_blocking=True)).shape == (2, 1)
    named_device.take_names_in("x.to(device)")
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(2, device="cuda")
    named_device.take_names_in("device='cuda:0'")
    assert (
        torch.ones(2, device="cuda").add(x.to(torch.device("cuda", 0)).sum()).device.type == "cpu"
    )
    with named_device.mean_device("meta"):
        assert {torch.ones(2, device="npu:1").device.type, x.cuda().device.type} == {"meta"}


@pytest.mark.usefixtures("_known")
@pytest.mark.parametrize(
    ("new", "status"),
    [
        ('torch.arange(x.shape[0], device="cuda")', Status.EQUIVALENT),
        ("torch.arange(x.shape[0])", Status.REFUTED),  # it stays on the host
    ],
)
@pytest.mark.parametrize("old", [".cuda()", '.to("cuda")'])
def test_what_no_longer_moves_is_refuted(old: str, new: str, status: Status) -> None:
    text = MASKED.replace(".cuda()", old)
    made = "torch.arange(x.shape[0])" + old
    found = verdict(text, (made, new))
    assert found.status is status
    assert bool(found.script) == (status is Status.REFUTED)  # a program shows it


def test_what_is_looked_up_by_numbers_of_the_host_is_refuted() -> None:
    text = """
    def look_up(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[0], device=x.device)
        return x + F.embedding(places, table)
    """
    found = verdict(text, (", device=x.device", ""))
    assert "on every device but the CPU" in found.counterexample
    assert found.script
