"""The tables of the database that come from CANN and the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.program import QUEUE
from benchmarks.generator.run import FULL_MHZ, NODE_LENGTH_NS
from benchmarks.generator.text import of_variant, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.generator.files.sqlite_file import Writer
    from benchmarks.generator.program import Kernel
    from benchmarks.generator.run import Run

    Rows = Iterator[tuple[object, ...]]

_NO_CONTEXT, _TASKS, _NODE = 4_294_967_295, 1 << 16, 10_000
_TASK = (
    "startNs INTEGER,endNs INTEGER,deviceId INTEGER,connectionId INTEGER,globalTaskId INTEGER,"
    "globalPid INTEGER,taskType INTEGER,contextId INTEGER,streamId INTEGER,taskId INTEGER,"
    "modelId INTEGER"
)
_COMPUTE = (
    "name INTEGER,globalTaskId INTEGER PRIMARY KEY,blockDim INTEGER,mixBlockDim INTEGER,"
    "taskType INTEGER,opType INTEGER,inputFormats INTEGER,inputDataTypes INTEGER,"
    "inputShapes INTEGER,outputFormats INTEGER,outputDataTypes INTEGER,outputShapes INTEGER,"
    "attrInfo INTEGER"
)
_OPERATIONS = (
    "opName INTEGER,startNs INTEGER,endNs INTEGER,connectionId INTEGER,groupName INTEGER,"
    "opId INTEGER PRIMARY KEY,relay INTEGER,retry INTEGER,dataType INTEGER,algType INTEGER,"
    "count NUMERIC,opType INTEGER"
)
_OPERATION_TASKS = (
    "name INTEGER,globalTaskId INTEGER,taskType INTEGER,planeId INTEGER,groupName INTEGER,"
    "notifyId INTEGER,rdmaType INTEGER,srcRank INTEGER,dstRank INTEGER,transportType INTEGER,"
    "size INTEGER,dataType INTEGER,linkType INTEGER,opId INTEGER"
)
_CANN = (
    "startNs INTEGER,endNs INTEGER,type INTEGER,globalTid INTEGER,"
    "connectionId INTEGER PRIMARY KEY,name INTEGER"
)
_DRIVER_NAMES = {
    "AI_CORE": "KERNEL_AICORE", "AI_VECTOR_CORE": "KERNEL_AIVEC", "AI_CPU": "KERNEL_AICPU",
    "DSA_SQE": "STARS_COMMON", "PCIE_DMA_SQE": "MEMCPY_ASYNC", "": "SDMA",
}  # fmt: skip
_PIPES = {
    "aic": ("mac", "scalar", "mte1", "mte2", "fixpipe"),
    "aiv": ("vec", "mac", "scalar", "mte1", "mte2", "mte3"),
}
_RATIOS = {"mac": 0.62, "vec": 0.62, "scalar": 0.125, "mte2": 0.41}
_ACTIVE = 0.95


def write(run: Run, database: Writer) -> None:
    """Write the tasks of the devices and what launched them."""
    new = run.parameters.version == "newest"
    compute = _COMPUTE.replace("blockDim", "blockNum").replace("mixBlockDim", "mixBlockNum")
    compute = compute if new else _COMPUTE
    compute += ",opState INTEGER" if run.parameters.names_device else ""
    database.table("TASK", _TASK, _tasks(run, database))
    database.table("COMPUTE_TASK_INFO", compute, _compute(run, database))
    database.table("COMMUNICATION_OP", _OPERATIONS, _operations(run, database))
    database.table("COMMUNICATION_TASK_INFO", _OPERATION_TASKS, _operation_tasks(run, database))
    database.table("CANN_API", _CANN, _launches(run, database))
    if run.parameters.level and run.parameters.pmu:
        columns = "globalTaskId INTEGER,name INTEGER,value NUMERIC"
        database.table("TASK_PMU_INFO", columns, _counters(run, database))


def _tasks(run: Run, database: Writer) -> Rows:
    kernels, program = run.kernels, run.program
    kinds = [database.text(_DRIVER_NAMES.get(each.core, each.core)) for each in program.kernels]
    number = np.arange(len(kernels.code))
    return rows(
        kernels.start_ns, kernels.start_ns + kernels.duration_ns, run.devices, run.connections,
        number, run.pid, np.array(kinds)[kernels.code], _NO_CONTEXT, program.streams[kernels.code],
        number % _TASKS, _NO_CONTEXT,
    )  # fmt: skip


def _compute(run: Run, database: Writer) -> Rows:
    own, kernels = run.parameters, run.kernels
    texts = [
        _describe(kernel, v, run, database)
        for kernel in run.program.kernels
        for v in range(own.variants)
    ]
    task = np.flatnonzero(run.program.computes[kernels.code])
    kind = kernels.code[task] * own.variants + run.variants(kernels.launch[task])
    name, *rest = np.array(texts)[kind].T
    return rows(name, task, *rest)


def _describe(kernel: Kernel, variant: int, run: Run, database: Writer) -> tuple[int, ...]:
    """Return all columns but the task."""
    nothing = database.text("N/A")
    state = (database.text("dynamic"),) if run.parameters.names_device else ()
    name = database.text(kernel.name)
    if run.parameters.level == 0:
        return name, 0, 0, *[nothing] * 9, *state
    tensors = []
    for shapes, dtypes, formats in (kernel.inputs, kernel.outputs):
        shape = of_variant(shapes, variant)
        quoted = shape if shape == "N/A" else f'"{shape}"'
        tensors += [database.text(text) for text in (formats, dtypes, quoted)]
    kinds = (database.text(kernel.core), database.text(kernel.type))
    return name, kernel.blocks, 0, *kinds, *tensors, nothing, *state


def _collectives(run: Run) -> Iterator[tuple[int, Kernel, str, int]]:
    """Yield row, kernel, name and number (from 1) of each collective."""
    kernels = run.kernels
    for at in np.flatnonzero(run.program.collective[kernels.code]).tolist():
        kernel, number = run.program.kernels[kernels.code[at]], int(kernels.number[at])
        yield at, kernel, kernel.name % number, number + 1


def _operations(run: Run, database: Writer) -> Rows:
    every = run.connections
    group, algorithm = (
        database.text(run.parameters.layout.everyone.number),
        database.text("MESH-RING"),
    )
    for at, kernel, called, number in _collectives(run):
        name, start = database.text(called), int(run.kernels.start_ns[at])
        kind = database.text(kernel.type if run.parameters.level else "N/A")
        end = start + int(run.kernels.duration_ns[at])
        yield (name, start, end, int(every[at]), group, number, 0, 0, 4, algorithm, 4_097_000,
               kind)  # fmt: skip


def _operation_tasks(run: Run, database: Writer) -> Rows:
    rank, group, kind = (
        run.parameters.rank,
        database.text(run.parameters.layout.everyone.number),
        database.text("Reduce_Inline"),
    )
    for at, _, called, number in _collectives(run):
        yield (database.text(called), at, kind, 0, group, 0, 65_535, rank, rank, 0, 2_064_384, 4, 1,
               number)  # fmt: skip


def _launches(run: Run, database: Writer) -> Rows:
    name, thread = database.text("launch"), (run.pid << 32) | run.thread(QUEUE)
    start = run.node_ns
    return rows(start, start + NODE_LENGTH_NS, _NODE, thread, run.connections, name)


def _counters(run: Run, database: Writer) -> Rows:
    """Yield 28 counters of each task: those of its own kind of core, and zeros for the other."""
    kernels = run.kernels
    names = [_counter_names(core) for core in _PIPES]
    numbers = [database.text(name) for part in names for name in part]
    factors = [_counter_factors(kernel) for kernel in run.program.kernels]
    for at in np.flatnonzero(run.program.computes[kernels.code]).tolist():
        length = int(kernels.duration_ns[at])
        cells = zip(numbers, factors[kernels.code[at]], strict=True)
        yield from ((at, number, constant + length * slope) for number, (constant, slope) in cells)


def _counter_names(core: str) -> list[str]:
    pipes = [f"{core}_{pipe}_{what}" for pipe in _PIPES[core] for what in ("time", "ratio")]
    return [f"{core}_total_time", f"{core}_total_cycles", *pipes, f"{core}_icache_miss_rate"]


def _counter_factors(kernel: Kernel) -> list[tuple[float, float]]:
    """Return each counter as a constant, and a multiple of the duration in nanoseconds."""
    factors: list[tuple[float, float]] = []
    for core, pipes in _PIPES.items():
        cube = kernel.core in {"AI_CORE", "MIX_AIC"}
        used = kernel.core not in {"AI_CPU", "DSA_SQE"} and cube == (core == "aic")
        active = _ACTIVE if used else 0.0
        factors += [(0.0, active), (0.0, active * FULL_MHZ / 1000)]
        for pipe in pipes:
            ratio = _RATIOS.get(pipe, 0.0) if used and not (core == "aiv" and pipe == "mac") else 0
            factors += [(0.0, active * ratio), (ratio, 0.0)]
        factors.append((0.02 * used, 0.0))
    return factors
