"""data_preprocess.csv: where the time of the tasks on the AI CPU goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.tables.side_csv import read_side_csv

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.profile import Problem
    from npufix.profiling_parsers.tables.side_csv import Checked, SideCsv

# The unit is in the name of each column: older versions mix milliseconds and microseconds.
_TIMES = {
    "compute_ns": ("Compute_time",),
    "memcpy_ns": ("Memcpy_time",),
    "task_ns": ("Task_time",),
    "dispatch_ns": ("Dispatch_time",),
    "total_ns": ("Total_time",),
}
_EARLIEST_NS = 10**17  # 1973: what is less counts in milliseconds, or from another moment
_COLUMNS = {"node": ("Node",), "start": ("Timestamp",), **_TIMES}


def read_data_preprocess(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read ``Signals.aicpu`` and what is wrong with it; raise ``DumpError`` if it is none."""
    file = read_side_csv(path, _COLUMNS, required=tuple(_COLUMNS), categories=("node",))
    start, started = _start_ns(file)
    times = {key: file.duration_ns(key, optional=True) for key in _TIMES}
    valid = np.logical_and.reduce([started, *(valid for _, valid in times.values())])
    values = {key: nanoseconds for key, (nanoseconds, _) in times.items()}
    columns = {"node": file.category("node"), "start_ns": start, **values}
    return file.frame("aicpu", columns, valid)


def _start_ns(file: SideCsv) -> Checked:
    """Return when each task started; the oldest column is called ``Timestamp``, without a unit."""
    start, valid = file.moment_ns("start", optional=True)
    if not file.units["start"]:
        milliseconds = (start < _EARLIEST_NS) & (start >= _EARLIEST_NS // 1000)
        start = np.where(milliseconds, start * np.where(milliseconds, 1000, 1), start)
    return np.where(start < _EARLIEST_NS, -1, start), valid
