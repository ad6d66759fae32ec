"""A search through commits on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.terminal.text import paragraph, print_indented
from npufix.reports.wording.history import operator_change
from npufix.reports.wording.report import plain

if TYPE_CHECKING:
    from rich.console import Console

    from npufix.reports.bisect_report import BisectReport

_STYLES = {"good": "green", "bad": "red"}


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
            Text(f"   {step.commit.short} {step.verdict}", _STYLES.get(step.verdict, "yellow"))
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
