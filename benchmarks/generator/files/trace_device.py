"""The events of trace_view.json that come from CANN and the device, and all names of processes."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.program import QUEUE
from benchmarks.generator.text import chunks, fill, microseconds, moment, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.generator.program import Kernel
    from benchmarks.generator.run import Run
    from benchmarks.generator.text import Integers
    from numpy.typing import NDArray

    Events = Iterator[str]

_CANN, _HARDWARE, _FREQUENCY, _LINKS, _OVERLAP, _GARBAGE = 7, 13, 14, 15, 23, 24
_LANES = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
_TASKS = 1 << 16
_ROWS = 500
"""Few, so that the events of host and device are mixed as in a file that is sorted by time."""


def kernel_places(run: Run) -> tuple[Integers, Integers]:
    """Return process and thread of the events of kernels: the hardware, or the links."""
    code = run.kernels.code
    collective = run.program.collective[code]
    kind = np.where(collective, _LINKS, _HARDWARE)
    pid: Integers = (run.pid << 10) | (kind << 5) | run.devices
    return pid, np.where(collective, 0, run.program.streams[code])


def _process(run: Run, kind: int, device: int = 0) -> int:
    """Return the id that the profiler makes up for a device."""
    return (run.pid << 10) | (kind << 5) | device


def device_events(run: Run) -> Events:
    """Yield the events of CANN, the devices and the clocks."""
    own = run.parameters
    launches_of_cann = own.level > 0 and own.runtime  # CANN is not recorded at Level0
    for device in range(own.devices):
        yield from _device_names(run, device)
    if launches_of_cann:
        queue = {run.thread(QUEUE): f"Thread {run.thread(QUEUE)}"}
        yield from name_process(_process(run, _CANN), "CANN", "CPU", _CANN, queue)
    if own.runtime:
        yield from name_process(_process(run, _GARBAGE), "Python GC", "CPU", _GARBAGE, {})
        yield from _clocks(run)
    every = np.ones(len(run.kernels.code), np.bool_)
    streams = [(every, _nodes(run))] if launches_of_cann else []
    streams.append((every, _tasks(run)))
    streams += _lanes(run) if own.runtime else ()
    for part in chunks(len(every), _ROWS):
        for chosen, events in streams:
            yield from islice(events, int(chosen[part].sum()))


def _device_names(run: Run, device: int) -> Events:
    """Yield the metadata of the processes that stand for a device."""
    own = run.parameters
    is_newest = own.version == "newest"
    label = f"NPU {device}" if is_newest else "NPU"
    streams = {stream: f"Stream {stream}" for stream in sorted(set(run.program.streams.tolist()))}
    for kind, name, threads in (
        (_HARDWARE, "Ascend Hardware", streams),
        (_FREQUENCY, "AI Core Freq", {}),
        (_LINKS, "Communication" if is_newest else "HCCL", {0: "Group 0 Communication"}),
        (_OVERLAP, "Overlap Analysis", dict(enumerate(_LANES))),
    )[: 4 if own.runtime else 1]:
        yield from name_process(_process(run, kind, device), name, label, kind, threads)


def name_process(pid: int, name: str, label: str, order: int, threads: Mapping[int, str]) -> Events:
    """Yield the metadata of a process and its threads."""

    def event(kind: str, tid: int, **arguments: object) -> str:
        return json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments})

    yield event("process_name", 0, name=name)
    yield event("process_labels", 0, labels=label)
    yield event("process_sort_index", 0, sort_index=order)
    for tid, text in threads.items():
        yield event("thread_name", tid, name=text)
        yield event("thread_sort_index", tid, sort_index=tid)


def _nodes(run: Run) -> Events:
    pid, tid = _process(run, _CANN), run.thread(QUEUE)
    node = f'{{"name": "Node@launch", "pid": {pid}, "tid": {tid}, "ts": "%s", "dur": 1.0, '
    node += f'"args": {{"Thread Id": {tid}, "Mode": "launch", "level": "node", "id": "0", '
    node += '"item_id": "{item}", "connection_id": %d}, "ph": "X"}, '
    node += '{"name": "HostToDevice%d", "ph": "s", "cat": "HostToDevice", "id": "%d", '
    node += f'"pid": {pid}, "tid": {tid}, "ts": "%s"}}'
    items = [kernel.type if kernel.collective else kernel.name for kernel in run.program.kernels]
    texts = [node.replace("{item}", item) for item in items]
    at, link = (microseconds, run.node_ns), run.connections
    return fill(texts, run.kernels.code, at, link, link, link, at)


def _tasks(run: Run) -> Events:
    kernels = run.kernels
    end = ', {"name": "HostToDevice%d", "ph": "f", "id": "%d", "ts": "%s", "cat": "HostToDevice", '
    end += '"pid": %d, "tid": %d, "bp": "e"}'
    texts = [_task(run, kernel) + end for kernel in run.program.kernels]
    place, link, start = kernel_places(run), run.connections, (microseconds, kernels.start_ns)
    task, length = np.arange(len(kernels.code)) % _TASKS, (numbers, kernels.duration_ns)
    return fill(
        texts, kernels.code, kernels.number, *place, start, length, task, link,
        link, link, start, *place,
    )  # fmt: skip


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


def _lanes(run: Run) -> Iterator[tuple[NDArray[np.bool_], Events]]:
    """Yield in which kernels each device computes, communicates and was idle before; the events."""
    text = '{"name": "%s", "pid": %%d, "tid": %d, "ts": "%%s", "dur": %%r, "ph": "X"}'
    program, kernels = run.program, run.kernels
    pid, waits = _process(run, _OVERLAP) + run.devices, kernels.wait_ns
    collective, computes = program.collective[kernels.code], program.computes[kernels.code]
    for lane, chosen, starts, lengths in (
        (0, computes, kernels.start_ns, kernels.duration_ns),
        (1, collective, kernels.start_ns, kernels.duration_ns),
        (3, waits > 0, kernels.start_ns - waits, waits),
    ):
        times = ((microseconds, starts[chosen]), (numbers, lengths[chosen]))
        yield chosen, fill([text % (_LANES[lane], lane)], pid[chosen] * 0, pid[chosen], *times)


def _clocks(run: Run) -> Events:
    """Yield the clock of the cores and the garbage collector."""
    for device in range(run.parameters.devices):
        for start, mhz in run.frequencies():
            yield json.dumps(
                {"name": "AI Core Freq", "ts": moment(start), "tid": 0, "args": {"MHz": mhz},
                 "pid": _process(run, _FREQUENCY, device), "ph": "C"}
            )  # fmt: skip
    for start, length in run.collections():
        yield json.dumps(
            {"ph": "X", "name": "GC", "pid": _process(run, _GARBAGE), "tid": run.pid,
             "ts": moment(start), "dur": length / 1000, "cat": "GC", "args": {}}
        )  # fmt: skip
