"""Asking git what it knows of a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.verify.diff_reading import DiffError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NO_GIT = "give a diff with --patch, or the original file with --against"
_GIT_S = 120.0
_FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
"""Settings that name programs which files go through."""


def repositories(folder: Path) -> Iterator[Path]:
    """Yield the top of the repository that a folder is in, if it is in one."""
    with suppress(DiffError):
        yield top_of(folder)


def top_of(path: Path) -> Path:
    """Return the top of the repository that a path is in.

    Raises:
        DiffError: it is in none, or there is no git.

    """
    folder = path if path.is_dir() else path.parent
    if shutil.which("git") is None:
        raise DiffError("git is not installed, which knows what has changed", _NO_GIT)
    done = _run_git(folder, ("rev-parse", "--show-toplevel"))
    if done.returncode == 0:
        return Path(os.fsdecode(done.stdout.removesuffix(b"\n"))).resolve()
    said = done.stderr.decode("utf-8", "replace")
    if "not a git repository" in said:
        raise DiffError(f"{folder.resolve()} is in no git repository", _NO_GIT)
    raise DiffError(f"git: {_first_line(said)}", _NO_GIT)


def is_tracked(top: Path, path: Path) -> bool:
    """Tell whether git knows a file."""
    return _run_git(top, ("ls-files", "--error-unmatch", "--", str(path))).returncode == 0


def _first_line(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else "it failed"


def git(top: Path, *words: str) -> bytes:
    """Return what a command of git prints.

    Raises:
        DiffError: it fails.

    """
    done = _run_git(top, words)
    if done.returncode:
        why = _first_line(done.stderr.decode("utf-8", "replace"))
        raise DiffError(f"git {words[0]}: {why}", "name a revision of the repository")
    return done.stdout


def _run_git(folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    filters = b""
    if words[0] == "diff":  # which puts the files through them
        asking = ("config", "-z", "--name-only", "--get-regexp", _FILTERS)
        filters = _run(folder, asking, _environment(b"")).stdout
    return _run(folder, words, _environment(filters))


def _run(
    folder: Path, words: Sequence[str], env: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(folder), *words]
    try:
        return subprocess.run(  # noqa: S603 - git itself
            command, capture_output=True, check=False, timeout=_GIT_S, env=env
        )
    except subprocess.TimeoutExpired as error:
        raise DiffError(f"git {words[0]} takes longer than {_GIT_S:g} s", _NO_GIT) from error


def _environment(filters: bytes) -> dict[str, str]:
    """Return one in which git runs no program that a repository names, and fetches nothing."""
    names = [os.fsdecode(name) for name in filters.split(b"\0") if name]
    settings = {"core.fsmonitor": "false", **dict.fromkeys(names, "")}
    given = {
        f"GIT_CONFIG_{part}_{at}": text
        for at, one in enumerate(settings.items())
        for part, text in zip(("KEY", "VALUE"), one, strict=True)
    }
    # Its messages are read: in English.
    fixed = {"LC_ALL": "C", "LANGUAGE": "", "GIT_ALLOW_PROTOCOL": "none", "GIT_OPTIONAL_LOCKS": "0"}
    return {**os.environ, **fixed, **given, "GIT_CONFIG_COUNT": str(len(settings))}
