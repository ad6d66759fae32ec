"""Times, shares, counts and sizes as people read them, the same in every text of the product."""

from __future__ import annotations

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_TIMES = ((60e9, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_LONGEST = 60
_ROUNDS_UP = 0.9995
"""Of a unit: from here on three digits would say 1,000 of the one below."""


def milliseconds(ns: float) -> str:
    """Return a time with three significant digits: ``12.3 µs``, ``1.5 ms``, ``2.05 s``."""
    unit_ns, name = next((one for one in _TIMES if abs(ns) >= one[0] * _ROUNDS_UP), _TIMES[-1])
    value = ns / unit_ns
    return f"{value:,.0f} {name}" if abs(value) >= 100 else f"{value:.3g} {name}"  # noqa: PLR2004 - three digits


def percent(share: float, *, signed: bool = False) -> str:
    """Return a share, 0..1: ``31.4%``; or, ``signed``, a change: ``+31.4%``, ``0.0%``."""
    text = f"{share:+.1%}" if signed else f"{share:.1%}"
    return text if round(share, 3) else "0.0%"


def number(count: float) -> str:
    """Return a number of things, of a step perhaps: ``2.5``, ``8,402``."""
    whole = abs(count) >= 999.5 or abs(count - round(count)) < 1e-6  # noqa: PLR2004 - three digits
    return f"{count:,.0f}" if whole else f"{count:.3g}"


def format_count(count: float, noun: str, plural: str = "") -> str:
    """Return how many there are of something: ``1 file``, ``2.5 collectives``."""
    said = number(count)
    return f"{said} {noun if said == '1' else plural or noun + 's'}"


def size(byte_count: float) -> str:
    """Return an amount of memory with three significant digits: ``1.5 GiB``."""
    unit, name = next(((s, n) for s, n in _SIZES if abs(byte_count) >= s), (1, "B"))
    return f"{number(byte_count / unit)} {name}"


def shorten(name: str) -> str:
    """Return a name as it fits into a sentence: kernels of a GPU have names of 900 characters."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def quantity(value: float, unit: str) -> str:
    """Return a number with its unit: ``ns``, ``bytes``, or "" of things that are counted."""
    if unit == "ns":
        return milliseconds(value)
    return size(value) if unit == "bytes" else number(value)
