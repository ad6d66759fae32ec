"""The history of a program: a file with a line a run, which grows with its repository.

Each line is JSON: what one run was measured at, as in a baseline, when, and at which commit. Lines
are only ever added, so branches merge by keeping the lines of both (``merge=union`` in
``.gitattributes``); readers put them in order of time.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from npufix.reports.baseline import Baseline, find_faults
from npufix.reports.encoding import encode, without_mark
from npufix.reports.report import ReportError, tool

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_VERSION = 1


class HistoryEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run; or that what came before is accepted as it is."""

    npufix_history: int
    """The schema."""
    time: str
    """When it ran, ISO 8601 with an offset."""
    run: Baseline | None = None
    """Of this one run; None of an acceptance."""
    accepted: str = ""
    """Why the level reached here is the new normal."""

    @property
    def moment(self) -> dt.datetime:
        """Return when it ran."""
        return dt.datetime.fromisoformat(self.time)


def to_line(entry: HistoryEntry) -> str:
    """Return an entry as its line."""
    return encode(entry).decode() + "\n"


def make_entry(moment: dt.datetime, run: Baseline | None, accepted: str = "") -> HistoryEntry:
    """Return an entry of now, in this version."""
    return HistoryEntry(SCHEMA_VERSION, moment.isoformat(timespec="seconds"), run, accepted)


def from_text(text: str | bytes) -> Sequence[HistoryEntry]:
    """Read a history, in order of time.

    Raises:
        ReportError: a line is none of a history, is cut off, is of another schema, or holds
            numbers that no run can have.

    """
    entries = []
    kept = without_mark(text)
    lines = (kept if isinstance(kept, bytes) else kept.encode("utf-8", "replace")).splitlines()
    for number, line in enumerate(lines, 1):
        if line.strip():
            entries.append(_read_line(line, number))
    entries.sort(key=lambda entry: entry.moment)
    # Branches that were merged may have brought the same run twice.
    once: dict[object, HistoryEntry] = {}
    for number, entry in enumerate(entries):
        once.setdefault((entry.run and tuple(entry.run.run_digests)) or number, entry)
    return list(once.values())


def _read_line(line: bytes, number: int) -> HistoryEntry:
    remedy = f"delete line {number}, or restore the file from version control"
    if line.startswith((b"<<<<<<<", b"=======", b">>>>>>>")):
        raise ReportError(f"line {number} is a conflict of a merge -- keep the lines of both sides")
    try:
        entry = msgspec.json.decode(line, type=HistoryEntry)
        offset = entry.moment.utcoffset()
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise ReportError(f"line {number} is no run of a history: {error} -- {remedy}") from error
    if offset is None:
        raise ReportError(f"line {number} is no run of a history: time has no offset -- {remedy}")
    if entry.npufix_history != SCHEMA_VERSION:
        newer = "install the npufix that wrote it, or newer"
        known = f"{tool()} reads {SCHEMA_VERSION}"
        raise ReportError(f"line {number} has schema {entry.npufix_history}; {known} -- {newer}")
    if entry.run is not None:
        wrong = "" if entry.run.run_count == 1 else f"it holds {entry.run.run_count} runs"
        wrong = wrong or next(find_faults(entry.run), "")
        if wrong:
            raise ReportError(f"line {number} is no run of a history: {wrong} -- {remedy}")
    elif not entry.accepted:
        raise ReportError(f"line {number} is neither a run nor an acceptance -- {remedy}")
    return entry
