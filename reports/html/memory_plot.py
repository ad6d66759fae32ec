"""Device memory over time as lines of an SVG, with the ends of its axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rules.shared.quantities import milliseconds, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.html.details import Curve, Memory

WIDTH, HEIGHT = 1000, 200
_SHOWN = 3
_HEADROOM = 1.08
_TONES = ("compute", "host", "dim")
_TICKS = 4


@dataclass(frozen=True, slots=True)
class MemoryPlot:
    """What the template draws; positions of ticks are % of the picture."""

    lines: Sequence[tuple[str, str, str, str]]
    """Colour, name, path, peak."""
    times: Sequence[tuple[float, str]]
    sizes: Sequence[tuple[float, str]]


def memory_plot(memory: Memory) -> MemoryPlot:
    """Return the highest curves over the whole recording."""
    curves = _choose(memory.curves)
    most = _HEADROOM * max(byte for curve in curves for _, byte in curve.points)
    length = max(memory.length_ns, 1)
    lines = [
        (tone, curve.name, _path(curve, length, most), size(max(b for _, b in curve.points)))
        for tone, curve in zip(_TONES, curves, strict=False)
    ]
    steps = range(_TICKS + 1)
    return MemoryPlot(
        lines,
        [(100 * n / _TICKS, milliseconds(length * n / _TICKS)) for n in steps],
        [(100 * n / _TICKS, size(most * n / _TICKS)) for n in steps],
    )


def _choose(curves: Sequence[Curve]) -> list[Curve]:
    """Return those of PyTorch first: what it holds, what it keeps, what the process has."""
    order = ("PTA allocated", "PTA reserved", "APP reserved")
    known = [curve for name in order for curve in curves if curve.name == name]
    return [*known, *(curve for curve in curves if curve not in known)][:_SHOWN]


def _path(curve: Curve, length: int, most: float) -> str:
    """Return steps, as memory stays what it is until it changes."""
    drawn, height = [], 0.0
    for number, (at, byte) in enumerate(curve.points):
        x, y = WIDTH * at / length, HEIGHT * (1 - byte / most)
        drawn.append(f"M{x:.1f} {y:.1f}" if number == 0 else f"H{x:.1f}V{y:.1f}")
        height = y
    return "".join(drawn) + f"H{WIDTH}" if height else "".join(drawn)
