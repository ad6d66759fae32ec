"""step_trace_*.csv: the iterations of a graph, which give the kernels of msprof their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.tables.side_csv import read_side_csv

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.profile import Problem

_COLUMNS = {
    "step": ("Iteration ID",),
    "end": ("Iteration End",),
    "duration": ("Iteration Time",),
    "model": ("Model ID",),
}


def find_iterations(
    kernels: pd.DataFrame, path: Path
) -> tuple[pd.arrays.IntegerArray, list[Problem]]:
    """Return the iteration in which each kernel starts, <NA> outside of all.

    Graphs that run at the same time have iterations of their own: where there are several, no
    step is known.

    Raise ``DumpError`` if the file is none.
    """
    file = read_side_csv(path, _COLUMNS, required=("step", "end", "duration"), categories=())
    step, has_step = file.count("step")
    end, has_end = file.moment_ns("end")
    duration, has_duration = file.duration_ns("duration")
    whole = file.whole(has_step & has_end & has_duration)
    order = np.flatnonzero(whole)[np.argsort(end[whole], kind="stable")]
    ids = np.zeros(len(kernels), np.int64)
    outside = np.ones(len(kernels), np.bool_)
    models = np.unique(file.number("model")) if "model" in file else np.empty(0)
    if len(order) and len(models) < 2:  # noqa: PLR2004 - see above
        starts = kernels["start_ns"].to_numpy()
        last = len(order) - 1
        row = order[np.minimum(np.searchsorted(end[order], starts), last)]
        inside = (starts < end[row]) & (starts >= end[row] - duration[row])
        ids[inside], outside[inside] = step[row][inside], False
    return pd.arrays.IntegerArray(ids, outside), file.problems(whole)
