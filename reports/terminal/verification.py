"""The verdicts on a change, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.terminal.findings import show_verdict
from npufix.reports.wording.report import plain
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from rich.console import Console

    from npufix.reports.verification import Verification

_STATUSES = ("equivalent", "refuted", "not verified")


def show(found: Verification, console: Console, *, details: bool) -> None:
    """Print the sentence that counts, then each function with its verdict."""
    console.print(Text(summary(found), "bold"))
    console.print(Text(f"Compared with {plain(found.against)}."), soft_wrap=True)
    for number, one in enumerate(found.functions, 1):
        place = Text(f"{number}. {plain(one.path)}:{one.line} {plain(one.function)}", "bold")
        console.print()
        console.print(place, soft_wrap=True)
        show_verdict(one.verdict, console, details=details)
    for name in found.new_files:
        console.print(f"\n{plain(name)} is new: there is nothing to compare it with")


def summary(found: Verification) -> str:
    """Return the sentence that counts."""
    if not found.functions:
        return "No function has changed."
    counts = [(found.count(status), status) for status in _STATUSES]
    told = ", ".join(f"{count} {status}" for count, status in counts if count)
    changed = format_count(len(found.functions), "changed function")
    return f"{changed}: {told}."
