"""Small runs whose difference is known: as dumps on disk, and reduced to tables in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from npufix.advisor.compare.side import ComparedRun, CostTable
from npufix.reports.comparison import Side
from npufix.reports.measurement import MeasuredMetric, Measurement
from npufix.reports.report import StepSplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

START_US = 1_736_408_883_704_000
HEADER = (
    "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Input Shapes,"
    "Input Data Types,Output Shapes,Block Dim"
)
Kernel = tuple[str, str, float]
"""Type, shape of the one input, duration in microseconds."""


def write_run(
    folder: Path,
    kernels: Sequence[Kernel],
    *,
    steps: int = 4,
    free_us: Sequence[float] = (10.0, 12.0, 11.0, 10.0),
) -> Path:
    """Write a text dump in which every step runs the same kernels, one after the other."""
    output = folder / "run_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    rows, splits = [HEADER], [
        "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble"
    ]  # fmt: skip
    now = float(START_US)
    for step in range(steps):
        for number, (kind, shape, duration) in enumerate(kernels):
            core = "HCCL" if kind.startswith("hcom_") else "AI_VECTOR_CORE"
            rows.append(
                f"{step},aclnn{kind}_{number},{kind},{core},{now:.3f}\t,{duration},0,"
                f'"""{shape}""",FLOAT,"""{shape}""",8'
            )
            now += duration
        exposed = sum(us for kind, _, us in kernels if kind.startswith("hcom_"))
        computing = sum(us for _, _, us in kernels) - exposed
        free = free_us[step % len(free_us)]
        splits.append(f"{step},{computing},{exposed},0,{exposed},{free},0,0")
        now += free
    (output / "kernel_details.csv").write_text("\n".join(rows) + "\n")
    (output / "step_trace_time.csv").write_text("\n".join(splits) + "\n")
    return folder / "run_ascend_pt"


def run_of(  # noqa: PLR0913 - a run has many parts
    types: Mapping[str, float],
    *,
    lines: Sequence[tuple[str, int, str, str, float]] = (),
    exposed: int = 0,
    free: int = 0,
    parallel: int = 0,
    complete: bool = True,
) -> ComparedRun:
    """Return a run without files; ``lines``: path, line, function, Type, time.

    ``parallel`` is the time in which two kernels ran at once.
    """
    total = sum(types.values())
    computing = round(total) - parallel
    length = computing + exposed + free
    frame = pd.DataFrame(
        {
            "communication": [False] * len(types),
            "type": list(types),
            "core": "AI_CORE",
            "total_ns": [float(value) for value in types.values()],
            "calls": 1.0,
        }
    )
    return ComparedRun(
        shown=Side("dump", "run", "", "ascend-text", None, 5, "step"),
        measurement=Measurement(
            "run", None, 5, {"step-time": MeasuredMetric(float(length), "ns", 0.0)}
        ),
        split=StepSplit(5, length, computing, exposed, free),
        compute_ns=float(total),
        types=CostTable(frame, complete),
        shapes=CostTable(frame.assign(shapes="").drop(columns="communication"), complete),
        lines=CostTable(
            pd.DataFrame(
                [(*place, 1.0) for place in lines],
                columns=pd.Index(["path", "line", "function", "type", "total_ns", "calls"]),
            ),
            complete,
        ),
        findings=[],
        knows_findings=False,
    )
