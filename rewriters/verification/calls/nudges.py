"""Arguments a little beside those of a call: where ``x.max()`` has two equal maxima, it has one.

And those that are computed from one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch

from npufix.rewriters.verification.calls.values import (
    Several,
    Spec,
    Tensor,
    map_items,
    seed_generator,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUDGES = range(1, 33)
"""Which of two equal numbers is the larger one is the same in all of them once in many millions."""
ROUNDINGS = range(33, 38)
"""Ways in which everything is moved by a rounding of its dtype, weights as well."""
_IN_ORDER = {5: (3, 1), 6: (1, 3), 7: (-1, -3), 8: (-3, -1)}
"""Of rows of equal numbers at a kink, the first or the last is the largest, on one side of it."""
_STEP = 1e-6
"""Of numbers in float64: far above what is rounding there."""
_FILL = 5e3
"""What masks fill with stays."""


def nudge(
    arguments: Mapping[str, object], specs: Mapping[str, Spec], number: int, dtype: torch.dtype
) -> dict[str, object]:
    """Return arguments of which all numbers that take gradients are moved a little.

    All up, all down, those of every other argument against the others, the first or the last up
    most of all, or each another way. Or all numbers by a rounding of a dtype: ``ROUNDINGS``.
    """
    if number in ROUNDINGS:
        return {n: _move_by_rounding(value, n, number, dtype) for n, value in arguments.items()}
    ways = (None, (1, 1), (-1, -1), (1, -1), (-1, 1))
    way = ways[number] if number < len(ways) else None
    return {
        name: _move(value, name, number, 0 if way is None else way[at % 2])
        if _takes_gradient(specs.get(name))
        else value
        for at, (name, value) in enumerate(arguments.items())
    }


def _takes_gradient(spec: Spec | None) -> bool:
    items = spec.items if isinstance(spec, Several) else (spec,)
    tensors = [item for item in items if isinstance(item, Tensor)]
    return bool(tensors) and not any(tensor.is_constant for tensor in tensors)


def _move(value: object, name: str, number: int, sign: int) -> object:
    if isinstance(value, list | tuple | dict):
        parts = iter(range(len(value)))
        return map_items(value, lambda item: _move(item, f"{name}{next(parts)}", number, sign))
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    source = seed_generator("nudge", name, number)
    way = torch.rand(value.shape, generator=source, dtype=torch.float64)
    way = sign * (way + 0.5) if sign else way * 4 - 2
    if number in _IN_ORDER:  # of many rows, chance never takes the first of equals in each
        first, last = _IN_ORDER[number]
        way = torch.linspace(first, last, value.numel(), dtype=torch.float64).view(value.shape)
    small = torch.where(value.abs() < _FILL, value.abs().clamp(min=1.0) * _STEP, 0.0)
    return value + small.nan_to_num(0.0) * way


def nudge_state(instance: object, number: int, dtype: torch.dtype) -> None:
    """Move what the object of a call holds as well, by a rounding."""
    if number in ROUNDINGS:
        _move_by_rounding(instance, "self", number, dtype)


def _move_by_rounding(value: object, name: str, number: int, dtype: torch.dtype) -> object:
    """Return a value of which all numbers but whole ones, as flags, are off by a rounding."""
    if isinstance(value, torch.nn.Module):
        with torch.no_grad():
            for own, weight in (*value.named_parameters(), *value.named_buffers()):
                weight.copy_(_round(weight, f"{name}.{own}", number, dtype))
        return value
    if isinstance(value, list | tuple | dict):
        parts = iter(range(len(value)))
        return map_items(
            value, lambda item: _move_by_rounding(item, f"{name}{next(parts)}", number, dtype)
        )
    return _round(value, name, number, dtype) if isinstance(value, torch.Tensor) else value


def _round(value: torch.Tensor, name: str, number: int, dtype: torch.dtype) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    source = seed_generator("rounding", name, number)
    way = torch.rand(value.shape, generator=source, dtype=torch.float64) * 2 - 1
    return torch.where(value == value.round(), value, value * (1 + torch.finfo(dtype).eps * way))


def link(passed: Mapping[str, object], pairs: Sequence[tuple[str, str]]) -> dict[str, object]:
    """Return arguments of which one is computed from another: ``u`` from ``x``, by a sine.

    ``torch.autograd.grad(u.sum(), x)`` has nothing to go back along else; a sine has gradients of
    gradients, in which each number of ``x`` has a part of its own.
    """
    made = dict(passed)
    for result, of in pairs:
        value, base = made.get(result), made.get(of)
        if not (is_floating(value) and is_floating(base)):
            continue
        if not base.requires_grad:
            base = made[of] = base.detach().requires_grad_()
        with torch.enable_grad():
            made[result] = value + compute_from(base, value.shape).to(value.dtype)
    return made


def is_floating(value: object) -> TypeGuard[torch.Tensor]:
    """Say whether a value is a tensor of floats, and has some."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and bool(value.numel())


def compute_from(base: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return numbers of this shape, each row from the same row of ``base`` where there is one."""
    by_row = bool(shape) and base.dim() > 0 and shape[0] == base.shape[0]
    rows = base.reshape(shape[0] if by_row else 1, -1)
    ramp = torch.linspace(0.5, 1.5, rows.shape[1], dtype=base.dtype, device=base.device)
    size = shape.numel() // len(rows)
    phases = torch.linspace(0.0, 1.0, size, dtype=base.dtype, device=base.device)
    return ((rows * ramp).sum(1, keepdim=True) + phases).sin().reshape(shape)
