"""The tables of the database that the framework records: operators, queue, functions, stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.host import functions, operators, step_operators
from benchmarks.generator.program import MAIN, QUEUE
from benchmarks.generator.run import NEST_NS, NODE_NS
from benchmarks.generator.text import chunks, of_variant
from benchmarks.generator.threads import thread
from benchmarks.generator.trace_device import connections
from benchmarks.generator.trace_host import (
    DEQUEUE_NS,
    ENQUEUE_LENGTH_NS,
    ENQUEUE_NS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.generator.host import Operators
    from benchmarks.generator.program import Launch
    from benchmarks.generator.run import Run
    from benchmarks.generator.sqlite_file import Writer

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
    chains = "id INTEGER, stack INTEGER, stackDepth INTEGER"
    database.table("PYTORCH_CALLCHAINS", chains, _step_stacks(run, database))
    database.add("PYTORCH_API", _WIDTH, _step_operators(run, database))
    described = _Descriptions(run, database)
    chain = len(list(step_operators(run)))
    for rows in chunks(len(run.launches.code)):
        found = operators(run, rows)
        number = described.numbers(found, chain)
        database.add("PYTORCH_API", _WIDTH, described.operators(found, number))
        database.add("PYTORCH_CALLCHAINS", 3, described.stacks(found, number))
        chain = int(number.max(initial=chain - 1)) + 1
    if run.parameters.modules:
        database.add("PYTORCH_API", _WIDTH, _functions(run, database))


class _Descriptions:
    """What the rows of operators have in common: one entry per launch, place and variant."""

    def __init__(self, run: Run, database: Writer) -> None:
        own = run.parameters
        self._run = run
        self._cells = [
            [
                [_cells(run, launch, place, v, database) for v in range(own.variants)]
                for place in range(len(launch.chain))
            ]
            for launch in run.program.launches
        ]
        self._frames = [
            [database.text(frame, TEXTS) for frame in launch.stack] if own.stacks else []
            for launch in run.program.launches
        ]
        self._has_stack = np.array([bool(frames) for frames in self._frames])

    def numbers(self, found: Operators, first: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the number of the stack of each operator, counted from ``first``, -1 for none."""
        has = self._has_stack[self._run.launches.code[found.launch]]
        return np.where(has, first - 1 + np.cumsum(has), -1)

    def operators(
        self, found: Operators, number: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> Rows:
        """Yield rows of PYTORCH_API."""
        launches = self._run.launches
        code, count = launches.code[found.launch], len(launches.code)
        program = self._run.program
        leaf = found.place == program.depth[code] - 1
        paired = (program.slots[code] >= 0) & ~leaf & (found.place == program.nodes[code])
        base = np.where(leaf, 2, np.where(paired, 3, -1))
        connection = np.where(base >= 0, base * count + found.launch, -1)
        rows = zip(
            code.tolist(), found.place.tolist(), self._run.variants(found.launch).tolist(),
            found.start_ns.tolist(), (found.start_ns + found.duration_ns).tolist(),
            connection.tolist(), found.sequence.tolist(), number.tolist(), strict=True,
        )  # fmt: skip
        for launch, place, variant, start, end, link, sequence, chain in rows:
            tid, name, forward, dims, types = self._cells[launch][place][variant]
            yield (str(start), str(end), tid, link if link >= 0 else None, name, sequence, forward,
                   dims, types, chain if chain >= 0 else None, _OPERATOR)  # fmt: skip

    def stacks(self, found: Operators, number: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Rows:
        """Yield rows of PYTORCH_CALLCHAINS."""
        code = self._run.launches.code[found.launch].tolist()
        for launch, chain in zip(code, number.tolist(), strict=True):
            if chain >= 0:
                yield from ((chain, frame, d) for d, frame in enumerate(self._frames[launch]))


def _cells(run: Run, launch: Launch, place: int, variant: int, database: Writer) -> Row:
    """Return thread, name, forward thread, and shapes and types, which are in the wrong columns."""
    tid = (run.pid << 32) | thread(run, launch.thread)
    dims = types = None
    if run.parameters.shapes and launch.has_shapes(place):
        dims = database.text(of_variant(launch.dims, variant), TEXTS)
        types = database.text(launch.types, TEXTS)
    backward = int(launch.is_backward(place))
    return tid, database.text(launch.chain[place], TEXTS), backward, dims, types


def _queue(run: Run, database: Writer) -> Rows:
    launches = run.launches
    count = len(launches.code)
    put = database.text("Enqueue", TEXTS)
    gets = [database.text(f"Dequeue@{launch.chain[-1]}", TEXTS) for launch in run.program.launches]
    threads = [(run.pid << 32) | thread(run, launch.thread) for launch in run.program.launches]
    queue = (run.pid << 32) | thread(run, QUEUE)
    for rows in chunks(count):
        code = launches.code[rows]
        starts = launches.start_ns[rows] + NEST_NS * (run.program.depth[code] - 1) + ENQUEUE_NS
        lengths = DEQUEUE_NS + NODE_NS * run.program.count[code]
        cells = zip(
            range(rows.start, rows.stop), code.tolist(), starts.tolist(),
            run.queue_ns[rows].tolist(), lengths.tolist(), strict=True,
        )  # fmt: skip
        for number, kind, start, taken, length in cells:
            end = str(start + ENQUEUE_LENGTH_NS)
            yield (str(start), end, threads[kind], number, put, *[None] * 5, _QUEUE)
            yield (str(taken), str(taken + length), queue, count + number, gets[kind],
                   *[None] * 5, _QUEUE)  # fmt: skip


def _connections(run: Run) -> Rows:
    """Yield what the numbers of PYTORCH_API lead to: the queue, kernels, forward operators."""
    launches, kernels = run.launches, run.kernels
    count = len(launches.code)
    every = connections(run, slice(0, len(kernels.code)))
    behind = int(every.max(initial=0)) + 100
    for part in range(2):
        yield from ((part * count + number, behind + number) for number in range(count))
    order = np.lexsort((kernels.within, kernels.launch))
    ids = (2 * count + kernels.launch[order]).tolist()
    yield from zip(ids, every[order].tolist(), strict=True)
    slots = run.program.slots[launches.code]
    rows = np.flatnonzero(slots >= 0)
    pairs = behind + count + launches.sequence[rows]
    yield from zip((3 * count + rows).tolist(), pairs.tolist(), strict=True)


def _step_operators(run: Run, database: Writer) -> Rows:
    tid = (run.pid << 32) | thread(run, MAIN)
    for number, call in enumerate(step_operators(run)):
        name, end = database.text(call.name, TEXTS), str(call.start_ns + call.duration_ns)
        chain = number if run.parameters.stacks else None
        yield (str(call.start_ns), end, tid, None, name, -1, 0, None, None, chain, _OPERATOR)


def _step_stacks(run: Run, database: Writer) -> Rows:
    if run.parameters.stacks:
        for number, call in enumerate(step_operators(run)):
            for depth, frame in enumerate(call.stack):
                yield number, database.text(frame, TEXTS), depth


def _functions(run: Run, database: Writer) -> Rows:
    tid = (run.pid << 32) | thread(run, MAIN)
    for call in functions(run):
        name, end = database.text(call.name, TEXTS), str(call.start_ns + call.duration_ns)
        yield (str(call.start_ns), end, tid, None, name, *[None] * 5, _FUNCTION)
