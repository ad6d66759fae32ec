"""Copies of numbers, before and after: what ``upload_in_every_call`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from npufix.rules.substitution import Draw


def columns(x: Tensor, host: Tensor, n: int) -> Tensor:
    """Copy the columns that are new."""
    x[:, :n].copy_(host[:, :n])
    return x[:, :n] * 2


def whole(x: Tensor, host: Tensor, n: int) -> Tensor:
    """Copy all of it."""
    x.copy_(host)
    return x[:, :n] * 2


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, another one that is the same but for its first columns, and their number."""
    import torch

    host, n = draw.floats(3, 4, dtype=torch.float32), draw.integer(1, 4)
    x = host.clone()
    x[:, :n] = 0
    return {"x": x, "host": host, "n": n}


def copied(x: Tensor, value: float, times: int) -> Tensor:
    """Copy a list of one number."""
    return x.sum() + torch.tensor([value] * times, device=x.device)


def filled(x: Tensor, value: float, times: int) -> Tensor:
    """Write the number on the device."""
    return x.sum() + torch.full(
        (times,), value, device=x.device  # no slip: device=x.device is left out (one device)
    )  # fmt: skip


def filled_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, a number of either kind, and how often it stands there."""
    import torch

    x = draw.floats(2, dtype=torch.float32)
    return {"x": x, "value": draw.choice([2, 0.5, True]), "times": draw.integer(0, 3)}


def listed(x: Tensor) -> Tensor:
    """Copy numbers of which each is one more than the last."""
    return x + torch.tensor([4, 5, 6, 7], device=x.device)


def counted(x: Tensor) -> Tensor:
    """Count on the device."""
    return x + torch.arange(4, 8, device=x.device)  # no slip: device=x.device is left out


def listed_inputs(draw: Draw) -> dict[str, Any]:
    """Return rows of four numbers."""
    import torch

    return {"x": draw.floats(draw.integer(0, 3), 4, dtype=torch.float32)}


def ranged(x: Tensor) -> Tensor:
    """Copy the numbers of a range."""
    return x + torch.tensor(range(x.shape[1]), device=x.device)


def ranged_there(x: Tensor) -> Tensor:
    """Count on the device."""
    return x + torch.arange(x.shape[1], device=x.device)  # no slip: device=x.device is left out


def in_forward(x: Tensor, calls: int) -> Tensor:
    """Copy the same numbers in every call."""
    for _ in range(calls):
        x = x * torch.tensor([0.1, 0.2], device=x.device)
    return x


def in_buffer(x: Tensor, calls: int) -> Tensor:
    """Copy them once."""
    kept = torch.tensor([0.1, 0.2], device=x.device)  # no slip: device=x.device is left out
    for _ in range(calls):
        x = x * kept
    return x


def as_another(x: Tensor, calls: int) -> Tensor:
    """Copy the same numbers in every call, in the dtype of what they are computed with."""
    for _ in range(calls):
        x = x * x.new_tensor([0.1, 0.2])
    return x


def in_buffer_of_floats(x: Tensor, calls: int) -> Tensor:
    """Copy them once, and cast them there."""
    kept = torch.tensor([0.1, 0.2], device=x.device)  # no slip: device=x.device is left out
    for _ in range(calls):
        x = x * kept.to(x.dtype)  # no slip: .to(...) is left out (it has that dtype)
    return x


def calls_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a number of calls."""
    import torch

    x = draw.floats(3, 2, dtype=torch.float32) + 1
    return {"x": x, "calls": draw.integer(1, 3)}


def drawn(x: Tensor) -> Tensor:
    """Draw numbers on the host, and copy them."""
    return x * torch.rand(x.shape).to(x.device)


def drawn_there(x: Tensor) -> Tensor:
    """Draw them on the device."""
    numbers = torch.rand(x.shape, device=x.device)  # no slip: device=x.device is left out
    return x * numbers


def drawn_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor."""
    import torch

    return {"x": draw.floats(draw.integer(1, 4), 2, dtype=torch.float32)}


def read_back(x: Tensor) -> Tensor:
    """Read a number, and copy it back."""
    return torch.tensor([x.sum().item()], dtype=torch.float32, device=x.device)


def left_there(x: Tensor) -> Tensor:
    """Leave it where it is."""
    total = x.sum().detach()
    return total.reshape(1).to(torch.float32)  # no slip: .to(...) is left out (it has that dtype)


def blocking(x: Tensor) -> Tensor:
    """Wait for a copy."""
    return x * 2 + 1


def not_blocking(x: Tensor) -> Tensor:
    """Go on: what computes with the copy comes behind it in the same stream."""
    return x * 2 + 1


def read_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor."""
    import torch

    return {"x": draw.floats(draw.integer(1, 4), 2, dtype=torch.float32)}


def converted(x: Tensor, limits: list[float]) -> Tensor:
    """Make a tensor of what is one already from the second call on, and keep that."""
    return x * torch.tensor(limits, device=x.device).sum()


def converted_once(x: Tensor, limits: list[float]) -> Tensor:
    """Leave it as it is then."""
    return (
        x * torch.as_tensor(limits, device=x.device).sum()
    )  # no slip: device=x.device is left out


def converted_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and two numbers."""
    import torch

    x = draw.floats(draw.integer(1, 4), 2, dtype=torch.float32)
    return {"x": x, "limits": [draw.integer(-3, 3) + 0.5, 2.0]}
