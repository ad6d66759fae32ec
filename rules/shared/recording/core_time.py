"""What a kernel of the AI CPU would take on an AI core, by what this recording shows."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.shared.recording.recorded_cells import (
    CELLS,
    ELEMENT_WISE,
    LARGE_BYTES,
    count_moved_bytes,
)

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_FEW = 5
_ASSUMED_RATES, _ASSUMED_LAUNCHES_NS = (100.0, 1000.0), (2_000.0, 10_000.0)
"""Bytes per ns, and what a small kernel takes, where that hardly matters and none shows it."""
_PASSES, _FEW_PASSES = (1, 10), (1, 2)
"""How often a kernel reads and writes its tensors: fewest, and most for a sort or a scatter; the
second for arithmetic and sums."""
_ARITHMETIC = re.compile(
    rf"{'|'.join(ELEMENT_WISE)}|Reduce\w*|Subs|Divs|Maximum|Minimum|Neg|Abs|Log\w*|Pows?|R?Sqrt"
    r"|Square|Sign|Floor\w*|Ceil|Round|(Not)?Equal|Less\w*|Greater\w*|Sigmoid|(Sin|Cos)h?"
)
_NARROWER = 0.5
"""Of the bytes, at best: ``float`` in the place of ``double`` and of 64 bits."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Time of all calls together on an AI core, and where that comes from."""

    low_ns: float
    likely_ns: float
    high_ns: float
    basis: str


def on_ai_core(slow: pd.DataFrame, kernels: pd.DataFrame) -> Expected | None:
    """Return what ``slow`` would take; ``None`` where nothing tells."""
    found = [
        expected
        for name, rows in slow.groupby("type", observed=True)
        if (expected := _of_type(str(name), rows, kernels)) is not None
    ]
    if not found:
        return None
    low, likely, high = (
        sum(getattr(each, key) for each in found) for key in ("low_ns", "likely_ns", "high_ns")
    )
    return Expected(low, likely, high, max(found, key=lambda each: each.high_ns).basis)


def _of_type(name: str, slow: pd.DataFrame, kernels: pd.DataFrame) -> Expected | None:
    sizes = count_moved_bytes(slow)
    if not (sizes > 0).any():
        return None
    wanted = kernels["type"].isin([name, *ELEMENT_WISE]) & (kernels["core"] != "AI_CPU")
    others = kernels.loc[wanted, ["type", "duration_ns", *CELLS]]
    passes = _FEW_PASSES if _ARITHMETIC.fullmatch(name) else _PASSES
    same = _as_same_type(sizes, others[others["type"] == name])
    return same or _as_element_wise(sizes, others, passes)


def _as_same_type(sizes: Floats, same: pd.DataFrame) -> Expected | None:
    """Take the time of the same Type, more for larger tensors but never less for smaller ones."""
    own = count_moved_bytes(same)
    same, own = same[own > 0], own[own > 0]
    if same.empty:
        return None
    largest = float(own.max())
    growth = float(np.maximum(1.0, sizes / largest).sum())
    low, high = map(float, np.quantile(same["duration_ns"], (0.5, 1.0)))
    basis = f"{len(same)} kernels of the same Type on an AI core in this dump"
    return Expected(low * growth, (low + high) / 2 * growth, high * growth, basis)


def _as_element_wise(
    sizes: Floats, others: pd.DataFrame, passes: tuple[int, int]
) -> Expected | None:
    """Take some passes at the bandwidth of large element-wise kernels."""
    known = others[others["type"].isin(ELEMENT_WISE) & (others["duration_ns"] > 0)]
    moved = count_moved_bytes(known)
    duration = known["duration_ns"].to_numpy(np.float64)
    large, small = moved >= LARGE_BYTES, (moved > 0) & (moved < LARGE_BYTES)
    # How quickly memory is read hardly matters to tensors that are small.
    needs_rate = bool((sizes >= LARGE_BYTES).any())
    if large.sum() < _FEW and (needs_rate or small.sum() < _FEW):
        return None
    slow, fast = _ASSUMED_RATES
    least, most = _ASSUMED_LAUNCHES_NS
    if large.sum() >= _FEW:
        slow, fast = np.quantile(moved[large] / duration[large], (0.25, 0.75))
    if small.sum() >= _FEW:
        least, most = np.quantile(duration[small], (0.1, 0.9))
    low = float(len(sizes) * least + _NARROWER * passes[0] * sizes.sum() / fast)
    high = float(len(sizes) * most + passes[1] * sizes.sum() / slow)
    times = "one or two passes" if passes == _FEW_PASSES else "one to ten passes"
    basis = (
        f"{times} at the {slow / 1000:.2f} to {fast / 1000:.2f} TB/s of the element-wise kernels "
        "of this dump"
    )
    if large.sum() < _FEW:
        basis = f"{times} over tensors that are small, and a launch as in this dump"
    return Expected(low, math.sqrt(low * high), high, basis)
