"""Kernels of a db export: COMPUTE_TASK_INFO with the times of TASK, and COMMUNICATION_OP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.csv_columns import category
from npufix.profiling_parsers.db_tables import NONE, positions
from npufix.profiling_parsers.kernel_details import without_quotes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.db_tables import Database, Texts

    Integers = NDArray[np.int64]

TASK, COMPUTE, COMMUNICATION = "TASK", "COMPUTE_TASK_INFO", "COMMUNICATION_OP"
_TIMES = {
    "start_ns": ("startNs",),
    "end_ns": ("endNs",),
    "connection": ("connectionId",),
}
_TASK = {**_TIMES, "task": ("globalTaskId",)}
_COMPUTE = {
    "task": ("globalTaskId",),
    "name": ("name",),
    "type": ("opType",),
    "core": ("taskType",),
    "input_shapes": ("inputShapes",),
    "input_dtypes": ("inputDataTypes",),
    "output_shapes": ("outputShapes",),
}
_COMMUNICATION = {**_TIMES, "name": ("opName",), "type": ("opType",)}
_COLUMNS = [*_TIMES, *(key for key in _COMPUTE if key != "task"), "communication"]
_LATEST_NS = 1 << 62

# TASK has the names of the driver where the text export has those of the hardware.
_CORES = {
    "KERNEL_AICORE": "AI_CORE",
    "KERNEL_AIVEC": "AI_VECTOR_CORE",
    "KERNEL_AICPU": "AI_CPU",
    "KERNEL_MIX_AIC": "MIX_AIC",
    "KERNEL_MIX_AIV": "MIX_AIV",
}


@dataclass(frozen=True)
class DatabaseKernels:
    """The kernels in start order, with the columns of ``Profile.kernels`` but for ``step``."""

    frame: pd.DataFrame
    connection: Integers
    """What leads from each kernel to its operator."""
    malformed: int
    """Number of kernels left out: no task, or no time where one must be."""


def read_kernels(database: Database, texts: Texts, collective_core: str) -> DatabaseKernels:
    """Read the kernels; ``collective_core`` is the Accelerator Core that collectives get."""
    tasks = database.integers(TASK, _TASK, required=("start_ns", "end_ns", "task"))
    compute = database.integers(COMPUTE, _COMPUTE, required=("task",))
    rows = positions(compute["task"].to_numpy(), tasks["task"].to_numpy())
    for key in _TIMES:
        times = np.append(tasks[key].to_numpy(), NONE)  # the last one is for "no task"
        compute[key] = times[rows]
    collectives = database.integers(COMMUNICATION, _COMMUNICATION, required=("start_ns", "end_ns"))
    both = pd.concat(
        [
            compute.assign(communication=False)[_COLUMNS],
            collectives.assign(communication=True).reindex(columns=_COLUMNS, fill_value=NONE),
        ],
        ignore_index=True,
    )
    start, end = both["start_ns"], both["end_ns"]
    usable = (start > 0) & (end >= start) & (end < _LATEST_NS)
    kernels = both if usable.all() else both[usable]
    kernels = kernels.sort_values("start_ns", kind="stable", ignore_index=True)
    return DatabaseKernels(
        frame=_named(kernels, texts, collective_core),
        connection=kernels["connection"].to_numpy(),
        malformed=int(np.count_nonzero(~usable)),
    )


def _named(kernels: pd.DataFrame, texts: Texts, collective_core: str) -> pd.DataFrame:
    def column(key: str) -> Integers:
        return kernels[key].to_numpy()

    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    communication = kernels["communication"].to_numpy()
    return pd.DataFrame(
        {
            "name": texts.category(column("name")),
            "type": texts.category(column("type")),
            "core": _cores(texts.category(column("core"), _core), communication, collective_core),
            "start_ns": start,
            "duration_ns": end - start,
            "wait_ns": np.append(0, start[1:] - end[:-1]).clip(min=0)[: len(start)],
            "input_shapes": texts.category(column("input_shapes"), without_quotes),
            "input_dtypes": texts.category(column("input_dtypes"), without_quotes),
            "output_shapes": texts.category(column("output_shapes"), without_quotes),
            "communication": communication,
        }
    )


def _core(text: str) -> str:
    return _CORES.get(text.strip(), text.strip())


def _cores(
    cores: pd.Categorical[str], communication: NDArray[np.bool_], collective: str
) -> pd.Categorical[str]:
    """Give collectives, which the file says nothing of, their core."""
    names = list(cores.categories)
    if collective not in names:
        names.append(collective)
    return category(np.where(communication, names.index(collective), cores.codes), names)
