"""Steps of a db export: which kernels belong to one, and how each splits (analysis.db)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.query import LATEST_NS, Query
from npufix.profiling_parsers.kernels.steps import no_steps
from npufix.profiling_parsers.tables.columns import NONE
from npufix.profiling_parsers.tables.exact_time import LARGEST_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.kernels.whole_steps import Marks

    Integers = NDArray[np.int64]

STEPS, SPLIT = "STEP_TIME", "StepTraceTime"
_STEPS = Query(
    STEPS,
    {"step": ("id",), "start_ns": ("startNs",), "end_ns": ("endNs",)},
    required=("step", "start_ns", "end_ns"),
)
# In microseconds, as in step_trace_time.csv.
_SPLIT = {
    "computing_ns": ("computing",),
    "communication_exposed_ns": ("communication_not_overlapped",),
    "overlapped_ns": ("overlapped",),
    "communication_ns": ("communication",),
    "free_ns": ("free",),
}
_STATED = ("bubble_ns", "preparing_ns")
_SPLITS = Query(
    SPLIT,
    {"device": ("deviceId",), **_SPLIT, "bubble_ns": ("bubble",), "preparing_ns": ("preparing",)},
    required=tuple(_SPLIT),
    dtypes={"device": np.int32, **dict.fromkeys((*_SPLIT, *_STATED), np.float64)},
)
_NUMBER = re.compile("-?[0-9]{1,18}")
_ROUNDING_US = 2  # the profiler takes the ends of a step as float64 microseconds


def find_kernel_steps(
    database: Database, kernels: pd.DataFrame, launched_ns: Integers
) -> pd.arrays.IntegerArray:
    """Return the step of each kernel, <NA> outside of all.

    STEP_TIME is the time on the host, and the device lags behind. As in the text export, a step
    goes from the first kernel that was launched in it to the end of the last, or of the step.
    ``launched_ns`` is when the operator of each kernel started, -1 if unknown.
    """
    steps = pd.DataFrame(database.columns(_STEPS))
    steps = steps.sort_values("start_ns", kind="stable")
    steps = steps[(steps["step"] != NONE) & (steps["start_ns"] > 0) & (steps["end_ns"] < LATEST_NS)]
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


def read_marks(database: Database) -> Marks:
    """Return begin and end of each step on the host."""
    steps = pd.DataFrame(database.columns(_STEPS))
    rows = steps[(steps["step"] != NONE) & (steps["start_ns"] > 0) & (steps["end_ns"] < LATEST_NS)]
    return {
        int(step): (int(start), int(end))
        for step, start, end in rows[["step", "start_ns", "end_ns"]].itertuples(index=False)
    }


def read_split(analysis: Database) -> pd.DataFrame:
    """Read steps from their first kernel on.

    A row whose numbers contradict each other is left out, and told.
    """
    rows = analysis.columns(_SPLITS)
    count = len(rows["device"])
    if not count:
        return no_steps()
    names = [name for (name,) in analysis.values(SPLIT, {"step": ("step",)}, "TEXT")]
    # Without a schedule there is no step, and without the column there are no names.
    texts = [(name or "").strip() for name in names] if len(names) == count else [""] * count
    step = pd.array([int(text) if _NUMBER.fullmatch(text) else None for text in texts], "Int64")
    usable = np.logical_and.reduce([np.abs(rows[key]) < LARGEST_US for key in _SPLIT])
    usable &= np.logical_and.reduce([rows[key] >= 0 for key in _SPLIT if key != "overlapped_ns"])
    parts = rows["communication_exposed_ns"] + rows["overlapped_ns"]
    usable &= np.abs(rows["communication_ns"] - parts) <= _ROUNDING_US
    if malformed := int(np.count_nonzero(~usable)):
        analysis.damaged(f"{malformed} of {count} rows of {SPLIT} are malformed and left out")
    times = {key: np.rint(np.where(usable, rows[key], 0) * 1000).astype(np.int64) for key in _SPLIT}
    for key in _STATED:
        stated = (rows[key] >= 0) & (rows[key] < LARGEST_US)  # not NaN
        spent = np.rint(np.where(stated, rows[key], 0) * 1000).astype(np.int64)
        times[key] = np.where(stated, spent, -1)
    frame = pd.DataFrame({"step": step, "device": rows["device"].clip(NONE), **times})
    return frame[usable].reset_index(drop=True)
