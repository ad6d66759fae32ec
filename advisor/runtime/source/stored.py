"""What rewriting a module gave, kept in the user's cache folder for the next start.

An entry holds compiled code, so it is only read from a folder that nobody else may write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path

from npufix.rewriters.write.user_folders import drop_the_oldest

_MOST_ENTRIES = 8192
_MOST_BYTES = 256 << 20
_DIGEST = hashlib.sha256().digest_size
_SELDOM = 8
"""Of 256 times that something is kept: how often it is asked what may go."""
_OWN = ("rewriters", "rules", "advisor/runtime")
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
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            try:
                digest = hashlib.sha256(content).digest()
                with os.fdopen(handle, "wb") as file:
                    file.write(digest + content)
                os.replace(temporary, self._path(key))  # noqa: PTH105 - a plain string
            except OSError:
                os.unlink(temporary)  # noqa: PTH108 - a plain string from tempfile
                raise
            if digest[0] < _SELDOM:
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
    """Return what tells this installation from one that might rewrite otherwise."""
    root = Path(__file__).parents[3]
    own = (path for name in _OWN for path in root.joinpath(name).rglob("*.py"))
    files = [f"{p} {(s := p.stat()).st_mtime_ns} {s.st_size}" for p in sorted(own)]
    # Rules may come from other packages; those that come or go change the folder they are in.
    folders = [f"{p} {_changed_ns(p)}" for p in sys.path if p.endswith(_INSTALLED)]
    machine = (sys.version, importlib.util.MAGIC_NUMBER.hex(), str(sys.flags.optimize))
    return "\n".join((*machine, *files, *folders)).encode("utf-8", "surrogateescape")


def _changed_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0
