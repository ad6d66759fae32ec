"""The report on a terminal: the answer first, 80 columns, nothing but text needs to survive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from npufix.reports.wording import counted, milliseconds, plain, signed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from npufix.reports.report import (
        Condition,
        Finding,
        HotOperator,
        HotShape,
        Problem,
        Report,
        StepSplit,
    )

_NAME_WIDTH = 28
_STYLES = {
    "safe": "green",
    "conditional": "yellow",
    "advice": "cyan",
    "equivalent": "green",
    "refuted": "red",
    "not verified": "yellow",
}


def show(report: Report, console: Console, *, details: bool) -> None:
    """Print a whole report; ``details`` adds the conditions that hold and all findings."""
    console.print(Text(plain(report.headline), style="bold"))
    if report.environment is not None and report.environment.simulated:
        console.print(Text(f"Simulated dump: {plain(report.environment.simulated)}", "yellow"))
    if report.split is not None:
        console.print()
        show_split(report.split, console)
    if report.hot_operators:
        console.print()
        show_hot_operators(report.hot_operators, console)
        console.print(
            f"{report.attributed:.1%} of the compute time is led to a line of code.",
            style="dim",
            highlight=False,
        )
    # Where no line is known, the shapes are what leads to the code.
    if report.hot_shapes and (details or not report.attributed):
        console.print()
        show_hot_shapes(report.hot_shapes, console)
    if report.findings:
        console.print()
        show_findings(report.findings, console, details=details)
    if report.problems:
        console.print()
        show_problems(report.problems, console)
    if report.next_steps:
        console.print()
        for step in report.next_steps:
            console.print(Text.assemble("Next: ", (plain(step), "bold")), soft_wrap=True)


def show_split(split: StepSplit, console: Console) -> None:
    """Print where the average step goes."""
    total = split.total_ns or 1
    parts = [
        ("computing", split.computing_ns),
        ("exposed communication", split.exposed_communication_ns),
        ("free", split.free_ns),
    ]
    noun = "step" if split.steps == 1 else "steps"
    line = f"Step {milliseconds(split.total_ns)} (mean of {split.steps} {noun}): "
    line += ", ".join(f"{name} {milliseconds(ns)} {ns / total:.1%}" for name, ns in parts)
    console.print(Text(line))


def show_hot_operators(operators: Sequence[HotOperator], console: Console) -> None:
    """Print the Types with the most device time; line of code and shapes below each."""
    header = ("Hot operator", "Core", "Calls", "Total", "Mean", "Share")
    console.print(Text(_row(header), "bold"))
    for op in operators:
        name, core = plain(op.type), plain(op.core)
        if len(name) > _NAME_WIDTH - 2:
            console.print(Text(name))
            name = ""
        spent = milliseconds(op.total_ns), milliseconds(op.mean_ns)
        console.print(Text(_row((name, core, f"{op.calls:,}", *spent, f"{op.share:.1%}"))))
        if op.where:
            more = f" and {counted(op.lines - 1, 'other line')}" if op.lines > 1 else ""
            _indented(Text(f"{plain(op.where)} {plain(op.function)}{more}", "dim"), console)
        if op.shapes:
            more = f" and {counted(op.other_shapes, 'other shape')}" if op.other_shapes else ""
            _indented(Text(f"{plain(op.shapes)}{more}", "dim"), console)


def show_hot_shapes(shapes: Sequence[HotShape], console: Console) -> None:
    """Print the shapes that cost most, whatever the Type."""
    header = ("Hot shapes", "Core", "Calls", "Total", "Mean", "Share")
    console.print(Text(_row(header), "bold"))
    for hot in shapes:
        spent = milliseconds(hot.total_ns), milliseconds(hot.mean_ns)
        name = plain(hot.type)
        cells = (name, plain(hot.core), f"{hot.calls:,}", *spent, f"{hot.share:.1%}")
        console.print(Text(_row(cells)))
        _indented(Text(plain(hot.shapes), "dim"), console)


def _row(cells: Sequence[str]) -> str:
    name, core, calls, total, mean, share = cells
    return f"{name:<{_NAME_WIDTH}}{core:<16}{calls:>8}{total:>10}{mean:>10}{share:>8}"


def show_findings(findings: Sequence[Finding], console: Console, *, details: bool) -> None:
    """Print each finding: where, what it costs, what to write instead."""
    for number, finding in enumerate(findings, 1):
        title = Text.assemble(
            (f"{number}. {finding.rule} {finding.name}  ", "bold"),
            (finding.safety, _STYLES[finding.safety]),
        )
        console.print(title)
        _indented(f"{finding.place} in {finding.function}", console)
        for line in (*_costs(finding), *_conditions(finding.conditions, details=details)):
            _indented(line, console)
        if finding.problem:
            _indented(f"not written: {finding.problem}", console)
        if finding.replacement:
            _indented(Text("\n".join(map(plain, signed(finding.code, "-"))), "red"), console)
            _indented(
                Text("\n".join(map(plain, signed(finding.replacement, "+"))), "green"), console
            )
        else:
            _indented(Text("\n".join(map(plain, signed(finding.code, " ")))), console)
        _show_verdict(finding, console, details=details)
    for basis in sorted({f.saving.basis for f in findings if f.saving is not None}):
        console.print(Text(f"Estimates: {plain(basis)}.", "dim"))


def _costs(finding: Finding) -> list[str]:
    if not finding.device_ns:
        return []
    spent = f"{milliseconds(finding.device_ns)} per step ({finding.share:.1%})"
    launches = counted(finding.calls, "launch", "launches")
    lines = [f"{spent}, {launches} of {', '.join(finding.kernels)}"]
    if finding.saving is not None:
        low, high = milliseconds(finding.saving.low_ns), milliseconds(finding.saving.high_ns)
        between = low if low == high else f"{low} to {high}"
        lines.append(f"saves about {between}")
    return lines


def _conditions(conditions: Sequence[Condition], *, details: bool) -> list[str]:
    lines = [f"only if {c.text}: --allow {c.name}" for c in conditions if c.basis == "open"]
    held = [c for c in conditions if c.basis == "profile" or (details and c.basis == "source")]
    by = {"profile": "in every recorded call", "source": "by the source"}
    return [*lines, *(f"{c.name}: proven {by[c.basis]}" for c in held)]


def _show_verdict(finding: Finding, console: Console, *, details: bool) -> None:
    verdict = finding.verdict
    if verdict is None:
        return
    text = Text.assemble((verdict.status, _STYLES[verdict.status]))
    if verdict.cases:
        text.append(f" in {verdict.cases} runs of {plain(verdict.scope)}")
    # A counterexample is often the reason itself.
    for part in dict.fromkeys((verdict.reason, verdict.counterexample, verdict.ground)):
        if part:
            text.append(f"; {plain(part)}")
    _indented(text, console)
    if details:
        for m in verdict.measures:
            _indented(
                f"  {plain(m.what)} {m.dtype}: error {m.error_patched:.2g},"
                f" original {m.error_original:.2g}",
                console,
            )


def _indented(line: str | Text, console: Console) -> None:
    text = Text(plain(line)) if isinstance(line, str) else line
    console.print(Padding(text, (0, 0, 0, 3), expand=False))


def show_problems(problems: Sequence[Problem], console: Console) -> None:
    """Print what makes the diagnosis partial, and what to do about it."""
    console.print("Partial:", style="bold yellow")
    for problem in problems:
        text = f"{problem.where}: {problem.what} -- {problem.remedy}"
        console.print(Text(f"  {plain(text)}"))
