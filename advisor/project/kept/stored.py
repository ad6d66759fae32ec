"""What was computed from source code, kept in the user's cache folder for the next start.

An entry may hold compiled code, so it is only read from a folder that nobody else may write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import stat
import sys
from functools import cache
from importlib.metadata import entry_points
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.rewriters.write.user_folders import drop_the_oldest, write_whole
from npufix.rules import ENTRY_POINT_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_ENTRIES = 16384
_MOST_BYTES = 256 << 20
_DIGEST = hashlib.sha256().digest_size
_OWN = ("advisor/diagnose", "advisor/project", "advisor/runtime", "reports", "rewriters", "rules")
_INSTALLED = ("site-packages", "dist-packages")


class Store:
    """A folder of entries; what cannot be read or written is not there, and no error."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def get(self, *key: bytes) -> bytes | None:
        """Return the entry of a key; one that is damaged is none."""
        if self.folder is None or not _is_private(self.folder):
            return None
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        digest, content = data[:_DIGEST], data[_DIGEST:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, content: bytes, *key: bytes) -> None:
        """Keep an entry: the whole of it, or nothing."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self.folder):
                return
            digest = hashlib.sha256(content).digest()
            write_whole(self._path(key), digest + content)
            if not digest[0]:  # once in 256 times
                drop_the_oldest(self.folder, _MOST_BYTES, _MOST_ENTRIES, left=0.5)

    def _path(self, key: tuple[bytes, ...]) -> Path:
        folder = self.folder or Path()
        whole = hashlib.sha256(b"\0".join([environment(), *key]))
        return folder / f"{whole.hexdigest()}.bin"


def _is_private(folder: Path) -> bool:
    """Tell whether nobody but this user may write to a folder: what is in there is run."""
    try:
        status = folder.stat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def environment() -> bytes:
    """Return what tells this installation from one that might find or rewrite otherwise."""
    digest = hashlib.sha256(f"{sys.version} {MAGIC_NUMBER.hex()} {sys.flags.optimize}".encode())
    for text in (*sorted(list_own_files()), *_plug_ins()):
        digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.digest()


def list_own_files() -> Iterator[str]:
    """Yield each file of ours with its size and time, as Python tells whether compiled code is old.

    To read all of them would take longer than to search a small package.
    """
    root = Path(__file__).parents[3]
    for folder in _OWN:
        for place, _, names in os.walk(root / folder):
            for name in names:
                if name.endswith((".py", ".txt")):
                    path = f"{place}/{name}"
                    status = os.stat(path)  # noqa: PTH116 - of hundreds
                    yield f"{path} {status.st_size} {status.st_mtime_ns}"


def _plug_ins() -> Iterator[str]:
    """Yield what changes where rules of other packages come, go or change."""
    for place in sys.path:
        if place.endswith(_INSTALLED):
            yield f"{place} {_read_changed_ns(Path(place))}"
    for point in entry_points(group=ENTRY_POINT_GROUP):
        yield f"{point.name} {point.value}"
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(point.module.partition(".")[0])
            folders = [] if spec is None else spec.submodule_search_locations or []
            files = [p for folder in folders for p in sorted(Path(folder).rglob("*.py"))]
            for path in files or [Path(spec.origin if spec and spec.origin else os.devnull)]:
                yield f"{path} {_read_changed_ns(path)}"


def _read_changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
