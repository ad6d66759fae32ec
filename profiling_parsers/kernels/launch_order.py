"""When kernels were launched, also where some launches were not recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


_TOGETHER_NS = 1_000
"""Kernels of one stream that run for so long at once run beside each other."""


def stream_numbers(kernels: pd.DataFrame) -> Integers:
    """Return a number for each stream of a device; collectives have their own.

    Collectives of one group are recorded as one stream, on however many they run.
    """
    found = kernels.groupby(["device", "stream", "communication"], observed=True).ngroup()
    numbers = found.to_numpy().astype(np.int64)
    own = np.flatnonzero(kernels["communication"].to_numpy(bool))
    start = kernels["start_ns"].to_numpy()[own]
    own = own[np.lexsort((start, numbers[own]))]
    start = kernels["start_ns"].to_numpy()[own]
    end = start + kernels["duration_ns"].to_numpy()[own]
    beside = (start[1:] < end[:-1] - _TOGETHER_NS) & (numbers[own[1:]] == numbers[own[:-1]])
    following = int(numbers.max(initial=-1)) + 1
    for stream in np.unique(numbers[own[1:][beside]]):
        at = np.flatnonzero(numbers[own] == stream)
        free: list[int] = []
        for row in at.tolist():
            lane = next(
                (n for n, until in enumerate(free) if until <= start[row] + _TOGETHER_NS), len(free)
            )
            free[lane : lane + 1] = [int(end[row])]
            numbers[own[row]] = stream if not lane else following + lane - 1
        following += len(free) - 1
    return numbers


def launches_in_order(kernels: pd.DataFrame) -> Integers:
    """Return the launches (ns) as each stream runs them: none behind one that started later.

    One that was not recorded is that of the kernel before on its stream, else of the first known
    one behind; -1 where the stream has none. A device that is 30 ms behind the host does not say
    by its own clock what the host did.
    """
    start = kernels["start_ns"].to_numpy()
    # Relative times: those since the epoch are no whole numbers of a float.
    origin = int(start.min()) if len(start) else 0
    recorded = kernels["launch_ns"].to_numpy()
    launched = np.where(recorded < 0, np.nan, (recorded - origin).astype(np.float64))
    streams = stream_numbers(kernels)
    order = np.lexsort((start, streams))
    stream = streams[order]
    later = pd.Series(launched[order])[::-1].groupby(stream[::-1]).cummin()[::-1]
    filled = later.groupby(stream).ffill().groupby(stream).bfill().to_numpy()
    found = np.full(len(start), -1, np.int64)
    known = ~np.isnan(filled)
    found[order[known]] = filled[known].astype(np.int64) + origin
    return found
