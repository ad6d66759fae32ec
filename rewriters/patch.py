"""A set of changed files as a unified diff, and writing it without losing anything."""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class WriteError(Exception):
    """Nothing was written: a file changed meanwhile or cannot be replaced."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file before and after, as bytes: line ends and encoding are the user's."""

    path: Path
    relative: str
    """Path below the source root, with forward slashes: what the diff names."""
    before: bytes
    after: bytes


_ESCAPES = {
    **{chr(code): f"\\{code:03o}" for code in range(32)},
    '"': '\\"',
    "\\": "\\\\",
}


def unified_diff(changes: Sequence[FileChange]) -> str:
    """Return what ``git apply`` takes, files in the order of their names.

    The text decodes as UTF-8 with surrogate escapes, so that every byte survives.
    """
    parts: list[str] = []
    for change in sorted(changes, key=lambda c: c.relative):
        if change.before == change.after:
            continue
        old, new = _quoted(f"a/{change.relative}"), _quoted(f"b/{change.relative}")
        lines = difflib.unified_diff(_lines(change.before), _lines(change.after), old, new)
        parts.append(f"diff --git {old} {new}\n")
        for line in lines:
            parts.append(line)
            if not line.endswith("\n"):
                parts.append("\n\\ No newline at end of file\n")
    return "".join(parts)


def _quoted(name: str) -> str:
    """Return a name as git writes it: in quotes where it holds what would end or hide it."""
    if not any(letter in '"\\' or ord(letter) < ord(" ") for letter in name):
        return name
    return '"' + "".join(_ESCAPES.get(letter, letter) for letter in name) + '"'


def _lines(data: bytes) -> list[str]:
    # Only "\n" ends a line of a diff: str.splitlines would also cut at form feeds.
    parts = data.decode("utf-8", "surrogateescape").split("\n")
    lines = [f"{part}\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def write(changes: Sequence[FileChange]) -> None:
    """Replace the files: all of them, or none.

    Raises:
        WriteError: a file is not what it was when it was read, or cannot be replaced.

    """
    changed = [c for c in changes if c.before != c.after]
    staged: list[tuple[FileChange, str]] = []
    try:
        for change in changed:
            # One by one: what is staged when an error comes is cleaned up below.
            staged.append((change, _stage(change)))  # noqa: PERF401
        for change in changed:
            if change.path.read_bytes() != change.before:
                raise WriteError(f"{change.path} changed since it was read; nothing was written")
        _swap(staged)
    except OSError as error:
        raise WriteError(f"{error.filename}: {error.strerror}; nothing was written") from error
    finally:
        for _, temporary in staged:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108 - a plain string from tempfile


def _stage(change: FileChange) -> str:
    """Write the new content beside the file, durable and with its mode."""
    target = change.path.resolve()
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.npufix-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(change.after)
            file.flush()
            os.fsync(file.fileno())
        status = target.stat()
        os.chmod(temporary, status.st_mode)  # noqa: PTH101 - a plain string from tempfile
        with contextlib.suppress(PermissionError):
            os.chown(temporary, status.st_uid, status.st_gid)
    except OSError:
        os.unlink(temporary)  # noqa: PTH108 - a plain string from tempfile
        raise
    return temporary


def _swap(staged: Sequence[tuple[FileChange, str]]) -> None:
    """Put every staged file in place; put the old ones back if one fails."""
    done: list[FileChange] = []
    try:
        for change, temporary in staged:
            os.replace(temporary, change.path.resolve())  # noqa: PTH105 - a plain string
            done.append(change)
    except OSError:
        for change in done:
            old = _stage(FileChange(change.path, change.relative, change.after, change.before))
            os.replace(old, change.path.resolve())  # noqa: PTH105 - a plain string
        raise
