"""Small Kineto traces that a test can bend, in the spelling of torch 1.9 and in today's."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
BASE = 1_735_632_360_000_000_000
STACK = (
    "/site-packages/torch/nn/modules/linear.py(114): forward;model.py(12): forward;train.py(7): f"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
    "(int, at::native::AddFunctor<float>)"
)
MUL = "void at::native::(anonymous namespace)::mul_kernel<float>(int)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(cat: str, name: str, start: float, duration: float, **more: object) -> Event:
    where = {"pid": 1, "tid": 10} | {key: more.pop(key) for key in ("pid", "tid") if key in more}
    args = {key.replace("_", " "): value for key, value in more.items()}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        **where,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def gpu(cat: str, name: str, start: float, duration: float, correlation: int, **more: Any) -> Event:
    more = {"device": 0, "stream": 7, "correlation": correlation} | more
    return event(cat, name, start, duration, **({"pid": 0, "tid": 7} | more))


def new_events() -> list[Event]:
    """Return two steps: a forward and a backward kernel, a copy, a collective, an annotation."""
    shapes = {"Input_Dims": [[4, 128], [128], []], "Input_type": ["float", "c10::Half", "Scalar"]}
    return [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0.5, "args": {"name": "py"}},
        event("user_annotation", "ProfilerStep#3", 100.0, 400.0),
        event("python_function", "train.py(5): main", 90.0, 1000.0),
        event("python_function", "nn.Module: Linear_0", 105.0, 60.0),
        event("python_function", "model.py(10): forward", 106.0, 58.0),
        event("cpu_op", "aten::add", 110.25, 40.5, External_id=2, Sequence_number=9, **shapes),
        event("cuda_runtime", "cudaLaunchKernel", 120.0, 5.0, External_id=2, correlation=501),
        gpu("kernel", ADD, 200.125, 10.375, 501, External_id=2),
        {"ph": "s", "id": 501, "pid": 1, "tid": 10, "ts": 120.0, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 501, "pid": 0, "tid": 7, "ts": 200.125, "cat": "ac2g", "name": "ac2g"},
        event("cpu_op", "aten::copy_", 160.0, 30.0, External_id=3),
        event("cuda_runtime", "cudaMemcpyAsync", 165.0, 5.0, External_id=3, correlation=502),
        gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 220.5, 20.0, 502, External_id=3),
        event("user_annotation", "ProfilerStep#4", 500.0, 300.0),
        event(
            "cpu_op", "autograd::engine::evaluate_function: AddBackward0", 510.0, 90.0, tid=11,
            External_id=4, Sequence_number=9, Fwd_thread_id=1,
        ),
        event(
            "cpu_op", "AddBackward0", 511.0, 88.0, tid=11, External_id=5, Sequence_number=9,
            Fwd_thread_id=1,
        ),
        event("cpu_op", "aten::mul", 520.0, 30.0, tid=11, External_id=6),
        event("cuda_runtime", "cudaLaunchKernel", 525.0, 5.0, tid=11, correlation=503),
        gpu("kernel", MUL, 600.0, 50.0, 503),
        event("user_annotation", "nccl:all_reduce", 620.0, 20.0, tid=11),
        event("cuda_runtime", "cudaLaunchKernelExC", 625.0, 5.0, tid=11, correlation=504),
        gpu("kernel", ALL_REDUCE, 640.0, 30.0, 504),
        gpu("gpu_memset", "Memset (Device)", 700.0, 1.0, 505),
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 900.0},
    ]  # fmt: skip


def old_events() -> list[Event]:
    """Return one step as torch 1.9 wrote it: whole microseconds, ``external id``, call stacks."""
    shapes = {"Input_Dims": [[4, 128], [128], []], "Input_type": ["float", "float", "Int"]}
    return [
        event("Operator", "ProfilerStep#1", 90, 500, tid="10", External_id=1),
        event(
            "Operator", "aten::addmm", 100, 50, tid="10", External_id=2, Sequence_number=7,
            Call_stack=STACK, **shapes,
        ),
        event("Runtime", "cudaLaunchKernel", 150, 4, tid="10", external_id=2, correlation=31),
        event("Operator", "aten::relu", 150, 20, tid="10", External_id=3, Call_stack=STACK),
        gpu("Kernel", "volta_sgemm_128x64_tn", 200, 25, 31, external_id=2, tid="stream 7"),
        {"ph": "s", "id": 31, "pid": 1, "tid": 10, "ts": 150, "cat": "async", "name": "launch"},
        event("Operator", "AddmmBackward", 300, 60, tid="11", External_id=4, Sequence_number=7),
        event("Operator", "aten::mm", 310, 40, tid="11", External_id=5),
        event("Runtime", "cudaLaunchKernel", 320, 4, tid="11", external_id=5, correlation=32),
        gpu("Kernel", "volta_sgemm_128x32_nt", 400, 35, 32, external_id=5, tid="stream 7"),
        gpu("Memset", "Memset (Device)", 440, 2, 33, external_id=5, tid="stream 7"),
    ]  # fmt: skip


HEADER: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 1, "name": "other"}, {"id": 0, "name": "NVIDIA A100-SXM4-40GB"}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "record_shapes": 1,
    "with_stack": 1,
}
FOOTER = {"traceName": "x.json", "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE}


def trace(events: list[Event], header: dict[str, Any], footer: dict[str, Any]) -> str:
    """Return the text as Kineto lays it out."""
    return json.dumps({**header, "traceEvents": events, **footer}, indent=2)


def write_trace(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_new(path: Path, events: list[Event] | None = None) -> Path:
    events = new_events() if events is None else events
    return write_trace(path, trace(events, HEADER, FOOTER))


def write_old(path: Path, events: list[Event] | None = None) -> Path:
    events = old_events() if events is None else events
    return write_trace(path, trace(events, {"schemaVersion": 1}, {}))
