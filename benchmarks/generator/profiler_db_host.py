"""The tables of the database that the framework records: operators, queue, functions, stacks."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.host import functions, of_each_kind, operators, step_operators
from benchmarks.generator.program import MAIN, QUEUE
from benchmarks.generator.run import ENQUEUE_LENGTH_NS
from benchmarks.generator.text import of_variant, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.generator.host import Call
    from benchmarks.generator.program import Launch
    from benchmarks.generator.run import Run
    from benchmarks.generator.sqlite_file import Writer
    from benchmarks.generator.text import Integers
    from numpy.typing import NDArray

    Row = tuple[object, ...]
    Rows = Iterator[Row]

TEXTS = 1 << 28
_OPERATOR, _QUEUE, _FUNCTION = 50_001, 50_002, 50_003
_API = (
    "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER, "
    "sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER, inputShapes INTEGER, "
    "callchainId INTEGER, type INTEGER"
)
_WIDTH = _API.count(",") + 1


def write(run: Run, database: Writer) -> None:
    """Write PYTORCH_API and what its rows refer to."""
    database.table("PYTORCH_API", _API, _queue(run, database))
    links = "id INTEGER, connectionId INTEGER"
    database.table("CONNECTION_IDS", links, _connections(run))
    steps, has_stacks = list(step_operators(run)), run.parameters.stacks
    stacks = enumerate(call.stack if has_stacks else () for call in steps)
    chains = "id INTEGER, stack INTEGER, stackDepth INTEGER"
    database.table("PYTORCH_CALLCHAINS", chains, _stacks(stacks, database))
    of_steps = (
        _call(run, call, database, -1, 0, None, None, number if has_stacks else None, _OPERATOR)
        for number, call in enumerate(steps)
    )
    database.add("PYTORCH_API", _WIDTH, of_steps)
    _write_operators(run, len(steps), database)
    if run.parameters.modules:
        calls = (_call(run, call, database, *[None] * 5, _FUNCTION) for call in functions(run))
        database.add("PYTORCH_API", _WIDTH, calls)


def _thread(run: Run, which: int) -> int:
    return (run.pid << 32) | run.thread(which)


def _call(run: Run, call: Call, database: Writer, *rest: object) -> Row:
    """Return the row of a single operator or function of the main thread."""
    name, end = database.text(call.name, TEXTS), call.start_ns + call.duration_ns
    return (call.start_ns, end, _thread(run, MAIN), None, name, *rest)


def _stacks(stacks: Iterable[tuple[int, Sequence[str]]], database: Writer) -> Rows:
    """Yield the frames of numbered stacks."""
    for number, frames in stacks:
        for depth, frame in enumerate(frames):
            yield number, database.text(frame, TEXTS), depth


def _write_operators(run: Run, first: int, database: Writer) -> None:
    """Write the operators of all launches, and their stacks, numbered from ``first``."""
    program, found = run.program, operators(run)

    def cells(run: Run, launch: Launch, place: int, variant: int) -> Row:
        """Return thread, name, forward thread; shapes and types are in the wrong columns."""
        dims = types = None
        if run.parameters.shapes and launch.has_shapes(place):
            dims = database.text(of_variant(launch.dims, variant), TEXTS)
            types = database.text(launch.types, TEXTS)
        name, backward = database.text(launch.chain[place], TEXTS), launch.is_backward(place)
        return _thread(run, launch.thread), name, int(backward), dims, types

    of_kinds = np.array(of_each_kind(run, cells), dtype=object)
    frames = [launch.stack if run.parameters.stacks else () for launch in program.launches]
    for frame in (frame for each in frames for frame in each):
        database.text(frame, TEXTS)
    code, count = run.launches.code[found.launch], len(run.launches.code)
    has_stack = np.array([bool(each) for each in frames])[code]
    stack = first - 1 + np.cumsum(has_stack)
    leaf = found.place == program.depth[code] - 1
    paired = (program.slots[code] >= 0) & ~leaf & (found.place == program.nodes[code])
    connection = np.where(leaf, 2, 3) * count + found.launch
    thread, name, forward, dims, types = of_kinds[found.kind].T
    every = rows(
        found.start_ns, found.start_ns + found.duration_ns, thread,
        _or_none(leaf | paired, connection), name, found.sequence, forward, dims, types,
        _or_none(has_stack, stack), _OPERATOR,
    )  # fmt: skip
    database.add("PYTORCH_API", _WIDTH, every)
    numbered = zip(stack[has_stack].tolist(), code[has_stack].tolist(), strict=True)
    stacks = ((number, frames[launch]) for number, launch in numbered)
    database.add("PYTORCH_CALLCHAINS", 3, _stacks(stacks, database))


def _or_none(known: NDArray[np.bool_], numbers: Integers) -> NDArray[np.object_]:
    """Return the numbers, and None where they are not known."""
    found = numbers.astype(object)
    found[~known] = None
    return found


def _queue(run: Run, database: Writer) -> Rows:
    """Yield how each launch is put into the queue, and taken from it."""
    launches, program = run.launches, run.program
    put, number = database.text("Enqueue", TEXTS), np.arange(len(launches.code))
    gets = [database.text(f"Dequeue@{launch.chain[-1]}", TEXTS) for launch in program.launches]
    threads = np.array([_thread(run, launch.thread) for launch in program.launches])
    nothing = [None] * 5
    puts = rows(
        run.enqueue_ns, run.enqueue_ns + ENQUEUE_LENGTH_NS, threads[launches.code], number, put,
        *nothing, _QUEUE,
    )  # fmt: skip
    taken = rows(
        run.queue_ns, run.queue_ns + run.dequeue_length_ns, _thread(run, QUEUE),
        len(number) + number, np.array(gets)[launches.code], *nothing, _QUEUE,
    )  # fmt: skip
    return chain.from_iterable(zip(puts, taken, strict=True))


def _connections(run: Run) -> Rows:
    """Yield what the numbers of PYTORCH_API lead to: the queue, kernels, forward operators."""
    kernels, every = run.kernels, run.connections
    count = len(run.launches.code)
    behind = int(every.max(initial=0)) + 100
    for part in range(2):
        yield from ((part * count + number, behind + number) for number in range(count))
    order = np.lexsort((kernels.within, kernels.launch))
    yield from rows(2 * count + kernels.launch[order], every[order])
    paired = np.flatnonzero(run.program.slots[run.launches.code] >= 0)
    yield from rows(3 * count + paired, behind + count + run.launches.sequence[paired])
