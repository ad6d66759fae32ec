"""The events of trace_view.json that come from CANN and the device."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.program import QUEUE
from benchmarks.generator.run import NODE_NS
from benchmarks.generator.text import chunks, microseconds, numbers
from benchmarks.generator.threads import (
    CANN,
    FREQUENCY,
    GARBAGE,
    OVERLAP,
    device_names,
    has_node_launches,
    kernel_places,
    process,
    thread,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.generator.program import Kernel
    from benchmarks.generator.run import Run
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Events = Sequence[str]

NODE_BEFORE_NS, NODE_LENGTH_NS = 1_000, 1_000
_CONNECTION, _TASKS = 1_000, 1 << 16
_COMPUTING, _COMMUNICATION, _FREE = 0, 1, 3
_ROWS = 500
"""Few, so that the events of host and device are mixed as in a file that is sorted by time."""
FULL_MHZ, REDUCED_MHZ = 1800, 1200


def connections(run: Run, rows: slice) -> Integers:
    """Return the number that joins each kernel to its launch by CANN."""
    launch = run.kernels.launch[rows]
    count = run.program.count[run.launches.code]
    first = (np.cumsum(count) - count)[launch]
    connection: Integers = _CONNECTION + 2 * (first + run.kernels.within[rows])
    return connection


def node_starts(run: Run, rows: slice) -> Integers:
    """Return when CANN launches each kernel."""
    queue = run.queue_ns[run.kernels.launch[rows]]
    return queue + NODE_BEFORE_NS + NODE_NS * run.kernels.within[rows]


def frequencies(run: Run) -> Iterator[tuple[int, int]]:
    """Yield when the clock of the cores changes, and to how many MHz."""
    for number, step in enumerate(run.steps):
        yield step.start_ns, REDUCED_MHZ if number == run.parameters.outlier else FULL_MHZ


def collections(run: Run) -> Iterator[tuple[int, int]]:
    """Yield start and duration of each run of the garbage collector."""
    for step in run.steps:
        yield step.start_ns + 2_000, 25_000


def device_events(run: Run) -> Iterator[Events]:
    """Yield the events of CANN, the devices and the clocks."""
    yield list(device_names(run))
    if run.parameters.runtime:
        yield list(_clocks(run))
    every = connections(run, slice(0, len(run.kernels.code)))
    for rows in chunks(len(run.kernels.code), _ROWS):
        if has_node_launches(run.parameters):
            yield _nodes(run, rows, every[rows])
        yield _tasks(run, rows, every[rows])
        if run.parameters.runtime:
            yield from _lanes(run, rows)


def _nodes(run: Run, rows: slice, connection: Integers) -> Events:
    pid, tid = process(run, CANN), thread(run, QUEUE)
    node = f'{{"name": "Node@launch", "pid": {pid}, "tid": {tid}, "ts": "%s", "dur": 1.0, '
    node += f'"args": {{"Thread Id": {tid}, "Mode": "launch", "level": "node", "id": "0", '
    node += '"item_id": "%s", "connection_id": %d}, "ph": "X"}, '
    node += '{"name": "HostToDevice%d", "ph": "s", "cat": "HostToDevice", "id": "%d", '
    node += f'"pid": {pid}, "tid": {tid}, "ts": "%s"}}'
    cells = zip(
        run.kernels.code[rows].tolist(),
        microseconds(node_starts(run, rows)),
        connection.tolist(),
        strict=True,
    )
    names = [kernel.type if kernel.collective else kernel.name for kernel in run.program.kernels]
    return [node % (at, names[code], link, link, link, at) for code, at, link in cells]


def _tasks(run: Run, rows: slice, connection: Integers) -> Events:
    kernels = run.kernels
    texts = [_task(run, kernel) for kernel in run.program.kernels]
    end = ', {"name": "HostToDevice%d", "ph": "f", "id": "%d", "ts": "%s", "cat": "HostToDevice", '
    end += '"pid": %d, "tid": %d, "bp": "e"}'
    pid, tid = kernel_places(run, rows)
    cells = zip(
        kernels.code[rows].tolist(),
        kernels.number[rows].tolist(),
        pid.tolist(),
        tid.tolist(),
        microseconds(kernels.start_ns[rows]),
        numbers(kernels.duration_ns[rows]),
        (np.arange(rows.start, rows.stop) % _TASKS).tolist(),
        connection.tolist(),
        strict=True,
    )
    return [
        texts[code] % (number, pid, tid, at, length, task, link) + end % (link, link, at, pid, tid)
        for code, number, pid, tid, at, length, task, link in cells
    ]


def _task(run: Run, kernel: Kernel) -> str:
    """Return a device event with gaps."""
    place = '"pid": %d, "tid": %d, "ts": "%s", "dur": %r, "args": '
    if kernel.collective:
        return (
            f'{{"name": "{kernel.name}", {place}{{%.0s"connection_id": %d, '
            '"model id": 4294967295, "data_type": "FP32", "alg_type": "MESH-RING", '
            '"count": 4097000}, "ph": "X"}'
        )
    coarse = "AI_CORE" if kernel.core == "AI_VECTOR_CORE" else kernel.core
    more = ""
    if run.parameters.level > 1 and not kernel.listed:
        more = ', "data size(Byte)": 4, "memcpy direction": "device to host"'
    return (
        f'{{"name": "{kernel.name}%.0s", {place}{{"Model Id": 4294967295, '
        f'"Task Type": "{coarse}", "Physic Stream Id": {kernel.stream}, "Task Id": %d, '
        f'"Batch Id": 0, "Subtask Id": 4294967295, "connection_id": %d{more}}}, "ph": "X"}}'
    )


def _lanes(run: Run, rows: slice) -> Iterator[Events]:
    """Yield when each device computes, communicates and is idle."""
    text = '{"name": "%s", "pid": %d, "tid": %d, "ts": "%s", "dur": %r, "ph": "X"}'
    kernels = run.kernels
    device = run.launches.device[kernels.launch[rows]]
    code, start = kernels.code[rows], kernels.start_ns[rows]
    length, wait = kernels.duration_ns[rows], kernels.wait_ns[rows]
    collective = run.program.collective[code]
    compute = run.program.listed[code] & ~collective
    for lane, name, chosen, starts, lengths in (
        (_COMPUTING, "Computing", compute, start, length),
        (_COMMUNICATION, "Communication", collective, start, length),
        (_FREE, "Free", wait > 0, start - wait, wait),
    ):
        pids = (process(run, OVERLAP) + device[chosen]).tolist()
        times = zip(pids, microseconds(starts[chosen]), numbers(lengths[chosen]), strict=True)
        yield [text % (name, pid, lane, at, duration) for pid, at, duration in times]


def _clocks(run: Run) -> Iterator[str]:
    """Yield the clock of the cores and the garbage collector."""
    for device in range(run.parameters.devices):
        for start, mhz in frequencies(run):
            yield json.dumps(
                {"name": "AI Core Freq", "ts": _moment(start), "tid": 0, "args": {"MHz": mhz},
                 "pid": process(run, FREQUENCY, device), "ph": "C"}
            )  # fmt: skip
    for start, length in collections(run):
        yield json.dumps(
            {"ph": "X", "name": "GC", "pid": process(run, GARBAGE), "tid": run.pid,
             "ts": _moment(start), "dur": length / 1000, "cat": "GC", "args": {}}
        )  # fmt: skip


def _moment(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
