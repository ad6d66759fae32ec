"""What became of the findings in a patch, on a terminal: a line each, not the findings again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.language import tr
from npufix.reports.language.layout import cut, pad, width
from npufix.reports.language.terminal import Verbatim
from npufix.reports.terminal.findings import STYLES
from npufix.reports.terminal.text import paragraph
from npufix.reports.wording.report import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from npufix.reports.report import Finding

_LONGEST_PLACE, _LONGEST_NAME = 34, 26
_MARGIN = " " * 6


def show_patched(findings: Sequence[Finding], written: Sequence[Finding], console: Console) -> None:
    """Print what is in the patch with its verdict, then what is not and why.

    ``findings`` are all of a report, numbered as there.
    """
    code = [(n, f) for n, f in enumerate(findings, 1) if f.kind == "code"]
    place = min(_LONGEST_PLACE, max([width(f.place) for _, f in code], default=0))
    inside = [(n, f) for n, f in code if f in written]
    for number, finding in inside:
        _show_line(number, finding, place, console)
    left = [(n, f) for n, f in code if f not in written]
    if left and inside:
        console.print()
    advice = [str(number) for number, finding in left if finding.safety == "advice"]
    left = [(n, f) for n, f in left if f.safety != "advice"]
    for number, finding in left:
        if reason := _reason(finding):
            _show_line(number, finding, place, console)
            paragraph(reason, console, "dim", _MARGIN)
    if advice:
        numbers = ", ".join(advice)
        paragraph(f"By hand: {numbers} (-v says what)", console, "dim")
    if unproven := [str(number) for number, finding in left if not _reason(finding)]:
        numbers = ", ".join(unproven)
        paragraph(
            f"Not written, as a condition is not proven: {numbers}"
            " (-v: which conditions, --allow CONDITION vouches for one)", console, "dim"
        )  # fmt: skip


def _show_line(number: int, finding: Finding, place: int, console: Console) -> None:
    where = pad(cut(plain(finding.place), place), place)
    name = pad(cut(plain(finding.name), _LONGEST_NAME), _LONGEST_NAME)
    status = finding.verdict.status if finding.verdict is not None else ""
    parts = (f"{number:>2}  {where}  {name}  ", (tr(status), STYLES.get(status, "")))
    line = Verbatim.assemble(*parts)
    line.rstrip()
    console.print(line, soft_wrap=True)


def _reason(finding: Finding) -> str:
    """Return what keeps a change out of the patch; "" if that is a condition that may hold."""
    verdict = finding.verdict
    if finding.problem or verdict is None:
        return finding.problem
    return verdict.reason or verdict.counterexample or verdict.ground
