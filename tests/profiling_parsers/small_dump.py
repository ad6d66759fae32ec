"""A small dump that a test can bend."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

START = 1_736_408_883_704_000_000
"""Start of the small run, in epoch nanoseconds."""


def microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


KERNELS = """\
Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Input Shapes,\
Input Data Types,Output Shapes,Block Dim
50,aclnnMul_Mul,Mul,AI_VECTOR_CORE,{0}\t,10.5,0,\"\"\"4,128;128\"\"\",FLOAT;FLOAT,\"\"\"4,128\"\"\",8
50,aclnnMulGrad_Mul,Mul,AI_VECTOR_CORE,{1}\t,20.25,1.5,\"\"\"4,128\"\"\",FLOAT,\"\"\"4,128\"\"\",8
50,hcom_allReduce_1,hcom_allReduce_,HCCL,{2}\t,100,N/A,N/A,N/A,N/A,0
"""
OP_STATISTIC = """\
OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)
Mul,AI_VECTOR_CORE,2,30.75,10.5,15.375,20.25,100
"""
STEP_TRACE_TIME = """\
Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble
50,30.75,100,0.0,100,5.000000000003,135.75,0
"""
STACK = "/home/me/model.py(12): forward;\r\n/home/me/train.py(7): main;\r\n<string>(1): <module>"


def host_op(name: str, tid: int, start: int, duration_us: float, **args: object) -> dict[str, Any]:
    named = {"Sequence number": -1, "Fwd thread id": 0}
    named |= {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": microseconds(START + start),
        "dur": duration_us,
        "cat": "cpu_op",
        "args": named,
    }


def launch(kernel: str, kernel_start: int, tid: int, host_start: int) -> list[dict[str, Any]]:
    """Return the device event of a kernel and the flow from the host operator to it."""
    device = {"pid": 3170820512, "tid": 2, "ts": microseconds(START + kernel_start)}
    flow = {"bp": "e", "name": "torch_to_npu", "id": START + kernel_start, "cat": "async_npu"}
    host = {"pid": 1, "tid": tid, "ts": microseconds(START + host_start)}
    return [
        {"ph": "X", "name": kernel, **device, "dur": 1, "args": {"Task Type": "AI_CORE"}},
        {"ph": "s", **flow, **host},
        {"ph": "f", **flow, **device},
    ]


def python_call(name: str, tid: int, start: int, duration_us: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": microseconds(START + start),
        "dur": duration_us,
        "cat": "python_function",
        "args": {"Python id": 1},
    }


def cann_launch(flow: str, kernel_start: int, host_start: int) -> list[dict[str, Any]]:
    """Return the flow from the call of CANN that hands a kernel to the device."""
    kind = {"name": f"HostToDevice{flow}", "id": flow, "cat": "HostToDevice"}
    host = {"pid": 3170820001, "tid": 12, "ts": microseconds(START + host_start)}
    device = {"pid": 3170820512, "tid": 2, "ts": microseconds(START + kernel_start)}
    return [{"ph": "s", **kind, **host}, {"ph": "f", "bp": "e", **kind, **device}]


def without_stacks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        event
        if "Call stack" not in event.get("args", {})
        else event | {"args": {k: v for k, v in event["args"].items() if k != "Call stack"}}
        for event in events
    ]


def small_trace() -> list[dict[str, Any]]:
    """Return a forward operator with a stack and a backward operator that only has its number."""
    backward = "autograd::engine::evaluate_function: MulBackward0"
    return [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "Python"}},
        host_op(
            "aten::mul",
            10,
            1_000,
            50,
            Sequence_number=7,
            Input_Dims="4,128;\r\n128;\r\n",
            Input_type="float;\r\nfloat",
            Call_stack=STACK,
        ),
        host_op("aclnnMul", 10, 2_000, 5, Call_stack=STACK),
        host_op(backward, 11, 100_000, 90),
        host_op("MulBackward0", 11, 101_000, 80, Sequence_number=7, Fwd_thread_id=1),
        host_op("aten::mul", 11, 102_000, 70),
        host_op("aclnnMul", 11, 103_000, 5),
        *launch("aclnnMul_Mul", 60_000, 10, 2_000),
        *launch("aclnnMulGrad_Mul", 170_000, 11, 103_000),
    ]


def write_dump(root: Path, **files: str | None) -> Path:
    """Write the small dump; a file (name without suffix) can be replaced or, ``None``, left out."""
    output = root / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    starts = [microseconds(START + offset) for offset in (60_000, 170_000, 300_000)]
    contents: dict[str, str | None] = {
        "kernel_details.csv": KERNELS.format(*starts),
        "op_statistic.csv": OP_STATISTIC,
        "step_trace_time.csv": STEP_TRACE_TIME,
        "trace_view.json": json.dumps(small_trace()),
    }
    contents |= {next(name for name in contents if key in name): files[key] for key in files}
    for name, content in contents.items():
        if content is not None:
            (output / name).write_text(content, encoding="utf-8", newline="")
    return root
