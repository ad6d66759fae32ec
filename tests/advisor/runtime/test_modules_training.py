"""Training on what ``apply_fused_kernels(model)`` has changed: DDP, threads, checkpoints, hooks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - needs torch
from fused_models import WIDTH, Mixed, Norm  # noqa: E402 - needs torch
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from npufix.advisor import fused_kernels  # noqa: E402 - needs torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("fused modules")
ON = "virtual-npu"


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(Norm(), Mixed(), Norm())


@pytest.fixture
def x() -> Any:
    torch.manual_seed(1)
    return torch.randn(2, 3, WIDTH)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradients(model: nn.Module, x: Any) -> list[Any]:
    model.zero_grad()
    model(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.usefixtures("group")
def test_wrapped_by_ddp_before_or_after(model: Any, x: Any) -> None:
    expected = gradients(model, x)
    wrapped = nn.parallel.DistributedDataParallel(model)
    with fused_kernels(wrapped, on=ON) as done:
        assert done.replaced[0].modules == ("module.0", "module.2")
        assert all(map(torch.equal, gradients(wrapped, x), expected))
    with fused_kernels(model, on=ON):
        after = nn.parallel.DistributedDataParallel(model)
        assert all(map(torch.equal, gradients(after, x), expected))
    assert type(model[0]) is Norm


def test_hooks_and_checkpoints(model: Any, x: Any) -> None:
    seen: list[str] = []
    model[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    model[0].register_forward_hook(lambda *_: seen.append("after"))
    expected = gradients(model, x)
    with fused_kernels(model, on=ON):
        assert all(map(torch.equal, gradients(model, x), expected))
        model.zero_grad()
        checkpoint(model, x, use_reentrant=False).square().sum().backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
    assert seen == ["before", "after"] * 4  # the checkpoint runs forward twice


def test_other_threads_may_use_the_model_meanwhile(model: Any, x: Any) -> None:
    expected, wrong, done = model(x), [], threading.Event()

    def use() -> None:
        while not done.is_set():
            if not torch.equal(model(x), expected):
                wrong.append(1)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with fused_kernels(model, on=ON):
            pass
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert type(model[0]) is Norm
