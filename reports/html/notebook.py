"""A diagnosis in a cell of a notebook: the step, the answer, the findings; no script, no file."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from npufix.rules.shared.quantities import milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.reports.report import Finding, Report

_MOST = 10
_COLOURS = {"compute": "#3b82c4", "communication": "#a855a0", "idle": "#c9a227"}


def to_cell(report: Report) -> str:
    """Return the first screen of a report as HTML; all texts in it are escaped."""
    return str(Markup("").join(_parts(report)))


def _parts(report: Report) -> Iterator[Markup]:
    split = report.split
    title = escape(PurePath(report.dump).name)
    length = f": {split.unit} {milliseconds(split.total_ns)}" if split else ""
    yield Markup("<p><b>{}</b>{}</p>").format(title, length)
    if split is not None and split.total_ns:
        times = (split.computing_ns, split.exposed_communication_ns, split.free_ns)
        shares = [
            (name, ns / split.total_ns, ns) for name, ns in zip(_COLOURS, times, strict=True) if ns
        ]
        yield Markup('<div style="display:flex;height:1em;max-width:48em">')
        for name, share, _ in shares:
            style = f"width:{share:.1%};background:{_COLOURS[name]}"
            yield Markup('<div style="{}" title="{} {}"></div>').format(style, name, percent(share))
        yield Markup("</div><p>")
        told = (f"{name} {milliseconds(ns)} {percent(share)}" for name, share, ns in shares)
        yield Markup("{}</p>").format(" · ".join(told))
    yield Markup("<p>{}</p>").format(report.headline)
    if report.findings:
        yield _table(report.findings)


def _table(findings: list[Finding]) -> Markup:
    head = Markup("").join(
        Markup("<th>{}</th>").format(title)
        for title in ("", "of step", "saves at most", "what", "where", "rule")
    )
    rows = Markup("").join(_row(n, found) for n, found in enumerate(findings[:_MOST], 1))
    more = len(findings) - _MOST
    rest = Markup("<p>{} more in <code>.findings</code></p>").format(more) if more > 0 else ""
    return Markup("<table><tr>{}</tr>{}</table>{}").format(head, rows, rest)


def _row(number: int, found: Finding) -> Markup:
    first = found.places[0] if found.places else None
    where = found.place or (f"{first.path}:{first.line}" if first and first.path else "")
    saves = milliseconds(found.saving.high_ns) if found.saving else "?"
    cells = (number, percent(found.share), saves, found.summary, where, found.rule)
    return Markup("<tr>{}</tr>").format(
        Markup("").join(Markup("<td>{}</td>").format(cell) for cell in cells)
    )
