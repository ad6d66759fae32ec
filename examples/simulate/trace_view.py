"""trace_view.json: a bare array of Chrome trace events, linked by flows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from simulate.text import Recorded, host_dims, host_types, microseconds
from simulate.timeline import DeviceEvent, HostEvent, StepTimes, Timeline

PID = 4021
MAIN_THREAD = 4021
AUTOGRAD_THREAD = 4188
HARDWARE_PID = (PID << 10) | (13 << 5)
STREAM = 2

Event = dict[str, Any]


def trace_view(timeline: Timeline, recorded: Recorded) -> str:
    events = [*metadata()]
    # A host event that launches something is written without its launches first: sort by time.
    timed = [
        *steps(timeline.steps, recorded),
        *hosts(timeline, recorded),
        *devices(timeline),
        *backward_flows(timeline),
    ]
    timed.sort(key=lambda event: (len(event["ts"]), event["ts"]))
    return json.dumps(events + timed)


def metadata() -> Iterator[Event]:
    for pid, name, label, order in (
        (PID, "Python", "CPU", 0),
        (HARDWARE_PID, "Ascend Hardware", "NPU", 13),
    ):
        yield meta("process_name", pid, 0, name=name)
        yield meta("process_labels", pid, 0, labels=label)
        yield meta("process_sort_index", pid, 0, sort_index=order)
    for thread in (MAIN_THREAD, AUTOGRAD_THREAD):
        yield meta("thread_name", PID, thread, name=f"Thread {thread}")
        yield meta("thread_sort_index", PID, thread, sort_index=thread)
    yield meta("thread_name", HARDWARE_PID, STREAM, name=f"Stream {STREAM}")
    yield meta("thread_sort_index", HARDWARE_PID, STREAM, sort_index=STREAM)


def meta(event: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": event, "pid": pid, "tid": tid, "args": args}


def thread(event: HostEvent) -> int:
    return AUTOGRAD_THREAD if event.backward else MAIN_THREAD


def complete(name: str, tid: int, start_ns: int, end_ns: int, args: Event) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": PID,
        "tid": tid,
        "ts": microseconds(start_ns),
        "dur": (end_ns - start_ns) / 1000,
        "cat": "cpu_op",
        "args": args,
    }


def steps(times: list[StepTimes], recorded: Recorded) -> Iterator[Event]:
    for step in times:
        args: Event = {"Sequence number": -1, "Fwd thread id": 0}
        if step.stack:
            args["Call stack"] = recorded.stack(step.stack)
        name = f"ProfilerStep#{step.number}"
        yield complete(name, MAIN_THREAD, step.start_ns, step.end_ns, args)


def hosts(timeline: Timeline, recorded: Recorded) -> Iterator[Event]:
    copies = {id(event): copy for event, copy in timeline.copies}
    for event in timeline.hosts:
        args: Event = {
            "Sequence number": event.sequence,
            "Fwd thread id": int(event.is_node and event.sequence >= 0),
        }
        if event.operator is not None and not event.is_node:
            args["Input Dims"] = host_dims(event.operator.arguments)
            args["Input type"] = host_types(event.operator.arguments)
        if event.stack:
            args["Call stack"] = recorded.stack(event.stack)
        yield complete(event.name, thread(event), event.start_ns, event.end_ns, args)
        for device in event.kernels:
            yield from flow("torch_to_npu", "async_npu", device.start_ns, event, device)
        if copy := copies.get(id(event)):
            yield from flow("torch_to_npu", "async_npu", copy.start_ns, event, copy)


def flow(
    name: str, category: str, identity: int, event: HostEvent, device: DeviceEvent
) -> Iterator[Event]:
    common = {"bp": "e", "name": name, "id": identity}
    start, end = microseconds(event.start_ns), microseconds(device.start_ns)
    yield {"ph": "s", **common, "pid": PID, "tid": thread(event), "ts": start, "cat": category}
    yield {"ph": "f", **common, "pid": HARDWARE_PID, "tid": STREAM, "ts": end, "cat": category}


def backward_flows(timeline: Timeline) -> Iterator[Event]:
    """From each forward operator to the backward node with its sequence number."""
    forward = {
        event.sequence: event
        for event in timeline.hosts
        if event.sequence >= 0 and not event.backward
    }
    for event in timeline.hosts:
        if event.is_node and event.sequence in forward:
            common = {"bp": "e", "name": "fwdbwd", "id": event.sequence, "pid": PID}
            for phase, end in (("s", forward[event.sequence]), ("f", event)):
                yield {
                    "ph": phase,
                    **common,
                    "tid": thread(end),
                    "ts": microseconds(end.start_ns),
                    "cat": "fwdbwd",
                }


def devices(timeline: Timeline) -> Iterator[Event]:
    for number, device in enumerate(
        [*timeline.devices, *(copy for _, copy in timeline.copies)], start=900
    ):
        core = device.kernel.core
        yield {
            "name": device.kernel.name,
            "pid": HARDWARE_PID,
            "tid": STREAM,
            "ts": microseconds(device.start_ns),
            "dur": device.duration_ns / 1000,
            "args": {
                "Model Id": 4294967295,
                # Coarse, as in real traces: vector kernels are AI_CORE here.
                "Task Type": "AI_CORE" if core == "AI_VECTOR_CORE" else core,
                "Physic Stream Id": STREAM,
                "Task Id": device.task,
                "Batch Id": 0,
                "Subtask Id": 4294967295,
                "connection_id": number,
            },
            "ph": "X",
        }
