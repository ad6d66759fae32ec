"""Files written as a whole: all of a list, or none of it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import IO, TYPE_CHECKING

from npufix.advisor.console.loudness import is_quiet
from npufix.advisor.console.speaking import say
from npufix.rewriters.write.durable import sync
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Content = str | bytes | Callable[[IO[bytes]], None]
    """What a file holds, or what writes it piece by piece."""

STDOUT = Path("-")
_SUMMARY = "GITHUB_STEP_SUMMARY"


class OutputError(UserError):
    """A file that cannot be written; nothing was: ``message`` and ``remedy``."""


def is_summary(path: Path) -> bool:
    """Tell whether a file is the summary of a step of GitHub, which is added to."""
    name = os.environ.get(_SUMMARY)
    return bool(name) and path != STDOUT and path.resolve() == Path(str(name)).resolve()


def replace_all(contents: Sequence[tuple[Path, Content]]) -> None:
    """Write all files or none: beside their places first, then all at once.

    Raises:
        OutputError: one of them cannot be written.

    """
    staged: list[tuple[Path, Path]] = []
    appended = [item for item in contents if is_summary(item[0]) or _is_special(item[0])]
    made = [folder for path, _ in contents if _make_folder(folder := path.parent)]
    finished = False
    try:
        for path, content in contents:
            if (path, content) not in appended:
                target = path.resolve()
                # No name that could be foreseen: somebody else may write to the folder as well.
                beside = target.with_name(f".npufix-{secrets.token_hex(6)}.tmp")
                staged.append((beside, target))
                with name_errors(path):
                    _fill(beside, content)
                    _make_like(beside, target)
        for path, content in appended:
            with name_errors(path), path.open("ab") as file:
                file.write(_bytes(path, content))
        for beside, target in staged:
            with name_errors(target):
                beside.replace(target)
        finished = True
    finally:
        for beside, _ in staged:
            with contextlib.suppress(OSError):
                beside.unlink()
        for folder in () if finished else made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def say_written(path: Path | str) -> None:
    """Say on stderr that a file was written."""
    if not is_quiet():
        say(f"Wrote {path}")


def _make_folder(folder: Path) -> bool:
    """Create a folder of tables; the folder above it is there."""
    if folder.exists():
        return False
    with name_errors(folder):
        folder.mkdir()
    return True


def _fill(beside: Path, content: Content) -> None:
    with beside.open("x+b") as file:
        if callable(content):
            content(file)
        else:
            file.write(_bytes(beside, content))


def _make_like(beside: Path, target: Path) -> None:
    """Prepare a file to take the place of another: as readable as that, and not lost with it."""
    if not target.exists():
        return
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    status = target.stat()
    with contextlib.suppress(OSError):  # of another user: it becomes ours, as it always did
        os.chown(beside, status.st_uid, status.st_gid)
    beside.chmod(status.st_mode & 0o777)
    sync(beside)  # else a crash may leave an empty file where an old report was


def _bytes(path: Path, content: Content) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogateescape")
    if isinstance(content, bytes):
        return content
    raise OutputError(f"{path} is no file that this can be written to", "name a file")


def _is_special(path: Path) -> bool:
    """Tell whether nothing can be put in the place of a file: a pipe, ``/dev/stderr``."""
    return path.exists() and not path.is_file()


@contextlib.contextmanager
def name_errors(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a file into an ``OutputError`` that names it.

    Raises:
        OutputError: the file cannot be written.

    """
    try:
        yield
    except OSError as error:
        message = f"{path}: {error.strerror or error}; nothing was written"
        raise OutputError(message, "name a file that can be written") from error
