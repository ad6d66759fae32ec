"""A report as one HTML file: no request to anywhere, readable without scripts, safe to open."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npufix.reports.html import bars
from npufix.reports.html.details import Details
from npufix.reports.html.memory_plot import memory_plot
from npufix.reports.html.rank_map import rank_map
from npufix.reports.html.rendering import render_page
from npufix.reports.html.tables import (
    findings_by_type,
    link_matrix,
    rank_table,
    report_tables,
)
from npufix.reports.language import tr
from npufix.reports.wording import report as wording
from npufix.reports.wording.headroom import headroom_lines
from npufix.reports.wording.prediction import forecast_lines
from npufix.rules.shared.quantities import milliseconds, percent, size

if TYPE_CHECKING:
    from npufix.reports.html.bars import Bar
    from npufix.reports.report import Finding, HotCollective, Report

_RANKS_NAMED = 24
"""Ranks of a finding that its card names."""
_FINDINGS_AT_ONCE = 50
"""Findings that scripts show at first; findings.js."""
_BARS = 12
"""Operators, and lines, that a picture has."""
_SCRIPTS = ("picture.js", "findings.js", "timeline.js", "icicle.js")


def to_html(report: Report, details: Details | None = None) -> str:
    """Return a report as a page."""
    details = details or Details()
    tables = report_tables(report)
    ranks = rank_map(report)
    return render_page(
        "page.html",
        (*_SCRIPTS, *(("ranks.js",) if ranks else ())),
        [*tables, rank_table(report)] if report.ranks else tables,
        _data(report, details) | ({"ranks": ranks} if ranks else {}),
        report=report,
        details=details,
        parts=bars.step_parts(report.split) if report.split else [],
        basis=_basis(report),
        groups=[_group(finding) for finding in report.findings],
        headroom=_headroom(report),
        prediction=[*forecast_lines(report.forecast, report.findings)],
        savings=_savings(report),
        first_findings=_FINDINGS_AT_ONCE,
        commands=[_command(report, finding) for finding in report.findings],
        reasons=_reasons(report),
        anchors={file.path: number for number, file in enumerate(details.sources)},
        collectives=_collectives(report.hot_collectives),
        matrix=link_matrix(details.links) if details.links else None,
        memory=memory_plot(details.memory) if details.memory else None,
        raw=tables,
        rank_map=ranks,
        named=_RANKS_NAMED,
        environment=wording.environment_text(report.environment) if report.environment else "",
    )


def _basis(report: Report) -> list[str]:
    """Return what the figures of the step are over, and how much of them is led to code."""
    split = report.split
    found = []
    if split is not None:
        alone = "one step" if split.unit == "step" else "one recording"
        found.append(f"average of {split.steps} steps" if split.steps > 1 else alone)
    led = report.attributed + report.attributed_to_functions
    if report.hot_operators:
        found.append(f"{percent(led)} of the compute time is led to your code")
    return found


def _savings(report: Report) -> list[Bar]:
    """Return what leads from the step of today to the predicted one, without what saves nothing."""
    steps = report.forecast.waterfall if report.forecast else []
    if len(steps) < 2:  # noqa: PLR2004 - one is said above it
        return []
    names = [finding.name for finding in report.findings]
    saving = [(f"{b.finding} {names[b.finding - 1]}", -b.saved_ns) for b in steps if b.saved_ns]
    return bars.waterfall(saving, steps[0].step_ns + steps[0].saved_ns, steps[-1].step_ns)


def _headroom(report: Report) -> dict[str, object] | None:
    """Return what is above the bounds of the chip: sentences, and bars of operators and lines."""
    if report.headroom is None or not report.headroom.operators:
        return None
    shown = report.headroom.cut(_BARS)
    return {
        "lines": [*headroom_lines(report.headroom)],
        "bars": [bars.headroom(shown.operators), bars.headroom(shown.lines)],
    }


def _group(finding: Finding) -> str:
    """Return under which filter a finding is: ``written``, ``by-hand`` or ``run``."""
    if finding.kind != "code":
        return "run"
    return "written" if finding.replacement and not finding.problem else "by-hand"


def _data(report: Report, details: Details) -> dict[str, object]:
    """Return what the scripts draw."""
    split = report.split
    return {
        "cells": details.cells,
        "timeline": details.timeline,
        "findings": [(f.rule, f.name, f.place, f.share) for f in report.findings],
        "marked": findings_by_type(report.findings),
        "idle": split.free_ns if split else 0,
        "exposed": split.exposed_communication_ns if split else 0,
    }


def _collectives(found: list[HotCollective]) -> list[Bar]:
    """Return what each collective does with its time, on one scale."""
    most = max((c.transit_ns + c.wait_ns + c.idle_ns for c in found), default=0) or 1
    rows = []
    for one in found:
        left, drawn = 0.0, []
        for kind, ns in (
            ("communication", one.transit_ns), ("late", one.wait_ns), ("idle", one.idle_ns),
        ):  # fmt: skip
            drawn.append((kind, round(left, 3), round(100 * ns / most, 3)))
            left += 100 * ns / most
        known = [milliseconds(one.elapse_ns)]
        n = one.calls
        known += [tr(f"{n} calls")] if n > 1 else []
        known += [size(one.size_bytes)] if one.size_bytes > 0 else []
        known += [f"{one.gb_per_s:.3g} GB/s"] if one.gb_per_s else []
        rows.append(bars.Bar(one.name, ", ".join(known), [part for part in drawn if part[2]]))
    return rows


def _reasons(report: Report) -> dict[str, str]:
    """Return why what each rule finds is slow, from the documentation of the rule."""
    from npufix.rules.registry import documentation, every_rule

    wanted = {finding.rule for finding in report.findings}
    found = {}
    for rule in every_rule() if wanted else ():
        if rule.id in wanted:
            paragraphs = documentation(rule).split("\n\n")
            slow = next((text for text in paragraphs if text.startswith("Why it is slow")), "")
            found[rule.id] = " ".join(slow.partition(":")[2].split())
    return {rule: text for rule, text in sorted(found.items()) if text}


def _command(report: Report, finding: Finding) -> str:
    """Return how to write a change, "" where the tool does not."""
    if _group(finding) != "written":
        return ""
    words = ["npufix", "patch", *filter(None, [report.dump])]
    words += ["--source", report.source, "--rule", finding.rule]
    for condition in finding.conditions:
        words += ["--allow", condition.name] if condition.basis == "open" else []
    return shlex.join(words)
