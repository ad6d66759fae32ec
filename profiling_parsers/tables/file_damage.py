"""What is wrong with a file of which the rest is used, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.dump_folder import dump_of_file
from npufix.profiling_parsers.profile import Problem

if TYPE_CHECKING:
    from pathlib import Path

NOT_UTF8 = "\N{REPLACEMENT CHARACTER}"
"""What stands in a name for bytes that are no UTF-8."""


@dataclass(frozen=True)
class FileCondition:
    """What became of the rows of a CSV file."""

    used: int
    left_out: int
    endless: bool
    """The last line has no end, but the profiler ends every line."""
    holes: bool
    """There are zero bytes where a disk or a network did not write what belongs there."""
    misspelt: bool
    """There is ``NOT_UTF8`` in a name."""

    def problems(self, path: Path) -> list[Problem]:
        """Say what is wrong: one problem, or none. The profiler writes no file without rows."""
        rows = self.used + self.left_out
        faults = [
            fault
            for fault, is_so in [
                ("has no rows after its first line", not rows),
                ("breaks off in its last line", self.endless),
                (f"{self.left_out} of {rows} rows are malformed and left out", self.left_out),
                ("holds zero bytes, in which rows may be lost", self.holes),
                ("holds bytes that are no UTF-8, so some names are wrong", self.misspelt),
            ]
            if is_so
        ]
        return [damage_problem(path, "; ".join(faults))] if faults else []


def damage_problem(path: Path, what: str) -> Problem:
    """Return the problem of a file that is broken, of which the rest is used."""
    return Problem(path.name, what, remedy(path), damaged=True)


def remedy(path: Path) -> str:
    """Say how to get a file again."""
    analyse = remedies.analyse(dump_of_file(path))
    return "copy it again from the profiled machine, or " + analyse
