"""The first inputs: files of a dump of a few kernels, and those that no generator writes."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

from benchmarks.generator.dump import OUTPUT, write_dump
from benchmarks.generator.parameters import Parameters

START = 1_736_408_883_704_000
_SMALL = Parameters(kernels=8, steps=2, ranks=2)
_WITH_COLLECTIVES = Parameters(kernels=40, steps=1, ranks=2)
_DATABASE = "ascend_pytorch_profiler_0.db"

OP_SUMMARY = (
    "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),"
    "Task Duration(us),Task Wait Time(us),Block Num,Mix Block Num,HF32 Eligible,Input Shapes,"
    "Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats,Context ID,"
    "aicore_time(us),aiv_vec_time(us),aiv_vec_ratio,aiv_mte2_time(us),aiv_mte2_ratio\n"
    + "".join(
        f"0,4294967295,{row},2,aclnn{kind}_{kind},{kind},dynamic,AI_VECTOR_CORE,"
        f"{START + row * 100}.5\t,"
        f'30.5,0,8,0,NO,"""4,128;128""",FLOAT;FLOAT,ND;ND,"""4,128""",FLOAT,ND,N/A,0.0,1.0,0.2,5.0,0.9\n'
        for row, kind in enumerate(("Mul", "Add", "Cast"))
    )
)
TASK_TIME = (
    "Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us),task_stop(us)\n"
    f"2,aclnnMul_Mul_Mul,KERNEL_AIVEC,3,4,1.5,{START}.156\t,{START + 2}.656\t\n"
    f"2,N/A,EVENT_WAIT_SQE,3,5,9999,{START + 3}.000\t,{START + 10002}.000\t\n"
    f"2,aclnnMatmul_MatMulV2,AI_CORE,3,6,20,{START + 4}.000\t,{START + 24}.000\t\n"
)
L2_CACHE = (
    "Device_id,Stream Id,Task Id,Hit Rate,Victim Rate,Op Name\n"
    "0,2,11062,N/A,0.213463,trans_TransData_1\n0,2,11063,0.9375,0.0,Conv2D1\n0,2,11064,1,,aclnnMul\n"
)
STEP_TRACE = (
    "Device_id,Iteration ID,FP Start(us),BP End(us),Iteration End(us),Iteration Time(us),"
    "FP to BP Time(us),Iteration Refresh(us),Data Aug Bound(us),Model ID\n"
    f"0,1,{START},{START + 90},{START + 150}.000,150.000,90,10,N/A,1\n"
)
SOURCE = """\
import math

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(kind)


def attention(q, k, v, mask=None, *, scale: float | None = None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.matmul(F.softmax(scores, dim=-1), v)


def glu(x):
    a, b = x.chunk(2, dim=-1)
    return F.silu(a) * b


optimizer = torch.optim.AdamW([torch.zeros(1)], lr=1e-3)
for step in range(3):
    loss = glu(torch.ones(2, 4)).sum().item()
"""
DIFF = """\
diff --git a/m.py b/m.py
index 1234567..89abcde 100644
--- a/m.py
+++ b/m.py
@@ -31,3 +31,3 @@ def attention(q, k, v):
 def glu(x):
     a, b = x.chunk(2, dim=-1)
-    return F.silu(a) * b
+    return b * F.silu(a)
diff --git "a/\\303\\244.py" b/new.py
similarity index 90%
rename from "\\303\\244.py"
rename to new.py
--- /dev/null
+++ b/other.py
@@ -0,0 +1 @@
+x = 1
\\ No newline at end of file
"""
PYPROJECT = """\
[project]
name = "x"
[tool.npufix]
select = ["NPU101", "eager-swiglu"]
ignore = ["NPU204"]
exclude = ["third_party/*", "build"]
allow = []
[tool.npufix.per-file-ignores]
"tests/*" = ["NPU101"]
[tool.npufix.gate]
baseline = "b.json"
tolerance = "5%"
floor = "20us"
alpha = 0.01
min-runs = 3
fail-on = ["regression"]
[tool.npufix.gate.metrics.step-time]
level = "warn"
tolerance = "10%"
budget = "20ms"
[[tool.npufix.gate.accept]]
metric = "step-time"
increase = "10%"
until = 2030-01-01
reason = "known"
[tool.npufix.findings]
fail-on = ["NPU1"]
only-new = true
"""
_STEP = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 10}
_LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 10}
_OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 10}
_PYTHON = {"ph": "X", "cat": "python_function", "name": "m.py(10): forward", "pid": 1, "tid": 10}
_KERNEL = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7}
_NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_SHAPES = {"External id": 2, "Sequence number": 9, "Input Dims": [[4, 128], [128], []],
           "Input type": ["float", "c10::Half", "Scalar"]}  # fmt: skip
KINETO = json.dumps(
    {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "record_shapes": 1,
        "with_stack": 1,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0.5,
             "args": {"name": "py"}},
            {**_STEP, "ts": 100.0, "dur": 400.0, "args": {}},
            {**_PYTHON, "ts": 105.0, "dur": 200.0, "args": {"Python id": 1, "Python parent id": 0}},
            {**_OPERATOR, "ts": 110.25, "dur": 40.5, "args": _SHAPES},
            {**_LAUNCH, "ts": 120.0, "dur": 5.0, "args": {"External id": 2, "correlation": 501}},
            {**_KERNEL, "name": "void at::native::(anonymous namespace)::mul_kernel<float>(int)",
             "ts": 200.125, "dur": 10.375,
             "args": {"device": 0, "stream": 7, "correlation": 501, "External id": 2}},
            {"ph": "s", "id": 501, "pid": 1, "tid": 10, "ts": 120.0, "cat": "ac2g", "name": "ac2g"},
            {**_OPERATOR, "name": "AddBackward0", "ts": 160.0, "dur": 30.0, "tid": 11,
             "args": {"External id": 3, "Sequence number": 9, "Fwd thread id": 1}},
            {**_LAUNCH, "ts": 165.0, "dur": 5.0, "tid": 11, "args": {"correlation": 502}},
            {**_KERNEL, "name": _NCCL, "ts": 220.5, "dur": 20.0,
             "args": {"device": 0, "stream": 7, "correlation": 502, "grid": [1, 2, 3]}},
            {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 900.0},
        ],
        "traceName": "x.json",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_735_632_360_000_000_000,
    }
)  # fmt: skip


@cache
def generated() -> dict[str, bytes]:
    """Return the files of a small dump of both exports, by name."""
    found: dict[str, bytes] = {}
    for parameters, export in ((_WITH_COLLECTIVES, "both"), (_SMALL, "text")):
        with tempfile.TemporaryDirectory() as folder:
            dump = write_dump(parameters, Path(folder), export)
            files = [*dump.iterdir(), *(dump / OUTPUT).iterdir()]
            found |= {file.name: file.read_bytes() for file in files if file.is_file()}
    found["main.db"] = found.pop(_DATABASE)
    return found


def cut(name: str, data: bytes, most: int = 20_000) -> bytes:
    """Return the first part of a real file, ended where its format lets it end."""
    if len(data) <= most or name.endswith((".db", ".gz")):
        return data
    part = data[:most]
    if name.endswith(".csv"):
        return part[: part.rindex(b"\n") + 1]
    if name.startswith("trace_view"):
        return part[: part.rindex(b"}, {") + 1] + b"]"
    return data


def given(folder: Path | None, name: str) -> list[bytes]:
    """Return the files of that name anywhere in a folder of the user's, cut up."""
    if folder is None:
        return []
    found = [file for file in sorted(folder.rglob(name)) if file.is_file()]
    return [cut(file.name, file.read_bytes()) for file in found[:20]]
