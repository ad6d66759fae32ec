"""The report on a terminal: the answer first, 80 columns, nothing but text needs to survive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.terminal.findings import show_findings
from npufix.reports.terminal.ranks import show_ranks
from npufix.reports.terminal.tables import (
    show_hot_lines,
    show_hot_modules,
    show_hot_operators,
    show_hot_shapes,
    show_split,
)
from npufix.reports.terminal.text import paragraph
from npufix.reports.wording.prediction import forecast_lines
from npufix.reports.wording.report import coverage_text, environment_text, plain, totals_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from npufix.reports.report import Problem, Report

_LINES_SHOWN = 5


def show(report: Report, console: Console, *, details: bool) -> None:
    """Print a whole report; ``details`` adds all figures, conditions that hold and modules."""
    paragraph(report.headline, console, "bold")
    _show_environment(report, console)
    # Where no place is known, the shapes are what leads to the code.
    lost = not (report.attributed or report.attributed_to_functions)
    lines = report.hot_lines if details else report.hot_lines[:_LINES_SHOWN]
    sections: list[tuple[object, Callable[[], None]]] = [
        (report.ranks, lambda: show_ranks(report.ranks, console)),
        (report.split, lambda: show_split(report.split, console)),
        (report.hot_operators, lambda: _show_hot_operators(report, console, details=details)),
        (
            report.hot_shapes if details or lost else None,
            lambda: show_hot_shapes(report.hot_shapes, console),
        ),
        (report.hot_lines, lambda: show_hot_lines(lines, console)),
        (
            report.hot_modules if details else None,
            lambda: show_hot_modules(report.hot_modules, console),
        ),
        (report.findings, lambda: show_findings(report.findings, console, details=details)),
        (report.forecast, lambda: _show_forecast(report, console)),
        (report.problems, lambda: show_problems(report.problems, console)),
        (report.not_recorded, lambda: _show_not_recorded(report, console, details=details)),
        (report.next_steps, lambda: _show_next_steps(report.next_steps, console)),
    ]
    for content, print_section in sections:
        if content:
            console.print()
            print_section()


def show_problems(problems: Sequence[Problem], console: Console) -> None:
    """Print what makes the diagnosis partial, and what to do about it."""
    console.print("Partial:", style="bold yellow")
    for problem in problems:
        text = f"{problem.where}: {problem.what} -- {problem.remedy}"
        paragraph(text, console, margin="  ")


def _show_environment(report: Report, console: Console) -> None:
    environment = report.environment
    if environment is None:
        return
    if environment.simulated:
        paragraph(f"Simulated dump: {environment.simulated}", console, "yellow")
    if known := environment_text(environment):
        paragraph(known, console, "dim")


def _show_hot_operators(report: Report, console: Console, *, details: bool) -> None:
    show_hot_operators(report.hot_operators, console, details=details)
    for line in filter(None, (totals_text(report.split), coverage_text(report))):
        paragraph(line, console, "dim")


def _show_forecast(report: Report, console: Console) -> None:
    for line in forecast_lines(report.forecast):
        paragraph(line, console)


def _show_not_recorded(report: Report, console: Console, *, details: bool) -> None:
    """Print what the dump does not hold and, with ``details``, the code that collects it."""
    console.print("Not recorded:", style="bold")
    for part in report.not_recorded:
        paragraph(f"{part.name}: {part.value}", console, margin="  ")
    if report.collect and details:
        console.print("To collect it:", style="bold")
        console.print(Text("\n".join(map(plain, report.collect.splitlines()))), soft_wrap=True)
    elif report.collect:
        console.print(Text("  -v shows the code that collects it", "dim"))


def _show_next_steps(steps: Sequence[str], console: Console) -> None:
    for step in steps:
        console.print(Text.assemble("Next: ", (plain(step), "bold")), soft_wrap=True)
