"""The report on a terminal: one screen, and each of its sections where it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.terminal.findings import show_findings
from npufix.reports.terminal.ranks import show_ranks
from npufix.reports.terminal.summary import SECTIONS, show_step, show_summary, there
from npufix.reports.terminal.tables import (
    show_headroom,
    show_hot_collectives,
    show_hot_lines,
    show_hot_modules,
    show_hot_operators,
    show_hot_shapes,
    show_step_remarks,
    show_waterfall,
)
from npufix.reports.terminal.text import paragraph
from npufix.reports.wording.prediction import forecast_lines
from npufix.reports.wording.report import coverage_text, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from rich.console import Console

    from npufix.reports.report import Problem, Report


def show(
    report: Report, console: Console, *, details: bool, sections: Collection[str] = ()
) -> None:
    """Print the first screen of a report, or some of ``SECTIONS``; all of it with ``details``."""
    if report.environment is None:  # of a source alone
        _show_source_report(report, console, details=details)
        return
    wanted = SECTIONS if details and not sections else sections
    if details or not sections:
        show_summary(report, console)
    else:
        show_step(report.split, console)
    if details:
        show_step_remarks(report.split, console)
        for line in forecast_lines(report.forecast, report.findings):
            paragraph(line, console)
    _show_waterfalls(report, console, details=details, only=bool(sections))
    for name in there(report):
        if name in wanted:
            console.print()
            _SHOW[name](report, console, details)
    for name in [name for name in sections if name not in there(report)]:
        console.print()
        console.print(f"The dump holds no {name}.")
    if details:
        if report.problems:
            console.print()
            show_problems(report.problems, console)
        _show_not_recorded(report, console)


def _show_waterfalls(report: Report, console: Console, *, details: bool, only: bool) -> None:
    """Print what was asked for, and with ``details`` all changes, one behind the other."""
    forecast = report.forecast
    if forecast is None or (only and not details):
        return
    shown = [forecast.question.waterfall] if forecast.question is not None else []
    for bars in [*shown, forecast.waterfall] if details else shown:
        if bars:
            console.print()
            show_waterfall(bars, report, console)


def show_problems(problems: Sequence[Problem], console: Console) -> None:
    """Print what makes the diagnosis partial, and what to do about it."""
    console.print("Partial:", style="bold yellow")
    for problem in problems:
        text = f"{problem.where}: {problem.what} -- {problem.remedy}"
        paragraph(text, console, margin="  ")


def _show_source_report(report: Report, console: Console, *, details: bool) -> None:
    paragraph(report.headline, console, "bold")
    if report.findings:
        console.print()
        show_findings(report.findings, console, details=details)
    if report.problems:
        console.print()
        show_problems(report.problems, console)
    if report.next_steps:
        console.print()
    for step in report.next_steps:
        console.print(Text.assemble("Next: ", (plain(step), "bold")), soft_wrap=True)


def _show_operators(report: Report, console: Console, details: bool) -> None:  # noqa: FBT001 - one of several of a kind
    show_hot_operators(report.hot_operators, report.split, console, details=details)
    paragraph(coverage_text(report), console, "dim")


def _show_lines(report: Report, console: Console, _details: bool) -> None:  # noqa: FBT001 - same
    show_hot_lines(report.hot_lines, report, console)
    paragraph(coverage_text(report), console, "dim")


_SHOW: dict[str, Callable[[Report, Console, bool], None]] = {
    "findings": lambda report, console, details: show_findings(
        report.findings, console, details=details
    ),
    "operators": _show_operators,
    "shapes": lambda report, console, _: show_hot_shapes(report.hot_shapes, report, console),
    "lines": _show_lines,
    "modules": lambda report, console, _: show_hot_modules(report.hot_modules, report, console),
    "collectives": lambda report, console, _: show_hot_collectives(
        report.hot_collectives, report.split, console
    ),
    "headroom": lambda report, console, _: show_headroom(report.headroom, console),
    "ranks": lambda report, console, _: show_ranks(report.ranks, console),
}


def _show_not_recorded(report: Report, console: Console) -> None:
    """Print what the dump does not hold, what for, and the code that collects it."""
    if not report.not_recorded:
        return
    console.print()
    console.print("Not recorded:", style="bold")
    for part in report.not_recorded:
        paragraph(f"{part.name}: {part.value}", console, margin="  ")
    if report.collect:
        console.print("To collect it:", style="bold")
        console.print(Text("\n".join(map(plain, report.collect.splitlines()))), soft_wrap=True)
