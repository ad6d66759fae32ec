"""Finished gates to show: what the outputs are given."""

from __future__ import annotations

from typing import Any

from npufix.reports import gate_report as model
from npufix.reports import report


def finding(text: str = "x", number: int = 0, **changes: Any) -> report.Finding:
    made = report.Finding(
        rule="NPU201",
        name="masked-assignment",
        summary="assignment through a boolean mask",
        path="train.py",
        line=1 + number,
        function=text,
        code="y[m] = 0",
        replacement="y.masked_fill_(m, 0)",
        safety="safe",
        conditions=[],
        problem="",
        fingerprint=f"{number:016x}",
        kernels=["NonZero"],
        calls=4,
        device_ns=2_500_000,
        share=0.031,
        saving=report.Saving(900_000, 2_100_000, "modelled"),
    )
    return report.Finding(**{**{k: getattr(made, k) for k in made.__struct_fields__}, **changes})


def metric(name: str, **changes: Any) -> model.GatedMetric:
    known: dict[str, Any] = {
        "level": "error", "unit": "ns", "verdict": "ok", "reason": f"{name} did not change",
        "before": 80e6, "after": 80.3e6, "change": 0.004, "noise": 0.015, "detectable": 0.041,
        "p_value": 0.7, "tolerance": 0.03,
    }  # fmt: skip
    return model.GatedMetric(name, **{**known, **changes})


def gated(**changes: Any) -> model.GateReport:
    """Return a gate that fails on the step time and on a finding."""
    slower = {"verdict": "regression", "after": 86.8e6, "change": 0.085, "p_value": 0.0004}
    why = [model.Change("MatMulV2 on 4096,5120", "shape", 30e6, 35e6, 64, 64)]
    made: dict[str, Any] = {
        "tool": "npufix 0.1.0",
        "verdict": "fail",
        "headline": "The step takes 8.5% longer: 86.8 ms instead of 80 ms.",
        "exit_status": 1,
        "baseline": "perf/baseline.json",
        "runs": ["run1_ascend_pt", "run2_ascend_pt", "run3_ascend_pt"],
        "environment": report.Environment(0, 8, "2.5.1", "8.0.0", "Level1", None, "2.5.1", "910B2"),
        "metrics": [
            metric("step-time", **slower, reason="step-time: 80 ms -> 86.8 ms (+8.5%)", why=why),
            metric("compute"),
            metric("peak-memory", unit="bytes", before=58 << 30, after=58 << 30, change=0.0),
            metric("hot-ops: FlashAttentionScore 8,32,4096,128;8,32,4096,128", **slower,
                   level="warn", reason="hot-ops: +8.5%"),
            metric("launches", unit="count", before=1200, after=900, change=-0.25,
                   verdict="improvement"),
        ],
        "new_findings": [finding()],
        "accepted_findings": [finding(number=7)],
        "gone": ["NPU101 model/norm.py in RMSNorm.forward"],
        "explanation": ["+5 ms  MatMulV2 on 4096,5120: 30 ms -> 35 ms, 64 calls"],
        "reasons": ["step-time is 8.5% above the baseline, more than 3.0% and the noise of 1.5%"],
        "next_steps": ["npufix baseline update run1_ascend_pt -o perf/baseline.json"],
    }  # fmt: skip
    return model.GateReport(**{**made, **changes})
