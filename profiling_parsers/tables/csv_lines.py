"""The bytes of a CSV file on their way to a parser: counted, and without what would stop it."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.profile import DumpError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LONGEST_HEADER = 1 << 16
"""Far above the 50 columns of the widest export; a binary file has no line end to stop at."""
_LONGEST_LINE = 1 << 20
_LINE_END = ord("\n")
_OF_NO_TEXT = re.compile(r"[\x01-\x08\x0e-\x1f]")
"""UTF-16 holds NUL, and GBK what no UTF-8 is; these are in no encoding of a table."""


def read_header(path: Path) -> list[str]:
    """Return the names in the first line; raise ``DumpError`` if the file cannot be read."""
    try:
        with path.open("rb") as file:
            line = file.readline(_LONGEST_HEADER)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}", "make the file readable") from error
    return cells(line.decode("utf-8-sig", errors="replace"))


def cells(line: str) -> list[str]:
    """Return the fields of a line, without what the csv module refuses inside of one."""
    bare = line.replace("\0", "").replace("\r", " ").strip()
    return [cell.strip() for cell in next(csv.reader([bare]), [])]


def describe_missing(path: Path, missing: Sequence[str], header: Sequence[str]) -> str:
    """Say which columns a table lacks, or that its first line is that of no table."""
    first = ",".join(header)[:80]
    if _OF_NO_TEXT.search(first):
        return f"{path}: this is a binary file, no table"
    if not first:
        return f"{path}: no header, so no column {missing[0]}"
    return f"{path}: no column {', '.join(missing)} (the first line is {first!r})"


class CountedLines(io.RawIOBase):
    """A file that counts its lines as they are read, so that it is not read twice."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._line_ends = 0
        self._last = b"\n"

    @property
    def lines(self) -> int:
        """Number of lines read so far, one without an end included."""
        return self._line_ends + self.endless

    @property
    def endless(self) -> bool:
        """Whether the last line has no end: no profiler writes such a file, so it was cut."""
        return self._last != b"\n"

    def readable(self) -> bool:
        """Say that this can be read."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        block = self._file.read(size)
        if block:
            # Four times as fast as bytes.count, which stops at each.
            self._line_ends += int(np.count_nonzero(np.frombuffer(block, np.uint8) == _LINE_END))
            self._last = block[-1:]
        return block

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class SoundLines(io.RawIOBase):
    """The lines after the header that a CSV parser can take one by one.

    Left out are lines with an open quote, which would swallow those after them, those too long to
    be a row, and those of other than so many ``columns``, of which the parser would ask one by
    one what to do; bytes that are no UTF-8 are replaced.
    """

    def __init__(self, path: Path, columns: int) -> None:
        self._commas = columns - 1
        self._file = path.open("rb")
        self._file.readline(_LONGEST_LINE)
        self.lines = 0
        """Number of lines read so far that are not blank."""
        self.sound = 0
        """Number of those that can be taken."""
        self.endless = False
        """Whether the last line has no end."""

    def readable(self) -> bool:
        """Say that this can be read."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return about ``size`` bytes of whole lines, none at the end."""
        sound: list[bytes] = []
        while not sound and (lines := self._file.readlines(max(size, 1))):
            lines = [line for line in lines if line.strip()]
            self.lines += len(lines)
            self.endless = not lines[-1].endswith(b"\n") if lines else self.endless
            sound = [line for line in lines if self._is_sound(line)]
            self.sound += len(sound)
        return b"".join(sound).decode("utf-8", errors="replace").encode()

    def _is_sound(self, line: bytes) -> bool:
        if quotes := line.count(b'"'):  # which commas are between columns is the parser's to say
            return quotes % 2 == 0 and len(line) <= _LONGEST_LINE
        return line.count(b",") == self._commas and len(line) <= _LONGEST_LINE

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
