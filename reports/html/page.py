"""A report as one HTML file: no request to anywhere, readable without scripts, safe to open.

Everything from a dump or a source goes through the escaping of Jinja2, or into a JSON block that
no text can close; a Content-Security-Policy forbids every request.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from npufix.reports import language, wording
from npufix.reports.encoding import encoded
from npufix.reports.html.details import Details

if TYPE_CHECKING:
    from npufix.reports.report import Finding, HotLine, HotOperator, HotShape, Report

_SAID = re.compile(r'\bt\("([^"]+)"')
_ROWS_WITHOUT_SCRIPTS = 100
"""Rows of each table that the page holds as text; scripts show the others."""


def to_html(report: Report, details: Details | None = None) -> str:
    """Return a report as a page."""
    details = details or Details()
    return (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            details=details,
            numbers=_numbers(report),
            tables=_tables(report),
            commands=[_command(report, finding) for finding in report.findings],
            data=_json(_data(report, details)),
            environment=wording.environment_text(report.environment) if report.environment else "",
            few=_ROWS_WITHOUT_SCRIPTS,
            language=language.current(),
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "ms": wording.milliseconds,
        "interval": wording.interval,
        "plain": wording.plain,
        "plain_lines": lambda text: "\n".join(map(wording.plain, text.splitlines())),
        "launches": wording.launches,
        "signed": wording.signed,
        "percent": lambda share: f"{share:.1%}",
    }
    made.globals |= {"asset": _asset, "t": _spoken, "label": _label}
    return made


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _asset(name: str) -> Markup:
    """Return a script or a style of ours as it is; none of them may close its own element."""
    text = _text(name)
    if "</script" in text or "</style" in text:
        raise AssertionError(f"{name} would end its element")
    return Markup(text)  # noqa: S704 - a file of this package


def _spoken(text: str) -> Markup:
    """Return a text that the switch of the page puts into the other language."""
    english, chinese = map(wording.plain, language.both(text))
    if english == chinese:
        return escape(english)
    shown = chinese if language.current() == "zh" else english
    return Markup('<span class="t" data-en="{}" data-zh="{}">{}</span>').format(
        english, chinese, shown
    )


def _label(text: str) -> Markup:
    """Return an ``aria-label`` that the switch changes."""
    english, chinese = language.both(text)
    shown = chinese if language.current() == "zh" else english
    return Markup('aria-label="{}" data-label-en="{}" data-label-zh="{}"').format(
        shown, english, chinese
    )


def _words() -> dict[str, str]:
    """Return what the scripts say, in Chinese."""
    return {text: language.both(text)[1] for text in _SAID.findall(_text("page.js"))}


def _json(data: object) -> Markup:
    """Return JSON that cannot end the script element around it, whatever texts are in it."""
    text = encoded(data).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704 - escaped right above


def _numbers(report: Report) -> list[tuple[str, str, str]]:
    """Return the numbers on top of the page: value, name, note."""
    split, found = report.split, []
    if split is not None and split.total_ns:
        steps = f"average of {split.steps} steps" if split.steps > 1 else f"one {split.unit}"
        found.append((wording.milliseconds(split.total_ns), split.unit, steps))
        for ns, name, note in (
            (split.computing_ns, "computing", ""),
            (split.exposed_communication_ns, "exposed communication", ""),
            (split.free_ns, "free", "the device waits for the host"),
        ):
            share = f"{ns / split.total_ns:.1%}"
            found.append((share, name, f"{wording.milliseconds(ns)}{', ' if note else ''}{note}"))
    led = report.attributed + report.attributed_to_functions
    found.append((f"{led:.1%}", "led to your code", "of the compute time, to a line or a function"))
    return found


_Row = tuple[object, ...]


def _tables(report: Report) -> dict[str, list[_Row]]:
    return {
        "operators": [_operator(op) for op in report.hot_operators],
        "shapes": [_shape(hot) for hot in report.hot_shapes],
        "lines": [_line(hot) for hot in report.hot_lines],
        "modules": [
            (hot.module, ", ".join(hot.types), hot.calls, hot.total_ns, hot.share)
            for hot in report.hot_modules
        ],
    }


def _operator(op: HotOperator) -> _Row:
    spent = (op.calls, op.total_ns, op.mean_ns, op.p50_ns, op.p95_ns, op.max_ns, op.share)
    return (op.type, op.core, *spent, op.bound, op.where, wording.few_tensors(op.shapes))


def _shape(hot: HotShape) -> _Row:
    spent = (hot.calls, hot.total_ns, hot.mean_ns, hot.share)
    return (hot.type, hot.core, wording.few_tensors(hot.shapes), *spent, hot.bound)


def _line(hot: HotLine) -> _Row:
    place = (f"{hot.path}:{hot.line}", hot.function, hot.via)
    return (*place, ", ".join(hot.types), hot.calls, hot.total_ns, hot.share)


def _data(report: Report, details: Details) -> dict[str, object]:
    """Return what the scripts draw."""
    return {
        "tables": _tables(report),
        "cells": details.cells,
        "timeline": details.timeline,
        "findings": [(f.rule, f.name, f.place) for f in report.findings],
        "marked": _marked(report),
        "compute": report.compute_ns,
        "words": _words(),
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
    words = ["npufix patch", report.dump, f"--source {report.source}", f"--rule {finding.rule}"]
    words += [f"--allow {c.name}" for c in finding.conditions if c.basis == "open"]
    return " ".join(word for word in words if word)
