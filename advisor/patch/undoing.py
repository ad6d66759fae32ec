"""Putting back what a write has changed, as long as it is still what was written."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.write import journal
from npufix.rewriters.write.durable import content, digest
from npufix.rewriters.write.journal import DamagedError, Kept, Phase, path_of
from npufix.rewriters.write.patch import FileChange
from npufix.rewriters.write.user_error import UserError
from npufix.rewriters.write.writing import WriteError, write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SHOWN = 10


class UndoError(UserError):
    """Nothing was put back: ``message`` says why, ``remedy`` what to do."""


@dataclass(frozen=True, slots=True)
class Past:
    """A write of the past, and what has become of it."""

    kept: Kept
    undone: bool
    interrupted: bool = False
    """It was cut short, and cannot be put right as its folder is not here."""

    @property
    def root(self) -> Path:
        """The folder that was written to."""
        return path_of(self.kept.record.root)

    @property
    def when(self) -> str:
        """When it was, by the clock of the user."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.kept.record.when))

    @property
    def files(self) -> tuple[str, ...]:
        """What it changed, below the folder."""
        paths = (path_of(entry.path) for entry in self.kept.record.entries)
        return tuple(path.relative_to(self.root).as_posix() for path in paths)


def past(source: Path | None) -> list[Past]:
    """Return the writes that can be undone or were, the latest first.

    With ``source``, those into that folder, and into folders and files below it.
    """
    known = journal.writes()
    done = [kept for kept in known if kept.phase is Phase.DONE]
    undone = {kept.record.undoes for kept in done}
    top = None if source is None else source.resolve()
    return [
        Past(kept, kept.name in undone, interrupted=kept not in done)
        for kept in known
        if (not kept.record.undoes if kept in done else not kept.is_at_hand())
        and (top is None or _concerns(kept, top))
    ]


def _concerns(kept: Kept, top: Path) -> bool:
    inside = (path_of(entry.path).is_relative_to(top) for entry in kept.record.entries)
    return path_of(kept.record.root) == top or all(inside)


def undo(source: Path | None) -> tuple[Past, list[str]]:
    """Put back what the last write has changed that was not undone; return it and warnings.

    Raises:
        UndoError: there is none, or its files were changed since.
        WriteError: they cannot be written.

    """
    # Those that were interrupted have not come to their end.
    last = next((one for one in past(source) if not one.undone and not one.interrupted), None)
    if last is None:
        where = "" if source is None else f" into {source}"
        raise UndoError(f"no change{where} to undo", "npufix undo --list shows those there were")
    if not last.root.is_dir():
        raise UndoError(
            f"{last.root} is not there any more; nothing was put back",
            f"the originals are in {last.kept.folder}, in this order: {_some(last.files)};"
            " --source chooses another folder",
        )
    changes = [
        FileChange(path, name, _present(path), _original(last, number))
        for number, (entry, name) in enumerate(
            zip(last.kept.record.entries, last.files, strict=True)
        )
        for path in (path_of(entry.path),)
    ]
    other = [
        name
        for change, name, entry in zip(changes, last.files, last.kept.record.entries, strict=True)
        if digest(change.before) != entry.after
    ]
    if other:
        raise UndoError(
            f"in {last.root} changed since npufix wrote: {_some(other)}; nothing was put back",
            f"the originals are in {last.kept.folder}, in this order: {_some(last.files)}",
        )
    return last, write(changes, last.root, undoes=last.kept.name)


def _original(past_one: Past, number: int) -> bytes:
    try:
        return past_one.kept.original(number)
    except DamagedError as error:
        raise UndoError(
            f"{error.filename}: {error.strerror}; nothing was put back",
            f"take {past_one.files[number]} from your version control",
        ) from error


def _present(path: Path) -> bytes:
    try:
        return content(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise WriteError(f"{path}: {error.strerror}", "allow reading it") from error


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
