"""JUnit XML: one test case a metric, and one a finding, for servers that show tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from npufix.reports.data.notices import NOTE, Notice, notices
from npufix.reports.formats import Format
from npufix.reports.gate_report import GateReport
from npufix.reports.report import Report

if TYPE_CHECKING:
    from npufix.reports.formats import Result
    from npufix.reports.gate_report import GatedMetric

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


def _render(result: Result[Report | GateReport]) -> str:
    """Return a report as JUnit XML; what fails the gate fails as a test."""
    made = result.report
    suite = ET.Element("testsuite", name="npufix")
    if isinstance(made, GateReport):
        for metric in made.metrics:
            _metric(suite, metric)
    told = [notice for notice in notices(made, result.sources) if notice.finding is not None]
    for notice in told:
        _finding(suite, notice, fails=isinstance(made, GateReport))
    if isinstance(made, GateReport):
        if not made.new_findings:
            ET.SubElement(suite, "testcase", classname="npufix.findings", name="no new finding")
        if made.exit_status not in {0, 1}:
            case = ET.SubElement(suite, "testcase", classname="npufix", name="gate")
            _add(case, "error", _clean(made.headline), "\n".join(made.reasons))
    elif not told:
        ET.SubElement(suite, "testcase", classname="npufix.findings", name="no finding")
    counts = {
        "tests": len(suite),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    root = ET.Element("testsuites", name="npufix")
    for element in (root, suite):
        for name, count in counts.items():
            element.set(name, str(count))
    root.append(suite)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _metric(suite: ET.Element, metric: GatedMetric) -> None:
    case = ET.SubElement(suite, "testcase", classname="npufix.metrics", name=_clean(metric.name))
    if metric.unit == "ns" and metric.after is not None:
        case.set("time", f"{metric.after / 1e9:.9f}")
    values = {name: getattr(metric, name) for name in ("before", "after", "change", "noise")}
    known = {name: value for name, value in values.items() if value is not None}
    if known:  # what a server draws a trend of
        properties = ET.SubElement(case, "properties")
        ET.SubElement(properties, "property", name="unit", value=metric.unit)
        for name, value in known.items():
            ET.SubElement(properties, "property", name=name, value=f"{value:.9g}")
    reason = _clean(metric.reason)
    if metric.verdict in {"regression", "over budget"} and metric.level == "error":
        _add(case, "failure", f"{metric.verdict}: {reason}", _why(metric), metric.verdict)
    elif metric.verdict in {"inconclusive", "new"}:
        _add(case, "skipped", f"{metric.verdict}: {reason}", "")
    elif reason:
        ET.SubElement(case, "system-out").text = reason


def _why(metric: GatedMetric) -> str:
    lines = [f"{part.what}: {part.before_ns:.0f} -> {part.after_ns:.0f} ns" for part in metric.why]
    return "\n".join([metric.reason, *lines])


def _finding(suite: ET.Element, notice: Notice, *, fails: bool) -> None:
    """Add a finding; without a gate it is told and fails nothing."""
    place = f"{notice.path}:{notice.line}" if notice.path else "the run"
    case = ET.SubElement(
        suite,
        "testcase",
        classname=_clean(f"npufix.findings.{notice.rule}"),
        name=_clean(f"{notice.title} at {place}"),
    )
    if notice.path:
        case.set("file", _clean(notice.path))
        case.set("line", str(notice.line))
    if not fails or notice.accepted or notice.level == NOTE:
        ET.SubElement(case, "system-out").text = _clean(notice.message)
    else:
        first = notice.message.split("\n", 1)[0]
        _add(case, "failure", _clean(first), notice.message, notice.rule)


def _add(case: ET.Element, kind: str, message: str, text: str, name: str = "") -> None:
    element = ET.SubElement(case, kind, message=message)
    if name:
        element.set("type", name)
    if text:
        element.text = _clean(text)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)


FORMAT = Format(
    name="junit",
    about="JUnit XML.",
    renders={Report: _render, GateReport: _render},
)
