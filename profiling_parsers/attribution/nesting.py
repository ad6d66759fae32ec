"""Which recorded interval lies directly around which, per thread, without a loop over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.tables.columns import order_of
from npufix.profiling_parsers.tables.time_index import number_threads

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Rows = NDArray[np.int32]


def find_enclosing(intervals: pd.DataFrame) -> Rows:
    """Return the row of the interval directly around each one on its thread, -1 if none.

    ``intervals`` has ``pid``, ``tid``, ``start_ns``, ``duration_ns``. Of two that are alike the
    first is the outer one.
    """
    parents = np.full(len(intervals), -1, np.int32)
    (thread,) = number_threads(intervals)
    by_thread = order_of(thread).astype(np.int32)
    borders = np.cumsum(np.bincount(thread))[:-1]
    del thread
    for rows in np.split(by_thread, borders):
        starts, ends = find_bounds(intervals, rows)
        order = _outermost_first(starts, ends)
        if order is not None:
            rows, starts, ends = rows[order], starts[order], ends[order]  # noqa: PLW2901
        around = _enclosing_on_thread(starts, ends)
        parents[rows] = np.where(around >= 0, rows[around], -1)
    return parents


def find_bounds(
    intervals: pd.DataFrame, rows: Rows | slice = slice(None)
) -> tuple[Integers, Integers]:
    """Return starts and ends; an interval of no length still is inside the one it starts with."""
    starts = intervals["start_ns"].to_numpy()[rows]
    return starts, starts + intervals["duration_ns"].to_numpy()[rows].clip(min=1)


def find_nearest(found: Rows, parents: Rows) -> Rows:
    """Return ``found`` of each row or, where it is negative, of the nearest row around it."""
    result = found.copy()
    rows = np.flatnonzero((found < 0) & (parents >= 0))
    around = parents[rows]
    while len(rows):
        result[rows] = found[around]
        unknown = found[around] < 0
        rows, around = rows[unknown], parents[around[unknown]]
        rows, around = rows[around >= 0], around[around >= 0]
    return result


def _outermost_first(starts: Integers, ends: Integers) -> NDArray[np.intp] | None:
    """Return the order by start and, of those that start together, by end; None if it is so."""
    if (starts[1:] < starts[:-1]).any():
        return np.lexsort((-ends, starts))
    alike = starts[1:] == starts[:-1]
    if not (alike & (ends[1:] > ends[:-1])).any():
        return None
    order = np.arange(len(starts))
    tied = np.flatnonzero(np.append(alike, False) | np.append(False, alike))
    order[tied] = tied[np.lexsort((-ends[tied], starts[tied]))]
    return order


def _enclosing_on_thread(starts: Integers, ends: Integers) -> NDArray[np.intp]:
    """Return the position of the interval around each one; they nest and are in start order.

    The depth of an interval is the number of those that started and have not ended. It grows by
    one at a time: the first of a level behind an outer interval comes directly behind that, and
    the others of the level have the interval around the one before them on it.
    """
    depths = np.arange(len(starts))
    depths -= np.searchsorted(np.sort(ends), starts, side="right")
    by_depth = order_of(depths)
    is_first = np.append(False, depths[1:] > depths[:-1])[by_depth]
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(starts)), 0))
    parents = np.empty_like(by_depth)
    parents[by_depth] = by_depth[firsts] - 1
    parents[depths == 0] = -1
    # Intervals that overlap instead of nesting: go outwards to one that has not ended.
    while len(ended := np.flatnonzero((parents >= 0) & (ends[parents] <= starts))):
        parents[ended] = parents[parents[ended]]
    return parents
