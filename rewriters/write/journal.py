"""The journal of a write: what it replaces, kept until nobody needs it any more.

A folder for each write, in the user's state folder. It holds the originals, a record of the files
with their digests, and an empty file whose name is how far the write has come: to get on, that
file is renamed, which needs no room on a full disk. Whoever writes holds a lock on the folder, so
that a folder without one, whose write is not done, was interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from npufix.rewriters.write import user_folders
from npufix.rewriters.write.durable import content, digest, lock, sync, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_WRITES = 50
MOST_BYTES = 256 << 20
_RECORD = "record.json"
_OLD_S = 3600.0
"""A folder that is still being made after so long is one that nobody makes any more."""
_FORGOTTEN_S = 90 * 86400.0
"""So long an interrupted write waits for its folder, which may be on a disk that is not here."""
_SAFE = "/ !#$&'()+,;=@[]^_`{}~."
"""What stays readable in a record; everything else of a path is a percent sign and two digits."""


class DamagedError(OSError):
    """An original that is gone, or no longer what it was."""


class Phase(str, Enum):
    """How far a write has come."""

    STAGING = "staging"
    """No file of the user's has changed."""
    RENAMING = "renaming"
    """Some may have."""
    RETURNING = "returning"
    """Something went wrong, and they are being put back."""
    DONE = "done"


class Entry(msgspec.Struct, frozen=True):
    """One file of a write."""

    path: str
    """Where it is, links followed."""
    beside: str
    """The new content until it takes the place of the old."""
    before: str
    after: str
    """Digests."""


class Record(msgspec.Struct, frozen=True):
    """What is known of a write, from its start."""

    root: str
    root_inode: int
    when: float
    entries: tuple[Entry, ...]
    undoes: str = ""
    """The write that this one takes back."""
    order: int = 0
    """Greater than that of all writes before: clocks are set back."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A write that is in the journal."""

    folder: Path
    record: Record

    @property
    def name(self) -> str:
        """What other records call it."""
        return self.folder.name

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        found = [phase for phase in Phase if (self.folder / phase.value).exists()]
        return found[0] if found else Phase.STAGING

    def advance(self, phase: Phase) -> None:
        """Note durably how far the write has come; needs no room on the disk."""
        (self.folder / self.phase.value).rename(self.folder / phase.value)
        sync(self.folder)

    def original(self, number: int) -> bytes:
        """Return what a file of it held before.

        Raises:
            DamagedError: it is gone, or no longer what it was.

        """
        file = self.folder / f"{number}.before"
        with contextlib.suppress(OSError):
            data = content(file)
            if digest(data) == self.record.entries[number].before:
                return data
        raise DamagedError(errno.EIO, "the original kept there is damaged", str(file))

    def is_at_hand(self) -> bool:
        """Tell whether the folder that was written to is here, and is that folder."""
        try:
            return Path(self.record.root).stat().st_ino == self.record.root_inode
        except OSError:
            return False

    def remove(self) -> None:
        """Forget it; where that is cut short the rest of it goes later."""
        going = self.folder.with_name(f".{self.folder.name}")
        with contextlib.suppress(OSError):
            self.folder.rename(going)
        for folder in (going, self.folder):
            shutil.rmtree(folder, ignore_errors=True)


def state_folder() -> Path:
    """Return where what is needed to take a write back is kept."""
    return user_folders.state_folder("writes")


def spell(path: Path) -> str:
    """Return a path as text that JSON can hold, whatever its bytes."""
    return quote(os.fsencode(path), safe=_SAFE)


def path_of(text: str) -> Path:
    """Return the path that ``spelled`` has written."""
    return Path(unquote(text, errors="surrogateescape"))


@contextlib.contextmanager
def open_kept(record: Record, originals: Iterable[bytes]) -> Iterator[Kept]:
    """Begin a write: its record and the originals are on the disk, its lock is held.

    Raises:
        OSError: they cannot be written, or the folder belongs to somebody else.

    """
    above = state_folder()
    above.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = secrets.token_hex(4)
    making = above / f".{token}"
    making.mkdir(mode=0o700)
    if making.stat().st_uid != os.geteuid():  # so that it would not be taken for ours again
        making.rmdir()
        raise OSError(errno.EPERM, "files there belong to somebody else", str(above))
    with lock(making):
        name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(record.when)) + f"-{token}"
        kept = Kept(above / name, record)
        try:
            for number, data in enumerate(originals):
                write_durably(making / f"{number}.before", data)
            write_durably(making / Phase.STAGING.value, b"")
            write_durably(making / _RECORD, msgspec.json.format(msgspec.json.encode(record)))
            sync(making)
            making.rename(kept.folder)
            sync(above)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        yield kept


def writes() -> list[Kept]:
    """Return the writes in the journal, the latest first.

    Only those that this user has made: nobody else says which files are to be replaced.
    """
    found = []
    for folder in _folders():
        with contextlib.suppress(OSError, ValueError):  # not ours, or damaged
            record = msgspec.json.decode(content(folder / _RECORD), type=Record)
            if _is_possible(record):
                found.append(Kept(folder, record))
    found.sort(key=lambda kept: (kept.record.order, kept.record.when), reverse=True)
    return found


def _folders(*, hidden: bool = False) -> list[Path]:
    """Return the folders of writes, or those in the making, that are this user's."""
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        folders += state_folder().iterdir()
    return [one for one in folders if one.name.startswith(".") is hidden and _is_ours(one)]


def _is_ours(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # another process has just removed it
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _is_possible(record: Record) -> bool:
    """Tell whether a record is one that a write makes: no file of it is outside its folder."""
    root = path_of(record.root)
    return root.is_absolute() and all(
        path.is_relative_to(root)
        and ".." not in path.parts
        and beside.parent == path.parent
        and beside.match(".npufix-*.tmp")
        for entry in record.entries
        for path, beside in [(path_of(entry.path), path_of(entry.beside))]
    )


def drop_the_oldest(keep: Sequence[Kept]) -> None:
    """Forget what is too much: the oldest writes that are done, but none of ``keep``.

    And those that nobody can finish or take back any more, as their folder has not been here for
    long.
    """
    size, names, known = 0, {one.name for one in keep}, writes()
    for place, kept in enumerate(known):
        with contextlib.suppress(OSError):
            size += sum(entry.stat().st_size for entry in os.scandir(kept.folder))
            too_much = place >= MOST_WRITES or size > MOST_BYTES
            if kept.phase is not Phase.DONE:
                too_much = not kept.is_at_hand() and _is_older(kept.folder, _FORGOTTEN_S)
            if too_much and kept.name not in names:
                kept.remove()
    readable = {kept.folder for kept in known}
    damaged = [folder for folder in _folders() if folder not in readable]
    left = [(folder, _OLD_S) for folder in _folders(hidden=True)]
    for folder, seconds in [*left, *((folder, _FORGOTTEN_S) for folder in damaged)]:
        if _is_older(folder, seconds):
            with lock(folder) as free:
                if free:
                    shutil.rmtree(folder, ignore_errors=True)


def _is_older(folder: Path, seconds: float) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - folder.stat().st_mtime > seconds
    return False
