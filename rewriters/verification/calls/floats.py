"""Floats as they are drawn, boxes that overlap as those of detectors do, and scores beside them.

Of boxes drawn anywhere few overlap by half, and none is suppressed by one that is suppressed
itself. These lie around few places, which are the same for every argument and next to each other:
some of them nearly the same box, some shifted by more than half of it.
"""

from __future__ import annotations

import math

import torch

_LARGE = 300.0
"""Its exponential is still a number in float64, and the square of that."""
_TINY = 1e-4
_FAR = 64.0
"""Its exponential is still a number in float32, and that of twice as much is none."""
_CORNERS = 4
_IN_SPACE = 6
"""Numbers of a box with a depth."""
_PLACES = 3
_APART = 0.7
"""Places, in widths of a box: neighbours overlap by less than a third."""
_SPREADS = (0.05, 0.3, 0.6, 0.15)
"""How far the corners of the first box of each place, and so on, are from it."""
_NEAR = 1 / 64


def stretch(drawn: torch.Tensor, least: float = 0.0) -> torch.Tensor:
    """Return boxes anywhere, of sizes that were drawn beside lower corners; more stays as it is."""
    corners, more = _split(drawn)
    lower, size = corners.chunk(2, -1)
    return torch.cat((lower, lower + size + least, more), -1)


def cluster(drawn: torch.Tensor, scale: int) -> torch.Tensor:
    """Return boxes around a few places, ``scale`` times as large as one is."""
    corners, more = _split(drawn)
    at = torch.arange(corners.shape[-2] if corners.dim() > 1 else 1)
    spread = torch.tensor(_SPREADS, dtype=drawn.dtype)[at // _PLACES % len(_SPREADS)]
    shifts = (corners - 0.5) * (spread[:, None] if corners.dim() > 1 else spread)
    half = corners.shape[-1] // 2
    lower = torch.full_like(corners[..., :half], 0.5)
    lower[..., 0] += at % _PLACES * _APART
    placed = torch.cat((lower, lower + 1), -1) + shifts
    return torch.cat((placed * scale, more), -1)


def _split(drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the corners, and what follows them: a score, a class."""
    width = drawn.shape[-1]
    count = width if width == _IN_SPACE or width < _CORNERS else _CORNERS
    return drawn[..., :count], drawn[..., count:]


def draw_shares(drawn: torch.Tensor, flavour: str) -> torch.Tensor:
    """Return numbers between 0 and 1 in one of the ways that tell; with zeros, one is certain."""
    if flavour == "few values":
        return ((drawn * 2).floor() + 1) / 4
    if flavour == "overlapping":
        return _draw_near(drawn)
    inside = drawn * 0.9 + 0.05
    if flavour == "zeros":
        flat = inside.view(-1)
        flat[: math.ceil(flat.numel() / 2)], flat[-1:] = 0.0, 1.0
    return inside


def _draw_near(drawn: torch.Tensor) -> torch.Tensor:
    """Return shares of which no two are equal, and every other one is near all such."""
    near = torch.arange(drawn.shape[-1] if drawn.dim() else 1) % 2 == 1
    return torch.where(near.view(drawn.shape[-1:]), 0.75 + drawn * _NEAR, drawn * 0.9 + 0.05)


def draw_floats(shape: tuple[int, ...], flavour: str, source: torch.Generator) -> torch.Tensor:
    """Return numbers in one of the ways that tell: large ones, few values."""
    drawn = torch.randn(shape, generator=source, dtype=torch.float64)
    if flavour == "tiny rows":
        return drawn * _TINY
    if flavour == "large":
        return drawn * _FAR  # exponentials overflow
    if flavour == "far below":  # each row at once: exponentials of the others leave nothing of it
        rows = (*shape[:-1], 1) if len(shape) > 1 else shape
        return drawn - 4 * _FAR * (torch.rand(rows, generator=source) < 0.5)  # noqa: PLR2004 - a coin
    if flavour == "far from zero":
        return drawn + _FAR  # differences of squares cancel
    if flavour == "few values":
        return (drawn * 2).round() / 2  # many are equal, and half of a whole number
    if flavour == "zeros":
        flat = drawn.reshape(-1)
        flat[: math.ceil(flat.numel() / 2)] = 0.0
    if flavour in {"NaN and Inf", "NaN and large"} and drawn.numel():
        at = torch.rand(shape, generator=source)
        most = _LARGE if flavour == "NaN and large" else math.inf
        for low, special in ((0.0, math.nan), (0.1, most), (0.2, -most), (0.3, -0.0)):
            drawn = torch.where((at >= low) & (at < low + 0.1), special, drawn)
    if flavour in {"NaN", "Inf"} and drawn.numel():  # who asks for one may not see the other
        flat = drawn.view(-1)
        flat[0] = math.nan if flavour == "NaN" else math.copysign(math.inf, flat[0])
    return drawn
