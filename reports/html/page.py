"""A report as one HTML file: no request to anywhere, readable without scripts, safe to open."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npufix.reports.html.details import Details
from npufix.reports.html.rank_map import rank_map
from npufix.reports.html.rendering import render_page
from npufix.reports.html.tables import rank_table, report_tables
from npufix.reports.wording import report as wording
from npufix.reports.wording.prediction import forecast_lines
from npufix.rules.shared.quantities import milliseconds, percent

if TYPE_CHECKING:
    from npufix.reports.report import Finding, Report

_RANKS_NAMED = 24
"""Ranks of a finding that its card names."""


def to_html(report: Report, details: Details | None = None) -> str:
    """Return a report as a page."""
    details = details or Details()
    tables = report_tables(report)
    shown = rank_map(report)
    return render_page(
        "page.html",
        ("keyboard.js", "page.js", "treemap.js", "timeline.js", *(("ranks.js",) if shown else ())),
        [*tables, rank_table(report)] if report.ranks else tables,
        _data(report, details) | ({"ranks": shown} if shown else {}),
        report=report,
        details=details,
        numbers=_numbers(report),
        raw=tables,
        rank_map=shown,
        prediction=[*forecast_lines(report.forecast)],
        named=_RANKS_NAMED,
        commands=[_command(report, finding) for finding in report.findings],
        environment=wording.environment_text(report.environment) if report.environment else "",
    )


def _numbers(report: Report) -> list[tuple[str, str, str]]:
    """Return the numbers on top of the page: value, name, note."""
    split, found = report.split, []
    if split is not None and split.total_ns:
        steps = f"average of {split.steps} steps" if split.steps > 1 else f"one {split.unit}"
        found.append((milliseconds(split.total_ns), split.unit, steps))
        for ns, name, note in (
            (split.computing_ns, "computing", ""),
            (split.exposed_communication_ns, "exposed communication", ""),
            (split.free_ns, "free", "the device waits for the host"),
        ):
            share = percent(ns / split.total_ns)
            found.append((share, name, f"{milliseconds(ns)}{', ' if note else ''}{note}"))
    led = report.attributed + report.attributed_to_functions
    found.append((percent(led), "led to your code", "of the compute time, to a line or a function"))
    return found


def _data(report: Report, details: Details) -> dict[str, object]:
    """Return what the scripts draw."""
    return {
        "cells": details.cells,
        "timeline": details.timeline,
        "findings": [(f.rule, f.name, f.place) for f in report.findings],
        "marked": _marked(report),
        "compute": report.compute_ns,
    }


def _marked(report: Report) -> dict[str, list[int]]:
    """Return the positions of the findings that are about a Type."""
    found: dict[str, list[int]] = {}
    for number, finding in enumerate(report.findings):
        for kernel in finding.kernels:
            found.setdefault(kernel, []).append(number)
    return found


def _command(report: Report, finding: Finding) -> str:
    """Return how to write a change, "" where the tool does not."""
    if finding.kind != "code" or finding.problem or not finding.replacement:
        return ""
    words = ["npufix", "patch", *filter(None, [report.dump])]
    words += ["--source", report.source, "--rule", finding.rule]
    for condition in finding.conditions:
        words += ["--allow", condition.name] if condition.basis == "open" else []
    return shlex.join(words)
