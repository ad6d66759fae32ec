"""Figures of a gate, in one place so that all outputs say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.wording.history import sparkline
from npufix.reports.wording.report import interval
from npufix.rules.shared.quantities import format_count, milliseconds, percent, quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.reports.gate_report import GatedMetric, GateReport, MadeChange
    from npufix.reports.report import Finding

VERDICTS = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE"}
HEADER = ("metric", "base", "now", "change", "noise", "verdict")
_ALWAYS = "step-time"
_FAILING = frozenset({"regression", "over budget"})


def _word_known(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)


def row(metric: GatedMetric) -> tuple[str, ...]:
    """Return the cells of a metric; ``~`` marks a change that is no more than noise."""
    changed = _word_known(metric.change, lambda change: percent(change, signed=True))
    if metric.change is not None and metric.verdict == "ok":
        changed = f"~ {changed}"
    verdict = metric.verdict
    if verdict in _FAILING and metric.level != "error":
        verdict += " (warning)"
    return (
        metric.name,
        _word_known(metric.before, lambda value: quantity(value, metric.unit)),
        _word_known(metric.after, lambda value: quantity(value, metric.unit)),
        changed,
        "-" if metric.noise is None else f"±{percent(metric.noise)}",
        verdict,
    )


def list_changed(metrics: Sequence[GatedMetric]) -> list[GatedMetric]:
    """Return what is worth a row: what changed, what failed, and the step time anyway."""
    return [m for m in metrics if m.verdict != "ok" or m.name == _ALWAYS]


def list_unchanged(metrics: Sequence[GatedMetric]) -> list[GatedMetric]:
    """Return the others."""
    shown = {m.name for m in list_changed(metrics)}
    return [m for m in metrics if m.name not in shown]


def failing(metrics: Sequence[GatedMetric]) -> list[GatedMetric]:
    """Return the metrics that fail the gate."""
    return [m for m in metrics if m.verdict in _FAILING and m.level == "error"]


def verdict_line(gated: GateReport) -> str:
    """Return the answer: the first line of every output."""
    return f"{VERDICTS.get(gated.verdict, gated.verdict.upper())}: {gated.headline}"


def against(gated: GateReport) -> str:
    """Return what was compared with what."""
    runs = format_count(len(gated.runs), "run") if gated.runs else ""
    what = runs or (f"source {gated.source}" if gated.source else "")
    if gated.paired:
        return f"{what} against as many of {gated.baseline}, in turn: compared as pairs"
    return f"{what} against {gated.baseline}" if gated.baseline else what


def word_made(made: MadeChange | None) -> str:
    """Return what gone findings were to save and did, "" if none is gone."""
    if made is None:
        return ""
    low, high = milliseconds(made.low_ns), milliseconds(made.high_ns)
    came = milliseconds(made.measured_ns)
    return (
        f"{', '.join(made.rules)} gone: predicted to save {low} to {high} of compute, measured "
        f"{came}: {made.verdict}"
    )


def over_time(metrics: Sequence[GatedMetric], width: int) -> list[tuple[str, str, str]]:
    """Return for each metric with a history its name, its bars, and from where to where it went."""
    return [
        (metric.name, sparkline(metric.history, width), _span(metric))
        for metric in metrics
        if metric.history and (metric.level == "error" or metric.verdict != "ok")
    ]


def _span(metric: GatedMetric) -> str:
    low, high = (quantity(edge, metric.unit) for edge in (min(metric.history), max(metric.history)))
    return f"{format_count(len(metric.history) - 1, 'earlier run')} and now: {low} to {high}"


def word_saving(finding: Finding) -> str:
    """Return what a finding would save, "" if nobody measured it."""
    return "" if finding.saving is None else f"saves {interval(finding.saving)}"


def sensitivity(metrics: Sequence[GatedMetric]) -> str:
    """Return the smallest change of the step time that these runs could have shown."""
    step = next((m for m in metrics if m.name == _ALWAYS and m.detectable), None)
    if step is None or step.detectable is None:
        return ""
    return f"A change of the step time of {percent(step.detectable)} or more would have been seen."


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
