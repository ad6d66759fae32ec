"""Workflow commands of GitHub: annotations at the lines of a pull request.

GitHub shows at most ten of a kind and step; the rest is in the summary.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from npufix.reports.data.notices import ERROR, NOTE, WARNING, Notice, notices
from npufix.reports.formats import Format
from npufix.reports.gate_report import GateReport
from npufix.reports.report import Report

if TYPE_CHECKING:
    from npufix.reports.formats import Result

MOST_OF_A_KIND = 10
LARGEST_SUMMARY = 1 << 20
"""A step summary above this is thrown away as a whole."""
_COMMANDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}


def _render(result: Result[Report | GateReport]) -> str:
    """Return the annotations, one a line; the last line counts what is in the summary only."""
    found = [notice for notice in notices(result.report, result.sources) if not notice.accepted]
    lines: list[str] = []
    left_out = 0
    for level, kind in _COMMANDS.items():
        own = [notice for notice in found if notice.level == level]
        lines += [_command(kind, notice) for notice in own[:MOST_OF_A_KIND]]
        left_out += max(0, len(own) - MOST_OF_A_KIND)
    if left_out:
        lines.append(f"{left_out} more are in the summary of this step.")
    return "\n".join(lines) + "\n"


def _command(kind: str, notice: Notice) -> str:
    properties = {"title": notice.title}
    if notice.path and not notice.stands_for_run:
        where = os.fsencode(notice.path).decode("utf-8", "replace")
        properties = {"file": where, "line": str(notice.line), **properties}
    said = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{kind} {said}::{_data(notice.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMAT = Format(
    name="github",
    about="Annotations of GitHub Actions (the ten that matter most), and the summary of the step "
    "where `GITHUB_STEP_SUMMARY` is set.",
    renders={Report: _render, GateReport: _render},
)
