"""What tells a dump, and this program, from any other: so that nothing is read twice in vain.

Files of up to 4 MiB count by their content. Larger ones count by size, time of change and a hash
of both ends, because reading them as a whole is what a fingerprint is to spare: whoever changes a
large file in the middle, without its size and its time, is not noticed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.profiling_parsers.cluster.cheap_files import (
    ANALYSIS,
    COMMUNICATION,
    MATRIX,
    STATISTIC,
    STEPS,
)
from npufix.profiling_parsers.dump_folder import find_analysed_folder
from npufix.profiling_parsers.special_files import kind_of

if TYPE_CHECKING:
    from hashlib import blake2b

_CHEAP = frozenset({ANALYSIS, COMMUNICATION, MATRIX, STATISTIC, STEPS, "profiler_metadata.json"})
_SETTINGS = ("profiler_info",)
_WHOLE_BYTES = 4 << 20
_END_BYTES = 1 << 16
_MOST_FILES = 1000


def program() -> str:
    """Return what tells the readers of this installation from those of another version."""
    return _program()


def of_small_files(dump: Path) -> str | None:
    """Return the fingerprint of the files that a summary is made of.

    ``None`` if they do not suffice, so that the whole dump would be read, or cannot be read.
    """
    output = find_analysed_folder(dump)
    if not dump.is_dir() or not any((output / name).is_file() for name in (STEPS, ANALYSIS)):
        return None
    return _fingerprint(dump, small=True)


def of_everything(dump: Path) -> str | None:
    """Return the fingerprint of a whole dump, ``None`` if it cannot be read."""
    return _fingerprint(dump, small=False)


@cache
def _program() -> str:
    folder = Path(__file__).parents[1]
    # What a person changes: the readers, and what the advisor takes from them.
    sources = [*folder.rglob("*.py"), *(folder.parent / "advisor" / "evidence").glob("*.py")]
    sources += (folder.parent / "advisor" / "cluster").glob("*.py")
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(sources):
        digest.update(path.relative_to(folder.parent).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _fingerprint(dump: Path, *, small: bool) -> str | None:
    digest = hashlib.blake2b(f"{program()} {dump.name}".encode(errors="replace"), digest_size=20)
    try:
        if not dump.is_dir():
            _add(digest, dump.name, os.fspath(dump), dump.stat())
            return digest.hexdigest()
        for path, name, status in _files(dump):
            base = name.rpartition("/")[2]
            if small and not (base in _CHEAP or base.startswith(_SETTINGS)):
                # That it is there decides whether the rank can be looked into, its end whether
                # it was cut.
                digest.update(f"{name}\0{status.st_size}\0".encode(errors="replace"))
                if name.endswith(".db"):
                    digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
                continue
            _add(digest, name, path, status)
    except OSError:
        return None
    return digest.hexdigest()


def _files(dump: Path) -> list[tuple[str, str, os.stat_result]]:
    """Return path, name and status of the files of a dump, two folders deep, in a fixed order."""
    found: list[tuple[str, str, os.stat_result]] = []
    folders = [("", os.fspath(dump))]
    for depth in range(3):
        below: list[tuple[str, str]] = []
        for prefix, folder in folders:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.is_dir():
                        below.append((f"{name}/", entry.path))
                    elif len(found) < _MOST_FILES:
                        found.append((entry.path, name, entry.stat()))
        folders = below if depth < 2 else []  # noqa: PLR2004 - see above
    return sorted(found, key=lambda one: one[1])


def _add(digest: blake2b, name: str, path: str, status: os.stat_result) -> None:
    digest.update(f"{name}\0{status.st_size}\0{status.st_mode}\0".encode(errors="replace"))
    if not stat.S_ISREG(status.st_mode) or kind_of(path):  # a pipe would wait for its writer
        return
    with open(path, "rb") as file:  # noqa: PTH123 - a plain string, and many of them
        if status.st_size <= _WHOLE_BYTES:
            digest.update(file.read())
            return
        digest.update(str(status.st_mtime_ns).encode() + file.read(_END_BYTES))
        file.seek(-_END_BYTES, os.SEEK_END)
        digest.update(file.read())
