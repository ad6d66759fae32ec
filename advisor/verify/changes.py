"""What somebody changed by hand: Python files before and after, from a diff, git or two files."""

from __future__ import annotations

import hashlib
import io
import tokenize
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.patch.header import read_header
from npufix.advisor.verify.diff_reading import DiffError, FileDiff, apply_diff, read_diff
from npufix.advisor.verify.git import repositories

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PREFIXES = frozenset("abciow")
"""The first folders that git makes up: ``a/model.py``, with diff.mnemonicPrefix ``w/model.py``."""
NOTEBOOK = "a notebook: only Python files are compared"
_BINARY = "the diff does not hold its lines"
SUBMODULE = "a submodule: run npufix verify in it"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A Python file before and after."""

    name: str
    """As the user calls it: relative to where the change comes from."""
    path: Path
    """Where one of the two stands on disk."""
    root: Path
    original: str
    changed: str
    data: tuple[bytes, bytes] = (b"", b"")
    """Both, as they are stored."""

    @property
    def digests(self) -> tuple[str, str]:
        """Return the SHA-256 of both."""
        before, after = self.data
        return hashlib.sha256(before).hexdigest(), hashlib.sha256(after).hexdigest()


@dataclass(frozen=True, slots=True)
class Changes:
    """The files of one change."""

    files: tuple[ChangedFile, ...]
    against: str
    """What the files are compared with: ``HEAD``, ``change.diff``."""
    new: tuple[ChangedFile, ...] = ()
    """Their original text is empty."""
    deleted: tuple[ChangedFile, ...] = ()
    """Their changed text is empty."""
    unread: tuple[tuple[str, str], ...] = ()
    """What else has changed and cannot be compared, and why."""
    granted: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """Conditions that the change itself names, by file and function."""

    def without(self, left_out: Callable[[Path], bool]) -> Changes:
        """Return the change of the other files."""
        files = tuple(f for f in self.files if not left_out(f.path))
        new = tuple(f for f in self.new if not left_out(f.path))
        return replace(self, files=files, new=new)


@dataclass
class Collected:
    """The files of a change so far."""

    files: list[ChangedFile] = field(default_factory=list)
    new: list[ChangedFile] = field(default_factory=list)
    deleted: list[ChangedFile] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, path: Path, root: Path, versions: tuple[bytes, bytes]) -> None:
        """Add a file with both of its versions, if they are text and not the same."""
        if versions[0] == versions[1]:
            return
        try:
            self.files.append(read_changed_file(name, path, root, *versions))
        except DiffError as error:
            self.unread.append((name, error.message))

    def add_new(self, name: str, path: Path, root: Path, data: bytes) -> None:
        """Add a file that was not there before."""
        try:
            self.new.append(read_changed_file(name, path, root, b"", data))
        except DiffError as error:
            self.unread.append((name, error.message))

    def add_deleted(self, name: str, path: Path, root: Path, data: bytes) -> None:
        """Add a file that is there no more."""
        try:
            self.deleted.append(read_changed_file(name, path, root, data, b""))
        except DiffError as error:
            self.unread.append((name, error.message))

    def finished(self, against: str) -> Changes:
        """Return the whole change."""
        files, new = tuple(self.files), tuple(self.new)
        return Changes(files, against, new, tuple(self.deleted), tuple(self.unread))


def read_changed_file(
    name: str, path: Path, root: Path, before: bytes, after: bytes
) -> ChangedFile:
    """Return a file as Python reads its two versions.

    Raises:
        DiffError: one of them is no text.

    """
    texts = _text(before, name), _text(after, name)
    return ChangedFile(name, path, root, *texts, (before, after))


def from_patch(data: bytes, name: str, root: Path) -> Changes:
    """Return what a diff changes; the files below ``root`` are those before it, or after it.

    Raises:
        DiffError: it is no diff, or one of other files.

    """
    found = Collected()
    roots = list(dict.fromkeys((root.resolve(), *repositories(root))))
    for diff in read_diff(data):
        shown = _bare(diff.new_path or diff.old_path)
        why = _cannot_be_read(diff, shown)
        if why:
            found.unread.append((shown, why))
        elif not shown.endswith(".py"):
            continue
        elif not diff.new_path:
            before = apply_diff(diff.reversed(), b"") or b""
            found.add_deleted(shown, roots[0] / shown, roots[0], before)
        elif not diff.old_path:
            found.add_new(shown, roots[0] / shown, roots[0], apply_diff(diff, b"") or b"")
        elif diff.hunks:
            found.add(*_both(diff, name, roots))
    return replace(found.finished(name), granted=read_header(data))


def _cannot_be_read(diff: FileDiff, shown: str) -> str:
    if shown.endswith(".ipynb"):
        return NOTEBOOK
    if any(line.startswith(b"Subproject commit ") for h in diff.hunks for line in (*h.old, *h.new)):
        return SUBMODULE
    return _BINARY if diff.binary and shown.endswith(".py") else ""


def _both(
    diff: FileDiff, name: str, roots: Sequence[Path]
) -> tuple[str, Path, Path, tuple[bytes, bytes]]:
    """Find the file that a diff is about, before it was applied or after."""
    undo = diff.reversed()
    found: list[Path] = []
    for root in roots:
        for one, forward in ((diff, True), (undo, False)):
            for relative in _spellings(one.old_path):
                path = root / relative
                if not path.is_file():
                    continue
                found.append(path)
                here = path.read_bytes()
                other = apply_diff(one, here)
                if other is not None:
                    versions = (here, other) if forward else (other, here)
                    return relative, path, root, versions
    if not found:
        raise DiffError(
            f"{name} changes {_bare(diff.old_path)}, which is not below {roots[0]}",
            "name the folder that its paths start from with --source",
        )
    raise DiffError(
        f"{name} does not apply to {found[0]}, nor is it applied there",
        "give the file as it was when the diff was made",
    )


def _spellings(path: str) -> list[str]:
    """Return a path of a diff with and without its first folder, which may be ``a`` or ``b``."""
    parts = Path(path).parts
    if ".." in parts or Path(path).is_absolute():
        return []
    spellings = [str(Path(*parts[1:])), path] if len(parts) > 1 else [path]
    return spellings if parts[0] in _PREFIXES else spellings[::-1]


def _bare(path: str) -> str:
    first, _, rest = path.partition("/")
    return rest if rest and first in _PREFIXES else path


def from_files(original: Path, changed: Path) -> Changes:
    """Return the change from one file to another.

    Raises:
        DiffError: one of them cannot be read, or is no Python file.

    """
    for path in (original, changed):
        require_python(path)
    root, path = changed.resolve().parent, changed.resolve()
    file = read_changed_file(str(changed), path, root, read(original), read(changed))
    return Changes((file,), str(original))


def require_python(path: Path) -> None:
    """Refuse a file that is none of Python.

    Raises:
        DiffError: it is a notebook, or has another ending than ``.py``.

    """
    if path.suffix == ".ipynb":
        raise DiffError(
            f"{path} is a notebook: only Python files are compared",
            "convert both versions with jupyter nbconvert --to script",
        )
    if path.suffix != ".py":
        raise DiffError(f"{path} is no Python file", "name files that end in .py, or folders")


def read(path: Path) -> bytes:
    """Return the bytes of a file that the user has named.

    Raises:
        DiffError: it cannot be read.

    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DiffError(f"{path}: {error.strerror}", "name a file that can be read") from error


def _text(data: bytes, name: str) -> str:
    """Return a file as Python reads it."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise DiffError(f"{name} cannot be decoded: {error}", "save it as UTF-8") from error
