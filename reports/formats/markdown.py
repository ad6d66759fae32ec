"""Markdown: a page; of the gate a comment for a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.comparison import Comparison
from npufix.reports.formats import Format
from npufix.reports.gate_report import GateReport
from npufix.reports.report import Report
from npufix.reports.trend_report import TrendReport

if TYPE_CHECKING:
    from npufix.reports.formats import Result


def _render_report(result: Result[Report]) -> str:
    from npufix.reports.markdown.gate import fitting
    from npufix.reports.markdown.report import to_markdown

    text = to_markdown(result.report.cut(result.top))
    if result.room is None:
        return text
    first, *rest = text.split("\n## ")
    return fitting([first, *(f"## {part}" for part in rest)], result.room, "diagnose")


def _render_gate(result: Result[GateReport]) -> str:
    from npufix.reports.markdown.gate import LONGEST_COMMENT, to_comment

    return to_comment(result.report, LONGEST_COMMENT if result.room is None else result.room)


def _render_comparison(result: Result[Comparison]) -> str:
    from npufix.reports.markdown.comparison import to_markdown

    return to_markdown(result.report)


def _render_history(result: Result[TrendReport]) -> str:
    from npufix.reports.markdown.history import to_markdown

    return to_markdown(result.report)


FORMAT = Format(
    name="markdown",
    about="A page; of the gate a comment for a pull request, with a marker that lets CI update it.",
    renders={
        Report: _render_report, GateReport: _render_gate, Comparison: _render_comparison,
        TrendReport: _render_history,
    },
    ending=".md",
)  # fmt: skip
