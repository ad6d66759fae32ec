"""What the working tree of a git repository has changed since a revision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.verify.changes import (
    NOTEBOOK,
    SUBMODULE,
    Changes,
    Collected,
    read,
    require_python,
)
from npufix.advisor.verify.diff_reading import DiffError
from npufix.advisor.verify.git import git, is_tracked, top_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def from_git(paths: Sequence[Path], revision: str) -> Changes:
    """Return what the working tree has changed since ``revision``, below ``paths``.

    Raises:
        DiffError: there is no repository, no such revision or no such file.

    """
    for path in paths:
        if not path.exists():
            from npufix.profiling_parsers.discover import nearest

            remedy = nearest(path) or "name a file or folder of the working tree"
            raise DiffError(f"no file {path}", remedy)
        if path.is_file():
            require_python(path)
    _require_revision(revision)
    tops = list(dict.fromkeys(top_of(path) for path in paths))
    if len(tops) > 1:
        raise DiffError(
            f"{paths[0]} and {paths[-1]} are in different repositories", "verify them one by one"
        )
    top, wanted = tops[0], [path.resolve() for path in paths]
    found, seen = Collected(), set[Path]()
    for status, old, now in _statuses(top, revision):
        path = top / now
        if any(path.is_relative_to(w) for w in wanted):
            seen.add(path)
            _collect(found, top, revision, (status, old, now))
    # Git does not list what it was never told of.
    untracked = [p for p in wanted if p.is_file() and p not in seen and not is_tracked(top, p)]
    for path in untracked:
        found.add_new(path.relative_to(top).as_posix(), path, top, read(path))
    return found.finished(revision)


def _collect(found: Collected, top: Path, revision: str, change: tuple[str, str, str]) -> None:
    """Read both versions of a file that git says has changed."""
    status, old, now = change
    path = top / now
    if now.endswith(".ipynb"):
        found.unread.append((now, NOTEBOOK))
    elif path.is_dir() and status != "D":
        found.unread.append((now, SUBMODULE))
    elif not now.endswith(".py"):
        return
    elif status == "D":
        found.add_deleted(now, path, top, git(top, "cat-file", "blob", f"{revision}:{old}"))
    elif status == "A":
        found.add_new(now, path, top, read(path))
    elif status == "U":
        found.unread.append((now, "a merge has left conflicts in it"))
    else:
        before = git(top, "cat-file", "blob", f"{revision}:{old}")
        found.add(now, path, top, (before, read(path)))


def _require_revision(revision: str) -> None:
    if ".." in revision:
        raise DiffError(
            f"{revision} are two revisions",
            f"compare them with git diff {revision} | npufix verify --patch -",
        )
    if revision.startswith("-"):
        raise DiffError(f"{revision} is no revision", "name a commit, a branch or a tag")


def _statuses(top: Path, revision: str) -> Iterator[tuple[str, str, str]]:
    """Yield a letter, the old and the new path of each file that git says is another one."""
    out = git(top, "diff", "--name-status", "-z", "-M", "--no-ext-diff", revision, "--")
    words = iter(out.decode("utf-8", "surrogateescape").split("\0"))
    for status in words:
        if status:
            old = next(words)
            yield status[0], old, next(words) if status[0] in "RC" else old
