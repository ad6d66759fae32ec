"""Commits of a repository, checked out beside it; the repository itself is only read."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.reports.bisect_report import BisectCommit
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from pathlib import Path

_GIT_S = 600.0
_FIELDS = "%H%x00%an%x00%aI%x00%P%x00%s"
_MOST_DIFF_LINES = 200


class BisectError(UserError):
    """A search that cannot begin or go on: ``message`` and ``remedy``."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of git that is never written to."""

    top: Path

    def candidates(self, good: str, bad: str) -> list[BisectCommit]:
        """Return the commits after ``good`` up to ``bad``, the oldest first.

        Of a branch that was merged only the merge: it is what changed the line of ``bad``.

        Raises:
            BisectError: one is no commit, or ``good`` is no ancestor of ``bad``.

        """
        first, last = self.commit(good), self.commit(bad)
        ancestor = ("merge-base", "--is-ancestor", first.id, last.id)
        if first.id == last.id or _run(self.top, *ancestor).returncode:
            message = f"{good} is no ancestor of {bad}"
            raise BisectError(message, "name a good commit that the bad one comes after")
        span = f"{first.id}..{last.id}"
        found = git(self.top, "rev-list", "--first-parent", "--reverse", span).split()
        return [self.commit(each) for each in found]

    def commit(self, name: str) -> BisectCommit:
        """Return a commit by any of its names; raise ``BisectError`` if there is none."""
        if name.startswith("-"):
            raise BisectError(f"{name!r} is no commit", "name a commit, tag or branch")
        done = _run(self.top, "show", "-s", f"--format={_FIELDS}", f"{name}^{{commit}}", "--")
        if done.returncode:
            raise BisectError(f"{name} is no commit of {self.top}", "name a commit, tag or branch")
        parts = done.stdout.rstrip("\n").split("\0")
        return BisectCommit(parts[0], parts[1], parts[2], parts[4], len(parts[3].split()) > 1)

    def change(self, before: str, after: str) -> list[str]:
        """Return what differs between two commits: the files, then the lines, not too many."""
        stat = git(self.top, "diff", "--stat=76", before, after, "--").splitlines()
        lines = git(
            self.top, "diff", "--no-color", "--no-ext-diff", before, after, "--"
        ).splitlines()
        rest = len(lines) - _MOST_DIFF_LINES
        more = [f"... {rest} more lines: git diff {before} {after}"] if rest > 0 else []
        return [*stat, "", *lines[:_MOST_DIFF_LINES], *more]

    def copy(self, into: Path) -> Checkout:
        """Return a copy that shares the objects of this repository, and nothing else."""
        _check(_run(self.top, "clone", "--quiet", "--shared", "--no-checkout", ".", str(into)))
        return Checkout(into)


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder with one commit at a time."""

    folder: Path

    def show(self, commit: str) -> None:
        """Have exactly the files of a commit here: what was built of another one is gone."""
        git(self.folder, "checkout", "--quiet", "--force", "--detach", commit)
        git(self.folder, "clean", "--quiet", "-ffdx")


def find_repository(folder: Path) -> Repository:
    """Return the repository that a folder is in; raise ``BisectError`` if it is in none."""
    from pathlib import Path

    done = _run(folder, "rev-parse", "--show-toplevel")
    if done.returncode:
        raise BisectError(f"{folder} is in no repository of git", "run it in one")
    return Repository(Path(done.stdout.rstrip("\n")))


def git(folder: Path, *words: str) -> str:
    """Return what a command of git prints; raise ``BisectError`` if it fails."""
    return _check(_run(folder, *words))


def _check(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise BisectError(f"git: {said}", "see whether the repository is whole: git fsck")
    return done.stdout


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Hooks of the user are not for our copies; messages are read: in English.
    settings = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
    env = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        env.pop(name, None)
    try:
        return subprocess.run(  # noqa: S603 - git itself
            ["git", *settings, "-C", str(folder), *words],  # noqa: S607 - the user's own git
            capture_output=True, check=False, encoding="utf-8", errors="replace",
            timeout=_GIT_S, env=env,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise BisectError("git is not installed", "install it") from error
    except subprocess.TimeoutExpired as error:
        raise BisectError(f"git {words[0]} takes longer than {_GIT_S:g} s", "try again") from error
