"""The updates of the fused optimisers that torch itself does not have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_LONGEST_WEIGHT = 10.0


def _averages(state: dict[str, Any], p: Tensor, beta1: float, beta2: float) -> tuple[Tensor, ...]:
    """Advance the step and both running averages of the gradient."""
    if not state:
        state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
    state["step"] += 1
    gradient = p.grad
    assert gradient is not None  # noqa: S101 - parameters without one are left out before
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.mul_(beta1).add_(gradient, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    return first, second


def lamb(group: dict[str, Any], states: dict[Tensor, Any]) -> None:
    """Scale every Adam step to the length of its weight."""
    for p in group["params"]:
        first, second = _averages(states[p], p, *group["betas"])
        step = first / (second.sqrt() + group["eps"]) + group["weight_decay"] * p
        weight_norm, step_norm = p.norm().clamp(0, _LONGEST_WEIGHT), step.norm()
        plain = group["adam"] or weight_norm == 0 or step_norm == 0
        p.add_(step * (1.0 if plain else weight_norm / step_norm), alpha=-group["lr"])


def adam_p(group: dict[str, Any], states: dict[Tensor, Any]) -> None:
    """Take Adam's step, projected where the gradient is nearly orthogonal to the weight."""
    beta1, beta2 = group["betas"]
    for p in group["params"]:
        first, second = _averages(states[p], p, beta1, beta2)
        count = states[p]["step"]
        denominator = second.sqrt() / math.sqrt(1 - beta2**count) + group["eps"]
        ahead = beta1 * first + (1 - beta1) * p.grad if group["nesterov"] else first
        step, ratio = ahead / denominator, 1.0
        if p.dim() > 1:
            step, ratio = _project(p, step, group)
        if group["weight_decay"] > 0:
            p.mul_(1 - group["lr"] * group["weight_decay"] * ratio)
        p.add_(step, alpha=-group["lr"] / (1 - beta1**count))


def _project(p: Tensor, step: Tensor, group: dict[str, Any]) -> tuple[Tensor, float]:
    views: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda t: t.reshape(t.shape[0], -1),
        lambda t: t.reshape(1, -1),
    )
    assert p.grad is not None  # noqa: S101 - parameters without one are left out before
    for view in views:
        weight, gradient, eps = view(p), view(p.grad), group["eps"]
        dot = (weight * gradient).sum(1).abs()
        cosine = dot / (gradient.norm(dim=1) + eps) / (weight.norm(dim=1) + eps)
        if cosine.max() < group["delta"] / math.sqrt(weight.shape[1]):
            unit = weight / (weight.norm(dim=1, keepdim=True) + eps)
            flat = view(step)
            flat = flat - unit * (unit * flat).sum(1, keepdim=True)
            return flat.reshape(p.shape), group["wd_ratio"]
    return step, 1.0


def bert_adam(group: dict[str, Any], states: dict[Tensor, Any]) -> None:
    """Take Adam's step without bias correction, on a warm-up schedule."""
    for dtype in (torch.float32, torch.float16):
        same = [p for p in group["params"] if p.dtype == dtype]
        if same and group["max_grad_norm"] > 0:
            norm = torch.cat([p.grad.float().flatten() for p in same]).norm()
            factor = group["max_grad_norm"] / (norm + 1e-6)
            for p in same if factor < 1 else ():
                p.grad.mul_(factor)
    for p in group["params"]:
        count = states[p].get("step", 0)
        first, second = _averages(states[p], p, group["b1"], group["b2"])
        step = first / (second.sqrt() + group["e"]) + max(group["weight_decay"], 0.0) * p
        rate = group["lr"]
        if group["t_total"] != -1:
            rate *= _schedule(group["schedule"], count / group["t_total"], group["warmup"])
        p.add_(step, alpha=-rate)


def _schedule(schedule: str, progress: float, warmup: float) -> float:
    if progress < warmup:
        return progress / warmup
    later = {
        "warmup_cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        "warmup_constant": 1.0,
        "warmup_linear": max((progress - 1) / (warmup - 1), 0.0),
        "warmup_poly": math.sqrt(max(1 - progress, 0.0)),
    }
    return later[schedule]


def rms_prop_tf(group: dict[str, Any], states: dict[Tensor, Any]) -> None:
    """Divide the gradient by a running root mean square with eps under the root."""
    for p in group["params"]:
        state = states[p]
        if not state:
            zeros = {"momentum_buffer": torch.zeros_like(p), "grad_avg": torch.zeros_like(p)}
            state.update(square_avg=torch.ones_like(p), **zeros)
        gradient, square = p.grad, state["square_avg"]
        if group["weight_decay"] != 0 and group["decoupled_decay"]:
            p.mul_(1 - group["weight_decay"])
        elif group["weight_decay"] != 0:
            gradient = gradient + group["weight_decay"] * p
        square.lerp_(gradient.pow(2), 1 - group["alpha"])
        variance = square
        if group["centered"]:
            mean = state["grad_avg"].lerp_(gradient, 1 - group["alpha"])
            variance = square - mean.pow(2)
        step, rate = gradient / (variance + group["eps"]).sqrt(), group["lr"]
        if group["momentum"] > 0:
            inside = rate if group["lr_in_momentum"] else 1.0
            step = state["momentum_buffer"].mul_(group["momentum"]).add_(step, alpha=inside)
            rate = 1.0 if group["lr_in_momentum"] else rate
        p.add_(step, alpha=-rate)
