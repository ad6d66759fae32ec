"""ascend_pytorch_profiler_N.db: the run as tables, times in nanoseconds, texts as numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.generator import profiler_db_device, profiler_db_host
from benchmarks.generator.memory import RESERVED, STREAM, blocks
from benchmarks.generator.profiler_json import metadata
from benchmarks.generator.sqlite_file import new_database

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.generator.run import Run
    from benchmarks.generator.sqlite_file import Writer

_MEMORY_TEXTS = 1 << 29
_API_TYPES = {
    5000: "runtime", 5500: "hccl", 10000: "node", 15000: "model", 20000: "acl", 50001: "op",
    50002: "queue", 50003: "trace", 50004: "mstx",
}  # fmt: skip
_DATA_TYPES = ("INT8", "INT16", "INT32", "FP16", "FP32", "INT64", "UINT64")
_RECORD = (
    "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER, "
    "totalActive INTEGER, streamPtr INTEGER, deviceId INTEGER"
)
_OPERATOR = (
    "name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER, "
    "activeReleaseTime INTEGER, duration INTEGER, activeDuration INTEGER, "
    "allocationTotalAllocated INTEGER, allocationTotalReserved INTEGER, "
    "allocationTotalActive INTEGER, releaseTotalAllocated INTEGER, releaseTotalReserved INTEGER, "
    "releaseTotalActive INTEGER, streamPtr INTEGER, deviceId INTEGER"
)


def write(run: Run, path: Path) -> None:
    """Write the file."""
    with new_database(path) as database:
        _machine(run, database)
        profiler_db_device.write(run, database)
        profiler_db_host.write(run, database)
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
    database.table("MEMORY_RECORD", _RECORD, records)
    database.table("OP_MEMORY", _OPERATOR, operators)
