"""The terminal: what every command shows, and the same as a text of 80 columns."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from npufix.reports.bisect_report import BisectReport
from npufix.reports.comparison import Comparison
from npufix.reports.formats import Format
from npufix.reports.gate_report import GateReport
from npufix.reports.report import Report
from npufix.reports.trend_report import TrendReport
from npufix.reports.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from npufix.reports.formats import Result

# Each loads what it shows only when it does: rich is slow to load.


def _show_report(result: Result[Report], console: Console) -> None:
    from npufix.reports.terminal.report import show

    report = result.report.cut(result.top)
    show(report, console, details=result.details, sections=result.sections)


def _show_gate(result: Result[GateReport], console: Console) -> None:
    from npufix.reports.terminal.gate import show_gate

    show_gate(result.report, console, details=result.details)


def _show_comparison(result: Result[Comparison], console: Console) -> None:
    from npufix.reports.terminal.comparison import show

    show(result.report, console, top=result.top, details=result.details)


def _show_verification(result: Result[Verification], console: Console) -> None:
    from npufix.reports.terminal.verification import show

    show(result.report, console, details=result.details)


def _show_history(result: Result[TrendReport], console: Console) -> None:
    from npufix.reports.terminal.history import show_history

    show_history(result.report, console, details=result.details)


def _show_bisect(result: Result[BisectReport], console: Console) -> None:
    from npufix.reports.terminal.history import show_bisect

    show_bisect(result.report, console, details=result.details)


_SHOWS: dict[type, Callable[[Result[Any], Console], None]] = {
    Report: _show_report,
    GateReport: _show_gate,
    Comparison: _show_comparison,
    Verification: _show_verification,
    TrendReport: _show_history,
    BisectReport: _show_bisect,
}


def show(result: Result[Any], console: Console) -> None:
    """Print a result."""
    console.size = console.size  # else asked for each line, of which there may be thousands
    _SHOWS[type(result.report)](result, console)


def headline(result: Result[Any]) -> str:
    """Return the line of a result that matters, for those who want no more."""
    from npufix.reports.terminal.verification import summary
    from npufix.reports.wording.gate import verdict_line
    from npufix.reports.wording.report import plain

    if isinstance(result.report, GateReport):
        return plain(verdict_line(result.report))
    if isinstance(result.report, Verification):
        return plain(summary(result.report))
    return plain(result.report.headline)


def _render(result: Result[Any]) -> str:
    from npufix.reports.language.terminal import Console

    out = io.StringIO()
    show(result, Console(file=out, width=80, highlight=False, color_system=None))
    return out.getvalue()


FORMAT = Format(
    name="terminal",
    about="What the terminal shows, as text of 80 columns.",
    renders=dict.fromkeys(_SHOWS, _render),
)
