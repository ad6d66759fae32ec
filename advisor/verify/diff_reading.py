r"""Unified diffs as people and tools write them: which file, and what in it becomes what.

Everything is bytes, and only ``\n`` ends a line: encodings and line ends are the user's.
``unidiff`` (1.0.1) was tried: it reads text, leaves names quoted (``"a/na\303\257ve.py"``), takes
``diff --cc`` for an empty diff and applies nothing, so most of this would stay, around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b'"': b'"', b"\\": b"\\"}
_NOWHERE = "/dev/null"


class DiffError(UserError):
    """The diff cannot be read or does not apply: ``message`` and ``remedy``."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that become other lines, with what stands around them."""

    start: int
    """Where the old lines are said to start, counted from 1."""
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    new_start: int

    def reversed(self) -> Hunk:
        """Return the hunk that undoes this one."""
        return Hunk(self.new_start, self.new, self.old, self.start)


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What a diff says about one file; a path is empty where the file does not exist."""

    old_path: str
    new_path: str
    hunks: tuple[Hunk, ...] = ()
    binary: bool = False

    def reversed(self) -> FileDiff:
        """Return the diff that undoes this one."""
        undone = tuple(hunk.reversed() for hunk in self.hunks)
        return FileDiff(self.new_path, self.old_path, undone, self.binary)


@dataclass
class _Reader:
    lines: list[bytes]
    at: int = 0
    files: list[FileDiff] = field(default_factory=list)

    def read(self) -> list[FileDiff]:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith(b"diff --git "):
                self._git_file()
            elif line.startswith(b"--- ") and self._next().startswith(b"+++ "):
                self._file(FileDiff("", ""))
            elif re.match(rb"^@@@+ ", line) or line.startswith((b"diff --cc", b"diff --combined")):
                raise DiffError("a combined diff of a merge", "make one against a single commit")
            elif _HUNK.match(line):
                raise DiffError(
                    f"line {self.at + 1} is a change of no named file",
                    "keep the lines --- and +++ of the diff",
                )
            else:
                self.at += 1
        return self.files

    def _next(self) -> bytes:
        return self.lines[self.at + 1] if self.at + 1 < len(self.lines) else b""

    def _git_file(self) -> None:
        """Read the extended header of git: renames, new and deleted files, binary ones."""
        old, new = _git_paths(self.lines[self.at])
        found = FileDiff(old, new)
        self.at += 1
        while self.at < len(self.lines):
            line = self.lines[self.at].rstrip(b"\r\n")
            if line.startswith((b"diff --git ", b"@@")):
                break
            if line.startswith(b"--- "):
                self._file(found)
                return
            for word in (b"rename", b"copy"):
                if line.startswith(word + b" from "):
                    found = replace(found, old_path=_unquote(line[len(word) + 6 :]))
                elif line.startswith(word + b" to "):
                    found = replace(found, new_path=_unquote(line[len(word) + 4 :]))
            if line.startswith(b"new file"):
                found = replace(found, old_path="")
            elif line.startswith(b"deleted file"):
                found = replace(found, new_path="")
            elif line.startswith((b"GIT binary patch", b"Binary files ")):
                found = replace(found, binary=True)
            self.at += 1
        self.files.append(found)

    def _file(self, known: FileDiff) -> None:
        old, new = _read_path(self.lines[self.at]), _read_path(self._next())
        self.at += 2
        if known.old_path or known.new_path:
            old, new = known.old_path, known.new_path
        elif not old and not new:
            raise DiffError(f"line {self.at - 1}: no file is named", "give a whole diff")
        hunks = []
        while self.at < len(self.lines) and (match := _HUNK.match(self.lines[self.at])):
            hunks.append(self._hunk(match))
        self.files.append(FileDiff(old, new, tuple(hunks)))

    def _hunk(self, match: re.Match[bytes]) -> Hunk:
        start, old_left, new_start, new_left = (int(n) if n else 1 for n in match.groups())
        first = self.at + 1
        self.at += 1
        old: list[bytes] = []
        new: list[bytes] = []
        while len(old) < old_left or len(new) < new_left or self._lacks_end():
            line = self.lines[self.at] if self.at < len(self.lines) else b"?"
            sign = line[:1]
            if sign == b"\\":
                _drop_line_end(self.lines[self.at - 1][:1], old, new)
            elif sign in {b" ", b"\n", b"\r"}:
                # Editors strip the blank of an empty line.
                old.append(line[1:] if sign == b" " else line)
                new.append(line[1:] if sign == b" " else line)
            elif sign == b"-":
                old.append(line[1:])
            elif sign == b"+":
                new.append(line[1:])
            else:
                raise DiffError(f"the change at line {first} is cut off", "give a whole diff")
            self.at += 1
        if len(old) != old_left or len(new) != new_left:
            raise DiffError(
                f"the change at line {first} has not the lines that it announces",
                "give the diff as the tool wrote it",
            )
        return Hunk(start, tuple(old), tuple(new), new_start)

    def _lacks_end(self) -> bool:
        return self.at < len(self.lines) and self.lines[self.at].startswith(b"\\")


def _drop_line_end(sign: bytes, old: list[bytes], new: list[bytes]) -> None:
    r"""Take the end of line from the last line: ``\ No newline at end of file``."""
    for lines, signs in ((old, b" -"), (new, b" +")):
        if sign in signs and lines:
            lines[-1] = lines[-1].removesuffix(b"\n").removesuffix(b"\r")


def read_diff(data: bytes) -> list[FileDiff]:
    """Return what a diff says, file by file.

    Raises:
        DiffError: it is none, or not whole.

    """
    files = _Reader(lines_of(data)).read()
    if not files and data.strip():
        raise DiffError("this is no unified diff", "make one with git diff, or diff -u")
    return files


def lines_of(data: bytes) -> list[bytes]:
    r"""Split at ``\n``, keeping it."""
    return re.findall(rb"[^\n]*\n|[^\n]+\Z", data)


def _git_paths(line: bytes) -> tuple[str, str]:
    """Return the two paths of ``diff --git``; both are the same unless others are named below."""
    rest = line[len(b"diff --git ") :].rstrip(b"\r\n")
    if rest.startswith(b'"'):
        first = re.match(rb'"(?:[^"\\]|\\.)*"', rest)
        end = first.end() if first else len(rest)
        return _parse_path(rest[:end]), _parse_path(rest[end + 1 :])
    middle = len(rest) // 2
    if len(rest) % 2 and rest[middle : middle + 1] == b" ":
        return _parse_path(rest[:middle]), _parse_path(rest[middle + 1 :])
    old, _, new = rest.partition(b" ")
    return _parse_path(old), _parse_path(new)


def _read_path(line: bytes) -> str:
    """Return the path of a line ``--- a/model.py``; what follows a tab is a time."""
    text = line[4:].rstrip(b"\r\n")
    return _parse_path(text if text.startswith(b'"') else text.partition(b"\t")[0])


def _parse_path(text: bytes) -> str:
    path = _unquote(text)
    return "" if path == _NOWHERE else path


def _unquote(text: bytes) -> str:
    """Undo the quotes that git puts around unusual names."""
    if text.startswith(b'"') and text.endswith(b'"') and len(text) > 1:

        def plain(match: re.Match[bytes]) -> bytes:
            code = match.group(1)
            return bytes([int(code, 8)]) if len(code) > 1 else _ESCAPES.get(code, code)

        text = re.sub(rb"\\([0-3][0-7]{2}|.)", plain, text[1:-1])
    return text.decode("utf-8", "surrogateescape")


def apply_diff(file: FileDiff, data: bytes) -> bytes | None:
    """Return what a diff makes of ``data``; None if it is not what the diff was made from."""
    lines = lines_of(data)
    made: list[bytes] = []
    done = 0
    for hunk in file.hunks:
        at = _place(hunk, lines, done, hunk.start - 1 + (not hunk.old))
        if at is None:
            return None
        made += lines[done:at]
        made += _in_style(hunk, lines[at : at + len(hunk.old)])
        done = at + len(hunk.old)
    return b"".join([*made, *lines[done:]])


def _place(hunk: Hunk, lines: Sequence[bytes], first: int, said: int) -> int | None:
    """Return the place of the old lines that is nearest to where they are said to be."""
    wanted = [line.rstrip(b"\r\n") for line in hunk.old]

    def fits(at: int) -> bool:
        here = lines[at : at + len(wanted)]
        return [line.rstrip(b"\r\n") for line in here] == wanted

    last = len(lines) - len(wanted)
    return next((at for at in _nearest(said, first, last) if fits(at)), None)


def _nearest(said: int, first: int, last: int) -> Iterator[int]:
    if first <= said <= last:
        yield said
    yield from sorted(range(first, last + 1), key=lambda at: abs(at - said))


def _in_style(hunk: Hunk, here: Sequence[bytes]) -> list[bytes]:
    """Return the new lines, with the ends of lines that the file has if the diff lost them."""
    windows = any(line.endswith(b"\r\n") for line in here)
    lost = windows and not any(line.endswith(b"\r\n") for line in hunk.old)
    if not lost:
        return list(hunk.new)
    return [re.sub(rb"(?<!\r)\n\Z", b"\r\n", line) for line in hunk.new]
