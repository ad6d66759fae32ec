"""The report as Markdown: for a pull request, a wiki, a file beside the dump."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from npufix.reports.wording import milliseconds, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.report import Finding, HotOperator, HotShape, Report


def to_markdown(report: Report) -> str:
    """Return a report as Markdown; names from the dump are escaped."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"# {_text(report.headline)}"
    yield ""
    yield f"- dump: {_code(report.dump)}" if report.dump else "- no dump, source only"
    if report.source:
        yield f"- source: {_code(report.source)}"
    if report.environment is not None:
        known = [
            f"{name} {value}"
            for name, value in (
                ("torch_npu", report.environment.torch_npu),
                ("CANN", report.environment.cann),
                ("rank", report.environment.rank),
                ("level", report.environment.profiler_level),
            )
            if value is not None
        ]
        if known:
            yield f"- environment: {_text(', '.join(known))}"
        if report.environment.simulated:
            yield f"- **simulated**: {_text(report.environment.simulated)}"
    yield f"- made by {report.tool}"
    yield from _split(report)
    yield from _hot_operators(report.hot_operators)
    yield from _hot_shapes(report.hot_shapes)
    for number, finding in enumerate(report.findings, 1):
        yield from _finding(number, finding)
    if report.problems:
        yield from ("", "## Partial", "")
        for problem in report.problems:
            yield f"- {_code(problem.where)}: {_text(problem.what)} — {_text(problem.remedy)}"


def _split(report: Report) -> Iterator[str]:
    split = report.split
    if split is None:
        return
    total = split.total_ns or 1
    yield from ("", f"## Average of {split.steps} step(s): {milliseconds(split.total_ns)}", "")
    yield from ("| | time | share |", "|---|---:|---:|")
    for name, ns in (
        ("computing", split.computing_ns),
        ("exposed communication", split.exposed_communication_ns),
        ("free", split.free_ns),
    ):
        yield f"| {name} | {milliseconds(ns)} | {ns / total:.1%} |"


def _hot_operators(operators: Sequence[HotOperator]) -> Iterator[str]:
    if not operators:
        return
    yield from ("", "## Hot operators", "")
    yield "| Type | core | calls | total | mean | share | line | shapes |"
    yield "|---|---|---:|---:|---:|---:|---|---|"
    for op in operators:
        cells = [
            _code(op.type),
            op.core,
            f"{op.calls:,}",
            milliseconds(op.total_ns),
            milliseconds(op.mean_ns),
            f"{op.share:.1%}",
            _code(op.where) if op.where else "",
            _text(op.shapes),
        ]
        yield "| " + " | ".join(cells) + " |"


def _hot_shapes(shapes: Sequence[HotShape]) -> Iterator[str]:
    if not shapes:
        return
    yield from ("", "## Hot shapes", "")
    yield "| Type | shapes | calls | total | mean | share |"
    yield "|---|---|---:|---:|---:|---:|"
    for hot in shapes:
        what = f"{_code(hot.type)} | {_text(hot.shapes)} | {hot.calls:,}"
        spent = f"{milliseconds(hot.total_ns)} | {milliseconds(hot.mean_ns)}"
        yield f"| {what} | {spent} | {hot.share:.1%} |"


def _finding(number: int, finding: Finding) -> Iterator[str]:
    yield from ("", f"## {number}. {finding.rule} {_text(finding.summary)}", "")
    yield f"{_code(finding.place)} in {_code(finding.function)}, **{finding.safety}**"
    if finding.device_ns:
        kernels = ", ".join(map(_code, finding.kernels))
        yield ""
        yield (
            f"- {milliseconds(finding.device_ns)} per step ({finding.share:.1%}), "
            f"{finding.calls} launches of {kernels}"
        )
    if finding.saving is not None:
        low, high = milliseconds(finding.saving.low_ns), milliseconds(finding.saving.high_ns)
        yield f"- saves {low} to {high} per step ({_text(finding.saving.basis)})"
    for condition in finding.conditions:
        basis = "**to be vouched for**" if condition.basis == "open" else condition.basis
        yield f"- {_code(condition.name)} ({basis}): {_text(condition.text)}"
    if finding.problem:
        yield f"- not written: {_text(finding.problem)}"
    if finding.verdict is not None:
        verdict = finding.verdict
        notes = "; ".join(n for n in (verdict.reason, verdict.counterexample, verdict.ground) if n)
        scope = _code(verdict.scope)
        yield f"- **{verdict.status}** in {verdict.cases} runs of {scope}: {_text(notes)}"
        if verdict.measures:
            yield from ("", "| compared | dtype | error of the original | of the patch |")
            yield "|---|---|---:|---:|"
            for m in verdict.measures:
                yield (
                    f"| {_text(m.what)} | {m.dtype} | {m.error_original:.2g} "
                    f"| {m.error_patched:.2g} |"
                )
    if finding.diff:
        fence = "`" * (max((len(run) for run in re.findall("`+", finding.diff)), default=0) + 3)
        yield from ("", f"{fence}diff", finding.diff.rstrip("\n"), fence)


def _code(text: str) -> str:
    return f"`{plain(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _text(text: str) -> str:
    escaped = html.escape(plain(text), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escaped)
