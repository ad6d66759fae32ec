"""Verdicts of earlier runs, on disk: the same code in the same environment is not run again.

An entry is found by everything that decides a verdict but the user's other files: the job with
its texts, the ground, the versions, this package's own source. Files that were imported on the
way are kept in the entry with their digests, and must still be the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.rewriters.verification.verdict import Verdict  # noqa: TC001 - msgspec reads the annotation
from npufix.rewriters.verification.workers.machine import find_installed
from npufix.rewriters.write.user_folders import cache_folder, drop_the_oldest, write_whole

if TYPE_CHECKING:
    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.sandbox.messages import Answer
    from npufix.rewriters.verification.workers.backends import Backend

_MOST_ENTRIES = 4096
_MOST_BYTES = 64 << 20
_INSTALLED = ("site-packages", "dist-packages")
_PACKAGES = ("torch", "torch-npu", "npufix", "numpy")


class _Entry(msgspec.Struct, frozen=True):
    verdict: Verdict
    files: dict[str, str]


def user_folder() -> Path:
    """Return where the user's system wants caches to be."""
    return cache_folder("verdicts")


class VerdictCache:
    """A folder with a file for each verdict; without a folder that can be written, no cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, job: Job, ground: Backend, chip: str = "") -> Verdict | None:
        """Return the verdict of an earlier run, if it still holds."""
        try:
            data = self._path(job, ground, chip).read_bytes()
            entry = msgspec.json.decode(data, type=_Entry)
        except (OSError, msgspec.DecodeError):  # never written, or damaged
            return None
        same = all(_digest_of_named(path) == digest for path, digest in entry.files.items())
        return entry.verdict if same else None

    def put(self, job: Job, ground: Backend, answer: Answer, chip: str = "") -> None:
        """Keep a verdict for later runs; that it cannot be kept is no error."""
        if not answer.lasting:
            return
        entry = _Entry(answer.verdict, {path: _digest_of_named(path) for path in answer.files})
        path = self._path(job, ground, chip)
        with contextlib.suppress(OSError):
            write_whole(path, msgspec.json.encode(entry))
            drop_the_oldest(self.folder, _MOST_BYTES, _MOST_ENTRIES)

    def _path(self, job: Job, ground: Backend, chip: str) -> Path:
        where = f"{ground.value} {chip}".strip()
        parts = (msgspec.json.encode(job), where.encode(), _environment())
        return self.folder / f"{hashlib.sha256(b'|'.join(parts)).hexdigest()}.json"


def _digest_of_named(name: str) -> str:
    """Return the digest of a file that a process has named which ran the user's code.

    It may be a pipe, or one of the files of the system that have no end.
    """
    with contextlib.suppress(OSError, ValueError):
        path = Path(os.path.realpath(name))
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and path.suffix == ".py" and found.st_size <= _MOST_BYTES:
            return _digest(path)
    return ""


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


@cache
def _environment() -> bytes:
    """Return what tells this installation from one that might decide otherwise."""
    versions = [f"{name} {find_installed(name)}" for name in _PACKAGES]
    # Packages that come or go change the folder that they are in.
    folders = [f"{p} {_read_change_time(Path(p))}" for p in sys.path if p.endswith(_INSTALLED)]
    own = Path(__file__).parents[1]
    sources = [*own.rglob("*.py"), *own.rglob("*.json")]
    digests = [f"{path.relative_to(own.parent)} {_digest(path)}" for path in sorted(sources)]
    machine = (platform.python_version(), platform.machine())
    return "\n".join((*machine, *versions, *folders, *digests)).encode()


def _read_change_time(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
