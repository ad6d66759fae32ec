"""Amounts as people write them: ``850 ms``, ``58 GiB``, ``5%``."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-zµμ%]*)\s*")
_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_SIZES = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20,
    "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
_BY_UNIT = {"ns": _TIMES, "bytes": _SIZES, "count": {"": 1.0}}
_EXAMPLES = {"ns": '"850 ms"', "bytes": '"58 GiB"', "count": '"1200"'}


class AmountError(ValueError):
    """Not an amount; the text says what it is instead, and what was wanted."""


def amount(text: object, unit: str) -> float:
    """Return an amount in ``ns``, ``bytes`` or ``count``.

    Raises:
        AmountError: it is none, or one of something else.

    """
    factors = _BY_UNIT[unit]
    named = ", ".join(dict.fromkeys(name for name in factors if name.isascii() and name))
    wanted = (
        f"an amount like {_EXAMPLES[unit]}, in {named}"
        if named
        else f"a number like {_EXAMPLES[unit]}"
    )
    if unit == "count" and isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    found = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[2] not in factors:
        raise AmountError(f"is {text!r}, not {wanted}")
    return _finite(float(found[1]) * factors[found[2]], text)


def share(text: object) -> float:
    """Return ``5%`` as 0.05.

    Raises:
        AmountError: it is no percentage.

    """
    found = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[2] != "%":
        raise AmountError(f'is {text!r}, not a percentage like "5%"')
    return _finite(float(found[1]) / 100, text)


def _finite(number: float, text: object) -> float:
    if not math.isfinite(number):
        raise AmountError(f"is {text!r}, too large a number")
    return number


def format_amount(value: float, unit: str) -> str:
    """Return an amount as people read it."""
    if unit == "ns":
        return _scale(value, [("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)])
    if unit == "bytes":
        return _scale(value, [(name, _SIZES[name]) for name in ("GiB", "MiB", "KiB", "B")])
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"  # noqa: PLR2004


def _scale(value: float, units: list[tuple[str, float]]) -> str:
    name, factor = next((u for u in units if abs(value) >= u[1]), units[-1])
    number = value / factor
    digits = max(0, 3 - len(str(int(abs(number)))))
    return f"{number:.{digits}f} {name}"


def percent(part: float, *, signed: bool = False) -> str:
    """Return 0.052 as ``5.2%``."""
    digits = 0 if abs(part) >= 1 else 1
    text = f"{100 * part:{'+' if signed else ''}.{digits}f}%"
    return text.replace("-0.0%", "+0.0%" if signed else "0.0%")
