"""Figures of a history, in one place so that all outputs say the same."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from npufix.rules.shared.quantities import percent, quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.trend_report import TrendReport, TrendRun, TrendSeries, TrendShift

HEADER = ("metric", "runs", "before", "now", "change", "noise")
_BARS = "▁▂▃▄▅▆▇█"
_SHORT_COMMIT = 12


def name_run(run: TrendRun) -> str:
    """Return a run as people call it: ``2026-03-04, 1a2b3c4``."""
    day = run.time[:10]
    return f"{day}, {run.commit[:_SHORT_COMMIT]}" if run.commit else day


def shift_text(shift: TrendShift, runs: Sequence[TrendRun], unit: str) -> str:
    """Say what changed, and from which run on."""
    change = percent(shift.change, signed=True)
    before, after = quantity(shift.before, unit), quantity(shift.after, unit)
    first, last = name_run(runs[shift.first]), name_run(runs[shift.last])
    if shift.kind == "drift":
        return f"drift of {change} from {before} to {after} between {first} and {last}"
    return f"jump of {change} from {before} to {after} at run {shift.first + 1} ({first})"


def operator_change(name: str, before: float, after: float) -> str:
    """Say how the time of a hot operator changed."""
    shown = name.replace("|", " ", 1)
    return f"{shown} {quantity(before, 'ns')} -> {quantity(after, 'ns')}"


def row(series: TrendSeries) -> tuple[str, ...]:
    """Return the cells of a metric."""
    values = [value for value in series.values if value is not None]
    levels = [level for level in series.levels if level is not None] or values
    change = percent(levels[-1] / levels[0] - 1, signed=True) if levels[0] else "-"
    return (
        series.name.replace("|", " ", 1),
        str(len(values)),
        quantity(levels[0], series.unit),
        quantity(levels[-1], series.unit),
        change,
        f"±{percent(series.noise)}" if series.noise else "-",
    )


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return values as bars of eight heights, from the lowest to the highest of them."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    count = min(width, len(known))
    edges = [number * len(known) // count for number in range(count + 1)]
    means = [sum(known[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def list_shifts(report: TrendReport) -> list[tuple[str, str, str]]:
    """Return what changed: the metric, its sentence, and the operators behind it."""
    found = []
    for series in report.metrics:
        for shift in series.shifts:
            said = shift_text(shift, report.runs, series.unit)
            found.append((series.name, said, f"with {'; '.join(shift.why)}" if shift.why else ""))
    return found
