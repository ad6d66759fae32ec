"""Changing the user's files: all of them or none, whatever happens meanwhile.

All new contents are on the disk beside the files, and the originals in the journal, before the
first file changes; then each new file takes the place of the old one. A write that was cut short
(``kill -9``, a crash, a full disk) is finished by the next one if all is still there for that, and
taken back otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.write import durable, journal
from npufix.rewriters.write.durable import content, content_digest, digest
from npufix.rewriters.write.journal import Entry, Kept, Phase, Record, path_of, spell
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from npufix.rewriters.write.patch import FileChange

_NEVER_COPIED = ("security.", "trusted.")
"""Attributes that the system gives to files itself, or that only it may give."""
_LABEL = "security.selinux"
_ANYONE_MAY_WRITE = 0o222
_TRY_AGAIN = "put that right, then run npufix undo --list, which tries again"


class WriteError(UserError):
    """Nothing was written: ``message`` says why, ``remedy`` what to do."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A file that is to be replaced."""

    change: FileChange
    target: Path
    """Links followed."""
    status: os.stat_result


def write(changes: Sequence[FileChange], root: Path, undoes: str = "") -> list[str]:
    """Replace the files: all of them, or none. Returns what the user should know of it.

    ``undoes`` is the write that is taken back by this one.

    Raises:
        WriteError: a file is not what it was when it was read, is not below ``root``, or cannot be
            replaced.

    """
    changed = [change for change in changes if change.before != change.after]
    if not changed:
        return []
    places = [_place(change, root) for change in changed]
    with contextlib.ExitStack() as stack:
        for folder in sorted({place.target.parent for place in places}):
            with _naming(folder):
                free = stack.enter_context(durable.lock(folder))
            if not free:
                raise WriteError(
                    f"another npufix is writing into {folder}; nothing was written",
                    "run it again when that one is done",
                )
        kept = stack.enter_context(_open(places, root, undoes))
        _carry_out(kept, places, root)
        journal.drop_the_oldest(keep=[kept])
    return [
        f"{place.change.path} has {place.status.st_nlink} names (hard links);"
        " the others keep the old text"
        for place in places
        if place.status.st_nlink > 1
    ]


def _place(change: FileChange, root: Path) -> _Place:
    """Return the file to replace, if it may be."""
    path = change.path
    with _naming(path):
        target, top = path.resolve(strict=True), root.resolve(strict=True)
        status = target.stat()
    if not target.is_relative_to(top):
        raise WriteError(
            f"{path} leads to {target}, outside {root}; nothing was written",
            "name the folder that holds the file itself",
        )
    if not stat.S_ISREG(status.st_mode):
        raise WriteError(f"{path} is no regular file; nothing was written", "leave it out")
    may = os.access(target, os.W_OK) and status.st_mode & _ANYONE_MAY_WRITE
    if not may or not os.access(target.parent, os.W_OK | os.X_OK):
        what = path if not may else target.parent
        raise WriteError(
            f"{what} is read-only; nothing was written",
            "allow writing to it",
        )
    return _Place(change, target, status)


@contextlib.contextmanager
def _open(places: Sequence[_Place], root: Path, undoes: str) -> Iterator[Kept]:
    """Enter the write into the journal."""
    token = secrets.token_hex(6)
    entries = tuple(
        Entry(
            path=spell(place.target),
            beside=spell(place.target.with_name(f".npufix-{token}-{number}.tmp")),
            before=digest(place.change.before),
            after=digest(place.change.after),
        )
        for number, place in enumerate(places)
    )
    top = root.resolve()
    order = 1 + max((kept.record.order for kept in journal.writes()), default=0)
    record = Record(spell(top), top.stat().st_ino, time.time(), entries, undoes, order)
    with contextlib.ExitStack() as stack:
        try:
            kept = stack.enter_context(
                journal.open_kept(record, (place.change.before for place in places))
            )
        except OSError as error:
            folder = error.filename or journal.state_folder()
            raise WriteError(
                f"{_text(folder)}: the originals cannot be kept there: {error.strerror};"
                " nothing was written",
                "make room there, or set XDG_STATE_HOME to a folder that is yours",
            ) from error
        yield kept


def _carry_out(kept: Kept, places: Sequence[_Place], root: Path) -> None:
    """Stage all files, then put all in place; go back if anything fails, an interrupt included."""
    entries = list(zip(places, kept.record.entries, strict=True))
    try:
        for place, entry in entries:
            with _naming(place.change.path):
                _stage(path_of(entry.beside), place.change.after, place.target)
        for place, _ in entries:
            _check(place, root)
        kept.advance(Phase.RENAMING)
        for place, entry in entries:
            _check(place, root)
            with _naming(place.change.path):
                path_of(entry.beside).replace(place.target)
        for folder in {place.target.parent for place in places}:
            durable.sync(folder)
        kept.advance(Phase.DONE)
    except BaseException as error:
        left = _give_up(kept)
        said = _not_written(error, kept.folder) if isinstance(error, OSError) else error
        if left:
            message = f"{getattr(said, 'message', 'interrupted')}; {left}"
            raise WriteError(message, _TRY_AGAIN) from error
        if said is not error:
            raise said from error
        raise


def _check(place: _Place, root: Path) -> None:
    """Refuse a file that somebody else has changed or moved since it was read."""
    path = place.change.path
    with _naming(path):
        same = path.resolve(strict=True) == place.target
        same = same and place.target.is_relative_to(root.resolve())
        if not same or content(place.target) != place.change.before:
            raise WriteError(
                f"{path} changed since it was read; nothing was written", "run it again"
            )


def _stage(beside: Path, data: bytes, target: Path) -> None:
    """Write the new content beside the file, durable, with its owner, mode and attributes."""
    status = target.stat()
    durable.write_durably(beside, data)
    own = beside.stat()
    if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.chown(beside, status.st_uid, status.st_gid)
        except PermissionError as error:
            raise WriteError(
                f"{target} belongs to another user or group, and would not any more;"
                " nothing was written",
                "run it as that user, or use -o FILE instead of --write",
            ) from error
    _copy_attributes(target, beside)
    os.chmod(beside, stat.S_IMODE(status.st_mode))  # noqa: PTH101 - may be told to fail by a test
    durable.sync(beside)
    durable.sync(beside.parent)


def _copy_attributes(source: Path, target: Path) -> None:
    """Copy extended attributes, access lists among them."""
    if not hasattr(os, "listxattr"):
        return
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno in {errno.ENOTSUP, errno.ENOSYS}:
            return
        raise
    for name in names:
        if name == _LABEL:
            with contextlib.suppress(OSError):  # most users may not; the folder's own is as good
                os.setxattr(target, name, os.getxattr(source, name))
        elif not name.startswith(_NEVER_COPIED):
            os.setxattr(target, name, os.getxattr(source, name))


def _give_up(kept: Kept) -> str:
    """Put back what was written and forget the write; return what is left to do, if anything."""
    try:
        if kept.phase is not Phase.STAGING:
            kept.advance(Phase.RETURNING)
        staging = kept.phase is Phase.STAGING
        changed = take_back(kept)
    except OSError as error:
        where = _text(error.filename or path_of(kept.record.root))
        return f"and files that were written cannot be put back: {where}: {error.strerror}"
    names = ", ".join(str(path) for path in changed)
    return f"but for what somebody has changed since: {names}" if names and not staging else ""


def take_back(kept: Kept) -> list[Path]:
    """Put the originals back where npufix's text is; return the files that somebody changed since.

    Raises:
        OSError: one cannot be put back; the journal stays for another try.

    """
    changed = []
    for entry in kept.record.entries:  # at once: on a full disk the originals need their room
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path_of(entry.beside).unlink()
    for number, entry in enumerate(kept.record.entries):
        target, beside = path_of(entry.path), path_of(entry.beside)
        now = content_digest(target)
        if kept.phase is not Phase.STAGING and now == entry.after:
            _stage(beside, kept.original(number), target)
            beside.replace(target)
            durable.sync(target.parent)
        elif now != entry.before:
            changed.append(target)
    kept.remove()
    return changed


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a file into a ``WriteError`` that names it."""
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"{path}: {error.strerror or error}; nothing was written", _remedy(error)
        ) from error


def _not_written(error: OSError, fallback: Path) -> WriteError:
    name = _text(error.filename) if error.filename else fallback
    return WriteError(f"{name}: {error.strerror or error}; nothing was written", _remedy(error))


def _remedy(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return "make room there"
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "allow more open files, as ulimit -n 4096 does"
    return "allow writing to it"


def _text(name: object) -> str:
    return os.fsdecode(name) if isinstance(name, (bytes, str, os.PathLike)) else str(name)
