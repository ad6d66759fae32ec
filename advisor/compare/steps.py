"""The numbers of two runs side by side, and whether they differ by more than their steps do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.comparison import MetricChange

if TYPE_CHECKING:
    from npufix.advisor.compare.side import ComparedRun
    from npufix.reports.measurement import MeasuredMetric

METRICS = (
    "step-time", "compute", "exposed-communication", "free-time", "launches", "peak-memory",
)  # fmt: skip
_TO_DEVIATION = 1.4826
"""From the median absolute deviation to the standard deviation of normal noise."""
_DEVIATIONS = 2.0
_FEW = 3
"""With fewer steps nothing is known about how they spread."""
_LEAST = 0.001
"""Relative; below that a difference means nothing, however little the steps differ."""


def metric_changes(before: ComparedRun, after: ComparedRun) -> list[MetricChange]:
    """Return the metrics that a side has, in the order of ``METRICS``."""
    sides = before.measurement.metrics, after.measurement.metrics
    names = [name for name in METRICS if name in sides[0] or name in sides[1]]
    return [_change(name, before, after) for name in names]


def _change(name: str, before: ComparedRun, after: ComparedRun) -> MetricChange:
    one, other = (run.measurement.metrics.get(name) for run in (before, after))
    spreads = [_spread(run, metric) for run, metric in ((before, one), (after, other))]
    unit = next(metric.unit for metric in (one, other) if metric is not None)
    return MetricChange(
        name=name,
        unit=unit,
        before=one.value if one else None,
        after=other.value if other else None,
        before_spread=spreads[0],
        after_spread=spreads[1],
        verdict=_verdict(one, other, *spreads),
    )


def _spread(run: ComparedRun, metric: MeasuredMetric | None) -> float | None:
    few = run.shown.kind == "dump" and run.shown.steps < _FEW
    return None if metric is None or few else metric.spread


def _verdict(
    one: MeasuredMetric | None,
    other: MeasuredMetric | None,
    spread: float | None,
    other_spread: float | None,
) -> str:
    if one is None or other is None:
        return "unknown"
    change = abs(other.value - one.value)
    if change <= _LEAST * max(one.value, other.value):
        return "within"
    if spread is None or other_spread is None:
        return "unknown"
    noise = _TO_DEVIATION * ((one.value * spread) ** 2 + (other.value * other_spread) ** 2) ** 0.5
    return "larger" if change > _DEVIATIONS * noise else "within"
