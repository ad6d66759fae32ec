"""The user's source files, and which of them a recorded path means."""

from __future__ import annotations

import hashlib
import io
import os
import tokenize
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from npufix.reports.report import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npufix.profiling_parsers.profile import Profile

_SKIPPED = frozenset(
    {"__pycache__", "build", "dist", "env", "node_modules", "site-packages", "venv"}
)
_MAX_FILE_BYTES = 16 << 20


class SourceState(str, Enum):
    """Whether the source is what the profiled run executed."""

    AS_PROFILED = "as profiled"
    CHANGED = "changed since"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Python file: its bytes, and its text as Python reads it, line ends kept."""

    path: Path
    relative: str
    """Below the source root, with forward slashes."""
    data: bytes
    text: str
    encoding: str

    @property
    def sha256(self) -> str:
        """Return the digest of the file as it is on disk."""
        return hashlib.sha256(self.data).hexdigest()

    def encode(self, text: str) -> bytes:
        """Return a new text of this file as bytes."""
        return text.encode(self.encoding)


class SourceError(Exception):
    """The source root cannot be read: ``message`` and ``remedy``."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True)
class SourceTree:
    """The Python files below a folder (or one file)."""

    given: Path
    """What the user named."""
    root: Path
    files: Mapping[str, SourceFile]
    problems: tuple[Problem, ...]


def read_source_tree(root: Path) -> SourceTree:
    """Read every Python file below ``root``; hidden folders and environments are left out.

    Raises:
        SourceError: there is nothing to read.

    """
    if not root.exists():
        raise SourceError(f"no source at {root}", "give the folder that holds your Python files")
    base = root if root.is_dir() else root.parent
    files: dict[str, SourceFile] = {}
    problems: list[Problem] = []
    for path in [root] if root.is_file() else _python_files(root):
        relative = path.relative_to(base).as_posix()
        try:
            files[relative] = _read(path, relative)
        except OSError as error:
            problems.append(
                Problem(
                    relative,
                    f"cannot be read: {error.strerror}",
                    "check its permissions",
                    damaged=True,
                )
            )
        except (SyntaxError, UnicodeDecodeError, LookupError, ValueError) as error:
            problems.append(
                Problem(relative, f"cannot be decoded: {error}", "save it as UTF-8", damaged=True)
            )
    if not files and not problems:
        raise SourceError(f"no Python file below {root}", "give the folder of your program")
    return SourceTree(root, base, files, tuple(problems))


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            f
            for f in folders
            if not f.startswith(".")
            and f not in _SKIPPED
            and not (Path(folder, f) / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            path = Path(folder, name)
            # A link to a file is that file twice, and no patch can change a link.
            if name.endswith(".py") and path.is_file() and not path.is_symlink():
                yield path


def _read(path: Path, relative: str) -> SourceFile:
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"larger than {_MAX_FILE_BYTES >> 20} MiB")
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return SourceFile(path, relative, data, data.decode(encoding), encoding)


def map_recorded_paths(recorded: Iterable[str], tree: SourceTree) -> dict[str, str]:
    """Return recorded path -> relative path of the file here that it means.

    A dump comes from another machine: ``/workspace/job/model/norm.py`` there is
    ``model/norm.py`` here. The folder that explains most recorded paths is the root; paths
    outside of it are libraries.
    """
    by_name: dict[str, list[PurePosixPath]] = {}
    for relative in tree.files:
        path = PurePosixPath(relative)
        by_name.setdefault(path.name, []).append(path)
    votes: Counter[tuple[str, ...]] = Counter()
    candidates: list[tuple[str, tuple[str, ...], str]] = []
    for name in sorted(set(recorded)):
        parts = PurePosixPath(name.replace("\\", "/")).parts
        for path in by_name.get(parts[-1] if parts else "", ()):
            if parts[-len(path.parts) :] == path.parts:
                root = parts[: -len(path.parts)]
                votes[root] += len(path.parts)
                candidates.append((name, root, path.as_posix()))
    if not votes:
        return {}
    best = max(votes, key=lambda root: (votes[root], -len(root), root))
    return {name: relative for name, root, relative in candidates if root == best}


def source_state(profile: Profile, tree: SourceTree, mapped: Mapping[str, str]) -> SourceState:
    """Tell whether the files of the profiled program are the ones that were profiled.

    The digests that the run recorded decide; without them, files older than the run are taken
    for the ones it executed.
    """
    digests = profile.environment.source_sha256
    files = set(mapped.values())
    if digests:
        expected = map_recorded_paths(digests, tree)
        if any(tree.files[rel].sha256 != digests[name] for name, rel in expected.items()):
            return SourceState.CHANGED
        complete = set(digests) <= set(expected) and files <= set(expected.values())
        return SourceState.AS_PROFILED if expected and complete else SourceState.UNKNOWN
    if not files or profile.kernels.empty:
        return SourceState.UNKNOWN
    started = int(profile.kernels["start_ns"].iloc[0])
    newest = max(tree.files[name].path.stat().st_mtime_ns for name in files)
    return SourceState.AS_PROFILED if newest < started else SourceState.UNKNOWN
