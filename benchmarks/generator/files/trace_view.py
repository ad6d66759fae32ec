"""trace_view.json: a bare array, on one line, that the profiler writes in two phases."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.files.trace_device import device_events, kernel_places, name_process
from benchmarks.generator.host import functions, of_each_kind, operators, step_operators
from benchmarks.generator.program import AUTOGRAD, MAIN, QUEUE
from benchmarks.generator.run import ENQUEUE_LENGTH_NS, NEST_NS
from benchmarks.generator.text import chunks, fill, microseconds, moment, numbers, of_variant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.generator.host import Call
    from benchmarks.generator.program import Launch
    from benchmarks.generator.run import Run

    Events = Iterator[str]

_CORRELATION = 8_000
_BUILT_IN_NS, _BUILT_IN_ROOM_NS = 10, 1_300


def write(run: Run, path: Path) -> None:
    """Write the file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        separator = "["
        for event in chain(_host_events(run), device_events(run), _flows_to_device(run)):
            file.write(separator + event)
            separator = ", "
        file.write("]")


def _host_events(run: Run) -> Events:
    """Yield what the framework records, in the order in which it writes that."""
    own, found = run.parameters, operators(run)
    times = ((microseconds, found.start_ns), (numbers, found.duration_ns), found.sequence)
    yield from fill(of_each_kind(run, _operator), found.kind, *times)
    yield from (_step_operator(run, call) for call in step_operators(run))
    if own.runtime:
        yield from _queue(run)
    threads = [run.thread(which) for which in (MAIN, AUTOGRAD, QUEUE)[: 2 + own.runtime]]
    named = {each: f"Thread {each}" for each in threads}
    yield from name_process(run.pid, "Python", "CPU", 0, named)
    yield from _forward_to_backward(run)
    if own.modules:
        yield from (_function(run, number, call) for number, call in enumerate(functions(run)))
    if own.host_events:
        yield from _built_ins(run)


def _flows_to_device(run: Run) -> Events:
    """Yield the flows from operators to kernels, which stand at the end of the file."""
    kernels = run.kernels
    flow = '{"ph": "%s", "bp": "e", "name": "torch_to_npu", "id": %%d, "pid": %s, "tid": %s, '
    flow += '"ts": "%%s", "cat": "async_npu"}'
    end = flow % ("f", "%d", "%d")
    starts = [
        f"{flow % ('s', run.pid, run.thread(launch.thread))}, {end}"
        for launch in run.program.launches
    ]
    return fill(
        starts,
        run.launches.code[kernels.launch],
        kernels.start_ns,
        (microseconds, run.nested_ns[kernels.launch]),
        kernels.start_ns,
        *kernel_places(run),
        (microseconds, kernels.start_ns),
    )


def _operator(run: Run, launch: Launch, place: int, variant: int) -> str:
    """Return a cpu_op event with gaps for start, duration and sequence number."""
    own = run.parameters
    arguments: dict[str, object] = {
        "Sequence number": "SEQUENCE",
        "Fwd thread id": int(launch.is_backward(place)),
    }
    if own.shapes and launch.has_shapes(place):
        arguments["Input Dims"] = of_variant(launch.dims, variant)
        arguments["Input type"] = launch.types
    if own.stacks and launch.stack:
        arguments["Call stack"] = ";\r\n".join(launch.stack)
    name, tid = json.dumps(launch.chain[place]), run.thread(launch.thread)
    text = json.dumps(arguments).replace("%", "%%").replace('"SEQUENCE"', "%d")
    return (
        f'{{"ph": "X", "name": {name}, "pid": {run.pid}, "tid": {tid}, "ts": "%s", "dur": %r, '
        f'"cat": "cpu_op", "args": {text}}}'
    )


def _step_operator(run: Run, call: Call) -> str:
    arguments: dict[str, object] = {"Sequence number": -1, "Fwd thread id": 0}
    if run.parameters.stacks:
        arguments["Call stack"] = ";\r\n".join(call.stack)
    return _event(run, call, "cpu_op", arguments)


def _function(run: Run, number: int, call: Call) -> str:
    arguments: dict[str, object] = {"Python id": number, "Python parent id": max(number - 1, 0)}
    if call.name.startswith("nn.Module"):
        arguments["Python module id"] = 0
    return _event(run, call, "python_function", arguments)


def _event(run: Run, call: Call, category: str, arguments: dict[str, object]) -> str:
    return json.dumps(
        {"ph": "X", "name": call.name, "pid": run.pid, "tid": run.thread(MAIN),
         "ts": moment(call.start_ns), "dur": call.duration_ns / 1000, "cat": category,
         "args": arguments}
    )  # fmt: skip


def _queue(run: Run) -> Events:
    """Yield the hand-over of each launch to the thread that feeds the device."""
    flow = '{"ph": "%s", "bp": "e", "name": "enqueue_to_dequeue", "id": %%d, "pid": %d, '
    flow += '"tid": %d, "ts": "%%s", "cat": "async_task_queue"}'
    event = '{"ph": "X", "name": "%s", "pid": %d, "tid": %d, "ts": "%%s", "dur": %%r, '
    event += '"cat": "%s", "args": {"correlation_id": %%d}}'
    queue = run.thread(QUEUE)
    puts, gets = [], []
    for launch in run.program.launches:
        tid = run.thread(launch.thread)
        put = event % ("Enqueue", run.pid, tid, "enqueue")
        puts.append(f"{put}, {flow % ('s', run.pid, tid)}")
        get = event % (f"Dequeue@{launch.chain[-1]}", run.pid, queue, "dequeue")
        gets.append(f"{get}, {flow % ('f', run.pid, queue)}")
    code = run.launches.code
    number = _CORRELATION + np.arange(len(code))
    for texts, start, length in (
        (puts, run.enqueue_ns, np.full_like(code, ENQUEUE_LENGTH_NS)),
        (gets, run.queue_ns, run.dequeue_length_ns),
    ):
        at = (microseconds, start)
        yield from fill(texts, code, at, (numbers, length), number, number, at)


def _forward_to_backward(run: Run) -> Events:
    """Yield the flows from each operator to the one that autograd runs for it."""
    program, launches = run.program, run.launches
    flow = '{"ph": "%s", "bp": "e", "name": "fwdbwd", "id": %%d, "pid": %d, "tid": %d, '
    flow += '"ts": "%%s", "cat": "fwdbwd"}'
    for phase, which in (("s", MAIN), ("f", AUTOGRAD)):
        chosen = (program.slots >= 0) & (program.autograd == (which == AUTOGRAD))
        at = np.flatnonzero(chosen[launches.code])
        starts = launches.start_ns[at] + NEST_NS * program.nodes[launches.code[at]]
        text = flow % (phase, run.pid, run.thread(which))
        yield from fill([text], at * 0, launches.sequence[at], (microseconds, starts))


def _built_ins(run: Run) -> Events:
    """Yield as many other Python functions per launch as was asked for."""
    text = '{"ph": "X", "name": "<built-in method __getattribute__ of type object at 0x%x>", '
    text += f'"pid": {run.pid}, "tid": {run.thread(MAIN)}, "ts": "%s", "dur": 0.01, '
    text += '"cat": "python_function", "args": {"Python id": %d, "Python parent id": 0}}'
    each = run.parameters.host_events
    behind = np.arange(each) * _BUILT_IN_NS % _BUILT_IN_ROOM_NS
    for part in chunks(len(run.launches.code), max(1, 20_000 // each)):
        before = run.launches.start_ns[part, None] - _BUILT_IN_ROOM_NS - _BUILT_IN_NS
        number = np.arange(part.start * each, part.stop * each)
        start = (microseconds, (before + behind).ravel())
        yield from fill([text], number * 0, 0xFFFF00000000 + 16 * number, start, number)
