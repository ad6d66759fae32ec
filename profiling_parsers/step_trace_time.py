"""step_trace_time.csv: how each step splits into compute, communication and idle time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.csv_columns import read_columns
from npufix.profiling_parsers.exact_time import duration_ns
from npufix.profiling_parsers.kernel_details import step_ids

if TYPE_CHECKING:
    from pathlib import Path

_COLUMNS = {
    "computing_ns": ("Computing",),
    "communication_exposed_ns": ("Communication(Not Overlapped)",),
    "overlapped_ns": ("Overlapped",),
    "communication_ns": ("Communication",),
    "free_ns": ("Free",),
}


def no_steps() -> pd.DataFrame:
    """Return the table of a dump that does not say how its steps split."""
    empty = {column: np.empty(0, np.int64) for column in _COLUMNS}
    return pd.DataFrame({"step": pd.array([], dtype="Int64"), **empty})


def read_step_trace_time(path: Path) -> pd.DataFrame:
    """Read ``Profile.steps``; raise ``DumpError`` if the file is none."""
    names = {"step": ("Step",), **_COLUMNS}
    columns = read_columns(path, names, required=tuple(_COLUMNS), plain=tuple(_COLUMNS))
    times = {key: duration_ns(columns.text(key)) for key in _COLUMNS}
    usable = np.logical_and.reduce([valid for _, valid in times.values()])
    values = {key: nanoseconds for key, (nanoseconds, _) in times.items()}
    frame = pd.DataFrame({"step": step_ids(columns.category("step")), **values})
    return frame[usable].reset_index(drop=True)
