"""Runs made up for the gate, as numbers and as dumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from npufix.advisor.gate import baselines
from npufix.advisor.gate.measuring import MeasuredRun
from npufix.reports.measurement import (
    MeasuredFinding,
    MeasuredLine,
    MeasuredMetric,
    MeasuredOperator,
    Measurement,
)
from npufix.reports.report import Environment, Finding, Report, StepSplit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.baseline import Baseline

MS = 1e6
_PARTS = {"compute": 0.6, "exposed-communication": 0.3, "free-time": 0.1}
MACHINE = Environment(0, 8, "2.5.1", "8.0.0", "Level1", None, "2.5.1", "Ascend910B2", [0])


def a_run(step_ms: float = 100, **fields: Any) -> Measurement:
    """Return a run; its parts have fixed shares of the step unless ``fields`` say otherwise."""
    step = step_ms * MS
    metrics = {"step-time": MeasuredMetric(step, "ns", 0.01)}
    metrics |= {name: MeasuredMetric(step * part, "ns") for name, part in _PARTS.items()}
    made: dict[str, Any] = {
        "origin": "run",
        "environment": MACHINE,
        "steps": 8,
        "metrics": metrics,
        "operators": [MeasuredOperator("MatMulV2", "4096,5120 bf16", "AI_CORE", 64, step * 0.5)],
        "lines": [MeasuredLine("mlp.py", 12, "forward", step * 0.5, 64, ["MatMulV2"])],
    }
    return Measurement(**{**made, **fields})


def runs(*step_ms: float, **fields: Any) -> list[Measurement]:
    return [a_run(each, origin=f"run{n}", **fields) for n, each in enumerate(step_ms)]


def baseline_of(*step_ms: float, **fields: Any) -> Baseline:
    return baselines.merge_baseline(runs(*step_ms, **fields))


def a_finding(number: int = 1, **fields: Any) -> Finding:
    made: dict[str, Any] = {
        "rule": "NPU104", "name": "eager-attention", "summary": "", "path": "mlp.py", "line": 7,
        "function": "f", "code": "x", "replacement": "", "safety": "safe", "conditions": [],
        "problem": "", "fingerprint": f"{number:016x}", "kernels": [], "calls": 1, "device_ns": 1,
        "share": 0.0, "saving": None,
    }  # fmt: skip
    return Finding(**{**made, **fields})


def measured(
    measurements: Sequence[Measurement], findings: Sequence[Finding] = (), source: str = "src"
) -> list[MeasuredRun]:
    """Return runs as the gate gets them, all of them with the same findings.

    No two runs take the same time to the nanosecond.
    """
    made = Report(
        tool="npufix", headline="", dump="", source=source, environment=MACHINE,
        split=StepSplit(8, 1, 1, 0, 0), compute_ns=1, attributed=0.0, hot_operators=[],
        hot_shapes=[], findings=list(findings), problems=[], next_steps=[],
    )  # fmt: skip
    return [MeasuredRun(_with_luck(each, n), made, ()) for n, each in enumerate(measurements, 1)]


def _with_luck(run: Measurement, number: int) -> Measurement:
    metrics = {
        name: msgspec.structs.replace(metric, value=metric.value + number * (metric.value > 0))
        for name, metric in run.metrics.items()
    }
    return msgspec.structs.replace(run, metrics=metrics)


def known(*findings: Finding) -> list[MeasuredFinding]:
    return [MeasuredFinding(f.fingerprint, f.rule, f.name, f.path, f.line) for f in findings]
