"""Writes that were cut short: finished where all is still there for that, else taken back."""

from __future__ import annotations

import contextlib
import os
from enum import Enum
from typing import TYPE_CHECKING

from npufix.rewriters.write import durable, journal
from npufix.rewriters.write.durable import content_digest
from npufix.rewriters.write.journal import Kept, Phase, path_of
from npufix.rewriters.write.writing import WriteError, take_back

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.rewriters.write.journal import Entry


class _State(Enum):
    WRITTEN = 1
    READY = 2
    """The old text is there, and the new one beside it."""
    OLD = 3
    OTHER = 4
    """Neither: somebody has changed the file since."""


def recover(source: Path | None = None) -> list[str]:
    """Put right what was interrupted, and return what there is to say of it.

    Writes of processes that are still at it are left alone, and so are those into folders that are
    not here.

    Raises:
        WriteError: a write can neither be finished nor taken back now, and it concerns ``source``
            (or anything, without that).

    """
    said = []
    for kept in journal.writes():
        try:
            if kept.phase is not Phase.DONE:
                said += _recover(kept)
        except WriteError as error:  # noqa: PERF203 - few
            if source is None or _overlap(path_of(kept.record.root), source.resolve()):
                raise
            said.append(f"{error.message} -- {error.remedy}")
    return said


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _recover(kept: Kept) -> list[str]:
    with contextlib.ExitStack() as stack:
        if not stack.enter_context(durable.lock(kept.folder)):
            return []
        if kept.phase is Phase.DONE or not kept.folder.exists() or not kept.is_at_hand():
            return []
        folders = {path_of(entry.path).parent for entry in kept.record.entries}
        if not all(stack.enter_context(durable.lock(folder)) for folder in sorted(folders)):
            return []
        where = path_of(kept.record.root)
        try:
            return [f"{_settle(kept, where)}"]
        except OSError as error:
            raise WriteError(
                f"an earlier change of {where} was interrupted and cannot be put right:"
                f" {_name(error)}",
                f"look through the files there, then remove {kept.folder}"
                if isinstance(error, journal.DamagedError)
                else "allow that or make room, then run npufix undo --list, which tries again",
            ) from error


def _settle(kept: Kept, where: Path) -> str:
    said = f"an earlier change of {where} was interrupted"
    if kept.phase is Phase.STAGING:
        take_back(kept)
        return f"{said} before any file was written; nothing is left of it"
    states = {entry: _state(entry) for entry in kept.record.entries}
    whole = set(states.values()) <= {_State.WRITTEN, _State.READY}
    if kept.phase is Phase.RENAMING and whole:
        for entry, state in states.items():
            if state is _State.READY:
                path_of(entry.beside).replace(path_of(entry.path))
        for folder in {path_of(entry.path).parent for entry in states}:
            durable.sync(folder)
        kept.advance(Phase.DONE)
        return f"{said}; it is finished now, and npufix undo takes it back"
    changed = take_back(kept)
    if not changed:
        return f"{said}; it is taken back"
    names = ", ".join(str(path) for path in changed)
    return f"{said}; it is taken back, but for what somebody has changed since: {names}"


def _state(entry: Entry) -> _State:
    now = content_digest(path_of(entry.path))
    if now == entry.after:
        return _State.WRITTEN
    if now != entry.before:
        return _State.OTHER
    staged = content_digest(path_of(entry.beside)) == entry.after
    return _State.READY if staged else _State.OLD


def _name(error: OSError) -> str:
    name = os.fsdecode(error.filename) if error.filename else ""
    return f"{name}: {error.strerror}" if name else str(error)
