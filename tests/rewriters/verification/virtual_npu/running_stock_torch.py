"""Compares stock torch on the virtual NPU with the host. Prints JSON: what failed, by name."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def alike(expected: Any, found: Any, close: float) -> None:
    for own, other in zip(expected, found, strict=True):
        a, b = own.detach().float(), other.detach().cpu().float()
        assert a.shape == b.shape, (a.shape, b.shape)
        largest = max(1e-3, a.abs().max().item()) if a.numel() else 1.0
        assert torch.allclose(a, b, rtol=close, atol=close * largest), (a - b).abs().max()


def module(made: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Compare with float32 on the host: result, gradients and buffers."""
    made = made.to(dtype)
    x = torch.linspace(-2, 3, torch.Size(shape).numel()).reshape(shape).sin().to(dtype)
    seen = []
    for where, computed in (("cpu", torch.float32), ("npu", dtype)):
        own = copy.deepcopy(made).to(where, computed).train()
        given = x.clone().to(where, computed).requires_grad_()
        y = own(given)
        gradient = torch.linspace(-1, 2, y.numel()).cos().to(dtype).reshape(y.shape)
        y.backward(gradient.to(where, computed))
        seen.append([y, given.grad, *[p.grad for p in own.parameters()], *own.buffers()])
    alike(*seen, CLOSE[dtype])


def product(left: tuple[int, ...], right: tuple[int, ...], *, twice: bool) -> None:
    seen = []
    for where in ("cpu", "npu"):
        torch.manual_seed(3)
        a, b = (torch.randn(*s).to(where).requires_grad_() for s in (left, right))
        first = torch.autograd.grad((a @ b).square().sum(), (a, b), create_graph=twice)
        seen.append(list(first))
        if twice:
            total = sum(g.square().sum() for g in first)
            seen[-1] += torch.autograd.grad(total, (a, b))
    alike(*seen, 1e-4)


def dropped(drop: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    torch.manual_seed(7)
    return drop(torch.ones(4, 33, device="npu")).detach().cpu() != 0


def same_masks() -> None:
    expected = F.dropout(torch.manual_seed(7) and torch.ones(4, 33), 0.4) != 0
    for drop in (
        lambda x: F.dropout(x, 0.4),
        lambda x: F.dropout(x, 0.4, inplace=True),
        lambda x: F.dropout(x.requires_grad_() * 1, 0.4, inplace=True),
        lambda x: F.dropout(x.bfloat16(), 0.4, inplace=True),
        lambda x: torch.native_dropout(x, 0.4, True)[0],  # noqa: FBT003 - its signature
    ):
        assert torch.equal(dropped(drop), expected)


def fused_attention_drops_as_eager() -> None:
    import torch_npu

    q, k, v = (torch.randn(2, 3, 16, 8).half().npu() for _ in range(3))
    torch.manual_seed(5)
    fused = torch_npu.npu_fusion_attention(q, k, v, 3, "BNSD", scale=0.5, keep_prob=0.7)[0]
    torch.manual_seed(5)
    probabilities = torch.softmax((q @ k.transpose(-1, -2)).float() * 0.5, -1)
    eager = F.dropout(probabilities, 0.3).half() @ v
    alike([eager.cpu()], [fused], 1e-2)


def own_seed_and_state() -> None:
    torch.npu.manual_seed(4)
    first, state = torch.rand(9, device="npu"), torch.npu.get_rng_state()
    second = torch.rand(9, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(9, device="npu"), second)
    torch.npu.manual_seed(4)
    assert torch.equal(torch.rand(9, device="npu"), first)
    assert not torch.equal(first, second)
    given = torch.Generator(device="npu").manual_seed(3)
    assert torch.equal(
        torch.rand(5, generator=given, device="npu").cpu(),
        torch.rand(5, generator=torch.Generator().manual_seed(3)),
    )


def checks_of_tensors_with_gradients() -> None:
    x = torch.randn(3, 4).npu().requires_grad_()
    y = x * 2
    assert torch.isclose(y, y.detach()).all()
    assert not torch.isclose(y, y + 1).any()
    torch.testing.assert_close(y, y.clone())
    try:
        torch.testing.assert_close(y, y + 1)
    except AssertionError:
        return
    raise AssertionError("a difference was not seen")


def histogram(dtype: torch.dtype) -> None:
    numbers = torch.tensor([0, 1, 1, 5, 7, 7, 7, 3])
    found = torch.histc(numbers.to(dtype).npu(), bins=8, min=0, max=7)
    assert found.cpu().tolist() == [1, 2, 0, 1, 0, 1, 0, 3]
    assert found.dtype == dtype


def custom_operator() -> None:
    @torch.library.custom_op("tests::softened", mutates_args=())
    def softened(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1) * 2

    x, w = torch.randn(3, 4), torch.randn(4, 5)
    alike([softened(x, w)], [softened(x.npu(), w.npu())], 1e-4)


def capture_is_refused() -> None:
    x = torch.ones(3, device="npu")
    try:
        with torch.npu.graph(torch.npu.NPUGraph()):
            x + 1
    except RuntimeError as error:
        assert "CaptureBegin" in str(error)  # noqa: PT017 - one process for all checks
        return
    raise AssertionError("it was not refused")


PRODUCTS = [
    ((2, 4, 5, 3), (2, 1, 3, 6)),
    ((2, 1, 5, 3), (2, 4, 3, 6)),
    ((2, 4, 5, 3), (4, 3, 6)),
    ((4, 5, 3), (3, 6)),
    ((5, 3), (4, 3, 6)),
    ((3,), (4, 3, 6)),
    ((2, 5, 3), (3,)),
    ((3,), (3,)),
]


def filled_diagonal() -> None:
    for shape, dtype in (((3, 3), torch.uint8), ((7, 3), torch.float32)):
        for wrap in (False, True):
            host = torch.zeros(shape, dtype=dtype).fill_diagonal_(1, wrap)
            assert torch.zeros(shape, dtype=dtype).npu().fill_diagonal_(1, wrap).cpu().equal(host)
    seen = []
    for where in ("cpu", "npu"):
        x = torch.linspace(-1, 2, 9).view(3, 3).to(where).requires_grad_()
        y = x * 2
        y.fill_diagonal_(-2)
        (y * x).sum().backward()
        seen.append([y, x.grad])
    alike(*seen, 1e-6)


CHECKS: dict[str, Callable[[], None]] = {
    "filled diagonal": filled_diagonal,
    "same masks": same_masks,
    "fused attention drops as eager": fused_attention_drops_as_eager,
    "own seed and state": own_seed_and_state,
    "checks of tensors with gradients": checks_of_tensors_with_gradients,
    "custom operator": custom_operator,
    "capture is refused": capture_is_refused,
    **{
        f"product {left} {right}{' twice' * twice}": (
            lambda left=left, right=right, twice=twice: product(left, right, twice=twice)
        )
        for left, right in PRODUCTS
        for twice in (False, True)
    },
    **{
        f"histogram {dtype}": lambda dtype=dtype: histogram(dtype)
        for dtype in (torch.int32, torch.int64, torch.uint8, torch.float32)
    },
    **{
        f"{name} {dtype}": lambda made=made, shape=shape, dtype=dtype: module(made(), shape, dtype)
        for name, made, shape in (
            ("LayerNorm", lambda: nn.LayerNorm(7), (3, 5, 7)),
            ("LayerNorm of two axes", lambda: nn.LayerNorm((5, 7), bias=False), (3, 5, 7)),
            ("BatchNorm1d", lambda: nn.BatchNorm1d(5), (6, 5)),
            ("BatchNorm2d", lambda: nn.BatchNorm2d(5), (6, 5, 4, 3)),
            ("BatchNorm3d", lambda: nn.BatchNorm3d(5, affine=False), (2, 5, 4, 3, 2)),
            ("LogSigmoid", nn.LogSigmoid, (3, 6)),
            ("MaxPool3d", lambda: nn.MaxPool3d(2), (1, 2, 4, 4, 4)),
        )
        for dtype in CLOSE
    },
}


def failure(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test says it
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    print(json.dumps({name: failure(check) for name, check in CHECKS.items()}))  # noqa: T201 - for the test that started it
