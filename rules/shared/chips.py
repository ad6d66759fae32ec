"""What chips can do at most: ``chips.json``, each figure with its source."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_TABLE = Path(__file__).with_name("chips.json")


@dataclass(frozen=True, slots=True)
class Chip:
    """Peak rates of one device."""

    name: str
    family: str
    """As ``requires`` of a rule names it, for an NPU: A2, 310P."""
    tflops: Mapping[str, float]
    """Of dense products by dtype: bf16, fp16, fp32, tf32, int8, fp8, fp4; 10^12 a second."""
    tb_per_s: float
    """Of its memory, 10^12 bytes a second."""
    link_gb_per_s: float
    """Of all links to other devices together, in one direction."""
    source: str


def find_chips(recorded: str | None, families: Collection[str] = ()) -> tuple[Chip, ...]:
    """Return what a chip of that name may be, none where it is not known.

    ``Ascend910B3`` is one; ``Ascend910B``, as raw data of msprof says for A2 and A3 alike, is each
    chip of its ``families``.
    """
    name = (recorded or "").strip()
    for pattern, chip in _chips():
        if name and re.fullmatch(pattern, name, re.IGNORECASE):
            return (chip,)
    return tuple(chip for _, chip in _chips() if name and chip.family in families)


def largest_bandwidth() -> float:
    """Return the largest memory bandwidth of any chip, bytes per nanosecond."""
    return 1000 * max(chip.tb_per_s for _, chip in _chips())


def usual_bandwidth(family: str) -> float:
    """Return the largest memory bandwidth of a family, bytes per nanosecond.

    Raises:
        ValueError: no chip is of that family.

    """
    return 1000 * max(chip.tb_per_s for _, chip in _chips() if chip.family == family)


def link_rate(transport: str) -> float | None:
    """Return the GB/s that a kind of link is known to reach between two devices, if any."""
    known = _table()["links"].get(transport)
    return float(known["gb_per_s"]) if known else None


@cache
def _chips() -> tuple[tuple[str, Chip], ...]:
    rows = (dict(row) for row in _table()["chips"])
    return tuple((row.pop("matches"), Chip(**row)) for row in rows)


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_TABLE.read_text("utf-8"))
    return found
