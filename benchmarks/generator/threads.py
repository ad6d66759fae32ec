"""Processes and threads of a trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.program import AUTOGRAD, MAIN, QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.generator.parameters import Parameters
    from benchmarks.generator.run import Run
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

CANN, HARDWARE, FREQUENCY, LINKS, OVERLAP, GARBAGE = 7, 13, 14, 15, 23, 24
OVERLAP_THREADS = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")


def thread(run: Run, which: int) -> int:
    """Return the id of a thread of the host."""
    return run.pid + {MAIN: 0, AUTOGRAD: 8_571, QUEUE: 3_198}[which]


def process(run: Run, kind: int, device: int = 0) -> int:
    """Return the id that the profiler makes up for a device."""
    return (run.pid << 10) | (kind << 5) | device


def kernel_places(run: Run, rows: slice) -> tuple[Integers, Integers]:
    """Return process and thread of the events of kernels: the hardware, or the links."""
    code = run.kernels.code[rows]
    device = run.launches.device[run.kernels.launch[rows]]
    collective = run.program.collective[code]
    kind = np.where(collective, LINKS, HARDWARE)
    tid = np.where(collective, 0, run.program.streams[code])
    return (run.pid << 10) | (kind << 5) | device, tid


def host_names(run: Run) -> Iterator[str]:
    """Yield the metadata of the process that the framework records."""
    own = run.parameters
    threads = [thread(run, which) for which in (MAIN, AUTOGRAD, QUEUE)[: 2 + own.runtime]]
    named = {each: f"Thread {each}" for each in threads}
    yield from _names(run.pid, "Python", "CPU", 0, named)


def device_names(run: Run) -> Iterator[str]:
    """Yield the metadata of the processes that stand for devices."""
    own = run.parameters
    for device in range(own.devices):
        streams = {
            stream: f"Stream {stream}" for stream in sorted(set(run.program.streams.tolist()))
        }
        lanes = dict(enumerate(OVERLAP_THREADS))
        links = "Communication" if own.version == "newest" else "HCCL"
        label = f"NPU {device}" if own.version == "newest" else "NPU"
        for kind, name, threads in (
            (HARDWARE, "Ascend Hardware", streams),
            (FREQUENCY, "AI Core Freq", {}),
            (LINKS, links, {0: "Group 0 Communication"}),
            (OVERLAP, "Overlap Analysis", lanes),
        )[: 4 if own.runtime else 1]:
            yield from _names(process(run, kind, device), name, label, kind, threads)
    if has_node_launches(own):
        queue = thread(run, QUEUE)
        yield from _names(process(run, CANN), "CANN", "CPU", CANN, {queue: f"Thread {queue}"})
    if own.runtime:
        yield from _names(process(run, GARBAGE), "Python GC", "CPU", GARBAGE, {})


def has_node_launches(own: Parameters) -> bool:
    """CANN is not recorded at Level0."""
    return own.level > 0 and own.runtime


def _names(pid: int, name: str, label: str, order: int, threads: dict[int, str]) -> Iterator[str]:
    def event(kind: str, tid: int, **arguments: object) -> str:
        return json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments})

    yield event("process_name", 0, name=name)
    yield event("process_labels", 0, labels=label)
    yield event("process_sort_index", 0, sort_index=order)
    for tid, text in threads.items():
        yield event("thread_name", tid, name=text)
        yield event("thread_sort_index", tid, sort_index=tid)
