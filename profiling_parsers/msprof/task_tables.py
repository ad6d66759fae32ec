"""Tables that msprof alone writes: task_time_*.csv and step_trace_*.csv.

task_time_*.csv has every task of the device, of which the kernels are taken. msprof writes it at
every level, so it stands in where there is no op_summary. It knows no shapes and no Types, and of a
collective only the copies and waits that it is made of. The iterations of a graph, in
step_trace_*.csv, give the kernels their steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.tables.side_csv import read_side_csv
from npufix.profiling_parsers.text.kernel_details import Kernels, read_kernel_table

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.profile import Problem

_STEPS = {
    "step": ("Iteration ID",),
    "end": ("Iteration End",),
    "duration": ("Iteration Time",),
    "model": ("Model ID",),
}
_TASKS = {
    "device": ("Device_id",),
    "stream": ("stream_id",),
    "name": ("kernel_name",),
    "core": ("kernel_type",),
    "start": ("task_start(us)",),
    "duration": ("task_time(us)",),
}
_REQUIRED = ("name", "core", "start", "duration")

# kernel_type -> Accelerator Core. The second spelling is of newer chips.
_CORES = {
    "AI_CORE": "AI_CORE",
    "KERNEL_AICORE": "AI_CORE",
    "AI_VECTOR_CORE": "AI_VECTOR_CORE",
    "KERNEL_AIVEC": "AI_VECTOR_CORE",
    "MIX_AIC": "MIX_AIC",
    "KERNEL_MIX_AIC": "MIX_AIC",
    "MIX_AIV": "MIX_AIV",
    "KERNEL_MIX_AIV": "MIX_AIV",
    "AI_CPU": "AI_CPU",
    "KERNEL_AICPU": "AI_CPU",
    "DSA_SQE": "DSA_SQE",
    "DSA": "DSA_SQE",
}


def read_task_time(path: Path) -> Kernels:
    """Read the kernels among the tasks, in the order of the file.

    Raise ``DumpError`` if there is none.
    """
    tasks = read_kernel_table(path, _TASKS, _REQUIRED)
    core = tasks.frame["core"].cat
    known = [_CORES.get(text, "") for text in core.categories]
    cores = pd.Categorical(np.array(known, object)[core.codes])
    frame = tasks.frame.assign(core=cores)
    return replace(tasks, frame=frame[frame["core"] != ""].reset_index(drop=True))


def find_iterations(
    kernels: pd.DataFrame, path: Path
) -> tuple[pd.arrays.IntegerArray, list[Problem]]:
    """Return the iteration in which each kernel starts, <NA> outside of all.

    Graphs that run at the same time have iterations of their own: where there are several, no
    step is known.

    Raise ``DumpError`` if the file is none.
    """
    file = read_side_csv(path, _STEPS, required=("step", "end", "duration"), categories=())
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
