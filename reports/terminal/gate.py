"""The gate on a terminal: the verdict first, then only what changed, 80 columns, plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.terminal.findings import show_findings
from npufix.reports.terminal.rows import Columns
from npufix.reports.terminal.text import paragraph, print_indented
from npufix.reports.wording.gate import (
    HEADER,
    acceptance,
    against,
    list_changed,
    list_unchanged,
    over_time,
    row,
    sensitivity,
    verdict_line,
    word_made,
)
from npufix.reports.wording.report import environment_text, plain
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from npufix.reports.gate_report import GateReport
    from npufix.reports.report import Finding

_STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}
_ROW_STYLES = {"regression": "red", "over budget": "red", "improvement": "green"}
_MARGIN = 6
_METRICS = Columns(22, (10, 10, 9, 7, -2, -20))


def show_gate(gated: GateReport, console: Console, *, details: bool = False) -> None:
    """Print what the gate decided and why; ``details`` adds the metrics that did not change."""
    paragraph(verdict_line(gated), console, _STYLES.get(gated.verdict, "bold"))
    if said := against(gated):
        paragraph(said, console, "dim")
    for reason in gated.reasons:
        if reason != gated.headline:
            print_indented(f"- {plain(reason)}", console)
    _show_metrics(gated, console, details=details)
    _show_history(gated, console)
    _section("Why", gated.explanation, console)
    _show_findings("New", gated.new_findings, console, details=details)
    accepted = [f"{f.rule} {f.name} {f.place}".rstrip() for f in gated.accepted_findings]
    _section("Accepted", accepted, console)
    _section("Gone since the baseline", gated.gone, console)
    _section("Predicted", [*filter(None, [word_made(gated.made)])], console)
    partial = any(problem.damaged for problem in gated.problems)
    notes = [f"{p.where}: {p.what} -- {p.remedy}" for p in gated.problems]
    _section("Partial" if partial else "Notes", notes, console)
    _show_environment(gated, console)
    _show_next(gated, console)


def _show_metrics(gated: GateReport, console: Console, *, details: bool) -> None:
    shown = gated.metrics if details else list_changed(gated.metrics)
    if gated.metrics:
        console.print()
        if shown:
            _METRICS.show(_space(HEADER), console, "bold")
        for metric in shown:
            cells = list(map(plain, row(metric)))
            _METRICS.show(_space(cells), console, _ROW_STYLES.get(metric.verdict, ""))
        rest = [] if details else list_unchanged(gated.metrics)
        if rest:
            names = f"{format_count(len(rest), 'other metric')} did not change (-v shows them)."
            paragraph(names, console, "dim")
        if said := sensitivity(gated.metrics):
            paragraph(said, console, "dim")


def _show_history(gated: GateReport, console: Console) -> None:
    past = over_time(gated.metrics, console.width - _MARGIN)
    if past:
        console.print()
        console.print(Text("Over time:", "bold"))
    for name, bars, said in past:
        print_indented(f"{name}, {said}", console)
        console.print(Text(f"   {bars}", "dim"), soft_wrap=True)


def _space(cells: Sequence[str]) -> list[str]:
    """Return the cells with a gap between the numbers and the word behind them."""
    return [*cells[:-1], "", cells[-1]]


def _section(title: str, lines: Sequence[str], console: Console) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(f"{title}:", "bold"))
    for line in lines:
        print_indented(plain(line), console)


def _show_findings(
    title: str, findings: Sequence[Finding], console: Console, *, details: bool
) -> None:
    if not findings:
        return
    console.print()
    console.print(Text(f"{title}: {format_count(len(findings), 'finding')}", "bold"))
    show_findings(findings, console, details=details)


def _show_environment(gated: GateReport, console: Console) -> None:
    if gated.environment is None:
        return
    if known := environment_text(gated.environment):
        console.print()
        paragraph(known, console, "dim")
    if gated.environment.simulated:
        paragraph(f"Simulated dump: {gated.environment.simulated}", console, "yellow")


def _show_next(gated: GateReport, console: Console) -> None:
    accept = acceptance(gated)
    if accept:
        console.print()
        console.print(Text("To accept it for a while, in pyproject.toml:", "bold"))
        for line in accept.splitlines():
            console.print(Text(f"   {line}"), soft_wrap=True)
    if gated.next_steps:
        console.print()
    for step in gated.next_steps:
        console.print(Text.assemble("Next: ", (plain(step), "bold")), soft_wrap=True)
