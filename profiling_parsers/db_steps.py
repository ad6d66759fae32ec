"""Steps of a db export: which kernels belong to one, and how each splits (analysis.db)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.csv_columns import category
from npufix.profiling_parsers.db_tables import NONE, Database
from npufix.profiling_parsers.kernel_details import step_ids
from npufix.profiling_parsers.step_trace_time import no_steps

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from npufix.profiling_parsers.profile import Problem

    Integers = NDArray[np.int64]

STEPS, SPLIT = "STEP_TIME", "StepTraceTime"
_STEPS = {"step": ("id",), "start_ns": ("startNs",), "end_ns": ("endNs",)}
# In microseconds, as in step_trace_time.csv.
_SPLIT = {
    "computing_ns": ("computing",),
    "communication_exposed_ns": ("communication_not_overlapped",),
    "overlapped_ns": ("overlapped",),
    "communication_ns": ("communication",),
    "free_ns": ("free",),
}
_LARGEST_US = 9.2e15
_LATEST_NS = 1 << 62


def kernel_steps(
    database: Database, kernels: pd.DataFrame, launched_ns: Integers
) -> pd.arrays.IntegerArray:
    """Return the step of each kernel, <NA> outside of all.

    STEP_TIME is the time on the host, and the device lags behind. As in the text export, a step
    goes from the first kernel that was launched in it to the end of the last, or of the step.
    ``launched_ns`` is when the operator of each kernel started, -1 if unknown.
    """
    steps = database.integers(STEPS, _STEPS, required=tuple(_STEPS)).sort_values("start_ns")
    steps = steps[
        (steps["step"] != NONE) & (steps["start_ns"] > 0) & (steps["end_ns"] < _LATEST_NS)
    ]
    starts = kernels["start_ns"].to_numpy()
    ends = starts + kernels["duration_ns"].to_numpy()
    ids = np.zeros(len(kernels), np.int64)
    missing = np.ones(len(kernels), np.bool_)
    launches = np.argsort(launched_ns, kind="stable")
    launch_times = launched_ns[launches]
    for step, start, end in steps.itertuples(index=False):
        first, behind = np.searchsorted(launch_times, [start, end + 1])
        start_on_device, end_on_device = start, end
        if first < behind:
            inside, times = launches[first:behind], launch_times[first:behind]
            start_on_device = starts[inside[times == times[0]]].min()
            end_on_device = max(end, ends[inside[times == times[-1]]].max())
        low = np.searchsorted(starts, start_on_device)
        high = np.searchsorted(starts, end_on_device, side="right")
        own = np.arange(low, high)[missing[low:high]]
        ids[own], missing[own] = step, False
    return pd.arrays.IntegerArray(ids, missing)


def read_split(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read ``Profile.steps``, and what is wrong with it; raise ``DumpError`` if it is no file."""
    with closing(Database(path)) as database:
        times = database.values(SPLIT, _SPLIT, "REAL")
        names = [name for (name,) in database.values(SPLIT, {"step": ("step",)}, "TEXT")]
    if not times:
        return no_steps(), database.problems
    microseconds = np.array(times, np.float64)
    usable: NDArray[np.bool_] = np.all(np.abs(microseconds) < _LARGEST_US, axis=1)
    microseconds[~usable] = 0
    columns = np.rint(microseconds * 1000).astype(np.int64).T
    # Without a schedule there is no step, and without the column there are no names.
    texts = [(name or "").strip() for name in names if len(names) == len(times)]
    distinct, codes = np.unique(texts or [""] * len(times), return_inverse=True)
    step = step_ids(category(codes, distinct.tolist()))
    frame = pd.DataFrame({"step": step, **dict(zip(_SPLIT, columns, strict=True))})
    return frame[usable].reset_index(drop=True), database.problems
