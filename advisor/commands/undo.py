"""``npufix undo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.console.loudness import is_quiet
from npufix.advisor.console.speaking import say

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.advisor.patch.undoing import Past


@click.command(
    epilog="""\b
Examples:
  npufix undo
  npufix undo --source src
  npufix undo --list"""
)
@click.option("--source", type=common.PATH, help="Only what was changed below this folder.")
@click.option("--list", "only_list", is_flag=True, help="Show the changes; put nothing back.")
def command(source: Path | None, *, only_list: bool) -> int:
    """Put back what the last npufix patch --write has changed.

    It does so only if all files are still what npufix wrote. Run it again for the change before.
    """
    from npufix.advisor.patch.undoing import past, undo
    from npufix.rewriters.write.recovering import recover

    for said in recover(source):
        say(f"npufix: {said}")
    if only_list:
        _show(past(source))
        return 0
    last, warnings = undo(source)
    common.warn(warnings)
    if not is_quiet():
        say(f"Put back what npufix changed in {last.root} at {last.when}:", err=False)
        for name in last.files:
            say(f"  {name}", err=False)
    return 0


def _show(found: list[Past]) -> None:
    if not found:
        say("npufix has changed no source files.", err=False)
    for one in found:
        state = "undone" if one.undone else "can be undone"
        if one.interrupted:
            state = "interrupted, and the folder is not here"
        say(f"{one.when}  {one.root}  ({state})", err=False)
        for name in one.files:
            say(f"  {name}", err=False)
