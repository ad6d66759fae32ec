"""A step in stretches that the host and each stream run without a stop.

The host goes on until it waits for a stream; a stream until a kernel waits for one of another
stream that has not run yet. A collective that waits for a gradient does not cut the backward pass:

    rows         a b C d e F       C waits for b, F for e, all a to e of one stream
    runs         a b d e | C F     two, not four
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.advisor.predict.graph.step_graph import StepGraph

    Integers = NDArray[np.int64]

_LONGEST = 512
"""Rows of a stretch, which bounds the memory."""


class Run(NamedTuple):
    """Rows that follow each other on one stream, all of whose sources have run before."""

    stream: int
    rows: Integers
    """Counted from the first of the stretch."""
    waiting: Integers
    """Which of ``rows`` wait for one of another stream, and the numbers of those, which count all
    that others wait for."""
    sources: Integers
    awaited: Integers
    """Which of ``rows`` others wait for, and their numbers."""
    numbers: Integers


class Stretch(NamedTuple):
    """Rows without a wait of the host but before the first of them."""

    begin: int
    end: int
    waits: list[int]
    """Numbers of the waits of the host before it."""
    runs: list[Run]
    """In an order in which they may run."""


def stretches(graph: StepGraph) -> list[Stretch]:
    """Return the stretches of a graph in order; those without a row hold a wait of the host."""
    count = len(graph.label)
    waits: dict[int, list[int]] = {}
    for number, wait in enumerate(graph.host_waits):
        waits.setdefault(wait.before, []).append(number)
    longest = min(_LONGEST, graph.depth or _LONGEST)
    borders = sorted({0, count, *waits})
    runs = _Runs(graph)
    found = []
    for begin, end in zip(borders, [*borders[1:], count], strict=True):
        for first in range(begin, end, longest):
            last = min(first + longest, end)
            own = waits.get(first, []) if first == begin else []
            found.append(Stretch(first, last, own, runs.between(first, last)))
        if begin == end and begin in waits:
            found.append(Stretch(begin, end, waits[begin], []))
    return found


class _Runs:
    def __init__(self, graph: StepGraph) -> None:
        self._streams = graph.stream
        self._changes = np.cumsum(np.diff(graph.stream, prepend=-1) != 0)
        self._waiting = np.flatnonzero(graph.waits_for >= 0)
        self._waits_for = graph.waits_for[self._waiting]
        self._awaited = graph.awaited
        self._numbers = np.searchsorted(self._awaited, self._waits_for)

    def between(self, first: int, last: int) -> list[Run]:
        """Return the runs of some rows."""
        low, high = np.searchsorted(self._waiting, (first, last))
        waiting, numbers = self._waiting[low:high] - first, self._numbers[low:high]
        waits_for = self._waits_for[low:high] - first
        low, high = np.searchsorted(self._awaited, (first, last))
        awaited = self._awaited[low:high] - first
        own_numbers = np.arange(low, high)
        if self._changes[first] == self._changes[last - 1]:
            rows = np.arange(last - first)
            stream = int(self._streams[first])
            return [Run(stream, rows, waiting, numbers, awaited, own_numbers)]
        streams = self._streams[first:last]
        inner = waits_for >= 0
        parts = _in_turn(streams, waiting[inner], waits_for[inner])
        lengths = np.array([len(rows) for _, rows in parts])
        order = np.concatenate([rows for _, rows in parts])
        run, place = np.empty((2, len(order)), np.int64)
        run[order] = np.repeat(np.arange(len(parts)), lengths)
        place[order] = np.arange(len(order)) - np.repeat(lengths.cumsum() - lengths, lengths)
        waits = _split(run[waiting], len(parts), place[waiting], numbers)
        kept = _split(run[awaited], len(parts), place[awaited], own_numbers)
        return [Run(*part, *a, *b) for part, a, b in zip(parts, waits, kept, strict=True)]


def _split(run: Integers, runs: int, *values: Integers) -> list[tuple[Integers, ...]]:
    """Return the values of each run."""
    order = np.argsort(run, kind="stable")
    borders = np.searchsorted(run[order], np.arange(runs + 1)).tolist()
    values = tuple(each[order] for each in values)
    return [tuple(each[first:last] for each in values) for first, last in pairwise(borders)]


def _in_turn(
    streams: Integers, waiting: Integers, waits_for: Integers
) -> list[tuple[int, Integers]]:
    """Return rows by stream, each stream as far as it comes before another one has to go on."""
    own = {stream: np.flatnonzero(streams == stream) for stream in np.unique(streams).tolist()}
    stops: dict[int, list[tuple[int, int, int]]] = {stream: [] for stream in own}
    for row, source in zip(waiting[::-1].tolist(), waits_for[::-1].tolist(), strict=True):
        stops[int(streams[row])].append((row, int(streams[source]), source))
    done = dict.fromkeys(own, -1)
    """The row up to which each has run, with all before it."""
    found = []
    last = len(streams) - 1
    while any(row < last for row in done.values()):
        for stream, rows in own.items():
            left = stops[stream]
            while left and left[-1][2] <= done[left[-1][1]]:
                left.pop()
            until = left[-1][0] - 1 if left else last
            part = rows[np.searchsorted(rows, done[stream] + 1) : np.searchsorted(rows, until + 1)]
            if len(part):
                found.append((stream, part))
            done[stream] = until
    return found
