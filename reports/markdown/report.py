"""The report as Markdown: for a pull request, a wiki, a file beside the dump."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from npufix.reports import language
from npufix.reports.language import tr
from npufix.reports.wording.prediction import alone_text, doubt_text, forecast_lines
from npufix.reports.wording.ranks import rank_name, rank_rows
from npufix.reports.wording.report import (
    also_at,
    coverage_text,
    environment_text,
    few_tensors,
    interval,
    launches,
    plain,
    synchronisations,
    times,
    totals_text,
)
from npufix.rules.shared.quantities import format_count, milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.report import (
        Finding,
        HotLine,
        HotModule,
        HotShape,
        Rank,
        Report,
        StepSplit,
        Verdict,
    )


def to_markdown(report: Report) -> str:
    """Return a report as Markdown; names from the dump are escaped."""
    return "\n".join(language.markdown(_lines(report))) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"# {text(report.headline)}"
    yield ""
    yield f"- dump: {code(report.dump)}" if report.dump else "- no dump, source only"
    if report.source:
        yield f"- source: {code(report.source)}"
    if report.environment is not None:
        if known := environment_text(report.environment):
            yield f"- environment: {text(known)}"
        if report.environment.simulated:
            yield f"- **simulated**: {text(report.environment.simulated)}"
    tool = text(report.tool)
    yield f"- made by {tool}"
    yield from _ranks(report.ranks)
    yield from _split(report)
    yield from _hot_operators(report)
    yield from _hot_shapes(report.hot_shapes)
    yield from _hot_lines(report.hot_lines)
    yield from _hot_modules(report.hot_modules)
    for number, finding in enumerate(report.findings, 1):
        write = _run_finding if finding.kind == "run" else _finding
        yield from write(number, finding)
    if report.forecast is not None:
        yield from ("", "## Prediction", "")
        yield from (f"- {text(line)}" for line in forecast_lines(report.forecast, report.findings))
    yield from _gaps(report)


def _saving(finding: Finding) -> Iterator[str]:
    if doubt := doubt_text(finding):
        yield f"- {text(doubt)}"
    elif finding.saving is not None:
        yield f"- saves {interval(finding.saving)} per step ({text(finding.saving.basis)})"
        if alone := alone_text(finding):
            yield f"- {text(alone)}"


def _gaps(report: Report) -> Iterator[str]:
    if report.problems:
        yield from ("", "## Partial", "")
        for problem in report.problems:
            yield f"- {code(problem.where)}: {text(problem.what)} — {text(problem.remedy)}"
    if report.not_recorded:
        yield from ("", "## Not recorded", "")
        for part in report.not_recorded:
            yield f"- {text(part.name)}: {text(part.value)}"
    if report.collect:
        lines = map(plain, report.collect.replace("```", "").rstrip("\n").split("\n"))
        yield from ("", "This collects it:", "", "```python", *lines, "```")


def _ranks(ranks: Sequence[Rank]) -> Iterator[str]:
    if not ranks:
        return
    shown = rank_rows(ranks)
    yield from ("", "## Ranks", "")
    yield "| rank | computing | exposed communication | free | |"
    yield "|---:|---:|---:|---:|---|"
    for row in shown.rows:
        times = (row.computing_ns, row.exposed_communication_ns, row.free_ns)
        cells = ["" if ns is None else milliseconds(ns) for ns in times]
        note = "**diagnosed here**" if row.diagnosed else row.role
        host = text(row.host) if shown.several_hosts else ""
        note = ", ".join(filter(None, (note, host)))
        yield "| " + " | ".join([rank_name(row), *cells, note]) + " |"
    if shown.more:
        yield from ("", f"and {format_count(shown.more, 'more rank')}")
    if shown.broken:
        yield ""
    for row in shown.broken:
        yield f"- rank {rank_name(row)}: {text(row.problem)} ({code(row.dump)})"
    if shown.more_broken:
        yield f"- also broken: rank {shown.more_broken}"


def _average(split: StepSplit) -> str:
    return f"Average of {split.steps} steps" if split.steps > 1 else split.unit.capitalize()


def _split(report: Report) -> Iterator[str]:
    split = report.split
    if split is None:
        return
    total = split.total_ns or 1
    yield from ("", f"## {_average(split)}: {milliseconds(split.total_ns)}", "")
    yield from ("| | time | share |", "|---|---:|---:|")
    for name, ns in (
        ("computing", split.computing_ns),
        ("exposed communication", split.exposed_communication_ns),
        ("free", split.free_ns),
    ):
        yield f"| {name} | {milliseconds(ns)} | {percent(ns / total)} |"
    if split.preparing_ns:
        yield ""
        yield f"{milliseconds(split.preparing_ns)} of the free time is before the first kernel"
    for odd in split.left_out:
        n = odd.step
        name = "a step" if n is None else f"step {n}"
        yield ""
        spent = f"{milliseconds(odd.total_ns)}, {odd.ratio:.1f} times a typical step"
        yield f"Left out: {name}, {text(odd.reason)}: {spent}"


def _hot_operators(report: Report) -> Iterator[str]:
    if not report.hot_operators:
        return
    yield from ("", "## Hot operators", "")
    yield " ".join(filter(None, (totals_text(report.split), coverage_text(report))))
    yield ""
    yield (
        "| Type | core | calls | total | mean | p50 | p95 | max | critical | share | of step "
        "| bound | line | shapes |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---|---|"
    for op in report.hot_operators:
        cells = [
            code(op.type),
            word(op.core),
            f"{op.calls:,}",
            milliseconds(op.total_ns),
            milliseconds(op.mean_ns),
            milliseconds(op.p50_ns),
            milliseconds(op.p95_ns),
            milliseconds(op.max_ns),
            milliseconds(op.critical.total_ns) if op.critical else "",
            percent(op.share),
            percent(op.share_of_step) if op.share_of_step else "",
            word(op.bound),
            code(op.where) if op.where else "",
            text(few_tensors(op.shapes)),
        ]
        yield "| " + " | ".join(cells) + " |"


def _hot_shapes(shapes: Sequence[HotShape]) -> Iterator[str]:
    if not shapes:
        return
    yield from ("", "## Hot shapes", "")
    yield "| Type | shapes | calls | total | mean | share |"
    yield "|---|---|---:|---:|---:|---:|"
    for hot in shapes:
        what = f"{code(hot.type)} | {text(few_tensors(hot.shapes))} | {hot.calls:,}"
        spent = f"{milliseconds(hot.total_ns)} | {milliseconds(hot.mean_ns)}"
        yield f"| {what} | {spent} | {percent(hot.share)} |"


def _hot_lines(lines: Sequence[HotLine]) -> Iterator[str]:
    if not lines:
        return
    yield from ("", "## Hot lines", "")
    yield "| line | function | level | through | calls | total | critical | share | Types |"
    yield "|---|---|---|---|---:|---:|---:|---:|---|"
    for hot in lines:
        via = code(hot.via) if hot.via else ""
        place = f"{code(f'{hot.path}:{hot.line}')} | {code(hot.function)} | {hot.level} | {via}"
        critical = milliseconds(hot.critical.total_ns) if hot.critical else ""
        spent = f"{hot.calls:,} | {milliseconds(hot.total_ns)} | {critical} | {percent(hot.share)}"
        yield f"| {place} | {spent} | {', '.join(map(code, hot.types))} |"


def _hot_modules(modules: Sequence[HotModule]) -> Iterator[str]:
    if not modules:
        return
    yield from ("", "## Hot modules", "", "| nn.Module | calls | total | share | Types |")
    yield "|---|---:|---:|---:|---|"
    for hot in modules:
        spent = f"{hot.calls:,} | {milliseconds(hot.total_ns)} | {percent(hot.share)}"
        yield f"| {code(hot.module)} | {spent} | {', '.join(map(code, hot.types))} |"


def _run_finding(number: int, finding: Finding) -> Iterator[str]:
    yield from ("", f"## {number}. {finding.rule} {text(finding.summary)}", "")
    yield text(finding.what)
    yield ""
    if finding.overlap:
        yield f"- {text(finding.overlap)}"
    yield from _saving(finding)
    for fact in finding.evidence:
        yield f"- {text(fact.name)}: {text(fact.value)}"
    for place in finding.places:
        spent = f"{milliseconds(place.cost_ns)}, {place.calls:,} calls"
        yield f"- {code(f'{place.path}:{place.line}')} in {code(place.function)}: {spent}"
    yield ""
    yield from (f"{text(line)}  " for line in finding.advice.splitlines())


def _finding(number: int, finding: Finding) -> Iterator[str]:
    yield from ("", f"## {number}. {finding.rule} {text(finding.summary)}", "")
    yield f"{code(finding.place)} in {code(finding.function)}, **{finding.said_safety}**"
    if finding.places:
        yield from ("", text(also_at(finding)))
    if finding.device_ns:
        kernels = ", ".join(map(code, finding.kernels))
        yield ""
        yield (
            f"- {milliseconds(finding.device_ns)} per step ({percent(finding.share)}), "
            f"{finding.calls} launches of {kernels}"
        )
    yield from _saving(finding)
    for condition in finding.conditions:
        basis = "**to be vouched for**" if condition.basis == "open" else condition.basis
        yield f"- {code(condition.name)} ({basis}): {text(condition.text)}"
    if finding.problem:
        yield f"- not written: {text(finding.problem)}"
    if finding.verdict is not None:
        verdict = finding.verdict
        ground = f"{verdict.on}: {verdict.ground}" if verdict.on != "none" else verdict.ground
        said = dict.fromkeys((verdict.reason, verdict.counterexample, ground))
        notes = "; ".join(note for note in said if note)
        scope = code(verdict.scope)
        yield f"- **{verdict.status}** in {verdict.cases} runs of {scope}: {text(notes)}"
        yield from (f"  - beside this: {text(note)}" for note in verdict.notes)
        yield from _on_device(verdict)
        if verdict.measures:
            yield from ("", "| compared | dtype | error of the original | of the patch |")
            yield "|---|---|---:|---:|"
            for m in verdict.measures:
                yield (
                    f"| {text(m.what)} | {word(m.dtype)} | {m.error_original:.2g} "
                    f"| {m.error_patched:.2g} |"
                )
    if finding.diff:
        fence = "`" * (max((len(run) for run in re.findall("`+", finding.diff)), default=0) + 3)
        yield from ("", f"{fence}diff", finding.diff.rstrip("\n"), fence)


def _on_device(verdict: Verdict) -> Iterator[str]:
    """Yield what was seen of the device, and what that has decided."""
    if verdict.launches is not None:
        yield f"- {text(launches(verdict.launches))}"
    waits = verdict.synchronisations
    if waits is not None and (said := synchronisations(waits)):
        yield f"- {text(said)}"
    if verdict.times is not None:
        yield f"- {text(times(verdict.times))}"
    if verdict.worth:
        yield f"- {text(verdict.worth)}"


def code(name: str) -> str:
    """Return a name as code; nothing in it is markup."""
    return f"`{plain(name).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def word(name: str) -> str:
    """Return a name as it is, unless there is something in it that could be markup."""
    return name if re.fullmatch(r"[\w. -]*", name) else text(name)


def text(words: str) -> str:
    """Return words with everything escaped that Markdown or HTML would read as markup."""
    escaped = html.escape(tr(plain(words)), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escaped)
