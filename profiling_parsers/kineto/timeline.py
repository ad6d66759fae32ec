"""Which of the intervals on a thread is the innermost at a moment, also where they do not nest.

Host operators of one thread nest, but traces round their times, and operators that end on another
thread overlap their neighbours. The innermost is the one that started last of those still open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.tables.columns import find_distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class ThreadTimeline:
    """The innermost interval of each thread at each moment; unknown rows are -1.

    ``threads``, ``starts``, ``durations``: int64, one value per interval. An interval of no
    length counts as 1 ns. Of two that start together, the shorter one is inside.
    """

    def __init__(self, threads: Integers, starts: Integers, durations: Integers) -> None:
        order = np.lexsort((-durations, starts))
        ends = starts + durations.clip(min=1)
        self._moments = find_distinct(np.concatenate([starts, ends]))
        places = np.concatenate([self._place(threads, starts), self._place(threads, ends)])
        self._places = find_distinct(places)
        segments = np.searchsorted(self._places, places)
        firsts, lasts = segments[: len(starts)][order], segments[len(starts) :][order]
        top = _topmost(firsts, lasts, len(self._places))
        self._rows = np.where(top >= 0, order[top] if len(order) else top, -1)

    def at(self, threads: Integers, moments: Integers) -> Integers:
        """Return the row of the innermost interval of each thread at each moment."""
        if not len(self._places):
            return np.full(len(moments), -1, np.int64)
        segments = np.searchsorted(self._places, self._place(threads, moments), side="right") - 1
        # A segment after the end of the last interval of the thread before holds none.
        return np.where(segments >= 0, self._rows[segments.clip(min=0)], -1)

    def innermost_ns(self, count: int) -> Integers:
        """Return for each of the ``count`` intervals how long it was the innermost one."""
        moments = self._moments[self._places % len(self._moments)] if len(self._places) else None
        total = np.zeros(count, np.int64)
        if moments is not None:
            inside = np.flatnonzero(self._rows[:-1] >= 0)
            np.add.at(total, self._rows[inside], moments[inside + 1] - moments[inside])
        return total

    def _place(self, threads: Integers, moments: Integers) -> Integers:
        """Return one number per thread and moment, ordered by both."""
        ranks = np.searchsorted(self._moments, moments, side="right") - 1
        return np.asarray(threads * len(self._moments) + ranks, np.int64)


def _topmost(firsts: Integers, lasts: Integers, segments: int) -> Integers:
    """Return for each segment the last of the intervals ``[first, last)`` over it, -1 if none.

    Each interval is laid as two overlapping runs of a power of two, runs are then halved until
    they are single segments: n log n in all, and every pass is one over arrays.
    """
    levels = np.frexp((lasts - firsts).astype(np.float64))[1] - 1
    top = np.full(segments, -1, np.int64)
    numbers = np.arange(len(firsts))
    for level in range(int(levels.max(initial=0)), -1, -1):
        laid = np.flatnonzero(levels == level)
        np.maximum.at(top, firsts[laid], numbers[laid])
        np.maximum.at(top, lasts[laid] - (1 << level), numbers[laid])
        if level:
            half = 1 << (level - 1)
            halved = top.copy()
            np.maximum(halved[half:], top[:-half], out=halved[half:])
            top = halved
    return top
