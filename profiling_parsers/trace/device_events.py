"""Which event of a trace each kernel is, by name and start, and how far apart their clocks are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.tables.time_index import TimeIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_EARLIEST_EPOCH_NS = 10**18
"""2001: a trace whose times are smaller counts from its own start."""
SAME_NS = 500
"""Times of one event differ by this much: collectives by a rounding, others where a float64 took
the epoch. No kernel is that short."""


def find_device_events(
    names: Integers, starts: Integers, device: pd.DataFrame
) -> tuple[int | None, Integers]:
    """Return what to add to a time of the trace to get one of the kernels, None if unknown.

    And, for each kernel, the row of its event in the trace; -1 where it has none.
    """
    index = TimeIndex(device["kernel"].to_numpy().astype(np.int64), device["start_ns"].to_numpy())
    events = index.nearest(names, starts, SAME_NS)
    if (events >= 0).any():
        return 0, events
    offset = _clock_offset(pd.DataFrame({"kernel": names, "start_ns": starts}), device)
    return offset, events if offset is None else index.nearest(names, starts - offset, SAME_NS)


def _clock_offset(kernels: pd.DataFrame, device: pd.DataFrame) -> int | None:
    """Return the offset of a trace that counts from its own start, None if there is none.

    The n-th event of a name is the n-th kernel of that name, and the difference that most of
    them agree on is the offset.
    """
    if device["start_ns"].max() >= _EARLIEST_EPOCH_NS:
        return None
    pairs = [
        frame.sort_values("start_ns", kind="stable").assign(
            nth=lambda rows: rows.groupby("kernel").cumcount()
        )
        for frame in (kernels, device[["kernel", "start_ns"]])
    ]
    paired = pairs[0].merge(pairs[1], on=["kernel", "nth"])
    offsets = (paired["start_ns_x"] - paired["start_ns_y"]).value_counts()
    if offsets.empty or 2 * offsets.iloc[0] < len(paired):
        return None
    return int(offsets.index[0])
