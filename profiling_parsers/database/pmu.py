"""TASK_PMU_INFO of a db export: a row per task and counter, to the bound of each kernel.

Of a table that is larger than ``_MOST_PAGES``, only the counters of some stretches of tasks are
read, evenly spread over the run: the kernels between have no bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.query import Query
from npufix.profiling_parsers.database.texts import Lookup
from npufix.profiling_parsers.kernels.pmu_bound import (
    UTILISATION,
    dominant_pipe,
    is_pipe_ratio,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.query import Columns
    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts

    Integers = NDArray[np.int64]
    Booleans = NDArray[np.bool_]
    Ratios = NDArray[np.float32]

COUNTERS = "TASK_PMU_INFO"
_COLUMNS = {"task": ("globalTaskId",), "name": ("name",), "value": ("value",)}
_COUNTERS = Query(
    COUNTERS,
    _COLUMNS,
    required=tuple(_COLUMNS),
    dtypes={"name": np.int32, "value": np.float64},
)
_MOST_PAGES = 1 << 14
"""About three million counters, a quarter of a second."""
_STRETCHES = 32
_LARGEST = 1e6  # far above any ratio, be it in percent


def read_bounds(
    database: Database, texts: Texts, task: Integers, types: pd.Categorical[str]
) -> tuple[pd.Categorical[str], Ratios]:
    """Return ``bound`` and ``bound_ratio`` of each kernel; ``task`` is its globalTaskId."""
    wanted = texts.where(lambda name: is_pipe_ratio(name) or name == UTILISATION)
    ratios = {number: np.full(len(task), np.nan, np.float32) for number in wanted.tolist()}
    kernel_of, names = Lookup(task), Lookup(wanted)
    some = _Stretches(names)
    for block in database.blocks(replace(_COUNTERS, only={"name": names}, sample=some.pages)):
        kernel = np.where(some.holds(block["task"]), kernel_of(block["task"]), -1)
        for number in pd.unique(block["name"]).tolist():  # mostly one: they are written by name
            rows = (block["name"] == number) & (kernel >= 0) & (np.abs(block["value"]) < _LARGEST)
            ratios[number][kernel[rows]] = block["value"][rows]
    named = {texts[number].strip(): ratio for number, ratio in ratios.items()}
    return dominant_pipe(named, types)


class _Stretches:
    """The tasks whose counters are read: all of them, unless they are on too many pages."""

    def __init__(self, wanted: Lookup) -> None:
        self._wanted = wanted
        self._first, self._period, self._length = 0, 1, 1

    def pages(self, first: Columns) -> Booleans:
        """Return which pages to read, given the first row of each."""
        task, name = first["task"], first["name"]
        if len(task) <= _MOST_PAGES:
            return np.ones(len(task), np.bool_)
        by_name = np.count_nonzero(np.diff(name)) < len(np.unique(name))
        # Each counter for all tasks, or all counters of one task after the other.
        goes_on = np.append(np.diff(task) >= 0, False)
        if by_name:
            goes_on[:-1] &= name[1:] == name[:-1]
            worth = (self._wanted(name) >= 0) | ~goes_on
        else:
            worth = np.ones(len(task), np.bool_)
        if np.count_nonzero(~goes_on) > len(np.unique(name)):
            return np.zeros(len(task), np.bool_)  # in no order
        self._choose(int(task.min()), int(task.max()), _MOST_PAGES / np.count_nonzero(worth))
        stretch = (task - self._first) // self._period
        reaches_next = np.append(stretch[1:] > stretch[:-1], True)
        chosen: Booleans = worth & (self.holds(task) | reaches_next | ~goes_on)
        return chosen

    def holds(self, task: Integers) -> Booleans:
        """Return whether the counters of a task are read, all of them."""
        inside: Booleans = (task - self._first) % self._period < self._length
        return inside

    def _choose(self, first: int, last: int, share: float) -> None:
        self._first = first
        self._period = max((last - first) // _STRETCHES, 1)
        self._length = max(int(self._period * min(share, 1)), 1)
