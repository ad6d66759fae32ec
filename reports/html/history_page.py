"""A history as one HTML file: each metric and hot operator over the runs, its levels and shifts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.reports.html.rendering import render_page
from npufix.reports.wording.gate import VERDICTS
from npufix.reports.wording.history import list_shifts, name_run, row
from npufix.rules.shared.quantities import quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.trend_report import TrendReport, TrendSeries

WIDTH, HEIGHT = 1000, 200
_MARGIN = 0.08
"""Of the range, above and below it."""


@dataclass(frozen=True, slots=True)
class TrendPlot:
    """What the template draws; positions of ticks and marks are % of the picture."""

    name: str
    cells: Sequence[str]
    """Runs, level at first, level now, change, noise."""
    measured: str
    """Path of the runs."""
    levels: str
    """Path of what they would be without noise."""
    sizes: Sequence[tuple[float, str]]
    marks: Sequence[tuple[float, str, str]]
    """Where a shift begins: position, ``more`` or ``less``, the run."""


def to_html(report: TrendReport) -> str:
    """Return a history as a page."""
    series = [s for s in (*report.metrics, *report.operators) if any(s.values)]
    return render_page(
        "history.html", (), [], {},
        report=report,
        verdict=VERDICTS[report.verdict],
        runs=[name_run(report.runs[0]), name_run(report.runs[-1])],
        plots=[_plot(each, report) for each in series],
        shifts=list_shifts(report),
    )  # fmt: skip


def _plot(series: TrendSeries, report: TrendReport) -> TrendPlot:
    known = [value for value in series.values if value is not None]
    low, high = min(known), max(known)
    room = _MARGIN * (high - low) or 0.5 * high or 1.0
    low, high = low - room, high + room
    name, *cells = row(series)
    step = 100 / max(1, len(series.values) - 1)
    return TrendPlot(
        name=name,
        cells=cells,
        measured=_path(series.values, low, high),
        levels=_path(series.levels, low, high, stepped=True),
        sizes=[(100 * n / 2, quantity(low + (high - low) * n / 2, series.unit)) for n in range(3)],
        marks=[
            (step * shift.first, "more" if shift.change > 0 else "less",
             name_run(report.runs[shift.first]))
            for shift in series.shifts
        ],
    )  # fmt: skip


def _path(values: Sequence[float | None], low: float, high: float, *, stepped: bool = False) -> str:
    """Return a line from run to run, or in steps; it has gaps where nothing was measured."""
    drawn, gap = [], True
    for number, value in enumerate(values):
        if value is not None:
            x = WIDTH * number / max(1, len(values) - 1)
            y = HEIGHT * (1 - (value - low) / (high - low))
            if stepped and not gap:
                drawn.append(f"H{x:.1f}V{y:.1f}")
            else:
                drawn.append(f"{'M' if gap else 'L'}{x:.1f} {y:.1f}")
        gap = value is None
    return "".join(drawn)
