"""ascend_pytorch_profiler_N.db: the run as tables, times in nanoseconds, texts as numbers."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.files import profiler_db_device
from benchmarks.generator.files.memory import RESERVED, STREAM, blocks
from benchmarks.generator.files.profiler_json import metadata
from benchmarks.generator.files.sqlite_file import new_database
from benchmarks.generator.host import functions, of_each_kind, operators, step_operators
from benchmarks.generator.program import MAIN, QUEUE
from benchmarks.generator.run import ENQUEUE_LENGTH_NS
from benchmarks.generator.text import of_variant, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.generator.files.sqlite_file import Writer
    from benchmarks.generator.host import Call
    from benchmarks.generator.program import Launch
    from benchmarks.generator.run import Run
    from benchmarks.generator.text import Integers
    from numpy.typing import NDArray

    Row = tuple[object, ...]
    Rows = Iterator[Row]

_HOST_TEXTS, _MEMORY_TEXTS = 1 << 28, 1 << 29
"""Where the numbers of texts of the framework, and of its blocks of memory, begin."""
_API_TYPES = {
    5000: "runtime", 5500: "hccl", 10000: "node", 15000: "model", 20000: "acl", 50001: "op",
    50002: "queue", 50003: "trace", 50004: "mstx",
}  # fmt: skip
_DATA_TYPES = ("INT8", "INT16", "INT32", "FP16", "FP32", "INT64", "UINT64")
_MEMORY_RECORD = (
    "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER, "
    "totalActive INTEGER, streamPtr INTEGER, deviceId INTEGER"
)
_OP_MEMORY = (
    "name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER, "
    "activeReleaseTime INTEGER, duration INTEGER, activeDuration INTEGER, "
    "allocationTotalAllocated INTEGER, allocationTotalReserved INTEGER, "
    "allocationTotalActive INTEGER, releaseTotalAllocated INTEGER, releaseTotalReserved INTEGER, "
    "releaseTotalActive INTEGER, streamPtr INTEGER, deviceId INTEGER"
)
_OPERATOR, _QUEUE, _FUNCTION = 50_001, 50_002, 50_003
_API = (
    "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER, "
    "sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER, inputShapes INTEGER, "
    "callchainId INTEGER, type INTEGER"
)
_WIDTH = _API.count(",") + 1


def write(run: Run, path: Path) -> None:
    """Write the file."""
    with new_database(path) as database:
        _machine(run, database)
        profiler_db_device.write(run, database)
        _framework(run, database)
        _memory(run, database)
        database.texts()


def _machine(run: Run, database: Writer) -> None:
    """Write the small tables: the machine, the session, the clocks."""
    devices = range(run.parameters.devices)
    start, end = run.steps[0].start_ns, run.steps[-1].end_ns
    texts = "id INTEGER PRIMARY KEY,name TEXT"
    known = metadata(run.parameters)
    database.table(
        "SESSION_TIME_INFO", "startTimeNs INTEGER,endTimeNs INTEGER", [(start - 10**8, end + 10**8)]
    )
    database.table("NPU_INFO", "id INTEGER,name TEXT", [(each, "Ascend910B") for each in devices])
    database.table("HOST_INFO", "hostUid TEXT,hostName TEXT", [("3538958389648580163", "ubuntu")])
    database.table("ENUM_API_TYPE", texts, _API_TYPES.items())
    database.table("ENUM_HCCL_DATA_TYPE", texts, enumerate(_DATA_TYPES))
    database.table(
        "META_DATA",
        "name TEXT,value TEXT",
        [("SCHEMA_VERSION", "1.0.0"), *((k, json.dumps(v)) for k, v in known.items())],
    )
    database.table(
        "AICORE_FREQ",
        "deviceId INTEGER,timestampNs NUMERIC,freq INTEGER",
        [(device, at, mhz) for device in devices for at, mhz in run.frequencies()],
    )
    database.table(
        "RANK_DEVICE_MAP",
        "rankId INTEGER, deviceId INTEGER",
        [(run.parameters.rank, device) for device in devices],
    )
    database.table(
        "GC_RECORD",
        "startNs INTEGER, endNs INTEGER, globalTid INTEGER",
        [(at, at + length, run.pid << 32 | run.pid) for at, length in run.collections()],
    )
    if run.parameters.schedule:
        database.table(
            "STEP_TIME",
            "id INTEGER, startNs INTEGER, endNs INTEGER",
            [(run.step_id(n), step.start_ns, step.end_ns) for n, step in enumerate(run.steps)],
        )


def _memory(run: Run, database: Writer) -> None:
    """Write the blocks of device memory."""
    component, _ = (database.text(name, _MEMORY_TEXTS) for name in ("PTA", "APP"))
    records: list[tuple[object, ...]] = []
    operators: list[tuple[object, ...]] = []
    for each in blocks(run):
        name, at, total = database.text(each.name, _MEMORY_TEXTS), each.allocated_ns, each.total
        records.append((component, at, total, RESERVED, total, STREAM, each.device))
        end, length, rest = at + each.duration_ns, each.duration_ns, total - each.size
        times: tuple[int | None, ...] = (end, end, length, length)
        left: tuple[int | None, ...] = (rest, RESERVED, rest)
        if each.kept:
            times, left = (None,) * 4, (None,) * 3
        operators.append(
            (name, each.size, at, *times, total, RESERVED, total, *left, STREAM, each.device)
        )
    database.table("MEMORY_RECORD", _MEMORY_RECORD, records)
    database.table("OP_MEMORY", _OP_MEMORY, operators)


def _framework(run: Run, database: Writer) -> None:
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
    name, end = database.text(call.name, _HOST_TEXTS), call.start_ns + call.duration_ns
    return (call.start_ns, end, _thread(run, MAIN), None, name, *rest)


def _stacks(stacks: Iterable[tuple[int, Sequence[str]]], database: Writer) -> Rows:
    """Yield the frames of numbered stacks."""
    for number, frames in stacks:
        for depth, frame in enumerate(frames):
            yield number, database.text(frame, _HOST_TEXTS), depth


def _write_operators(run: Run, first: int, database: Writer) -> None:
    """Write the operators of all launches, and their stacks, numbered from ``first``."""
    program, found = run.program, operators(run)

    def cells(run: Run, launch: Launch, place: int, variant: int) -> Row:
        """Return thread, name, forward thread; shapes and types are in the wrong columns."""
        dims = types = None
        if run.parameters.shapes and launch.has_shapes(place):
            dims = database.text(of_variant(launch.dims, variant), _HOST_TEXTS)
            types = database.text(launch.types, _HOST_TEXTS)
        name, backward = database.text(launch.chain[place], _HOST_TEXTS), launch.is_backward(place)
        return _thread(run, launch.thread), name, int(backward), dims, types

    of_kinds = np.array(of_each_kind(run, cells), dtype=object)
    frames = [launch.stack if run.parameters.stacks else () for launch in program.launches]
    for frame in (frame for each in frames for frame in each):
        database.text(frame, _HOST_TEXTS)
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
    put, number = database.text("Enqueue", _HOST_TEXTS), np.arange(len(launches.code))
    gets = [
        database.text(f"Dequeue@{launch.chain[-1]}", _HOST_TEXTS) for launch in program.launches
    ]
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
