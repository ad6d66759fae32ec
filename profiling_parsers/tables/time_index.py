"""Look-up of rows by a group and a time, many at once; int64 throughout, so exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_BLOCK_ROWS = 1 << 18


class TimeIndex:
    """Rows with a group (any integers) and a time. Of rows alike in both, the first counts."""

    def __init__(self, groups: Integers, times: Integers) -> None:
        self._groups, self._times = np.sort(groups), np.sort(times)
        keys = self._keys(groups, times)
        self._rows = np.argsort(keys, kind="stable")
        self._sorted = keys[self._rows]
        self._row_groups, self._row_times = groups, times

    def nearest(self, groups: Integers, times: Integers, within: int) -> Integers:
        """Return the row of each group nearest to each time, -1 if none is ``within`` that."""
        return _in_blocks(lambda g, t: self._nearest(g, t, within), groups, times)

    def _nearest(self, groups: Integers, times: Integers, within: int) -> Integers:
        keys = self._keys(groups, times)
        after = np.searchsorted(self._sorted, keys)
        before = self._first_alike(after - 1)
        found = [self._check_group(places, groups) for places in (after, before)]
        apart = [self._apart(rows, times) for rows in found]
        rows = np.where(apart[0] <= apart[1], *found)
        return np.where(np.minimum(*apart) <= within, rows, -1)

    def last(self, groups: Integers, times: Integers) -> Integers:
        """Return the last row of each group that is not later than each time, -1 if none is."""
        return _in_blocks(self._last, groups, times)

    def _last(self, groups: Integers, times: Integers) -> Integers:
        keys = self._keys(groups, times, after=True)
        before = self._first_alike(np.searchsorted(self._sorted, keys) - 1)
        return self._check_group(before, groups)

    def _keys(self, groups: Integers, times: Integers, *, after: bool = False) -> Integers:
        """Order rows by group, then by time: ranks, because the values do not fit one int64."""
        group = np.searchsorted(self._groups, groups)
        rank = np.searchsorted(self._times, times, side="right" if after else "left")
        return group * (len(self._times) + 1) + rank

    def _first_alike(self, places: Integers) -> Integers:
        """Return the first of the places with the same group and time as those given."""
        first = np.searchsorted(self._sorted, self._sorted[places]) if len(self._sorted) else places
        return np.where(places >= 0, first, -1)

    def _check_group(self, places: Integers, groups: Integers) -> Integers:
        """Return the rows at the places that lie in the group asked for, else -1."""
        rows = np.full(len(places), -1, np.int64)
        inside = np.flatnonzero((places >= 0) & (places < len(self._sorted)))
        found = self._rows[places[inside]]
        of_group = self._row_groups[found] == groups[inside]
        rows[inside[of_group]] = found[of_group]
        return rows

    def _apart(self, rows: Integers, times: Integers) -> Integers:
        """Return the time between, the largest int64 where there is no row."""
        apart = np.full(len(rows), np.iinfo(np.int64).max)
        known = rows >= 0
        apart[known] = np.abs(self._row_times[rows[known]] - times[known])
        return apart


def _in_blocks(
    look_up: Callable[[Integers, Integers], Integers], groups: Integers, times: Integers
) -> Integers:
    """Look up a block of rows at a time: many columns are made of each."""
    found = np.empty(len(times), np.int64)
    for first in range(0, len(times), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        found[block] = look_up(groups[block], times[block])
    return found


def number_threads(*frames: pd.DataFrame) -> list[Integers]:
    """Return numbers of the pairs of ``pid`` and ``tid`` in several frames, alike in all."""
    pids, tids = (
        pd.factorize(np.concatenate([frame[name].to_numpy() for frame in frames]))[0]
        for name in ("pid", "tid")
    )
    codes = pids.astype(np.int64) * (int(tids.max(initial=0)) + 1) + tids
    return np.split(codes, np.cumsum([len(frame) for frame in frames])[:-1])


def pair_in_order(wanted: Integers, offered: Integers) -> Integers:
    """Return, for the n-th row of an id, the n-th offered row of that id, -1 if there is none."""
    order = np.argsort(wanted, kind="stable")
    ids = wanted[order]
    nth = np.empty(len(wanted), np.int64)
    nth[order] = np.arange(len(ids)) - np.searchsorted(ids, ids)
    rows = np.argsort(offered, kind="stable")
    ids = offered[rows]
    at = np.searchsorted(ids, wanted) + nth
    found = np.full(len(wanted), -1, np.int64)
    inside = np.flatnonzero(at < len(ids))
    inside = inside[ids[at[inside]] == wanted[inside]]
    found[inside] = rows[at[inside]]
    return found
