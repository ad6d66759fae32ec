"""What the process of a job writes: how much there is, and taking all of it away again."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_WRITTEN = 1 << 30
_MOST_FILES = 10_000
"""What code that is verified may write in all."""
_DEEPEST = 1024
"""Of a path below its folder, in characters: what lies deeper cannot be looked at by its path."""
_BLOCK = 512
_MOST_THREADS = 2048
_NEW_S = 60.0
"""A folder that somebody makes is not in use for a moment."""


def find_excess(processes: Sequence[int], folder: Path) -> str:
    """Say what processes have without end: files below a folder, files without a name, threads."""
    threads = 0
    for process in processes:
        with suppress(OSError):
            threads += os.stat(f"/proc/{process}/task").st_nlink  # noqa: PTH116 - as below
    if threads > _MOST_THREADS:
        return "the code started threads without end"
    return "the code wrote files without end" if _fills(str(folder), processes) else ""


def _fills(folder: str, processes: Sequence[int]) -> bool:
    size = 0
    for entries, one in enumerate(_find(folder, processes), 1):
        size += one
        if entries > _MOST_FILES or size > _MOST_WRITTEN:
            return True
    return False


def _find(folder: str, processes: Sequence[int]) -> Iterator[int]:
    """Yield how large each entry is, of folders and of files that are open but have no name."""
    left = [folder]
    while left:
        at = left.pop()
        if len(at) - len(folder) > _DEEPEST:
            yield _MOST_WRITTEN + 1
        try:
            with os.scandir(at) as inside:
                for entry in inside:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    with suppress(OSError):
                        yield entry.stat(follow_symlinks=False).st_blocks * _BLOCK
        except FileNotFoundError:
            continue
        except OSError:  # it has hidden what is in there
            yield _MOST_WRITTEN + 1
    for process in processes:
        with suppress(OSError), os.scandir(f"/proc/{process}/fd") as numbers:
            for number in numbers:
                with suppress(OSError):
                    file = os.stat(number.path)  # noqa: PTH116 - many
                    if not file.st_nlink and stat.S_ISREG(file.st_mode):
                        yield file.st_blocks * _BLOCK


def mark_in_use(folder: str) -> int:
    """Return what tells others that a folder is in use, while it is open in any process."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return handle


def remove_left_behind(prefix: str) -> None:
    """Remove temporary folders of ours whose processes were ended before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(handle)
                if found.st_uid != os.getuid() or time.time() - found.st_mtime < _NEW_S:
                    continue
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
            finally:
                os.close(handle)


def remove(folder: Path | str) -> None:
    """Remove a folder with all in it, however deep, and whatever its code has hidden in it.

    ``shutil.rmtree`` calls itself for each level. What cannot be removed stays.
    """
    with suppress(OSError):
        at = _open(str(folder), None)
        levels = [_folders(at)]
        names: list[str] = []
        try:
            while levels:
                if levels[-1]:
                    names.append(levels[-1].pop())
                    at = _move(at, names[-1])
                    levels.append(_folders(at))
                    continue
                levels.pop()
                if names:
                    at = _move(at, "..")
                    os.rmdir(names.pop(), dir_fd=at)
        finally:
            os.close(at)
        os.rmdir(folder)  # noqa: PTH106 - as above


def _open(name: str, at: int | None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=at)
    except PermissionError:
        os.chmod(name, stat.S_IRWXU, dir_fd=at)
        return os.open(name, flags, dir_fd=at)


def _move(at: int, name: str) -> int:
    there = _open(name, at)
    os.close(at)
    return there


def _folders(at: int) -> list[str]:
    """Remove what is in a folder; return the folders that are left in it, as they are not empty."""
    os.fchmod(at, stat.S_IRWXU)
    left = []
    with os.scandir(at) as inside:
        for entry in inside:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=at)
                continue
            try:
                os.rmdir(entry.name, dir_fd=at)
            except OSError:
                left.append(entry.name)
    return left
