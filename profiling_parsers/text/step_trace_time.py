"""step_trace_time.csv: how each step splits into compute, communication and idle time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.kernels.cells import step_ids
from npufix.profiling_parsers.tables.side_csv import read_side_csv

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from npufix.profiling_parsers.profile import Problem
    from npufix.profiling_parsers.tables.side_csv import SideCsv

_COLUMNS = {
    "computing_ns": ("Computing",),
    "communication_exposed_ns": ("Communication(Not Overlapped)",),
    "overlapped_ns": ("Overlapped",),
    "communication_ns": ("Communication",),
    "free_ns": ("Free",),
}
_STAGE = {"stage_ns": ("Stage",), "bubble_ns": ("Bubble",), "preparing_ns": ("Preparing",)}
_NAMES = {"device": ("Device_id",), "step": ("Step",), **_COLUMNS, **_STAGE}
_ROUNDING_NS = 2_000  # the profiler takes the ends of a step as float64 microseconds
_LARGEST_DEVICE = 2**31


def read_step_trace_time(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read steps from their first kernel on, and what is wrong with them.

    Raise ``DumpError`` if the file is none.

    A row whose numbers contradict each other is malformed: which of them is wrong is unknown.
    """
    file = read_side_csv(path, _NAMES, required=("step", *_COLUMNS), categories=("step",))
    # Of two steps that a collective spans, one has its exposed part: overlapped may be negative.
    times = {key: file.signed_ns(key) for key in _COLUMNS}
    values = {key: nanoseconds for key, (nanoseconds, _) in times.items()}
    positive = [values[key] >= 0 for key in _COLUMNS if key != "overlapped_ns"]
    step = file.category("step")
    number, device = step_ids(step), _device(file)
    valid = np.logical_and.reduce(
        [
            *(valid for _, valid in times.values()),
            *positive,
            ~number.isna() | (np.asarray(step) == ""),
            _adds_up(values),
            _fits(file, values, device),
        ]
    )
    stated = {key: _read_stated(file, key) for key in ("bubble_ns", "preparing_ns")}
    frame = pd.DataFrame({"step": number, "device": device.astype(np.int32), **values, **stated})
    whole = file.whole(valid)
    return frame[whole].reset_index(drop=True), file.problems(whole)


def _device(file: SideCsv) -> NDArray[np.int64]:
    """Return the device of each row; the profiler, too, writes -1 where it does not know."""
    if "device" not in file:
        return np.full(len(file.columns), -1, np.int64)
    device = file.number("device")
    known = (device >= 0) & (device < _LARGEST_DEVICE)
    return np.where(known, device, -1).astype(np.int64)


def _read_stated(file: SideCsv, column: str) -> NDArray[np.int64]:
    """Return how long each row received from other stages or prepared, -1 where it is not said."""
    if column not in file:
        return np.full(len(file.columns), -1, np.int64)
    spent, valid = file.signed_ns(column)
    return np.where(valid & (spent >= 0), spent, -1).astype(np.int64)


def _adds_up(ns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Return where the exposed and the overlapped part are all of the communication."""
    parts = ns["communication_exposed_ns"] + ns["overlapped_ns"]
    return np.abs(ns["communication_ns"] - parts) <= _ROUNDING_NS


def _fits(
    file: SideCsv, ns: Mapping[str, NDArray[np.int64]], device: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return where compute, exposed communication and idle time fit into the step.

    They never overlap on one device. They need not fill the step: the exposed part of a
    collective may belong to the next one. Where the device is unknown, a row may hold several.
    """
    if "stage_ns" not in file or "bubble_ns" not in file:
        return np.ones(len(device), np.bool_)
    stage, has_stage = file.signed_ns("stage_ns")
    bubble, has_bubble = file.signed_ns("bubble_ns")
    parts = ns["computing_ns"] + ns["communication_exposed_ns"] + ns["free_ns"]
    fits: NDArray[np.bool_] = parts <= stage + bubble + _ROUNDING_NS
    return (has_stage & has_bubble & fits) | (device < 0)
