"""Device memory over the recording, and who holds it where it is fullest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.reports.html.details import Curve, Memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.profiling_parsers.signals import Signals

_POINTS = 400
_NAMES = 12
_FIGURES = (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved"))


def memory(signals: Signals) -> Memory | None:
    """Return the curves of the device with the most memory, ``None`` where nothing is recorded."""
    rows = signals.memory
    if rows.empty:
        return None
    device = rows.groupby("device", observed=True)["reserved_bytes"].max().idxmax()
    rows = rows[(rows["device"] == device).to_numpy()].sort_values("time_ns", kind="stable")
    begin, end = int(rows["time_ns"].iloc[0]), int(rows["time_ns"].iloc[-1])
    curves = list(_curves(rows, begin, end))
    return Memory(end - begin, curves, _at_peak(rows, signals.allocations)) if curves else None


def _curves(rows: pd.DataFrame, begin: int, end: int) -> Iterator[Curve]:
    for component, own in rows.groupby("component", observed=True, sort=True):
        times = own["time_ns"].to_numpy() - begin
        for column, said in _FIGURES:
            sizes = own[column].to_numpy()
            known = sizes >= 0
            if known.sum() > 1 and sizes.max() > 0:
                points = _thin(times[known], sizes[known], max(1, end - begin))
                yield Curve(f"{component} {said}", points)


def _thin(times: np.ndarray, sizes: np.ndarray, length: int) -> list[tuple[int, int]]:
    """Return few enough points to draw: of each stretch of time, the highest."""
    if len(times) > _POINTS:
        stretch = times * _POINTS // length
        best = np.lexsort((sizes, stretch))
        best = best[np.append(np.flatnonzero(np.diff(stretch[best])), len(best) - 1)]
        times, sizes = times[best], sizes[best]
    return list(zip(times.tolist(), sizes.tolist(), strict=True))


def _at_peak(rows: pd.DataFrame, blocks: pd.DataFrame) -> list[tuple[str, int, int]]:
    """Return the operators whose blocks are alive where most is allocated."""
    allocated = rows["allocated_bytes"].to_numpy()
    if blocks.empty or allocated.max() <= 0:
        return []
    when = int(rows["time_ns"].iloc[int(allocated.argmax())])
    start, kept = blocks["allocated_ns"].to_numpy(), blocks["duration_ns"].to_numpy()
    alive = blocks[(start <= when) & ((kept < 0) | (start + kept > when))]
    sums = alive.groupby("name", observed=True)["size_bytes"].agg(["size", "sum"])
    sums = sums.sort_values("sum", ascending=False, kind="stable").iloc[:_NAMES]
    return [
        (str(name), int(count), int(total))
        for name, count, total in zip(sums.index, sums["size"], sums["sum"], strict=True)
    ]
