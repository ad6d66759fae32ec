"""Two runs side by side as Markdown: for a pull request, a wiki, a file beside the dumps."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from npufix.reports import language
from npufix.reports.wording import comparison as words
from npufix.reports.wording.report import environment_text, few_tensors, plain
from npufix.rules.shared.quantities import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.comparison import (
        Comparison,
        HostOperatorChange,
        LineChange,
        OperatorChange,
        Side,
    )

_ROWS = 30
_SUMS = "| before | after | change | |"


def to_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown; names from the dumps are escaped."""
    return "\n".join(language.markdown(_lines(comparison))) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"# {_text(comparison.headline)}"
    yield ""
    yield from _side("before", comparison.before)
    yield from _side("after", comparison.after)
    if comparison.differences:
        yield f"- **different**: {_text('; '.join(comparison.differences))}"
    yield f"- made by {comparison.tool}"
    yield from _explanation(comparison)
    yield from _metrics(comparison)
    yield from _predictions(comparison)
    operators = comparison.operators
    if comparison.across_devices:
        yield from _hosts(comparison.host_operators)
        operators = [op for op in operators if op.communication]
    yield from _operators("By Type", operators)
    if not comparison.across_devices:
        yield from _operators("By Type and shapes", comparison.shapes)
    yield from _code_lines(comparison.lines)
    if not comparison.across_devices:
        yield from _hosts(comparison.host_operators)
    yield from _findings(comparison)
    yield from _partial(comparison)
    if comparison.notes:
        yield from ("", "## Notes", "")
        yield from (f"- {_text(note)}." for note in comparison.notes)


def _side(name: str, side: Side) -> Iterator[str]:
    known = environment_text(side.environment) if side.environment else ""
    more = f", {_text(known)}" if known else ""
    simulated = side.environment.simulated if side.environment else None
    more += f", **{language.tr('simulated')}**: {_text(simulated)}" if simulated else ""
    source = f", source {_code(side.source)}" if side.source else ""
    steps = "without steps" if side.unit == "recording" else f"steps: {side.steps}"
    yield f"- {language.tr(name)}: {side.kind} {_code(side.origin)}{source}, {steps}{more}"


def _explanation(comparison: Comparison) -> Iterator[str]:
    explanation = comparison.explanation
    if explanation is None:
        return
    yield from ("", f"## What explains {words.word_difference(explanation.difference_ns)}", "")
    yield from (f"- {_text(words.part_text(line))}" for line in explanation.lines)
    yield f"- {_text(words.rest_text(explanation))}"


def _metrics(comparison: Comparison) -> Iterator[str]:
    if not comparison.metrics:
        return
    yield from ("", "## By step", "", "Medians over the steady steps.", "")
    yield f"| {_SUMS} spread | |"
    yield "|---|---:|---:|---:|---:|---|---|"
    for metric in comparison.metrics:
        name = words.METRIC_NAMES.get(metric.name, metric.name)
        cells = [name, *words.metric_values(metric), words.relative(metric.before, metric.after),
                 words.spread_text(metric), words.verdict_text(metric)]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _predictions(comparison: Comparison) -> Iterator[str]:
    if not comparison.predictions:
        return
    yield from ("", "## Changes that were made: predicted and measured saving", "")
    yield "| change | predicted | measured | before | after | | how it was decided |"
    yield "|---|---:|---:|---:|---:|---|---|"
    together = [comparison.predicted] if comparison.predicted else []
    for prediction in [*comparison.predictions, *together]:
        cells = [
            _text(words.word_applied(prediction)),
            words.word_predicted(prediction),
            words.word_difference(prediction.measured_ns).lstrip("+"),
            milliseconds(prediction.before_ns),
            milliseconds(prediction.after_ns),
            f"**{prediction.verdict}**",
            _text(prediction.decided),
        ]
        yield f"| {' | '.join(cells)} |"


def _hosts(rows: Sequence[HostOperatorChange]) -> Iterator[str]:
    shown = [op for op in rows if op.before_ns != op.after_ns][:_ROWS]
    if not shown:
        return
    yield from ("", "## By operator of PyTorch", "")
    yield "| operator | before | after | change | ratio | calls | kernels | dtype | also named |"
    yield "|---|---:|---:|---:|---:|---:|---:|---|---|"
    for op in shown:
        others = sorted({*op.before_names, *op.after_names} - {op.name})
        cells = [
            _code(words.host_name(op)),
            words.time(op.before_ns),
            words.time(op.after_ns),
            words.change(op.before_ns, op.after_ns),
            words.ratio_text(op),
            words.calls(op.before_calls, op.after_calls),
            words.calls(op.before_kernels, op.after_kernels),
            words.dtypes_text(op),
            ", ".join(map(_code, others)),
        ]
        yield f"| {' | '.join(cells)} |"


def _operators(title: str, rows: Sequence[OperatorChange]) -> Iterator[str]:
    shown = [op for op in rows if op.before_ns != op.after_ns][:_ROWS]
    if not shown:
        return
    yield from ("", f"## {title}", "", f"| Type | shapes {_SUMS} kernels |")
    yield "|---|---|---:|---:|---:|---:|---:|"
    for op in shown:
        name = _code(op.type) + (" (communication)" if op.communication else "")
        cells = [name, _text(few_tensors(op.shapes)), *_sums(op)]
        yield f"| {' | '.join(cells)} |"


def _code_lines(rows: Sequence[LineChange]) -> Iterator[str]:
    shown = [line for line in rows if line.before_ns != line.after_ns][:_ROWS]
    if not shown:
        return
    yield from ("", "## By line", "", f"| line | {_SUMS[2:]} kernels | state | Types |")
    yield "|---|---:|---:|---:|---:|---:|---|---|"
    for line in shown:
        types = _text(words.types_text(line))
        yield f"| {' | '.join([_code(words.place(line)), *_sums(line), line.state, types])} |"


def _sums(row: OperatorChange | LineChange) -> list[str]:
    return [
        words.time(row.before_ns),
        words.time(row.after_ns),
        words.change(row.before_ns, row.after_ns),
        words.relative(row.before_ns, row.after_ns),
        words.calls(row.before_calls, row.after_calls),
    ]


def _findings(comparison: Comparison) -> Iterator[str]:
    if not comparison.findings:
        return
    yield from ("", "## Findings", "", "| | rule | place | before | after |")
    yield "|---|---|---|---:|---:|"
    for finding in comparison.findings[: 2 * _ROWS]:
        place = words.finding_place(finding)
        cells = [
            finding.state,
            f"{finding.rule} {_text(finding.name)}",
            _code(place) if place else "the run",
            words.time(finding.before_ns) if finding.state != "new" else "",
            words.time(finding.after_ns) if finding.state != "gone" else "",
        ]
        yield f"| {' | '.join(cells)} |"


def _partial(comparison: Comparison) -> Iterator[str]:
    problems = [
        (name, problem)
        for name, side in (("before", comparison.before), ("after", comparison.after))
        for problem in side.partial
    ]
    if problems:
        yield from ("", "## Partial", "")
    for name, problem in problems:
        yield f"- {name}: {_code(problem.where)}: {_text(problem.what)} — {_text(problem.remedy)}"


def _code(text: str) -> str:
    return f"`{plain(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _text(text: str) -> str:
    escaped = html.escape(language.tr(plain(text)), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escaped)
