"""A few optimiser steps: what a module keeps from one call to the next shows only there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.exercise import exercised
from npufix.rewriters.verification.calls.place import finished, kept
from npufix.rewriters.verification.calls.values import generator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LARGEST_CHANGE = 1 / 16
"""Of any element in one step: as much as of the weights that a step of a real training moves."""


def train(
    call: Callable[[Mapping[str, object]], object],
    passed: Mapping[str, object],
    weights: Mapping[str, torch.Tensor],
    steps: int,
) -> dict[str, torch.Tensor]:
    """Return what the calls of each step give back, and the weights after the last, by name.

    The optimiser holds the tensors that are parameters before the first step, as a real one does.
    It is gradient descent, all gradients divided by the largest: an update is as exact as the
    gradients are, however large they are, which cannot be said of an update of Adam.
    """
    seen: dict[str, torch.Tensor] = {}
    for step in range(1, steps + 1):
        with torch.enable_grad():
            results = tensors_of(finished(exercised(call(passed))), f"result in step {step}")
            _descend(results, list(weights.values()))
        seen |= {name: kept(value) for name, value in results.items()}
    return seen | {f"{name} after {steps} steps": kept(value) for name, value in weights.items()}


def tensors_of(value: object, name: str) -> dict[str, torch.Tensor]:
    """Return the floating tensors of a result that gradients flow back from."""
    if isinstance(value, torch.Tensor):
        return {name: value} if value.requires_grad and value.is_floating_point() else {}
    items: list[object] = list(getattr(value, "__dict__", {}).values())
    if isinstance(value, dict):
        items = list(value.values())
    elif isinstance(value, list | tuple):
        items = list(value)
    parts = enumerate(items)
    return {n: t for i, item in parts if isinstance(item, torch.Tensor)
            for n, t in tensors_of(item, f"{name}[{i}]").items()}  # fmt: skip


def _descend(results: Mapping[str, torch.Tensor], weights: list[torch.Tensor]) -> None:
    if not results:
        return
    upstream = [cotangent(value, name) for name, value in results.items()]
    found = torch.autograd.grad(list(results.values()), weights, upstream, allow_unused=True)
    gradients = [g for g in found if g is not None and g.numel()]
    largest = max((float(g.abs().max()) for g in gradients), default=0.0)
    if not 0.0 < largest < float("inf"):
        return
    with torch.no_grad():
        for weight, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                weight.sub_(gradient * (LARGEST_CHANGE / largest))


def cotangent(value: torch.Tensor, name: str) -> torch.Tensor:
    """Return the upstream gradient of a result, which depends on its name alone."""
    # Eighths are exact in every floating dtype, so the upstream gradient is the same everywhere.
    drawn = torch.randint(-8, 9, value.shape, generator=generator(name))
    return (drawn / 8).to(value.dtype).to(value.device)
