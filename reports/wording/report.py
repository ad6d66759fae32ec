"""Numbers and sentences of a report, in one place so that all outputs say the same."""

from __future__ import annotations

import ast
import contextlib
import re
import textwrap
from typing import TYPE_CHECKING

from npufix.reports.report import ASKER, CAUSE
from npufix.rules.shared.quantities import format_count, milliseconds, percent, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.report import (
        Critical,
        Environment,
        Finding,
        HotOperator,
        Launches,
        Report,
        Saving,
        StepSplit,
        Synchronisations,
        Times,
        Tried,
    )

_FEW_TENSORS = 6
_INDENT = 4
_SHOWN = 3
"""Places that a finding about code names beside its own."""
_SHORT = 60
"""Characters of code that fit into a sentence."""
_LONG = 120
"""Characters of a fact that its first clause is enough of."""
_BUSY = 0.9
"""Share of the step that must be computing for nothing to be slow."""
_CLAUSE_END = re.compile("; |: ")
_TOLD, _TOLD_ALONE = 0.01, 0.05
"""Share of the step from which the first sentence is about a job, or about one finding."""


def headline(  # noqa: PLR0913 - what an answer may be made of
    findings: Sequence[Finding],
    total: Saving | None,
    split: StepSplit | None,
    hot: Sequence[HotOperator],
    *,
    with_source: bool,
    only_work: bool = False,
) -> str:
    """Return the answer in one sentence; ``only_work``: no finding but the work itself matters."""
    if total is None:
        files = len({f.path for f in findings})
        if not findings:
            return "No known slow pattern in this source."
        return f"{format_count(len(findings), 'slow pattern')} in {format_count(files, 'file')}."
    worth = [f for f in findings if f.device_ns and f.saving is not None and not f.is_small]
    first = _largest(findings)
    reason = _diagnosis(first, findings) if first is not None else _bottleneck(split, hot)[:-1]
    if only_work and split is not None and split.computing_ns >= _BUSY * split.total_ns:
        reason = f"nothing is slow beside the work itself: {_bottleneck(split, hot)[:-1]}"
        if first is None and findings and findings[0].share >= _TOLD:
            reason = f"little is slow beside the work itself: {_diagnosis(findings[0], findings)}"
    word = reason.split(" ", 1)[0]
    if word.isalpha() and word.islower():  # no name of an operator
        reason = f"{reason[:1].upper()}{reason[1:]}"
    if not total.high_ns or not worth:
        return f"{reason}."
    step = f" of a {split.unit} of {milliseconds(split.total_ns)}" if split else " per step"
    found = format_count(len(worth), "finding")
    if with_source and first is None and any(f.kind == "code" for f in worth):
        return f"{found}: {interval(total)} can be saved{step}."
    return f"{reason}; {found} could save {interval(total)}{step}."


def with_warm_up(said: str, split: StepSplit | None, compiled_ns: int) -> str:
    """Return a headline that says as well how long the first steps took, where far longer.

    Averages leave them out; who waits for 9 s wants to know why (``compiled_ns`` of all steps).
    """
    if split is None or not split.total_ns:
        return said
    first = [step for step in split.left_out if step.reason == "warm-up"]
    extra = sum(step.total_ns - split.total_ns for step in first)
    if extra < split.total_ns:
        return said
    spent = milliseconds(sum(step.total_ns for step in first))
    count = format_count(len(first), "step")
    if 2 * compiled_ns >= extra:
        return (
            f"{said} The warm-up of {count} takes {spent}, left out of all averages: operators "
            "are compiled."
        )
    return f"{said} The warm-up of {count} takes {spent}, left out of all averages."


def with_left_out(said: str, count: int) -> str:
    """Return a headline that says as well how many findings are in code that no step runs."""
    if not count:
        return said
    return (
        f"{said} Beside them {count} in tests, documentation, examples, export and data code on "
        "the host, or of doubtful use: --everywhere shows them."
    )


def _largest(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that the first sentence is about, ``None`` if none is large enough.

    What one rank costs all others comes before what the diagnosed one is busy with; that a group
    moves data for 17 ms comes before that a rank waits for 6 ms of it.
    """
    of_job = [f for f in findings if f.ranks and f.share >= _TOLD]
    if of_job:
        return findings[0] if findings[0].rule == of_job[0].rule else of_job[0]
    return findings[0] if findings and findings[0].share >= _TOLD_ALONE else None


def _diagnosis(finding: Finding, others: Sequence[Finding]) -> str:
    """Return what is wrong and where; short, as what to do stands beside it.

    ``others`` say why, where one of them is the cause.
    """
    what = _first_clause(finding.what)
    if not what:
        spent = f"{milliseconds(finding.device_ns)} per step ({percent(finding.share)})"
        text = f"{finding.summary} takes {spent} at {finding.place}"
        is_short = len(finding.replacement) < _SHORT and "\n" not in finding.replacement
        written = finding.replacement if is_short else ""
        return f"{text}; write {written} instead" if written else text
    # Of a rank that is late, what it was found to do meanwhile.
    cause = next((fact.value for fact in finding.evidence if fact.name == CAUSE), "")
    rule = cause.partition(" ")[0]
    reason = next((other.summary for other in others if other.rule == rule), "")
    why = f", because on rank {finding.ranks[0]} {reason}" if reason and finding.ranks else ""
    where = finding.places[0] if finding.places else None
    at = f", asked for at {where.path}:{where.line}" if where is not None and where.path else ""
    if name := asker(finding):
        at = f", asked for by {name}"
    return f"{what}{why}{at}"


def asker(finding: Finding) -> str:
    """Return what of C++ asks for the kernels, where lines do not ask for as much; else ""."""
    told = (fact.value for fact in finding.evidence if fact.name == ASKER)
    return next(told, "").rpartition(": ")[0]


def _first_clause(text: str) -> str:
    """Return a fact without the figures behind it, where it is long.

    ``two collectives stand still (61.1% of the step): they ...`` ends before the colon; one in
    parentheses ends nothing.
    """
    if len(text) <= _LONG:
        return text
    ends = [found.start() for found in _CLAUSE_END.finditer(text)]
    outside = [end for end in ends if text.count("(", 0, end) == text.count(")", 0, end)]
    return text[: next((end for end in outside if end > _SHORT), len(text))]


def also_at(finding: Finding) -> str:
    """Return where else a finding about code holds: ``also at a.py:3 and 2 other lines``."""
    if not finding.places:
        return ""
    shown = [f"{place.path}:{place.line}" for place in finding.places[:_SHOWN]]
    more = len(finding.places) - len(shown)
    rest = f" and {format_count(more, 'other line')}" if more else ""
    return f"also at {', '.join(shown)}{rest}"


def name_kernels(finding: Finding, findings: Sequence[Finding]) -> str:
    """Return the kernels that tell a finding from others of its rule: ``Mul +2``, else ""."""
    if finding.kind != "run" or not finding.kernels:
        return ""
    if sum(other.rule == finding.rule for other in findings) < 2:  # noqa: PLR2004 - itself
        return ""
    more = len(finding.kernels) - 1
    return plain(f"{finding.kernels[0]}{f' +{more}' if more else ''}")


def environment_text(environment: Environment) -> str:
    """Return what is known about the profiled machine, "" if nothing is."""
    devices = ", ".join(map(str, environment.devices))
    known = (
        ("", environment.chip),
        ("torch ", environment.torch),
        ("torch_npu ", environment.torch_npu),
        ("CANN ", environment.cann),
        ("", environment.profiler_level),
        ("rank ", environment.rank),
        ("devices ", devices if len(environment.devices) > 1 else None),
    )
    return ", ".join(f"{name}{value}" for name, value in known if value not in {None, ""})


def coverage_text(report: Report) -> str:
    """Return how much of the compute time is led to a line, a function, nothing."""
    if report.attributed_by_operators:
        return (
            "No kernel is led to a line; the lines are those of the operators in operator_details,"
            f" {percent(report.attributed_by_operators)} of the compute time."
        )
    shares = [f"{percent(report.attributed)} of the compute time is led to a line of code"]
    if report.attributed_to_functions:
        shares.append(f"{percent(report.attributed_to_functions)} to a function")
    unknown = max(0.0, 1 - report.attributed - report.attributed_to_functions)
    return f"{', '.join(shares)}, {percent(unknown)} to nothing."


def totals_text(split: StepSplit | None) -> str:
    """Return what totals and means are over, where they differ; "" where they do not."""
    if split is None or not split.left_out:
        return ""
    return (
        f"Calls and totals are over all {split.recorded_steps} recorded steps, means over the "
        f"{split.steps} that are not left out."
    )


def figures_text(hot: HotOperator, *, details: bool) -> str:
    """Return the pipe that limits an operator and, with ``details``, how its times spread."""
    parts = []
    ratio = "" if hot.bound_ratio is None else f"{hot.bound_ratio:.0%}"
    if details:
        spread = (("p50", hot.p50_ns), ("p95", hot.p95_ns), ("max", hot.max_ns))
        parts.append(", ".join(f"{name} {milliseconds(ns)}" for name, ns in spread))
        if hot.share_of_step:
            parts.append(f"{percent(hot.share_of_step)} of the step")
    if hot.bound == "none":
        parts.append("no unit is busy" if not ratio else f"no unit is busy ({ratio})")
    elif hot.bound:
        parts.append(f"{hot.bound}-bound ({ratio} busy)" if ratio else f"{hot.bound}-bound")
    parts += filter(None, [critical_text(hot.critical)])
    return "; ".join(parts)


def critical_text(critical: Critical | None) -> str:
    """Return how far off the critical path something is, or that it is the host that is on it."""
    if critical is None:
        return ""
    if not critical.total_ns:
        return f"off the critical path, slack {milliseconds(critical.slack_ns)}"
    if critical.host_ns > critical.device_ns:
        return f"the step waits {milliseconds(critical.host_ns)} for its launches"
    return ""


def small_findings(findings: Sequence[Finding]) -> str:
    """Return the findings that are about less than a thousandth of the step, "" if none is."""
    small = [(n, f) for n, f in enumerate(findings, 1) if f.is_small]
    if not small:
        return ""
    names = ", ".join(f"{n} {f.rule} {f.name}" for n, f in small)
    return f"{format_count(len(small), 'finding')} below 0.1% of the step: {names}"


def interval(saving: Saving) -> str:
    """Return ``about 3 to 5 ms``, ``at most 5 ms`` where nothing is certain."""
    low, high = milliseconds(saving.low_ns), milliseconds(saving.high_ns)
    if not saving.low_ns:
        return f"at most {high}"
    return f"about {low}" if low == high else f"about {low} to {high}"


def word_saving(finding: Finding) -> str:
    """Return a saving for a column: ``3 ms``, ``3 … 5 ms``, ``≤ 5 ms``; or ``contained``."""
    saving = finding.saving
    if saving is None:
        return word_contained(finding)
    low, high = milliseconds(saving.low_ns), milliseconds(saving.high_ns)
    if not saving.low_ns:
        return f"≤ {high}"
    unit = high.rpartition(" ")[2]
    return low if low == high else f"{low.removesuffix(unit).rstrip()} … {high}"


def word_contained(finding: Finding) -> str:
    """Return ``in 2`` where a saving is counted with that of finding 2, ``?`` if none is known."""
    _, _, first = finding.overlap.rpartition(" ")
    return f"in {first}" if first.isdigit() else "?"


def _bottleneck(split: StepSplit | None, hot: Sequence[HotOperator]) -> str:
    first = ""
    if hot:
        op = hot[0]
        where = f", asked for at {op.where}" if op.where else ""
        first = f"{shorten(op.type)} takes {percent(op.share)} of the compute time{where}"
    if split is None or not split.total_ns:
        return f"{first}." if first else "The dump holds no kernels."
    shares = {
        "computing": split.computing_ns / split.total_ns,
        "exposed communication": split.exposed_communication_ns / split.total_ns,
        "idle": split.free_ns / split.total_ns,
    }
    main, share = max(shares.items(), key=lambda item: item[1])
    text = f"The {split.unit} of {milliseconds(split.total_ns)} is {percent(share)} {main}"
    return f"{text}; {first}." if first else f"{text}."


def launches(found: Launches) -> str:
    """Say how many kernels are launched before and after a change, and which are new."""
    words = f"launches {len(found.original)} -> {len(found.patched)}"
    new = [k for k in dict.fromkeys(found.patched) if k not in found.original]
    words += f": {', '.join(new)}" if new else ""
    if found.original_backward or found.patched_backward:
        words += f"; backward {len(found.original_backward)} -> {len(found.patched_backward)}"
    return words


def synchronisations(found: Synchronisations) -> str:
    """Say how often the host waits for the device before and after a change, "" if never."""
    if not found.original and not found.patched:
        return ""
    names = ", ".join(dict.fromkeys((*found.original, *found.patched)))
    return f"synchronisations {len(found.original)} -> {len(found.patched)}: {names}"


def describe_tried(found: Tried) -> Iterator[str]:
    """Say what both versions were called with, a line for each kind of thing."""
    if found.arguments:
        rest = f" and {found.more} more" if found.more else ""
        yield f"tried: {'; '.join(found.arguments)}{rest}"
    yield from (
        f"{what}: {', '.join(map(str, several))}"
        for what, several in (
            ("dtypes", found.dtypes),
            ("values", found.values),
            ("modes", found.modes),
            ("lines", found.lines),
        )
        if several
    )
    if found.errors:
        yield f"both raise: {'; '.join(found.errors)}"


def times(found: Times) -> str:
    """Say how long both versions take: ``12.3 µs -> 4.5 µs, median of 20``."""
    one, other = found.original, found.patched
    passes = "forward and backward" if found.with_backward else "forward"

    def us(value: float) -> str:
        return milliseconds(value * 1000)

    return (
        f"{us(one.median_us)} -> {us(other.median_us)}, median of {found.repetitions} ({passes};"
        f" half of them {us(one.low_us)} to {us(one.high_us)} -> {us(other.low_us)} to"
        f" {us(other.high_us)}), for {found.case}"
    )


def plain(text: str) -> str:
    """Return text of a dump or a source without characters that steer a terminal."""
    if text.isprintable():  # at once
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


def few_tensors(shapes: str) -> str:
    """Return a list of shapes that fits a table: a foreach kernel has hundreds of tensors."""
    tensors = shapes.split("; ")
    if len(tensors) <= _FEW_TENSORS:
        return shapes
    more = format_count(len(tensors) - _FEW_TENSORS, "more tensor")
    return f"{'; '.join(tensors[:_FEW_TENSORS])}; {more}"


def sign_lines(text: str, sign: str) -> list[str]:
    """Return the lines of a code snippet, each behind a sign, indentation reduced."""
    return [f"{sign} {line}" for line in _dedent(text).splitlines()]


def _dedent(code: str) -> str:
    """Return code without the indentation of its block, which its first line may have lost already.

    Cut out of a method, ``for i in n:`` is followed by twelve blanks and ``m[i] = 1``, which get
    four; an ``else:`` or a bracket that closes gets none.
    """
    first, _, rest = textwrap.dedent(code).partition("\n")
    outer = min(filter(str.strip, rest.splitlines()), key=_indentation, default="")
    if not _indentation(outer):
        return textwrap.dedent(code)
    rest = textwrap.dedent(rest)
    if outer.lstrip().startswith((")", "]", "}", "else:", "elif ", "except", "finally:")):
        return f"{first}\n{rest}"
    inner = f"{first}\n{textwrap.indent(rest, ' ' * _INDENT)}"
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        ast.parse(inner)
        return inner
    return f"{first}\n{rest}"


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
