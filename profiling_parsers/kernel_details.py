"""kernel_details.csv: one row per device task, in every header that the profiler has written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.csv_columns import read_columns
from npufix.profiling_parsers.exact_time import duration_ns, epoch_ns
from npufix.profiling_parsers.profile import DumpError

if TYPE_CHECKING:
    from pathlib import Path

# key -> spellings: of the PyTorch profiler, of msprof's op_summary, of MindStudio's db converter.
_COLUMNS = {
    "step": ("Step Id",),
    "name": ("Name", "Op Name", "op_name"),
    "type": ("Type", "OP Type", "op_type"),
    "core": ("Accelerator Core", "Task Type", "task_type"),
    "start": ("Start Time(us)", "Task Start Time(us)", "task_start_time"),
    "duration": ("Duration(us)", "Task Duration(us)", "task_duration"),
    "wait": ("Wait Time(us)", "Task Wait Time(us)", "task_wait_time"),
    "input_shapes": ("Input Shapes", "input_shapes"),
    "input_dtypes": ("Input Data Types", "input_data_types"),
    "output_shapes": ("Output Shapes", "output_shapes"),
}
_REQUIRED = ("name", "type", "core", "start", "duration")
_TIMES = ("start", "duration", "wait")

COMMUNICATION_CORES = frozenset({"HCCL", "COMMUNICATION"})
"""Accelerator Core of collectives: the first before CANN 8, the second since."""


@dataclass(frozen=True)
class Kernels:
    """The rows, with the columns of ``Profile.kernels`` that this file has, in start order."""

    frame: pd.DataFrame
    malformed: int
    """Number of rows left out: a wrong number of fields, or no time where one must be."""


def read_kernel_details(path: Path) -> Kernels:
    """Read the kernels; raise ``DumpError`` if there is none to read."""
    columns = read_columns(path, _COLUMNS, required=_REQUIRED, plain=_TIMES)
    start, has_start = epoch_ns(columns.text("start"))
    duration, has_duration = duration_ns(columns.text("duration"))
    wait, _ = duration_ns(columns.text("wait"))
    core = columns.category("core")
    frame = pd.DataFrame(
        {
            "step": step_ids(columns.category("step")),
            "name": columns.category("name"),
            "type": columns.category("type"),
            "core": core,
            "start_ns": start,
            "duration_ns": duration,
            "wait_ns": wait,
            "input_shapes": columns.category("input_shapes", without_quotes),
            "input_dtypes": columns.category("input_dtypes", without_quotes),
            "output_shapes": columns.category("output_shapes", without_quotes),
            "communication": np.isin(core.codes, _codes_of(core, COMMUNICATION_CORES)),
        }
    )
    usable = has_start & has_duration & (duration >= 0)
    frame = frame if usable.all() else frame[usable]
    if frame.empty:
        raise DumpError(
            f"{path}: no kernels",
            "profile at least one step with ProfilerActivity.NPU in activities; if it was, "
            + remedies.analyse(path.parent.parent),
        )
    return Kernels(
        frame=frame.sort_values("start_ns", kind="stable", ignore_index=True),
        malformed=columns.malformed + int(np.count_nonzero(~usable)),
    )


def step_ids(texts: pd.Categorical[str]) -> pd.arrays.IntegerArray:
    """Return step numbers, <NA> where there is none (no schedule, or outside of the steps)."""
    numbers = pd.to_numeric(pd.Series(texts.categories, dtype=object), errors="coerce")
    whole = numbers.where((numbers % 1 == 0) & (numbers.abs() < 2**53))
    values = whole.to_numpy(np.float64)[texts.codes]
    missing = np.isnan(values)
    return pd.arrays.IntegerArray(np.where(missing, 0, values).astype(np.int64), missing)


def _codes_of(column: pd.Categorical[str], values: frozenset[str]) -> list[int]:
    return [code for code, value in enumerate(column.categories) if value in values]


def without_quotes(text: str) -> str:
    """Return a shape list without the quotes that are part of the cell; N/A is none."""
    bare = text.strip().strip('"')
    return "" if bare == "N/A" else bare
