"""The file of a history: read, and added to."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING

from npufix.advisor.gate.baselines import check_units, digest, merge_baseline
from npufix.advisor.gate.files import read_file
from npufix.reports.history import HistoryEntry, from_text, make_entry, to_line
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npufix.reports.measurement import Measurement

_MOST_BYTES = 256 << 20


class HistoryError(UserError):
    """A history that cannot be read or added to: ``message`` and ``remedy``."""


def read(path: Path) -> Sequence[HistoryEntry]:
    """Return the entries of a file in order of time.

    Raises:
        HistoryError: it is not there, cannot be read, or is no history.

    """
    how = "npufix history add DUMP..."
    return read_file(path, _parse, HistoryError, ("history", how), _MOST_BYTES)


def _parse(content: bytes) -> Sequence[HistoryEntry]:
    entries = from_text(content)
    for entry in entries:
        if entry.run is not None:
            remedy = "delete its line, or restore the file from version control"
            check_units(entry.run, f"the run of {entry.time} is none of a history: ", remedy)
    return entries


def make_entries(
    runs: Sequence[Measurement],
    known: Sequence[HistoryEntry],
    moment: dt.datetime,
    commit: str = "",
) -> list[HistoryEntry]:
    """Return the entries of runs, in the order in which they are given.

    Raises:
        HistoryError: one is broken, holds nothing, or is in the history already.

    """
    seen = {text for entry in known if entry.run for text in entry.run.run_digests}
    for run in runs:
        if run.partial:
            message = f"{run.origin} is not whole: {run.partial[0]}"
            raise HistoryError(message, "collect it again; a history keeps whole runs only")
        if not run.metrics:
            raise HistoryError(f"{run.origin} holds nothing to keep", "leave it out")
        if digest(run) in seen:
            message = f"{run.origin} is in the history already: all of its times are"
            raise HistoryError(message, "leave it out; a run that counts twice is no second one")
        seen.add(digest(run))
    # Runs that are added together keep their order: each is a second later than the last.
    return [
        make_entry(moment + dt.timedelta(seconds=number), merge_baseline([run], None, commit))
        for number, run in enumerate(runs)
    ]


def append(path: Path, entries: Sequence[HistoryEntry]) -> None:
    """Add lines to a file in one write, so that two who add at once keep both.

    Raises:
        HistoryError: it cannot be written.

    """
    text = "".join(map(to_line, entries)).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                text = text if file.read(1) == b"\n" else b"\n" + text
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror}", "name a file to write") from error
