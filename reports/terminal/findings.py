"""The findings on a terminal: where, what it costs, what to write or set instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.language import tr
from npufix.reports.language.terminal import Verbatim
from npufix.reports.terminal.summary import CLASSES
from npufix.reports.terminal.text import paragraph, print_code, print_indented
from npufix.reports.wording.prediction import alone_text, doubt_text
from npufix.reports.wording.report import (
    also_at,
    describe_tried,
    interval,
    launches,
    plain,
    small_findings,
    synchronisations,
    times,
)
from npufix.rules.shared.quantities import format_count, milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from npufix.reports.report import Condition, Finding, Verdict

_PLACES_SHOWN = 5
_LINES_SHOWN = 8
"""Of code that is only told: its place says where to read on."""
STYLES = {
    **CLASSES,
    "equivalent": "green",
    "refuted": "red",
    "not verified": "yellow",
}


def show_findings(findings: Sequence[Finding], console: Console, *, details: bool) -> None:
    """Print each finding: where, what it costs, what to write instead; small ones in one line."""
    for number, finding in enumerate(findings, 1):
        if finding.is_small and not details:
            continue
        title = Text.assemble(
            (f"{number}. {finding.rule} {finding.name}  ", "bold"),
            (finding.said_safety, STYLES[finding.safety]),
        )
        console.print(title)
        if finding.kind == "run":
            _show_run_finding(finding, console, details=details)
            continue
        console.print(  # not wrapped: a terminal opens the path
            Verbatim(f"   {tr(plain(f'{finding.place} in {finding.function}'))}"), soft_wrap=True
        )
        said = (*_costs(finding), also_at(finding))
        for line in (*filter(None, said), *_conditions(finding.conditions, details=details)):
            print_indented(line, console)
        if finding.problem:
            print_indented(f"not written: {finding.problem}", console)
        most = 0 if details or finding.replacement else _LINES_SHOWN
        print_code(finding.code, finding.replacement, console, most)
        if finding.verdict is not None:
            show_verdict(finding.verdict, console, details=details)
    if not details and (line := small_findings(findings)):
        paragraph(line, console, "dim")
    code = (f for f in findings if f.kind == "code")
    for basis in sorted({f.saving.basis for f in code if f.saving is not None}):
        console.print(Text(f"Estimates: {plain(basis)}.", "dim"))


def _show_run_finding(finding: Finding, console: Console, *, details: bool) -> None:
    """Print a finding about the run: the fact, what it costs, who takes part, what to do."""
    print_indented(finding.what, console)
    if finding.overlap:
        print_indented(finding.overlap, console)
    for line in _savings(finding):
        basis = f" ({finding.saving.basis})" if finding.saving is not None else ""
        print_indented(f"{line}{basis}", console)
    if details:
        for fact in finding.evidence:
            print_indented(Text(plain(f"{fact.name}: {fact.value}"), "dim"), console)
    shown = finding.places if details else finding.places[:_PLACES_SHOWN]
    for place in shown:
        calls = format_count(place.calls, "call")
        text = f"{place.path}:{place.line} {place.function}: {milliseconds(place.cost_ns)}, {calls}"
        print_indented(Text(plain(text), "dim"), console)
    if len(shown) < len(finding.places):
        more = format_count(len(finding.places) - len(shown), "other line")
        print_indented(Text(f"and {more}", "dim"), console)
    for line in finding.advice.splitlines():
        print_indented(Text(plain(line), "cyan"), console)


def _costs(finding: Finding) -> list[str]:
    if not finding.device_ns:
        return []
    spent = f"{milliseconds(finding.device_ns)} per step ({percent(finding.share)})"
    launches = format_count(finding.calls, "launch", "launches")
    same = [finding.overlap] if finding.overlap else []
    return [f"{spent}, {launches} of {', '.join(finding.kernels)}", *same, *_savings(finding)]


def _savings(finding: Finding) -> list[str]:
    if doubt := doubt_text(finding):
        return [doubt]
    if finding.saving is None:
        return []
    alone = alone_text(finding)
    return [f"saves {interval(finding.saving)}", *([alone] if alone else [])]


def _conditions(conditions: Sequence[Condition], *, details: bool) -> list[str]:
    lines = [f"only if {c.text}: --allow {c.name}" for c in conditions if c.basis == "open"]
    lines += [f"{c.name}: assumed by a comment" for c in conditions if c.basis == "assumed"]
    held = [c for c in conditions if c.basis == "profile" or (details and c.basis == "source")]
    by = {"profile": "in every recorded call", "source": "by the source"}
    return [*lines, *(f"{c.name}: proven {by[c.basis]}" for c in held)]


def show_verdict(verdict: Verdict, console: Console, *, details: bool) -> None:
    """Print a verdict: its status, why, and on what ground."""
    text = Text.assemble((verdict.status, STYLES[verdict.status]))
    if verdict.cases:
        text.append(f" in {verdict.cases} runs of {plain(verdict.scope)}")
    # A counterexample is often the reason itself.
    ground = f"{verdict.on}: {verdict.ground}" if verdict.on != "none" else verdict.ground
    for part in dict.fromkeys((verdict.reason, verdict.counterexample, ground)):
        if part:
            text.append(f"; {plain(part)}")
    print_indented(text, console)
    said = [
        launches(verdict.launches) if verdict.launches is not None else "",
        synchronisations(verdict.synchronisations) if verdict.synchronisations is not None else "",
        times(verdict.times) if verdict.times is not None else "",
        verdict.worth,
        *(f"beside this: {note}" for note in verdict.notes),
    ]
    for line in filter(None, said):
        print_indented(plain(line), console)
    if details:
        for line in describe_tried(verdict.tried) if verdict.tried is not None else ():
            print_indented(f"  {plain(line)}", console)
        for m in verdict.measures:
            print_indented(
                f"  {plain(m.what)} {m.dtype}: error {m.error_patched:.2g},"
                f" original {m.error_original:.2g}",
                console,
            )
