"""Histories on a terminal, of runs or of commits: what changed when, bars for each metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.terminal.rows import Columns
from npufix.reports.terminal.text import paragraph, print_indented
from npufix.reports.wording.gate import VERDICTS
from npufix.reports.wording.history import (
    HEADER,
    list_shifts,
    name_run,
    operator_change,
    row,
    sparkline,
)
from npufix.reports.wording.report import plain
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from rich.console import Console

    from npufix.reports.bisect_report import BisectReport
    from npufix.reports.trend_report import TrendReport, TrendSeries

_STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}
_TRIED = {"good": "green", "bad": "red"}
_METRICS = Columns(24, (6, 12, 12, 10, 9))
_MARGIN = 6


def show_history(report: TrendReport, console: Console, *, details: bool = False) -> None:
    """Print a history; ``details`` adds the hot operators that did not change."""
    style = _STYLES.get(report.verdict, "bold")
    paragraph(f"{VERDICTS[report.verdict]}: {report.headline}", console, style)
    if report.runs:
        first, last = name_run(report.runs[0]), name_run(report.runs[-1])
        left = f"; {format_count(report.left_out, 'run')} left out" if report.left_out else ""
        span = f"{format_count(len(report.runs), 'run')} from {first} to {last}{left}"
        paragraph(f"{report.file}: {span}", console, "dim")
    if report.accepted:
        paragraph(f"Accepted: {report.accepted}", console, "dim")
    for reason in report.reasons[1:]:
        print_indented(f"- {reason}", console)
    console.print()
    _METRICS.show(HEADER, console, "bold")
    for series in report.metrics:
        _show_series(series, console)
    shown = [s for s in report.operators if details or s.shifts]
    if shown:
        console.print()
        console.print(Text("Hot operators:", "bold"))
    for series in shown:
        _show_series(series, console)
    _show_shifts(report, console)
    for step in report.next_steps:
        console.print()
        console.print(Text.assemble("Next: ", (plain(step), "bold")), soft_wrap=True)


def _show_shifts(report: TrendReport, console: Console) -> None:
    found = list_shifts(report)
    if found:
        console.print()
        console.print(Text("What changed:", "bold"))
    for name, text, behind in found:
        print_indented(f"{name}: {text}", console)
        if behind:
            print_indented(f"   {behind}", console)


def _show_series(series: TrendSeries, console: Console) -> None:
    _METRICS.show([plain(cell) for cell in row(series)], console)
    bars = sparkline(series.values, console.width - _MARGIN)
    console.print(Text(f"   {bars}", "dim"), soft_wrap=True)


def show_bisect(report: BisectReport, console: Console, *, details: bool = False) -> None:
    """Print which commit it is, what grew with it, and its change; ``details``: all lines of it."""
    paragraph(plain(report.headline), console, "bold" if report.found else "bold yellow")
    for commit in report.found:
        print_indented(
            plain(f"{commit.short} {commit.time[:10]} {commit.author}: {commit.subject}"), console
        )
        if commit.merge:
            print_indented(
                f"   a merge: search it with npufix bisect {commit.short}^1 {commit.short}^2",
                console,
            )
    console.print()
    console.print(Text("Tried:", "bold"))
    for step in report.steps:
        console.print(
            Text(f"   {step.commit.short} {step.verdict}", _TRIED.get(step.verdict, "yellow"))
        )
        print_indented(f"      {plain(step.reason)}", console)
    if report.grown:
        console.print()
        console.print(Text("Grown since the last good commit:", "bold"))
    for part in report.grown:
        print_indented(plain(operator_change(part.what, part.before_ns, part.after_ns)), console)
    if report.change:
        console.print()
        console.print(Text("Its change:", "bold"))
    end = len(report.change) if details or "" not in report.change else report.change.index("")
    for line in report.change[:end]:
        console.print(Text(f"   {plain(line)}"), soft_wrap=True)
