"""The stand-ins for torch_npu.optim and MindSpeed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    ShapeRefusedError,
    collect_kernels,
)
from npufix.rewriters.verification.reference import npu_operators

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(name="optim")
def _optim() -> Any:
    torch.manual_seed(0)
    return npu_operators.install().optim


def weights(*dtypes: torch.dtype) -> list[torch.nn.Parameter]:
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(3, 4).to(d)) for d in dtypes or (torch.float32,) * 2]


def train(make: Callable[..., Any], params: list[torch.nn.Parameter], steps: int = 4) -> None:
    optimizer = make(params)
    torch.manual_seed(2)
    for _ in range(steps):
        optimizer.zero_grad()
        sum((p * torch.randn(p.shape)).sum() for p in params).backward()  # type: ignore[union-attr]
        optimizer.step()


SAME = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    "Adam": {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.1},
    "AdamW": {"lr": 0.1, "eps": 1e-3, "amsgrad": True},
    "Adadelta": {"rho": 0.8, "weight_decay": 0.1},
    "RMSprop": {"alpha": 0.9, "momentum": 0.5, "centered": True},
}


@pytest.mark.parametrize("name", SAME)
def test_they_compute_as_the_optimizers_of_torch(optim: Any, name: str) -> None:
    ours, theirs = weights(), weights()
    with collect_kernels() as ran:
        train(lambda p: getattr(optim, f"NpuFused{name}")(p, **SAME[name]), ours)
    train(lambda p: getattr(torch.optim, name)(p, **SAME[name]), theirs)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))
    assert not torch.equal(ours[0], weights()[0])
    assert ran == {f"NpuFused{name}"}


def test_lamb_follows_its_paper(optim: Any) -> None:
    (p,), eps = weights(torch.float32), 1e-6
    before, gradient = p.detach().clone(), torch.randn(3, 4)
    p.grad = gradient.clone()
    optim.NpuFusedLamb([p], lr=0.1, weight_decay=0.01).step()
    update = 0.1 * gradient / ((1e-3 * gradient**2).sqrt() + eps) + 0.01 * before
    expected = before - 0.1 * before.norm() / update.norm() * update
    assert torch.allclose(p, expected, atol=1e-5)


def test_bert_adam_clips_a_whole_group_and_warms_up(optim: Any) -> None:
    p, q = weights()
    before, gradient = p.detach().clone(), torch.randn(3, 4)
    p.grad, q.grad = gradient.clone(), 3 * gradient
    optimizer = optim.NpuFusedBertAdam([p, q], lr=0.1, warmup=0.5, t_total=8, weight_decay=0)
    optimizer.step()
    assert torch.equal(p, before)  # the rate starts at zero
    optimizer.step()
    clipped = gradient / (math.sqrt(10) * gradient.norm())
    first = clipped * (0.1 + 0.9 * 0.1)
    second = clipped**2 * (1e-3 + 0.999e-3)
    assert torch.allclose(p, before - 0.025 * first / (second.sqrt() + 1e-6), atol=1e-4)


def test_adam_p_projects_and_rmsprop_tf_keeps_eps_inside(optim: Any) -> None:
    p = torch.nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    p.grad = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # orthogonal to the weight
    optim.NpuFusedAdamP([p], lr=0.1).step()
    assert torch.allclose(p, torch.tensor([[1.0, -0.1], [-0.1, 1.0]]), atol=1e-6)
    q = torch.nn.Parameter(torch.tensor([1.0]))
    q.grad = torch.tensor([2.0])
    optim.NpuFusedRMSpropTF([q], lr=0.1, alpha=0.5, eps=0.5).step()
    assert torch.allclose(q, torch.tensor([1 - 0.1 * 2 / math.sqrt(2.5 + 0.5)]))


def test_what_they_refuse(optim: Any) -> None:
    for keyword in ("maximize", "foreach", "capturable", "fused", "differentiable"):
        with pytest.raises(TypeError, match=keyword):
            optim.NpuFusedAdamW(weights(), **{keyword: True})
    with pytest.raises(TypeError, match="lr"):
        optim.NpuFusedSGD(weights())
    with pytest.raises(TypeError, match="bfloat16"):
        train(optim.NpuFusedAdamW, weights(torch.bfloat16))
    with pytest.raises(ValueError, match="set_to_none"):
        optim.NpuFusedAdamW(weights()).zero_grad(set_to_none=True)
    sparse = torch.nn.Embedding(4, 3, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optim.NpuFusedSGD(sparse.parameters(), lr=0.1).step()
    with pytest.raises(NoReferenceKernelError):
        optim.NpuFusedLamb(weights(), use_global_grad_norm=True)


def test_a_gradient_made_anew_is_not_seen(optim: Any) -> None:
    (p,) = weights(torch.float32)
    optimizer = optim.NpuFusedSGD([p], lr=1.0)
    p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.zero_grad()
    before, p.grad = p.detach().clone(), torch.ones_like(p)
    optimizer.step()
    assert torch.equal(p, before)


@pytest.mark.parametrize(("norm", "limit"), [(2, 0.5), (2, 1e6), (math.inf, 0.5), (1, 0.5)])
def test_gradients_are_clipped_together(optim: Any, norm: float, limit: float) -> None:
    ours, theirs = weights(torch.float32, torch.float16), weights(torch.float32, torch.float16)
    for p in (*ours, *theirs):
        p.grad = p.detach().clone()
    found = optim.NpuFusedSGD(ours, lr=0.1).clip_grad_norm_fused_(limit, norm_type=norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, limit, norm_type=norm)
    assert torch.allclose(found, expected, rtol=1e-3)
    assert all(
        torch.allclose(a.grad, b.grad, rtol=2e-3)  # type: ignore[arg-type]
        for a, b in zip(ours, theirs, strict=True)
    )


# --- MindSpeed


def functions() -> tuple[Any, Any]:
    npu_operators.install()
    from mindspeed.ops.dropout_add_layer_norm import (  # type: ignore[import-not-found]
        npu_dropout_add_layer_norm,
    )
    from mindspeed.ops.dropout_add_rms_norm import (  # type: ignore[import-not-found]
        npu_dropout_add_rms_norm,
    )

    return npu_dropout_add_layer_norm, npu_dropout_add_rms_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_with_one_seed_the_eager_code_drops_the_same(p: float, dtype: torch.dtype) -> None:
    layer_norm, rms_norm = functions()
    torch.manual_seed(0)
    x, residual = (torch.randn(2, 3, 8).to(dtype).requires_grad_() for _ in range(2))
    weight, bias, layer = (torch.randn(8).to(dtype).requires_grad_() for _ in range(3))
    rows = torch.randn(2, 3).to(dtype).requires_grad_()

    def eager(*, rms: bool) -> tuple[torch.Tensor, torch.Tensor]:
        total = F.dropout(x.float() * rows.float()[..., None] * layer.float(), p) + residual
        if rms:
            return F.rms_norm(total, (8,), weight.float(), 1e-3) + bias, total
        return F.layer_norm(total, (8,), weight.float(), bias.float(), 1e-3), total

    for function, rms in ((layer_norm, False), (rms_norm, True)):
        torch.manual_seed(3)
        with collect_kernels() as ran:
            found = function(x, residual, weight, bias, p, 1e-3, rows, layer, prenorm=True)
        torch.manual_seed(3)
        expected = eager(rms=rms)
        assert ran == {function.__name__}
        for value, reference in zip(found, expected, strict=True):
            assert value.dtype == dtype
            assert torch.equal(value, reference.to(dtype)) or torch.allclose(
                value.float(), reference, atol=1e-5, rtol=4 * torch.finfo(dtype).eps
            )
        leaves = (x, residual, weight, bias, layer, rows)
        mine = torch.autograd.grad(found[0].float().square().sum(), leaves)
        theirs = torch.autograd.grad(expected[0].square().sum(), leaves)
        bound = 20 * torch.finfo(dtype).eps
        for left, right in zip(mine, theirs, strict=True):
            assert ((left - right).abs() <= bound * right.abs().max()).all()


def test_what_mindspeed_returns_and_refuses() -> None:
    layer_norm, rms_norm = functions()
    x, w = torch.randn(2, 3, 8), torch.ones(8)
    plain = layer_norm(x, None, w, None, 0.0, 1e-5)
    assert torch.allclose(plain, F.layer_norm(x, (8,), eps=1e-5), atol=1e-6)
    both, mask = rms_norm(x, None, w, None, 0.0, 1e-5, return_dropout_mask=True)
    assert torch.allclose(both, F.rms_norm(x, (8,), eps=1e-5), atol=1e-6)
    assert mask.dtype == torch.uint8
    assert mask.all()
    three = rms_norm(x, x, w, None, 0.5, 1e-5, prenorm=True, return_dropout_mask=True)
    assert [tuple(t.shape) for t in three] == [(2, 3, 8)] * 3
    assert torch.equal((three[1] - x) != 0, three[2].bool())
    for wrong in (x[0], x[..., :7]):
        with pytest.raises(ShapeRefusedError, match="npu_dropout_add_layer_norm"):
            layer_norm(wrong, None, w, None, 0.0, 1e-5)
    with pytest.raises(RuntimeError, match="no kernel for"):
        layer_norm(x.half(), None, w, None, 0.0, 1e-5)
    with pytest.raises(RuntimeError, match="dropout_p"):
        layer_norm(x, None, w, None, 1.5, 1e-5)
    import mindspeed.ops  # type: ignore[import-not-found]

    with pytest.raises(NoReferenceKernelError):
        _ = mindspeed.ops.npu_matmul_add_fp32
