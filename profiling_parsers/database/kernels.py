"""Kernels of a db export: COMPUTE_TASK_INFO with the times of TASK, and COMMUNICATION_OP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.query import LATEST_NS, Query
from npufix.profiling_parsers.database.texts import find_positions, in_start_order
from npufix.profiling_parsers.kernels.cells import clean_shapes, clean_type
from npufix.profiling_parsers.kernels.totals import sum_by_type
from npufix.profiling_parsers.kernels.types import fill_types
from npufix.profiling_parsers.tables.columns import NONE, category, pick
from npufix.profiling_parsers.tables.kernel_times import find_plausible

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.query import Columns
    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts

    Integers = NDArray[np.int64]

TASK, COMPUTE, COMMUNICATION = "TASK", "COMPUTE_TASK_INFO", "COMMUNICATION_OP"
_TIMES = {
    "start_ns": ("startNs",),
    "end_ns": ("endNs",),
    "connection": ("connectionId",),
    "device": ("deviceId",),
    "stream": ("streamId",),
}
_COMPUTE = {
    "task": ("globalTaskId",),
    "name": ("name",),
    "type": ("opType",),
    "core": ("taskType",),
    "input_shapes": ("inputShapes",),
    "input_dtypes": ("inputDataTypes",),
    "output_shapes": ("outputShapes",),
    "state": ("opState",),
}
_COMMUNICATION = {
    "start_ns": ("startNs",),
    "end_ns": ("endNs",),
    "connection": ("connectionId",),
    "name": ("opName",),
    "type": ("opType",),
}
_NAMES = {key: np.int32 for key in _COMPUTE if key != "task"}
_TASKS = Query(
    TASK,
    {**_TIMES, "task": ("globalTaskId",)},
    required=("start_ns", "end_ns", "task"),
    expected=("connection",),
    dtypes={"device": np.int32, "stream": np.int32},
)
_TIMES_ONLY = replace(
    _TASKS, columns={key: _TASKS.columns[key] for key in _TASKS.required}, expected=()
)
_KERNELS = Query(
    COMPUTE, _COMPUTE, required=("task",), expected=("name", "type", "core"), dtypes=_NAMES
)
_TYPES = replace(_KERNELS, columns={key: _COMPUTE[key] for key in ("task", "name", "type", "core")})
_COLLECTIVES = Query(COMMUNICATION, _COMMUNICATION, required=("start_ns", "end_ns"), dtypes=_NAMES)
_SHAPES = ("input_shapes", "input_dtypes", "output_shapes")

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
    """The kernels in start order, with those columns of ``Profile.kernels`` that TASK is for."""

    frame: pd.DataFrame
    connection: Integers
    """What leads from each kernel to its operator and to its launch."""
    task: Integers
    """globalTaskId of each kernel, ``NONE`` for a collective."""
    malformed: int
    """Number of kernels left out: no task, or no time where one must be."""


def read_kernels(database: Database, texts: Texts, collective_core: str) -> DatabaseKernels:
    """Read the kernels; ``collective_core`` is the Accelerator Core that collectives get."""
    both, number = _read_times(database)
    communication = np.arange(len(both["start_ns"])) >= len(both["start_ns"]) - number
    usable = _usable(both["start_ns"], both["end_ns"])
    both["communication"] = communication
    both = in_start_order(both, usable)
    return DatabaseKernels(
        connection=both.pop("connection"),
        task=both.pop("task"),
        malformed=int(np.count_nonzero(~usable)),
        frame=_name_columns(both, texts, collective_core),
    )


def read_totals(database: Database, texts: Texts) -> pd.DataFrame:
    """Return ``Profile.op_statistic`` of the compute kernels, which is all that is read of them."""
    tasks = database.columns(_TIMES_ONLY)
    compute = database.columns(_TYPES)
    rows = find_positions(compute["task"], tasks["task"])
    start, end = pick(tasks["start_ns"], rows), pick(tasks["end_ns"], rows)
    usable = _usable(start, end)
    columns: dict[str, Any] = {
        "name": texts.category(compute["name"][usable]),
        "type": texts.category(compute["type"][usable], clean_type),
        "core": texts.category(compute["core"][usable], _core),
        "duration_ns": (end - start)[usable],
        "communication": False,
    }
    return sum_by_type(fill_types(pd.DataFrame(columns)))


def _usable(start: Integers, end: Integers) -> NDArray[np.bool_]:
    """Return which kernels have a time, and one of this run."""
    timed = (start > 0) & (end >= start) & (end < LATEST_NS)
    return timed & find_plausible(np.where(timed, start, NONE), end - start)


def _read_times(database: Database) -> tuple[Columns, int]:
    """Read the compute kernels, with the times of their tasks, and behind them the collectives.

    Also return the number of collectives.
    """
    tasks = database.columns(_TASKS)
    compute = database.columns(_KERNELS)
    rows = find_positions(compute["task"], tasks["task"])
    compute |= {key: pick(tasks[key], rows) for key in _TIMES}
    collectives = database.columns(_COLLECTIVES)
    if not (number := len(collectives["start_ns"])):
        return compute, 0
    # The device of a collective is that of its tasks, or of all kernels if they have but one.
    rows = find_positions(collectives["connection"], tasks["connection"])
    devices = pd.unique(compute["device"])
    only = devices[0] if len(devices) == 1 else NONE
    collectives["device"] = pick(tasks["device"], rows, missing=only)
    return {
        key: _behind(compute.pop(key), collectives.get(key), number) for key in [*compute]
    }, number


def _behind(first: Integers, second: Integers | None, number: int) -> Integers:
    missing = np.full(number, NONE, first.dtype)
    return np.concatenate([first, missing if second is None else second])


def _name_columns(kernels: Columns, texts: Texts, collective_core: str) -> pd.DataFrame:
    """Return the columns with their texts; ``kernels`` loses them on the way, to save memory."""
    start, end = kernels.pop("start_ns"), kernels.pop("end_ns")
    device = kernels.pop("device").clip(NONE)
    communication = kernels.pop("communication")
    columns: dict[str, Any] = {
        "name": texts.category(kernels.pop("name")),
        "type": texts.category(kernels.pop("type"), clean_type),
        "core": _cores(texts.category(kernels.pop("core"), _core), communication, collective_core),
        "start_ns": start,
        "duration_ns": end,
        "wait_ns": _waits(device, start, end),
        **{key: texts.category(kernels.pop(key), clean_shapes) for key in _SHAPES},
        "communication": communication,
        "device": device,
        "stream": kernels.pop("stream").clip(NONE),
        "state": texts.category(kernels.pop("state"), clean_shapes),
    }
    end -= start
    return fill_types(pd.DataFrame(columns, copy=False))


def _waits(device: Integers, start: Integers, end: Integers) -> Integers:
    """Return the gap between each kernel and the one before it on its device."""
    if not len(start) or (device == device[0]).all():
        waits = np.zeros_like(start)
        np.subtract(start[1:], end[:-1], out=waits[1:])
        return np.maximum(waits, 0, out=waits)
    order = np.argsort(device, kind="stable")
    waits = np.append(0, start[order][1:] - end[order][:-1]).clip(min=0)
    waits[1:][np.diff(device[order]) != 0] = 0
    unordered = np.empty_like(waits)
    unordered[order] = waits
    return unordered


def _core(text: str) -> str:
    bare = clean_shapes(text)
    return _CORES.get(bare, bare)


def _cores(
    cores: pd.Categorical[str], communication: NDArray[np.bool_], collective: str
) -> pd.Categorical[str]:
    """Give collectives, which the file says nothing of, their core."""
    if not communication.any():
        return cores
    names = list(cores.categories)
    if collective not in names:
        names.append(collective)
    return category(np.where(communication, names.index(collective), cores.codes), names)
