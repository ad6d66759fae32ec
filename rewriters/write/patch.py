"""A set of changed files as a unified diff."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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
        old, new = _quote(f"a/{change.relative}"), _quote(f"b/{change.relative}")
        lines = difflib.unified_diff(_lines(change.before), _lines(change.after), old, new)
        parts.append(f"diff --git {old} {new}\n")
        for line in lines:
            parts.append(line)
            if not line.endswith("\n"):
                parts.append("\n\\ No newline at end of file\n")
    return "".join(parts)


def _quote(name: str) -> str:
    """Return a name as git writes it: in quotes where it holds what would end or hide it."""
    if not any(letter in '"\\' or ord(letter) < ord(" ") for letter in name):
        return name
    return '"' + "".join(_ESCAPES.get(letter, letter) for letter in name) + '"'


def _lines(data: bytes) -> list[str]:
    # Only "\n" ends a line of a diff: str.splitlines would also cut at form feeds.
    parts = data.decode("utf-8", "surrogateescape").split("\n")
    lines = [f"{part}\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines
