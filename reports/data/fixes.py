"""A unified diff as replacements of regions: applied, they give the patched text, byte for byte."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.reports.data.sources import utf16

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILE = re.compile(r"^--- a/(?P<path>.*)$")
_HUNK = re.compile(r"^@@ -(?P<first>\d+)(?:,(?P<count>\d+))? \+\d+(?:,\d+)? @@")
_NO_NEWLINE = "\\ No newline at end of file"


@dataclass(frozen=True, slots=True)
class ReplacedText:
    """Lines of one file that give way to others; all positions are those of the old file."""

    path: str
    start_line: int
    start_column: int
    end_line: int
    end_column: int
    """Of the first character that stays, in UTF-16 code units from 1."""
    text: str


def replacements(diff: str) -> list[ReplacedText]:
    """Return the changes of a diff, in the order of the lines."""
    return list(_read(diff.split("\n")))


def _read(lines: list[str]) -> Iterator[ReplacedText]:
    path, at = "", 0
    old: list[str] = []
    new: list[str] = []
    in_hunk = False
    for number, line in enumerate(lines):
        if not in_hunk and (file := _FILE.match(line)):
            path = file["path"]
        elif not in_hunk and line.startswith("+++ "):
            continue
        elif hunk := _HUNK.match(line):
            yield from _flush(path, at, old, new)
            # An empty range is named by the line above it.
            at = int(hunk["first"]) + (1 if hunk["count"] == "0" else 0)
            in_hunk = True
        elif line.startswith("diff --git "):
            yield from _flush(path, at, old, new)
            in_hunk = False
        elif line == _NO_NEWLINE:
            continue
        elif in_hunk and line[:1] in {"-", "+"}:
            ended = number + 1 < len(lines) and lines[number + 1] == _NO_NEWLINE
            (old if line[0] == "-" else new).append(line[1:] + ("" if ended else "\n"))
        elif in_hunk and line:
            count = len(old)
            yield from _flush(path, at, old, new)
            at += count + 1
    yield from _flush(path, at, old, new)


def _flush(path: str, at: int, old: list[str], new: list[str]) -> Iterator[ReplacedText]:
    """Yield what was gathered, if anything, and begin anew."""
    if old or new:
        last = old[-1] if old else "\n"
        to_next = last.endswith("\n")
        yield ReplacedText(
            path=path,
            start_line=at,
            start_column=1,
            end_line=at + len(old) if to_next else at + len(old) - 1,
            end_column=1 if to_next else utf16(last) + 1,
            text="".join(new),
        )
    old.clear()
    new.clear()
