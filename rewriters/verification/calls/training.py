"""A few optimiser steps: what a module keeps from one call to the next shows only there."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.device import copy_to_host, wait_for
from npufix.rewriters.verification.calls.values import seed_generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
            results = find_tensors(wait_for(use_result(call(passed))), f"result in step {step}")
            _descend(results, list(weights.values()))
        seen |= {name: copy_to_host(value) for name, value in results.items()}
    return seen | {
        f"{name} after {steps} steps": copy_to_host(value) for name, value in weights.items()
    }


def find_tensors(value: object, name: str) -> dict[str, torch.Tensor]:
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
            for n, t in find_tensors(item, f"{name}[{i}]").items()}  # fmt: skip


def _descend(results: Mapping[str, torch.Tensor], weights: list[torch.Tensor]) -> None:
    if not results:
        return
    upstream = [draw_cotangent(value, name) for name, value in results.items()]
    found = torch.autograd.grad(list(results.values()), weights, upstream, allow_unused=True)
    gradients = [g for g in found if g is not None and g.numel()]
    largest = max((float(g.abs().max()) for g in gradients), default=0.0)
    if not 0.0 < largest < float("inf"):
        return
    with torch.no_grad():
        for weight, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                weight.sub_(gradient * (LARGEST_CHANGE / largest))


def draw_cotangent(value: torch.Tensor, name: str) -> torch.Tensor:
    """Return the upstream gradient of a result, which depends on its name alone."""
    # Eighths are exact in every floating dtype, so the upstream gradient is the same everywhere.
    return (_draw_whole(name, value.shape) / 8).to(value.dtype).to(value.device)


@lru_cache(maxsize=64)
def _draw_whole(name: str, shape: torch.Size) -> torch.Tensor:
    return torch.randint(-8, 9, shape, generator=seed_generator(name))


_STEPS = 3
_SEVERAL = frozenset({list, tuple})


def use_result(value: object) -> object:
    """Return a result as it is; an optimiser takes a few steps, and what is left is its rate.

    What the steps have done is seen on the parameters, which are arguments of the call. So it is
    of optimisers in lists, tuples, dictionaries and wrappers, beside schedules of their rates.
    """
    return (
        _use(value)
        if any(isinstance(v, torch.optim.Optimizer) for v in _list_held(value))
        else value
    )


def _list_held(value: object) -> Iterator[object]:
    yield value
    held = _attributes(value).values() or (value if type(value) in _SEVERAL else ())
    for item in held:  # type: ignore[attr-defined] # a list or a tuple
        yield from _list_held(item)


def _attributes(value: object) -> Mapping[str, object]:
    """Return the items of a dictionary, or what wraps an optimiser: ``Noam(AdamW(...), 512)``."""
    if type(value) is dict:
        return value
    held: Mapping[str, object] = getattr(value, "__dict__", {})
    wraps = any(isinstance(item, torch.optim.Optimizer) for item in held.values())
    own = isinstance(value, torch.nn.Module | torch.optim.lr_scheduler.LRScheduler)
    return held if wraps and not own else {}


def _use(value: object) -> object:
    if type(value) in _SEVERAL:
        return [_use(item) for item in value]  # type: ignore[attr-defined] # a list or a tuple
    if attributes := _attributes(value):
        return {name: _use(item) for name, item in attributes.items()}
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        return value.state_dict()
    if not isinstance(value, torch.optim.Optimizer):
        return value
    parameters = [p for group in value.param_groups for p in group["params"]]
    for step in range(_STEPS):
        for number, p in enumerate(parameters):
            # Whole numbers: in float64 others would be drawn, and judged by those.
            whole = torch.randint(
                -64, 65, p.shape, generator=seed_generator("gradient", step, number)
            )
            drawn = whole / 32
            gradient = drawn.to(p.dtype).to(p.device)
            if p.grad is None:
                p.grad = gradient
            else:
                p.grad.add_(gradient)
        value.step()
        value.zero_grad()
    for p in parameters:
        # None or zeros: both are "no gradient", and which of them depends on the optimiser.
        p.grad = None
    return {"lr": [group["lr"] for group in value.param_groups]}
