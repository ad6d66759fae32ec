"""An explanation of one line of code on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.terminal.text import print_code, print_indented
from npufix.reports.wording.report import plain

if TYPE_CHECKING:
    from rich.console import Console

    from npufix.reports.explanation import LineExplanation, Matching, Parted
    from npufix.reports.report import Condition

_NEAR_SHOWN = 5


def outline(explanation: LineExplanation) -> list[str]:
    """Return one line for each rule that matches; where none does, for those that nearly do."""
    nearly = [f"{n.rule} {n.name} nearly matches at line {n.line}" for n in explanation.near]
    left = [f"{r.rule} {r.name} matches, but is left alone" for r in explanation.refused]
    found = [f"{m.rule} {m.name} matches at line {m.line}: {m.safety}" for m in explanation.matches]
    return [*found, *left] or nearly or ["No rule looks like this code."]


def show(explanation: LineExplanation, console: Console, *, details: bool = False) -> None:
    """Print which rules match at a line, which nearly do, and why the others do not.

    ``details`` adds those that are further away.
    """
    where = explanation.function or "the top level"
    console.print(Text(plain(f"{explanation.path}:{explanation.line} in {where}"), "bold"))
    if explanation.remark:
        console.print(Text(explanation.remark))
    for match in explanation.matches:
        _show_match(match, console)
    for parted in explanation.refused:
        _title(parted, "matches, but the code is left alone", console)
        for reason in parted.reasons:
            print_indented(plain(reason), console)
    for parted in explanation.near if details else explanation.near[:_NEAR_SHOWN]:
        share = f"{parted.agreeing} of {parted.operations} operations agree"
        _title(parted, f"nearly matches: {share}", console)
        for reason in parted.reasons:
            print_indented(plain(reason), console)
    if not (explanation.matches or explanation.refused or explanation.near):
        console.print("\nNo rule looks like this code.")


def _title(parted: Parted, what: str, console: Console) -> None:
    console.print()
    console.print(
        Text.assemble((f"{parted.rule} {parted.name}", "bold"), f" at line {parted.line} {what}")
    )


def _show_match(match: Matching, console: Console) -> None:
    console.print()
    console.print(
        Text.assemble(
            (f"{match.rule} {match.name}", "bold"), f" matches at line {match.line}: {match.safety}"
        )
    )
    for line in map(_condition, match.conditions):
        print_indented(plain(line), console)
    if match.not_written:
        print_indented(plain(f"not written: {match.not_written}"), console)
    print_code(match.code, match.replacement, console)


def _condition(condition: Condition) -> str:
    if condition.basis == "open":
        return f"{condition.name}: open, only if {condition.text}; --allow {condition.name}"
    return f"{condition.name}: proven by the {condition.basis}"
