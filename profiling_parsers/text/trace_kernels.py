"""The kernels that a trace shows, where no kernel_details.csv lists them.

A trace has neither shapes nor PMU counters, and its Type is what the name of the kernel says.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.profiling_parsers.tables.columns import category
from npufix.profiling_parsers.tables.kernel_times import find_plausible

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.trace.view import Trace

    Integers = NDArray[np.int64]

_COLLECTIVES = {"HCCL": "HCCL", "Communication": "COMMUNICATION"}
"""Process of the collectives -> their Accelerator Core in kernel_details.csv of that version."""
# "Group 0 Communication", not its planes, and not what a fused kernel (MC2) does on its own.
_LANE = re.compile(r"(?!.*Aicpu).*Communication")
# Kinds of tasks that are no kernels: events, notifications, copies, markers.
_NO_KERNEL = re.compile(
    r"event|notify|place.?holder|dma|memcpy|write.?value|model|stream|profiling|cmo|callback"
    r"|barrier|label|record|wait",
    re.IGNORECASE,
)
_TASK_NAME = re.compile(r"[A-Z]+(_[A-Z]+)+")
_CORES = {
    "KERNEL_AICORE": "AI_CORE",
    "KERNEL_AIVEC": "AI_VECTOR_CORE",
    "KERNEL_AICPU": "AI_CPU",
    "KERNEL_MIX_AIC": "MIX_AIC",
    "KERNEL_MIX_AIV": "MIX_AIV",
    "Other": "",
}
_AI_CORE, _VECTOR = "AI_CORE", "AI_VECTOR_CORE"
_CUBE = re.compile(r"(Batch)?MatMul|Conv[23]D")
_ACLNN = re.compile(r"(?:aclnn|Inner)\w*_([A-Za-z0-9]+)")
_TRANSFER = re.compile(r"trans_([A-Za-z]+)_[0-9]+(?:_(MemSet))?")
# Conv2D4, MatMulV23, Conv2DBackpropFilter6_MemSet: the number of the operator in its graph.
_NUMBERED = re.compile(r"([A-Z][A-Za-z0-9]*?(?:V[0-9]|(?<![0-9V])))[0-9]+(?:_(MemSet))?")
_COLLECTIVE = re.compile(r"(\w+?)_[0-9]+_[0-9]+_[0-9]+(?:@.*)?")
_DEVICE = re.compile(r"NPU ([0-9]{1,9})")
_PID_BITS, _DEVICE_BITS, _LARGEST_STREAM = 10, 5, 1 << 31
_STEP = re.compile(r"ProfilerStep#([0-9]{1,18})")


def find_kernels(trace: Trace) -> tuple[pd.DataFrame, Trace]:
    """Return ``Profile.kernels`` but for step and line, and the trace as if read with its kernels.

    ``trace`` was read without knowing them.
    """
    collective = _collectives(trace)
    chosen = np.flatnonzero((collective >= 0) | _is_kernel(trace.tasks))
    chosen = chosen[np.argsort(trace.tasks["start_ns"].to_numpy()[chosen], kind="stable")]
    times = trace.tasks[["start_ns", "duration_ns"]].to_numpy()[chosen]
    usable = find_plausible(times[:, 0], times[:, 1])
    trace = replace(trace, malformed=trace.malformed + int(np.count_nonzero(~usable)))
    chosen = chosen[usable]
    tasks, collective = trace.tasks.iloc[chosen].reset_index(drop=True), collective[chosen]
    tid = tasks["tid"].to_numpy()
    stream = np.where((collective < 0) & (tid >= 0) & (tid < _LARGEST_STREAM), tid, -1)
    tasks["name"] = tasks["name"].cat.remove_unused_categories()
    device = find_devices(trace, tasks["pid"].to_numpy())
    types = _types(tasks["name"], collective >= 0)
    frame = tasks[["name", "start_ns", "duration_ns"]].assign(
        step=pd.array([pd.NA] * len(tasks), dtype="Int64"),
        type=types,
        core=_cores(tasks["kind"], types, collective),
        communication=collective >= 0,
        device=device,
        stream=stream.astype(np.int32),
    )
    events = tasks[["pid", "tid", "start_ns"]].assign(kernel=tasks["name"].cat.codes)
    return frame, replace(trace, device=events)


def find_devices(trace: Trace, pids: Integers) -> NDArray[np.int32]:
    """Return the device of each process, -1 if the trace does not say.

    The label of a process names it ("NPU 3"), or its number holds it in its last bits, where the
    first are those of the Python process.
    """
    hosts = {pid for pid, name in trace.processes.items() if name == "Python"}
    hosts |= set(trace.operators["pid"].unique().tolist())
    known, at = np.unique(pids, return_inverse=True)
    devices = np.full(len(known), -1, np.int32)
    for place, pid in enumerate(known.tolist()):
        if (label := _DEVICE.fullmatch(trace.labels.get(pid, ""))) is not None:
            devices[place] = int(label[1])
        elif pid >> _PID_BITS in hosts:
            devices[place] = pid & ((1 << _DEVICE_BITS) - 1)
    return devices[at]


def find_steps(kernels: pd.DataFrame, host_ops: pd.DataFrame) -> pd.arrays.IntegerArray:
    """Return the step of each kernel, as the profiler writes it into kernel_details.csv.

    A step lasts on its device from the start of the first kernel that was asked for in it to the
    end of the last, or to its end on the host.
    """
    step = np.zeros(len(kernels), np.int64)
    missing = np.ones(len(kernels), np.bool_)
    starts = kernels["start_ns"].to_numpy()
    ends = starts + kernels["duration_ns"].to_numpy()
    rows = kernels["host_op"].to_numpy()
    asked = np.where(rows >= 0, np.append(host_ops["start_ns"].to_numpy(), -1)[rows], -1)
    for number, first, last in reversed(_steps(host_ops)):
        inside = np.flatnonzero((asked >= first) & (asked <= last))
        if len(inside):
            begin = starts[inside[asked[inside] == asked[inside].min()]].min()
            end = max(ends[inside[asked[inside] == asked[inside].max()]].max(), last)
            of_step = slice(*np.searchsorted(starts, [begin, end + 1]))
            step[of_step], missing[of_step] = number, False
    return pd.arrays.IntegerArray(step, missing)


def _steps(host_ops: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Return number, start and end of the steps on the host, in order."""
    names = host_ops["name"].cat
    numbers = {
        code: int(found[1])
        for code, name in enumerate(names.categories)
        if (found := _STEP.fullmatch(name)) is not None
    }
    steps = host_ops[np.isin(names.codes, list(numbers))]
    starts, codes = steps["start_ns"], steps["name"].cat.codes
    ends = starts + steps["duration_ns"]
    return [
        (numbers[code], start, end)
        for code, start, end in zip(codes.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]


def _is_kernel(tasks: pd.DataFrame) -> NDArray[np.bool_]:
    kind, name = tasks["kind"].cat, tasks["name"].cat
    runs = [bool(text) and _NO_KERNEL.search(text) is None for text in kind.categories]
    has_name = [
        text not in kind.categories and _TASK_NAME.fullmatch(text) is None
        for text in name.categories
    ]
    return _at(runs, kind.codes) & _at(has_name, name.codes)


def _at(values: list[bool], codes: pd.Series[int] | NDArray[Any]) -> NDArray[np.bool_]:
    return np.array(values, np.bool_)[codes]


def _collectives(trace: Trace) -> Integers:
    """Return the position in ``_COLLECTIVES`` of the process of each task, -1 if it is none."""
    positions = list(_COLLECTIVES)
    lanes = pd.DataFrame(
        [
            (pid, tid, positions.index(process))
            for (pid, tid), name in trace.lanes.items()
            if (process := trace.processes.get(pid)) in _COLLECTIVES and _LANE.fullmatch(name)
        ],
        columns=["pid", "tid", "collective"],
        dtype=np.int64,
    )
    rows = trace.tasks[["pid", "tid"]].assign(row=np.arange(len(trace.tasks)))
    found = rows.merge(lanes, on=["pid", "tid"])
    collective = np.full(len(rows), -1, np.int64)
    collective[found["row"]] = found["collective"]
    return collective


def _types(names: pd.Series[str], communication: NDArray[np.bool_]) -> pd.Categorical[str]:
    collective = set(names.cat.codes[communication])
    unique: dict[str, int] = {}
    codes = [
        unique.setdefault(
            _collective_type(name) if code in collective else kernel_type(name), len(unique)
        )
        for code, name in enumerate(names.cat.categories)
    ]
    return category(np.array(codes, np.int64)[names.cat.codes], list(unique))


def _collective_type(name: str) -> str:
    found = _COLLECTIVE.fullmatch(name)
    return name if found is None else found[1]


def kernel_type(name: str) -> str:
    """Return the Type of a kernel as far as its name says it.

    ``aclnnMm_MatMulCommon_MatMulV2`` -> ``MatMulV2``, ``trans_TransData_3`` -> ``TransData``,
    ``Conv2D4`` -> ``Conv2D``, ``ReduceSum7_MemSet`` -> ``MemSet``; any other is its own Type.
    """
    if (found := _ACLNN.fullmatch(name)) is not None:
        return found[1]
    found = _TRANSFER.fullmatch(name) or _NUMBERED.fullmatch(name)
    return name if found is None else found[2] or found[1]


def _cores(
    kinds: pd.Series[str], types: pd.Categorical[str], collective: Integers
) -> pd.Categorical[str]:
    """Return the Accelerator Core.

    Some versions call the vector cores AI_CORE as well: then it is known only of Types that need
    the cube.
    """
    named = [_CORES.get(kind, kind) for kind in kinds.cat.categories]
    texts = ["", _AI_CORE, *_COLLECTIVES.values(), *named]
    codes = np.where(collective >= 0, 2 + collective, 2 + len(_COLLECTIVES) + kinds.cat.codes)
    if _VECTOR not in named:
        cube = _at([_CUBE.match(name) is not None for name in types.categories], types.codes)
        coarse = _at([name == _AI_CORE for name in texts], codes)
        codes[coarse] = np.where(cube[coarse], 1, 0)
    unique = list(dict.fromkeys(texts))
    return category(np.array([unique.index(text) for text in texts])[codes], unique)
