"""The events of trace_view.json that the framework records: operators, queue, functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.host import functions, operators, step_operators
from benchmarks.generator.program import AUTOGRAD, MAIN, QUEUE
from benchmarks.generator.run import NEST_NS, NODE_NS
from benchmarks.generator.text import chunks, microseconds, numbers, of_variant
from benchmarks.generator.threads import host_names, kernel_places, thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.generator.host import Call
    from benchmarks.generator.program import Launch
    from benchmarks.generator.run import Run

    Events = Sequence[str]

ENQUEUE_NS, ENQUEUE_LENGTH_NS, DEQUEUE_NS = 1_500, 3_000, 2_000
CORRELATION = 8_000
_BUILT_IN_NS, _BUILT_IN_ROOM_NS = 10, 1_300


def host_events(run: Run) -> Iterator[Events]:
    """Yield the events in the order in which the framework writes them."""
    yield from _operators(run)
    if run.parameters.runtime:
        yield from _queue(run)
    yield list(host_names(run))
    yield from _forward_to_backward(run)
    if run.parameters.modules:
        yield [_function(run, number, call) for number, call in enumerate(functions(run))]
    if run.parameters.host_events:
        yield from _built_ins(run)


def flows_to_device(run: Run) -> Iterator[Events]:
    """Yield the flows from operators to kernels, which stand at the end of the file."""
    kernels, launches = run.kernels, run.launches
    flow = '{"ph": "%s", "bp": "e", "name": "torch_to_npu", "id": %%d, "pid": %s, "tid": %s, '
    flow += '"ts": "%%s", "cat": "async_npu"}'
    starts = [flow % ("s", run.pid, thread(run, launch.thread)) for launch in run.program.launches]
    end = flow % ("f", "%d", "%d")
    for rows in chunks(len(kernels.code)):
        launch = kernels.launch[rows]
        code = launches.code[launch]
        pid, tid = kernel_places(run, rows)
        cells = zip(
            code.tolist(),
            kernels.start_ns[rows].tolist(),
            microseconds(launches.start_ns[launch] + NEST_NS * (run.program.depth[code] - 1)),
            pid.tolist(),
            tid.tolist(),
            microseconds(kernels.start_ns[rows]),
            strict=True,
        )
        yield [
            f"{starts[code] % (number, at)}, {end % (number, pid, tid, start)}"
            for code, number, at, pid, tid, start in cells
        ]


def _operators(run: Run) -> Iterator[Events]:
    """Yield cpu_op events."""
    variants = range(run.parameters.variants)
    texts = [
        [[_operator(run, launch, place, v) for place in range(len(launch.chain))] for v in variants]
        for launch in run.program.launches
    ]
    for rows in chunks(len(run.launches.code)):
        found = operators(run, rows)
        cells = zip(
            run.launches.code[found.launch].tolist(),
            run.variants(found.launch).tolist(),
            found.place.tolist(),
            microseconds(found.start_ns),
            numbers(found.duration_ns),
            found.sequence.tolist(),
            strict=True,
        )
        yield [
            texts[code][variant][place] % (start, length, sequence)
            for code, variant, place, start, length, sequence in cells
        ]
    yield [_step_operator(run, call) for call in step_operators(run)]


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
    name, tid = json.dumps(launch.chain[place]), thread(run, launch.thread)
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
    start = f"{call.start_ns // 1000}.{call.start_ns % 1000:03d}"
    return json.dumps(
        {"ph": "X", "name": call.name, "pid": run.pid, "tid": thread(run, MAIN), "ts": start,
         "dur": call.duration_ns / 1000, "cat": category, "args": arguments}
    )  # fmt: skip


def _queue(run: Run) -> Iterator[Events]:
    """Yield the hand-over of each launch to the thread that feeds the device."""
    flow = '{"ph": "%s", "bp": "e", "name": "enqueue_to_dequeue", "id": %%d, "pid": %d, '
    flow += '"tid": %d, "ts": "%%s", "cat": "async_task_queue"}'
    event = '{"ph": "X", "name": "%s", "pid": %d, "tid": %d, "ts": "%%s", "dur": %%r, '
    event += '"cat": "%s", "args": {"correlation_id": %%d}}'
    queue = thread(run, QUEUE)
    puts, gets = [], []
    for launch in run.program.launches:
        tid = thread(run, launch.thread)
        put = event % ("Enqueue", run.pid, tid, "enqueue")
        puts.append(f"{put}, {flow % ('s', run.pid, tid)}")
        get = event % (f"Dequeue@{launch.chain[-1]}", run.pid, queue, "dequeue")
        gets.append(f"{get}, {flow % ('f', run.pid, queue)}")
    launches = run.launches
    for texts, dequeue in ((puts, False), (gets, True)):
        for rows in chunks(len(launches.code)):
            code = launches.code[rows]
            start = run.queue_ns[rows]
            length = DEQUEUE_NS + NODE_NS * run.program.count[code]
            if not dequeue:
                start = (
                    launches.start_ns[rows] + NEST_NS * (run.program.depth[code] - 1) + ENQUEUE_NS
                )
                length = length * 0 + ENQUEUE_LENGTH_NS
            cells = zip(code.tolist(), microseconds(start), numbers(length), strict=True)
            yield [
                texts[code] % (at, duration, number, number, at)
                for number, (code, at, duration) in enumerate(cells, CORRELATION + rows.start)
            ]


def _forward_to_backward(run: Run) -> Iterator[Events]:
    """Yield the flows from each operator to the one that autograd runs for it."""
    launches = run.launches
    slots, autograd = run.program.slots[launches.code], run.program.autograd[launches.code]
    flow = '{"ph": "%s", "bp": "e", "name": "fwdbwd", "id": %%d, "pid": %d, "tid": %d, '
    flow += '"ts": "%%s", "cat": "fwdbwd"}'
    for phase, which, backward in (("s", MAIN, False), ("f", AUTOGRAD, True)):
        text = flow % (phase, run.pid, thread(run, which))
        rows = np.flatnonzero((slots >= 0) & (autograd == backward))
        for part in chunks(len(rows)):
            at = rows[part]
            starts = microseconds(
                launches.start_ns[at] + NEST_NS * run.program.nodes[launches.code[at]]
            )
            yield [text % pair for pair in zip(launches.sequence[at].tolist(), starts, strict=True)]


def _built_ins(run: Run) -> Iterator[Events]:
    """Yield as many other Python functions per launch as was asked for."""
    text = '{"ph": "X", "name": "<built-in method __getattribute__ of type object at 0x%x>", '
    text += f'"pid": {run.pid}, "tid": {thread(run, MAIN)}, "ts": "%s", "dur": 0.01, '
    text += '"cat": "python_function", "args": {"Python id": %d, "Python parent id": 0}}'
    each = run.parameters.host_events
    behind = np.arange(each) * _BUILT_IN_NS % _BUILT_IN_ROOM_NS
    for rows in chunks(len(run.launches.code), max(1, 20_000 // each)):
        before = run.launches.start_ns[rows, None] - _BUILT_IN_ROOM_NS - _BUILT_IN_NS
        starts = microseconds((before + behind).ravel())
        first = rows.start * each
        yield [
            text % (0xFFFF00000000 + 16 * number, start, number)
            for number, start in enumerate(starts, first)
        ]
