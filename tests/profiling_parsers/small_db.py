"""The small dump as a db export: the same run, so the same answers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from small_dump import STACK, START

if TYPE_CHECKING:
    from pathlib import Path

MAIN = "ascend_pytorch_profiler_0.db"
OPERATOR = 50001
Rows = list[dict[str, Any]]
Tables = dict[str, Rows]


class Strings(dict[str, int]):
    def __call__(self, text: str | None) -> int | None:
        return None if text is None else self.setdefault(text, len(self))


def task(number: int, start: int, duration: int, connection: int) -> dict[str, Any]:
    return {
        "startNs": START + start,
        "endNs": START + start + duration,
        "deviceId": 0,
        "connectionId": connection,
        "globalTaskId": number,
        "taskType": 0,
        "streamId": 2,
    }


def api(  # noqa: PLR0913
    name: int | None,
    thread: int,
    start: int,
    duration: int,
    *,
    sequence: int = -1,
    connection: int | None = None,
    chain: int | None = None,
    dims: int | None = None,
    types: int | None = None,
    kind: int = OPERATOR,
) -> dict[str, Any]:
    """Return an operator; as in real dumps, dims and types are in each other's column."""
    return {
        "startNs": str(START + start),
        "endNs": str(START + start + duration),
        "globalTid": (1 << 32) + thread,
        "connectionId": connection,
        "name": name,
        "sequenceNumber": sequence,
        "fwdThreadId": 0,
        "inputDtypes": dims,
        "inputShapes": types,
        "callchainId": chain,
        "type": kind,
    }


def small_tables() -> Tables:
    """Return the tables of the run that ``small_dump.write_dump`` writes as text."""
    text = Strings()

    def compute(number: int, name: str, shapes: str, dtypes: str) -> dict[str, Any]:
        return {
            "name": text(name),
            "globalTaskId": number,
            "blockDim": 8,
            "taskType": text("AI_VECTOR_CORE"),
            "opType": text("Mul"),
            "inputDataTypes": text(dtypes),
            "inputShapes": text(shapes),
            "outputShapes": text('"4,128"'),
        }

    def op(name: str, thread: int, start_us: int, duration_us: int, **more: Any) -> dict[str, Any]:
        return api(text(name), thread, start_us, duration_us * 1000, **more)

    backward = "autograd::engine::evaluate_function: MulBackward0"
    dims, types = text("4,128;\r\n128;\r\n"), text("float;\r\nfloat")
    tables = {
        "TASK": [
            task(5, 60_000, 10_500, 900),
            task(6, 170_000, 20_250, 901),
            task(7, 1_000, 10, 899),  # an event of the driver, not a kernel
        ],
        "COMPUTE_TASK_INFO": [
            compute(5, "aclnnMul_Mul", '"4,128;128"', "FLOAT;FLOAT"),
            compute(6, "aclnnMulGrad_Mul", '"4,128"', "FLOAT"),
        ],
        "COMMUNICATION_OP": [
            {
                "opName": text("hcom_allReduce_1"),
                "startNs": START + 300_000,
                "endNs": START + 400_000,
                "connectionId": 950,
                "opId": 1,
                "opType": text("hcom_allReduce_"),
            }
        ],
        "PYTORCH_API": [
            op("aten::mul", 10, 1_000, 50, sequence=7, chain=3, dims=dims, types=types),
            op("aclnnMul", 10, 2_000, 5, chain=3, connection=40),
            op(backward, 11, 100_000, 90),
            op("MulBackward0", 11, 101_000, 80, sequence=7),
            op("aten::mul", 11, 102_000, 70),
            op("aclnnMul", 11, 103_000, 5, connection=41),
            op("Enqueue@aclnnMul", 10, 3_000, 1, connection=42, kind=50002),
            op("main.py(1): f", 10, 500, 9, kind=50003),
        ],
        "CONNECTION_IDS": [
            {"id": 40, "connectionId": 900},
            {"id": 41, "connectionId": 901},
            {"id": 42, "connectionId": 1_000},
        ],
        "PYTORCH_CALLCHAINS": [
            {"id": 3, "stack": text(frame), "stackDepth": depth}
            for depth, frame in reversed(list(enumerate(STACK.split(";\r\n"))))
        ],
        "STEP_TIME": [{"id": 50, "startNs": START, "endNs": START + 500_000}],
    }
    return {**tables, "STRING_IDS": [{"id": code, "value": value} for value, code in text.items()]}


def full_tables() -> Tables:
    """Return the small tables, and those of what a run records beside its kernels."""
    tables = small_tables()
    text = Strings({row["value"]: row["id"] for row in tables["STRING_IDS"]})
    for row in tables["COMPUTE_TASK_INFO"]:
        row["opState"] = text("dynamic")
    ratios = {"aic_mac_ratio": 0, "aiv_vec_ratio": 0.9, "aiv_mte2_ratio": 0.25}
    counters = {**ratios, "aiv_total_time": 5e5}
    tables |= {
        "TASK_PMU_INFO": [
            {"globalTaskId": 5, "name": text(name), "value": value}
            for name, value in counters.items()
        ],
        "CANN_API": [
            cann(20_000, text("aclnnMul"), 30_000, 20_000, 899),
            cann(10_000, text("launch"), 40_000, 9_000, 900),
            cann(10_000, text("launch"), 150_000, 11_000, 901),
            cann(5_000, text("KernelLaunch"), 41_000, 1_000, 902),
            cann(20_000, text("opCompile"), 200_000, 700_000, 903),
        ],
        "ENUM_API_TYPE": [
            {"id": 5_000, "name": "runtime"},
            {"id": 10_000, "name": "node"},
            {"id": 20_000, "name": "acl"},
        ],
        "GC_RECORD": [{"startNs": START + 7, "endNs": START + 57, "globalTid": 1 << 32}],
        "AICORE_FREQ": [
            {"deviceId": 0, "timestampNs": START + 90, "freq": 800},
            {"deviceId": 0, "timestampNs": START, "freq": 1800},
        ],
        "MEMORY_RECORD": [memory(text("PTA"), 20, 512, 1024), memory(text("GE"), 10, 0, 2048)],
        "NPU_MEM": [
            {"type": text(kind), "ddr": 1, "hbm": 4095, "timestampNs": START, "deviceId": 0}
            for kind in ("app", "device")
        ],
        "OP_MEMORY": [
            {"name": text("aten::mul"), "size": 512, "allocationTime": START, "duration": 99},
            {"name": text("aten::mul"), "size": 64, "allocationTime": None, "duration": None},
        ],
        "NPU_INFO": [{"id": 0, "name": "Ascend910B3"}, {"id": 1, "name": "Ascend910B4"}],
        "RANK_DEVICE_MAP": [{"rankId": 6, "deviceId": 0}],
        "META_DATA": [
            {"name": "SCHEMA_VERSION", "value": "1.2.0"},
            {"name": "distributed_args", "value": '{"world_size": 8}'},
            {"name": "ENV_VARIABLES", "value": '{"ASCEND_LAUNCH_BLOCKING": "1"}'},
        ],
    }
    return {**tables, "STRING_IDS": [{"id": code, "value": value} for value, code in text.items()]}


def cann(kind: int, name: int | None, start: int, duration: int, connection: int) -> dict[str, Any]:
    return {
        "startNs": START + start,
        "endNs": START + start + duration,
        "type": kind,
        "globalTid": (1 << 32) + 12,
        "connectionId": connection,
        "name": name,
    }


def memory(component: int | None, time: int, allocated: int, reserved: int) -> dict[str, Any]:
    return {
        "component": component,
        "timestamp": START + time,
        "totalAllocated": allocated,
        "totalReserved": reserved,
        "deviceId": 0,
    }


def collective_tables() -> Tables:
    """Return the tables of analysis.db that say how a collective spent its time."""
    entry = {"hccl_op_name": "hcom_allReduce__1_0_1", "group_name": "17", "step": "step50"}
    entry["type"] = "collective"
    times = {
        "start_timestamp": START / 1000,
        "elapse_time": 0.1,
        "transit_time": 0.05,
        "wait_time": 0.02,
        "synchronization_time": 0.01,
        "idle_time": 0.03,
    }
    moved = {"transit_size": 2.5, "transit_time": 0.05, "bandwidth": 50.0}
    packets = [{"package_size": size, "count": 1} for size in (2, 0.5)]
    link = {"src_rank": "0", "dst_rank": "1", "transport_type": "HCCS"}
    return {
        "CommAnalyzerTime": [{**entry, **times}],
        "CommAnalyzerBandwidth": [
            {**entry, "transport_type": "HCCS", **moved, "large_packet_ratio": 0.5, **packet}
            for packet in packets
        ]
        + [
            {**entry, "transport_type": "RDMA", **dict.fromkeys(moved, 0), "large_packet_ratio": 0}
            | packets[0]
        ],
        "CommAnalyzerMatrix": [{**entry, "hccl_op_name": "allreduce-top1", **link, **moved}],
    }


def split_tables() -> Tables:
    """Return the tables of analysis.db."""
    times = {
        "computing": 30.75,
        "communication_not_overlapped": 100,
        "overlapped": 0.0,
        "communication": 100,
        "free": 5.000000000003,
        "bubble": 0.0,
    }
    return {"StepTraceTime": [{"step": "50", **times}]}


def write_database(path: Path, tables: Tables) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        for name, rows in tables.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(rows[0])})")
            places = ", ".join(["?"] * len(rows[0]))
            connection.executemany(
                f"INSERT INTO {name} VALUES ({places})",  # noqa: S608
                [tuple(row.values()) for row in rows],
            )
        connection.commit()


def write_db_dump(root: Path, tables: Tables | None = None, split: Tables | None = None) -> Path:
    output = root / "ASCEND_PROFILER_OUTPUT"
    write_database(output / MAIN, small_tables() if tables is None else tables)
    write_database(output / "analysis.db", split_tables() if split is None else split)
    return root
