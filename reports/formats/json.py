"""JSON: the whole result, with a published schema."""

from __future__ import annotations

from typing import Any

from npufix.reports.bisect_report import BisectReport
from npufix.reports.comparison import Comparison
from npufix.reports.encoding import encode_indented
from npufix.reports.formats import Format, Result
from npufix.reports.gate_report import GateReport
from npufix.reports.report import Report
from npufix.reports.trend_report import TrendReport
from npufix.reports.verification import Verification


def _render_report(result: Result[Report]) -> str:
    return encode_indented(result.report.cut(result.top)) + "\n"


def _render(result: Result[Any]) -> str:
    return encode_indented(result.report) + "\n"


FORMAT = Format(
    name="json",
    about="The whole report; its [schema](schemas.md) is published.",
    renders={
        Report: _render_report, GateReport: _render, Comparison: _render, Verification: _render,
        TrendReport: _render, BisectReport: _render,
    },
    ending=".json",
    shows_changes=True,
    shows_headroom=True,
)  # fmt: skip
