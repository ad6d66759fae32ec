"""The journal of a write: what it replaces, kept until nobody needs it any more.

A folder for each write, in the user's state folder. It holds the originals, a record of the files
with their digests, and an empty file whose name is how far the write has come: to get on, that
file is renamed, which needs no room on a full disk. Whoever writes holds a lock on the folder, so
that a folder without one, whose write is not done, was interrupted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from npufix.rewriters import user_folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_WRITES = 50
MOST_BYTES = 256 << 20
_RECORD = "record.json"
_OLD_S = 3600.0
"""A folder that is still being made after so long is one that nobody makes any more."""
_SAFE = "/ !#$&'()+,;=@[]^_`{}~."
"""What stays readable in a record; everything else of a path is a percent sign and two digits."""


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
        """Return what a file of it held before."""
        return (self.folder / f"{number}.before").read_bytes()

    def is_at_hand(self) -> bool:
        """Tell whether the folder that was written to is here, and is that folder."""
        try:
            return Path(self.record.root).stat().st_ino == self.record.root_inode
        except OSError:
            return False

    def remove(self) -> None:
        """Forget it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def state_folder() -> Path:
    """Return where what is needed to take a write back is kept."""
    return user_folders.state_folder("writes")


def digest(data: bytes) -> str:
    """Return what tells contents apart."""
    return hashlib.sha256(data).hexdigest()


def spelled(path: Path) -> str:
    """Return a path as text that JSON can hold, whatever its bytes."""
    return quote(os.fsencode(path), safe=_SAFE)


def path_of(text: str) -> Path:
    """Return the path that ``spelled`` has written."""
    return Path(unquote(text, errors="surrogateescape"))


def sync(path: Path) -> None:
    """Have what was done to a file or folder on the disk before anything else happens."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file that nobody else may read, and have it on the disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder in the block; ``False`` if another process has it.

    The system gives it back when the process ends, however it ends. Where there are no locks (some
    network file systems) it is as if it were free.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # gone, or not ours to read
        yield True
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        yield True
    finally:
        os.close(handle)


@contextlib.contextmanager
def opened(record: Record, originals: Iterable[bytes]) -> Iterator[Kept]:
    """Begin a write: its record and the originals are on the disk, its lock is held."""
    above = state_folder()
    above.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = secrets.token_hex(4)
    making = above / f".{token}"
    making.mkdir(mode=0o700)
    with locked(making):
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
    """Return the writes in the journal, the latest first."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(state_folder().iterdir(), reverse=True):
            if folder.name.startswith("."):
                continue
            with contextlib.suppress(OSError, msgspec.DecodeError):  # not ours, or damaged
                data = (folder / _RECORD).read_bytes()
                found.append(Kept(folder, msgspec.json.decode(data, type=Record)))
    found.sort(key=lambda kept: kept.record.when, reverse=True)
    return found


def drop_the_oldest(keep: Sequence[Kept]) -> None:
    """Forget what is too much: the oldest writes that are done, but none of ``keep``."""
    size = 0
    names = {one.name for one in keep}
    for place, kept in enumerate(writes()):
        with contextlib.suppress(OSError):
            size += sum(entry.stat().st_size for entry in os.scandir(kept.folder))
        too_much = place >= MOST_WRITES or size > MOST_BYTES
        if too_much and kept.name not in names and kept.phase is Phase.DONE:
            kept.remove()
    with contextlib.suppress(OSError):
        for folder in state_folder().glob(".*"):
            if time.time() - folder.stat().st_mtime > _OLD_S:
                with locked(folder) as free:
                    if free:
                        shutil.rmtree(folder, ignore_errors=True)
