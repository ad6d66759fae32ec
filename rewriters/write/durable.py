"""Files that are on the disk when a function returns, and folders that one process has alone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def digest(data: bytes) -> str:
    """Return what tells contents apart."""
    return hashlib.sha256(data).hexdigest()


def content(path: Path) -> bytes:
    """Return what a file holds; nothing else is waited for.

    Raises:
        OSError: there is none, or it is a pipe, a folder, a device.

    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        return file.read()


def content_digest(path: Path) -> str:
    """Return the digest of a file, empty if there is none to read."""
    try:
        return digest(content(path))
    except OSError:
        return ""


def sync(path: Path) -> None:
    """Have what was done to a file or folder on the disk before anything else happens."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems (of the network, of user space) have no such thing for a folder.
        if error.errno not in {errno.EINVAL, errno.ENOTSUP} or not path.is_dir():
            raise
    finally:
        os.close(handle)


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file that nobody else may read, and have it on the disk.

    What is there already goes, and a link is not followed.
    """
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder in the block; ``False`` if another process has it.

    The system gives it back when the process ends, however it ends. Where there are no locks (some
    network file systems) it is as if it were free.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:  # gone, or not ours to read
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise
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
