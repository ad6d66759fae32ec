"""Reading files of ours that a user names: as a whole, but never without an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from npufix.reports.report import ReportError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npufix.rewriters.write.user_error import UserError

T = TypeVar("T")


def read_file(
    path: Path,
    parse: Callable[[bytes], T],
    failure: type[UserError],
    kind: tuple[str, str],
    most_bytes: int,
) -> T:
    """Return what ``parse`` makes of a file; ``kind``: what it is called, and how it is made.

    Raises:
        UserError: as ``failure``: it is not there, cannot be read, is far too large, or is not of
            that kind (``parse`` raises ``ReportError``).

    """
    name, how = kind
    try:
        with path.open("rb") as file:  # a device says that it has no size, and never ends
            content = file.read(most_bytes + 1)
    except FileNotFoundError as error:
        raise failure(
            f"{path}: there is no such {name}", f"make it with {how} -o {path}"
        ) from error
    except OSError as error:
        raise failure(f"{path}: {error.strerror}", f"name the file of a {name}") from error
    if len(content) > most_bytes:
        raise failure(f"{path}: far too large for a {name}", "name the right file")
    try:
        return parse(content)
    except ReportError as error:
        message, _, remedy = str(error).partition(" -- ")
        raise failure(f"{path}: {message}", remedy) from error
