"""Rules whose patterns have several spellings, or take modules, functions and optimisers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import nn

from npufix.rewriters.verification.judge.verify_rule import verify_rule
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rules.substitution import Condition, Draw, Form, Spelling, either

if TYPE_CHECKING:
    from collections.abc import Callable

    import mindspeed  # type: ignore[import-not-found]  # noqa: TC004 - the verifier supplies it
    import torch_npu  # noqa: TC004 - the verifier supplies it
    from torch import Tensor

    from npufix.rules.substitution import Activation

INFERENCE = Condition("inference", "no gradient is wanted", lambda _: None)


def verified(pattern: Any, replacement: Any, inputs: Any, *conditions: Condition) -> Verdict:
    verdict = verify_rule(Form(pattern, replacement, inputs, conditions), rounds=12)
    assert Spelling.chosen == 0
    return verdict


def rows(draw: Draw) -> dict[str, Any]:
    dtype = draw.choice([torch.float32, torch.bfloat16])
    return {"x": draw.floats(4, 8, dtype=dtype), "weight": draw.floats(8, dtype=dtype)}


def test_every_spelling_is_run() -> None:
    def pattern(x: Tensor, weight: Tensor) -> Tensor:
        return either(x * weight, weight * x, x * weight + 1)

    def replacement(x: Tensor, weight: Tensor) -> Tensor:
        return torch.mul(x, weight)

    assert verified(pattern, replacement, rows).status is Status.REFUTED

    def right(x: Tensor, weight: Tensor) -> Tensor:
        return either(x * weight, weight * x, x.mul(weight))

    assert verified(right, replacement, rows).status is Status.EQUIVALENT


def layer(draw: Draw) -> dict[str, Any]:
    dtype = draw.choice([torch.float32, torch.bfloat16])
    norm = nn.LayerNorm(8).to(dtype)
    nn.init.normal_(norm.weight)
    return {"norm": norm, "x": draw.floats(4, 8, dtype=dtype), "y": draw.floats(4, 8, dtype=dtype)}


def added(norm: nn.LayerNorm, x: Tensor, y: Tensor) -> Tensor:
    out: Tensor = norm(x + y)
    return out


def fused(norm: nn.LayerNorm, x: Tensor, y: Tensor) -> Tensor:
    out: Tensor = torch_npu.npu_add_layer_norm(x, y, norm.weight, norm.bias, norm.eps)[0]
    return out


def without_gradient(norm: nn.LayerNorm, x: Tensor, y: Tensor) -> Tensor:
    weight = norm.weight.detach()
    out: Tensor = torch_npu.npu_add_layer_norm(x, y, weight, norm.bias, norm.eps)[0]
    return out


def test_gradients_of_a_module_are_compared() -> None:
    verdict = verified(added, fused, layer)
    assert verdict.status is Status.EQUIVALENT, verdict
    assert {"result", "gradient of x", "gradient of norm.weight"} <= {
        m.what for m in verdict.measures
    }
    assert "npu_add_layer_norm" in verdict.ground
    refuted = verified(added, without_gradient, layer)
    assert refuted.status is Status.REFUTED
    assert refuted.reason.startswith("gradient of norm.weight is None in the patched code")


def gate(draw: Draw) -> dict[str, Any]:
    act = draw.choice([F.silu, nn.SiLU()])
    return {"act": act, "x": draw.floats(3, 4, dtype=torch.float32), "y": torch.ones(3, 4)}


def test_activations_are_functions_or_modules() -> None:
    def pattern(act: Activation, x: Tensor, y: Tensor) -> Tensor:
        return act(x) * y

    def replacement(act: Activation, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
        out: Tensor = torch_npu.npu_swiglu(torch.cat((x, y), -1))
        return out

    verdict = verified(pattern, replacement, gate)
    assert verdict.status is Status.EQUIVALENT, verdict
    assert verdict.ground.endswith("reference kernels: npu_swiglu")


def test_without_gradients_only_under_that_condition() -> None:
    def pattern(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (normed * (1.0 + weight.float())).type_as(x)

    def replacement(x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = torch_npu.npu_gemma_rms_norm(x, weight, 1e-6)[0]
        return out

    verdict = verified(pattern, replacement, rows)
    assert verdict.status is Status.REFUTED
    assert "gradient of" in verdict.reason
    verdict = verified(pattern, replacement, rows, INFERENCE)
    assert verdict.status is Status.EQUIVALENT, verdict
    assert verdict.ground.endswith("npu_gemma_rms_norm; without gradients")


def dropped(draw: Draw) -> dict[str, Any]:
    norm, drop = nn.LayerNorm(8), nn.Dropout(0.5)
    drop.train(draw.choice([True, False]))
    tensors = {n: draw.floats(2, 3, 8, dtype=torch.float32) for n in ("x", "residual")}
    return {"norm": norm, "drop": drop, **tensors}


def test_dropout_is_drawn_the_same() -> None:
    def pattern(norm: nn.LayerNorm, drop: nn.Dropout, x: Tensor, residual: Tensor) -> Tensor:
        out: Tensor = norm(drop(x) + residual)
        return out

    def right(norm: nn.LayerNorm, drop: nn.Dropout, x: Tensor, residual: Tensor) -> Tensor:
        out: Tensor = mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
            x, residual, norm.weight, norm.bias, drop.p if drop.training else 0.0, norm.eps
        )
        return out

    def always(norm: nn.LayerNorm, drop: nn.Dropout, x: Tensor, residual: Tensor) -> Tensor:
        out: Tensor = mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
            x, residual, norm.weight, norm.bias, drop.p, norm.eps
        )
        return out

    assert verified(pattern, right, dropped).status is Status.EQUIVALENT
    assert verified(pattern, always, dropped).status is Status.REFUTED


def weights(draw: Draw) -> dict[str, Any]:
    params = [nn.Parameter(draw.floats(3, 4, dtype=torch.float32)) for _ in range(2)]
    return {"params": params, "lr": draw.choice([0.1, 0.01])}


def half_weights(draw: Draw) -> dict[str, Any]:
    return {"params": [nn.Parameter(draw.floats(3, 4, dtype=torch.bfloat16))], "lr": 0.1}


def adam_w(params: Any, lr: float) -> Any:
    return torch.optim.AdamW(params, lr=lr)


def fused_adam_w(params: Any, lr: float) -> Any:
    return torch_npu.optim.NpuFusedAdamW(params, lr=lr)


def decayed(params: Any, lr: float) -> Any:
    return torch_npu.optim.NpuFusedAdamW(params, lr=lr, weight_decay=0.1)


def coupled(params: Any, lr: float) -> Any:
    return torch_npu.optim.NpuFusedAdam(params, lr=lr, weight_decay=0.01)


@pytest.mark.parametrize(
    ("replacement", "inputs", "status"),
    [
        (fused_adam_w, weights, Status.EQUIVALENT),
        (decayed, weights, Status.REFUTED),
        (coupled, weights, Status.REFUTED),
        (fused_adam_w, half_weights, Status.REFUTED),
    ],
)
def test_optimizers_are_compared_by_their_steps(
    replacement: Callable[..., Any], inputs: Callable[..., Any], status: Status
) -> None:
    verdict = verified(adam_w, replacement, inputs)
    assert verdict.status is status, verdict
    if status is Status.EQUIVALENT:
        assert "params[0] after the call" in {m.what for m in verdict.measures}
        assert "NpuFusedAdamW" in verdict.ground


def clipped(draw: Draw) -> dict[str, Any]:
    params = [nn.Parameter(draw.floats(3, 4, dtype=torch.float32)) for _ in range(2)]
    for p in params:
        p.grad = draw.floats(3, 4, dtype=torch.float32)
    optimizer = torch_npu.optim.NpuFusedSGD(params, lr=0.1)
    return {"optimizer": optimizer, "params": params, "limit": draw.choice([0.1, 100.0])}


def test_clipping_shows_in_the_gradients() -> None:
    def pattern(optimizer: Any, params: Any, limit: float) -> Any:  # noqa: ARG001
        return torch.nn.utils.clip_grad_norm_(params, limit)

    def right(optimizer: Any, params: Any, limit: float) -> Any:  # noqa: ARG001
        return optimizer.clip_grad_norm_fused_(limit)

    def wrong(optimizer: Any, params: Any, limit: float) -> Any:  # noqa: ARG001
        return optimizer.clip_grad_norm_fused_(limit * 2)

    assert verified(pattern, right, clipped).status is Status.EQUIVALENT
    assert verified(pattern, wrong, clipped).status is Status.REFUTED
