"""HTML: one page with charts, that asks nobody for anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.comparison import Comparison
from npufix.reports.formats import Format
from npufix.reports.report import Report
from npufix.reports.trend_report import TrendReport

if TYPE_CHECKING:
    from npufix.reports.formats import Result

_ROWS = 1000


def _render_report(result: Result[Report]) -> str:
    from npufix.reports.html.page import to_html

    report = result.report.cut(_ROWS)
    return to_html(report, result.run.page_details(report) if result.run else None)


def _render_comparison(result: Result[Comparison]) -> str:
    from npufix.reports.html.comparison_page import to_html

    return to_html(result.report)


def _render_history(result: Result[TrendReport]) -> str:
    from npufix.reports.html.history_page import to_html

    return to_html(result.report)


FORMAT = Format(
    name="html",
    about="One page that needs no network.",
    renders={Report: _render_report, Comparison: _render_comparison, TrendReport: _render_history},
    ending=".html",
    rows=_ROWS,
    shows_changes=True,
    shows_headroom=True,
)
