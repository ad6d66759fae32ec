"""Figures of a gate, in one place so that all outputs say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.wording.report import counted, interval, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.gate_report import GatedMetric, GateReport
    from npufix.reports.report import Finding

VERDICTS = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE"}
HEADER = ("metric", "base", "now", "change", "noise", "verdict")
_ALWAYS = "step-time"
_FAILING = frozenset({"regression", "over budget"})
_PREFIXES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def quantity(value: float | None, unit: str) -> str:
    """Return a number with its unit, "" if it is unknown."""
    if value is None:
        return "-"
    if unit == "ns":
        return milliseconds(value)
    if unit == "bytes":
        size, name = next(((s, n) for s, n in _PREFIXES if abs(value) >= s), (1, "B"))
        return f"{value / size:.3g} {name}"
    return f"{value:,.4g}" if value != round(value) else f"{value:,.0f}"


def percent(value: float | None, sign: str = "+") -> str:
    """Return a relative change with its sign, "" if it is unknown."""
    if value is None:
        return "-"
    # No change has no sign.
    return f"{value:{sign}.1%}" if round(value, 3) else "0.0%"


def row(metric: GatedMetric) -> tuple[str, ...]:
    """Return the cells of a metric; ``~`` marks a change that is no more than noise."""
    changed = percent(metric.change)
    if metric.change is not None and metric.verdict == "ok":
        changed = f"~ {changed}"
    verdict = metric.verdict
    if verdict in _FAILING and metric.level != "error":
        verdict += " (warning)"
    return (
        metric.name,
        quantity(metric.before, metric.unit),
        quantity(metric.after, metric.unit),
        changed,
        "-" if metric.noise is None else f"±{metric.noise:.1%}",
        verdict,
    )


def changed(metrics: Sequence[GatedMetric]) -> list[GatedMetric]:
    """Return what is worth a row: what changed, what failed, and the step time anyway."""
    return [m for m in metrics if m.verdict != "ok" or m.name == _ALWAYS]


def unchanged(metrics: Sequence[GatedMetric]) -> list[GatedMetric]:
    """Return the others."""
    shown = {m.name for m in changed(metrics)}
    return [m for m in metrics if m.name not in shown]


def failing(metrics: Sequence[GatedMetric]) -> list[GatedMetric]:
    """Return the metrics that fail the gate."""
    return [m for m in metrics if m.verdict in _FAILING and m.level == "error"]


def verdict_line(gated: GateReport) -> str:
    """Return the answer: the first line of every output."""
    return f"{VERDICTS.get(gated.verdict, gated.verdict.upper())}: {gated.headline}"


def against(gated: GateReport) -> str:
    """Return what was compared with what."""
    runs = counted(len(gated.runs), "run") if gated.runs else ""
    what = runs or (f"source {gated.source}" if gated.source else "")
    return f"{what} against {gated.baseline}" if gated.baseline else what


def saved(finding: Finding) -> str:
    """Return what a finding would save, "" if nobody measured it."""
    return "" if finding.saving is None else f"saves {interval(finding.saving)}"


def sensitivity(metrics: Sequence[GatedMetric]) -> str:
    """Return the smallest change of the step time that these runs could have shown."""
    step = next((m for m in metrics if m.name == _ALWAYS and m.detectable), None)
    if step is None or step.detectable is None:
        return ""
    return f"A change of the step time of {step.detectable:.1%} or more would have been seen."


def acceptance(gated: GateReport) -> str:
    """Return the configuration that accepts the regressions for a while, "" without any."""
    lines = []
    for metric in failing(gated.metrics):
        if metric.change is None or metric.verdict != "regression":
            continue
        increase = int(metric.change * 100) + 1
        lines += [
            "[[tool.npufix.gate.accept]]",
            f'metric = "{metric.name.partition(":")[0]}"',
            f'increase = "{increase}%"',
            "until = YYYY-MM-DD",
            'reason = "why this is fine for now"',
        ]
    return "\n".join(lines)
