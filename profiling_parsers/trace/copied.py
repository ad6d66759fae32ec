"""A trace copied event by event, in bounded memory, and where kernels lie in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.progress import advance
from npufix.profiling_parsers.trace.device_events import find_device_events
from npufix.profiling_parsers.trace.json_stream import EventStream
from npufix.profiling_parsers.trace.rows import Codes, EventTable, parse_durations, parse_moments
from npufix.profiling_parsers.trace.unpacked import UnpackedFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.profiling_parsers.trace.json_stream import Event

    Integers = NDArray[np.int64]

_TEXT_TIME = re.compile(rb'"ts"\s*:\s*"')
_NUMBER_TIME = re.compile(rb'"ts"\s*:\s*[0-9]')


@dataclass(frozen=True)
class Places:
    """Where the kernels of a profile lie in its trace.

    ``events`` -- one row per kernel found, by its label: ``pid``, ``tid`` (positions in ``pids``
    and ``tids``), ``start_ns``, ``duration_ns``, on the clock of the trace.
    """

    events: pd.DataFrame
    pids: tuple[object, ...]
    tids: tuple[object, ...]
    all_pids: frozenset[object]
    offset_ns: int | None
    """What to add to a time of the trace to get one of the profile; ``None`` if unknown."""
    texts: bool
    """Whether times are texts, as most versions write them."""
    cut: int | None
    """The byte at which the trace breaks off."""


def copy_trace(
    path: Path, kernels: pd.DataFrame, wanted: frozenset[int], write: Callable[[bytes], object]
) -> Places:
    """Hand the events of a trace on as they are, separated by commas, and look for kernels.

    ``wanted`` are labels of ``kernels``.

    Raise ``OSError`` if the file cannot be read.
    """
    rows = kernels.loc[kernels.index.isin(list(wanted)), "name"]
    names = frozenset(map(str, rows.unique()))
    alike = kernels[kernels["name"].isin(list(names))]
    search = _Search(names)
    size = path.stat().st_size
    with UnpackedFile(path) as file:
        stream = EventStream(file)
        first = True
        for events in stream:
            text = stream.text.strip(b", \r\n\t")
            if text:
                write(text if first else b",\n" + text)
                first = False
            search.add(events, text)
            advance(path.name, file.bytes_read, size)
    return search.places(alike, wanted, stream.cut)


class _Search:
    """Collects the events that have the name of a kernel."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._codes: Codes[str] = Codes()
        self._pids: dict[object, int] = {}
        self._tids: dict[object, int] = {}
        self._all_pids: set[object] = set()
        self._table = EventTable("kernel", "pid", "tid", "duration_ns", "start_ns")
        self._texts: bool | None = None

    def add(self, events: list[Event], text: bytes) -> None:
        if self._texts is None and (_TEXT_TIME.search(text) or _NUMBER_TIME.search(text)):
            self._texts = _TEXT_TIME.search(text) is not None
        self._all_pids.update(event.pid for event in events if isinstance(event.pid, (int, str)))
        found = [
            event
            for event in events
            if event.ph == "X" and isinstance(event.name, str) and event.name in self._names
        ]
        if not found:
            return
        starts, valid = parse_moments([event.ts for event in found])
        durations = parse_durations([event.dur for event in found])
        valid &= durations >= 0
        columns = (
            self._codes.of([event.name for event in found]),
            _number(self._pids, [event.pid for event in found]),
            _number(self._tids, [event.tid for event in found]),
            durations,
            starts,
        )
        self._table.add(*(column[valid] for column in columns))

    def places(self, alike: pd.DataFrame, wanted: frozenset[int], cut: int | None) -> Places:
        events = self._table.frame()
        offset, at = self._match(alike, events)
        rows = np.flatnonzero((at >= 0) & alike.index.isin(list(wanted)))
        found = events.iloc[at[rows]].drop(columns="kernel")
        return Places(
            events=found.set_axis(alike.index[rows], axis=0),
            pids=tuple(self._pids),
            tids=tuple(self._tids),
            all_pids=frozenset(self._all_pids),
            offset_ns=offset,
            texts=bool(self._texts),
            cut=cut,
        )

    def _match(self, alike: pd.DataFrame, events: pd.DataFrame) -> tuple[int | None, Integers]:
        if events.empty or alike.empty:
            return None, np.full(len(alike), -1, np.int64)
        names = self._codes.of(alike["name"].astype(str).tolist())
        return find_device_events(names, alike["start_ns"].to_numpy(), events)


def _number(known: dict[object, int], values: list[object]) -> Integers:
    """Return a number for each value; numbers and texts that look alike are not the same."""
    usable = [value if isinstance(value, (int, str)) else repr(value) for value in values]
    return np.array([known.setdefault(value, len(known)) for value in usable], np.int64)
