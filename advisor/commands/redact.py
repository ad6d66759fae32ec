"""``npufix redact``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.console.loudness import is_quiet
from npufix.advisor.console.speaking import say

if TYPE_CHECKING:
    from pathlib import Path

_SHOWN = 20


@click.command(
    epilog="""\b
Examples:
  npufix redact run1_ascend_pt -o shared_ascend_pt
  npufix redact report.html -o shared.html"""
)
@click.argument("path", type=common.PATH, metavar="DUMP|REPORT")
@click.option("-o", "--output", type=common.PATH, required=True, metavar="PATH",
              help="The copy; there must be nothing yet.")  # fmt: skip
def command(path: Path, output: Path) -> int:
    """Copy a dump or a report without host names, user names, paths and addresses.

    The same name has the same pseudonym everywhere in the copy, and another in the next one. Times,
    shapes and operators stay: the copy is diagnosed with the same numbers.
    """
    from npufix.advisor.redact.dump import redact_path
    from npufix.rules.shared.quantities import format_count

    done = redact_path(path, output)
    if is_quiet():
        return 0
    say(f"Wrote {output}: {format_count(done.files, 'file')}", err=False)
    for kind, count in sorted(done.counts.items()):
        say(f"  replaced {count} x {kind}", err=False)
    for name in done.left_out[:_SHOWN]:
        say(f"  not copied, not known: {name}", err=False)
    if len(done.left_out) > _SHOWN:
        say(f"  not copied, not known: {len(done.left_out) - _SHOWN} more", err=False)
    say("No host or user name that was found is left. Look through it before you share it.",
        err=False)  # fmt: skip
    return 0
