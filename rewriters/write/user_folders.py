"""Where the user's system wants caches and state to be, and how they stay small."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import tempfile
from pathlib import Path

_OTHERS_MAY_WRITE = 0o022


def cache_folder(name: str) -> Path:
    """Return a folder for what can be made again; it need not exist."""
    return _own("XDG_CACHE_HOME", ".cache") / name


def state_folder(name: str) -> Path:
    """Return a folder for what must outlive this process; it need not exist."""
    return _own("XDG_STATE_HOME", ".local/state") / name


def private_cache_folder(name: str) -> Path | None:
    """Return as ``cache_folder`` does, ``None`` for a user without a home."""
    found = _base("XDG_CACHE_HOME", ".cache")
    return None if found is None else found / "npufix" / name


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of such a folder as a whole or not at all, whoever else writes it meanwhile.

    Its folder is created if need be, for this user alone.

    Raises:
        OSError: it cannot be written.

    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def drop_the_oldest(
    folder: Path, most_bytes: int, most_entries: float = math.inf, left: float = 0.75
) -> None:
    """Remove the entries that were written first from a folder that holds too much.

    ``left`` is the share of the limits that is kept, so that it is not done each time.

    Raises:
        OSError: the folder cannot be read or changed.

    """
    with os.scandir(folder) as entries:
        known = sorted(((e.stat(), e.path) for e in entries), key=lambda one: one[0].st_mtime)
    size = sum(status.st_size for status, _ in known)
    count = len(known)
    if count <= most_entries and size <= most_bytes:
        return
    for status, path in known:
        if count <= most_entries * left and size <= most_bytes * left:
            break
        Path(path).unlink(missing_ok=True)
        count, size = count - 1, size - status.st_size


def _own(variable: str, below_home: str) -> Path:
    base = _base(variable, below_home)
    return (base or _without_home()) / "npufix"


def _without_home() -> Path:
    """Return the folder of a user without a home, as in some containers.

    Everybody may make one of that name first: then there is none, and what would be in it neither
    is believed nor written.
    """
    folder = Path(tempfile.gettempdir(), f"npufix-{os.getuid()}")
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700)
    try:
        status = folder.lstat()
    except OSError:
        return folder
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return folder if ours and not status.st_mode & _OTHERS_MAY_WRITE else Path(os.devnull)


def _base(variable: str, below_home: str) -> Path | None:
    given = os.environ.get(variable, "")
    if Path(given).is_absolute():  # others are to be ignored, says the standard
        return Path(given)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / below_home if home.is_absolute() else None
