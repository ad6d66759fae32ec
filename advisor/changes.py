"""What somebody changed by hand: Python files before and after, from a diff, git or two files."""

from __future__ import annotations

import io
import shutil
import subprocess
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.diff_reading import DiffError, FileDiff, applied, read_diff

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_NO_GIT = "give a diff with --patch, or the original file with --against"
_GIT_S = 120.0


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


@dataclass(frozen=True, slots=True)
class Changes:
    """The files of one change."""

    files: tuple[ChangedFile, ...]
    against: str
    """What the files are compared with: ``HEAD``, ``change.diff``."""
    new: tuple[ChangedFile, ...] = ()
    """Their original text is empty."""
    deleted: tuple[str, ...] = ()


def from_patch(data: bytes, name: str, root: Path) -> Changes:
    """Return what a diff changes; the files below ``root`` are those before it, or after it.

    Raises:
        DiffError: it is no diff, or one of other files.

    """
    files: list[ChangedFile] = []
    new: list[ChangedFile] = []
    deleted: list[str] = []
    roots = list(dict.fromkeys((root.resolve(), *_repository(root))))
    for diff in read_diff(data):
        shown = diff.new_path or diff.old_path
        if not shown.endswith(".py"):
            continue
        if diff.binary:
            raise DiffError(f"{name} holds no lines of {shown}", "make it with git diff --text")
        if not diff.new_path:
            deleted.append(_bare(shown))
        elif not diff.old_path:
            relative, path = _bare(shown), roots[0] / _bare(shown)
            text = _text(applied(diff, b"") or b"", relative)
            new.append(ChangedFile(relative, path, roots[0], "", text))
        elif diff.hunks:
            files.append(_both(diff, name, roots))
    return Changes(tuple(files), name, tuple(new), tuple(deleted))


def _both(diff: FileDiff, name: str, roots: Sequence[Path]) -> ChangedFile:
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
                other = applied(one, here)
                if other is not None:
                    before, after = (here, other) if forward else (other, here)
                    texts = _text(before, relative), _text(after, relative)
                    return ChangedFile(relative, path, root, *texts)
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
    return [str(Path(*parts[1:])), path] if len(parts) > 1 else [path]


def _bare(path: str) -> str:
    return path[2:] if path[:2] in {"a/", "b/", "i/", "w/", "c/", "o/"} else path


def from_files(original: Path, changed: Path) -> Changes:
    """Return the change from one file to another."""
    texts = [_text(read(path), str(path)) for path in (original, changed)]
    root = changed.resolve().parent
    file = ChangedFile(str(changed), changed.resolve(), root, *texts)
    return Changes((file,), str(original))


def from_git(paths: Sequence[Path], revision: str) -> Changes:
    """Return what the working tree has changed since ``revision``, below ``paths``.

    Raises:
        DiffError: there is no repository, no such revision or no such file.

    """
    for path in paths:
        if not path.exists():
            raise DiffError(f"no file {path}", "name a file or folder of the working tree")
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    top = next(_repository(folder), None)
    if top is None:
        raise DiffError(f"{folder} is in no git repository", _NO_GIT)
    wanted = [path.resolve() for path in paths]
    files: list[ChangedFile] = []
    new: list[ChangedFile] = []
    deleted: list[str] = []
    for status, old, now in _statuses(top, revision):
        path = top / now
        if not now.endswith(".py") or not any(path.is_relative_to(w) for w in wanted):
            continue
        if status == "D":
            deleted.append(now)
        elif status == "A":
            new.append(ChangedFile(now, path, top, "", _text(read(path), now)))
        else:
            before = _text(_git(top, "show", f"{revision}:{old}"), old)
            files.append(ChangedFile(now, path, top, before, _text(read(path), now)))
    return Changes(tuple(files), revision, tuple(new), tuple(deleted))


def _statuses(top: Path, revision: str) -> Iterator[tuple[str, str, str]]:
    """Yield a letter, the old and the new path of each file that git says is another one."""
    out = _git(top, "diff", "--name-status", "-z", "-M", "--no-ext-diff", revision, "--")
    words = iter(out.decode("utf-8", "surrogateescape").split("\0"))
    for status in words:
        if status:
            old = next(words)
            yield status[0], old, next(words) if status[0] in "RC" else old


def _repository(folder: Path) -> Iterator[Path]:
    """Yield the top of the repository that a folder is in, if it is in one."""
    if shutil.which("git") is None:
        return
    done = _run_git(folder, ("rev-parse", "--show-toplevel"))
    if done.returncode == 0:
        yield Path(done.stdout.decode("utf-8", "surrogateescape").strip()).resolve()


def _git(top: Path, *words: str) -> bytes:
    done = _run_git(top, words)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = said[0].removeprefix("fatal: ") if said else "it failed"
        raise DiffError(f"git {words[0]}: {why}", "name a revision of the repository")
    return done.stdout


def _run_git(folder: Path, words: Iterable[str]) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, check=False, timeout=_GIT_S)  # noqa: S603 - git itself


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
