"""A history as Markdown: the verdict, a table with a line of bars a metric, what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports import language
from npufix.reports.markdown.report import code, text
from npufix.reports.wording.gate import VERDICTS
from npufix.reports.wording.history import HEADER, list_shifts, name_run, row, sparkline
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.reports.trend_report import TrendReport

_BARS = 40


def to_markdown(report: TrendReport) -> str:
    """Return a history as Markdown; names from dumps are escaped."""
    return "\n".join(language.markdown(_lines(report))) + "\n"


def _lines(report: TrendReport) -> Iterator[str]:
    yield f"### {text(f'{VERDICTS[report.verdict]}: {report.headline}')}"
    yield ""
    yield from (f"- {text(reason)}" for reason in report.reasons[1:])
    if report.accepted:
        yield f"- accepted: {text(report.accepted)}"
    first, last = name_run(report.runs[0]), name_run(report.runs[-1])
    yield f"- {format_count(len(report.runs), 'run')} from {text(first)} to {text(last)}"
    yield ""
    yield f"| {' | '.join(HEADER)} | |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    for series in (*report.metrics, *(s for s in report.operators if s.shifts)):
        name, *cells = row(series)
        yield f"| {code(name)} | {' | '.join(cells)} | `{sparkline(series.values, _BARS)}` |"
    found = list_shifts(report)
    if found:
        yield ""
    for name, said, behind in found:
        yield f"- **{text(name)}**: {text(said)}"
        if behind:
            yield f"  - {text(behind)}"
    yield from (f"\n{code(step)}" for step in report.next_steps)
