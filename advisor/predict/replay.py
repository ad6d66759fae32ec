"""Runs a graph again, in many variants at once.

A launch comes some time after the one before it, and a kernel starts at the latest of a few ends:
a recurrence of sums and maxima. In a stretch without a wait of the host or for another stream its
solution is closed: with P the running sum of what a stream does, the n-th kernel ends at

    P[n] + max(stream free at first, max over i <= n of ready[i] + duration[i] - P[i])

so a stretch is a few passes over arrays, one column a variant, however many kernels it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from npufix.advisor.predict.step_graph import HostWait, StepGraph

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_LONGEST = 512
"""Rows of a stretch, which bounds the memory."""
_NEVER = -1e18


@dataclass(frozen=True, slots=True)
class Edit:
    """What one variant changes of a graph; rows may come in any order."""

    gone: Integers
    """Rows that no longer run; the host may still launch them (``delta_ns``)."""
    rows: Integers
    """Rows with another duration."""
    durations_ns: Floats
    delta_rows: Integers
    deltas_ns: Floats
    """New ``delta_ns`` of ``delta_rows``; the row behind the last one is ``rest_ns``."""
    waits_gone: frozenset[int] = frozenset()
    """Numbers of ``host_waits`` that no longer wait."""
    waits_sooner: Mapping[int, float] = field(default_factory=dict)
    """How much sooner the host comes to some of ``host_waits``, by their number; what is more than
    their ``delta_ns`` the call itself takes less."""
    scales: bool = False
    """Whether what takes the place of its rows changes alike: on a rank that is throttled a new
    kernel is as slow as the others."""
    is_divided: bool = True
    """Whether what the host needs less is added to what it needs less for other such edits; else
    the larger one counts."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        changed = len(self.gone) or len(self.rows) or len(self.delta_rows)
        return not (changed or self.waits_gone or self.waits_sooner)


_ROWS, _TIMES = np.zeros(0, np.int64), np.zeros(0)
NO_EDIT = Edit(_ROWS, _ROWS, _TIMES, _ROWS, _TIMES)


def replay(graph: StepGraph, edits: list[Edit]) -> tuple[Floats, Floats]:
    """Return the length of a step in each variant as recorded, and when it goes on so, ns.

    Where steps follow each other, the second round over the graph says how they go on: the first
    one ends with the host as far ahead of the device as it gets.
    """
    run = _Replay(graph, edits)
    first = run.round()
    again = run.round() - first if graph.repeats else first - graph.lead_ns
    return (first - graph.lead_ns) / graph.steps, again / graph.steps


@dataclass(frozen=True, slots=True)
class Times:
    """When everything came about in one replay, nanoseconds since its beginning."""

    launched: Floats
    ended: Floats
    """By row."""
    waited: Floats
    """When the host went on from each of ``host_waits``."""
    host_end_ns: float
    end_ns: float


def replay_times(graph: StepGraph) -> Times:
    """Run one round of a graph without a change, and return when everything came about."""
    count = len(graph.label)
    seen = Times(np.zeros(count), np.zeros(count), np.zeros(len(graph.host_waits)), 0.0, 0.0)
    run = _Replay(graph, [NO_EDIT], seen)
    end = float(run.round()[0])
    return replace(seen, host_end_ns=run.host_ns, end_ns=end)


def _less(taken_ns: float, shorter_ns: Floats) -> Floats:
    """Return what a call takes less, but not below nothing; what was below it before stays."""
    return taken_ns - np.minimum(shorter_ns, max(0.0, taken_ns))


class _Replay:
    def __init__(self, graph: StepGraph, edits: list[Edit], seen: Times | None = None) -> None:
        self._graph = graph
        self._seen = seen
        """What gets the times of the first variant."""
        count = len(edits)
        self._host = np.zeros(count)
        self._free = np.repeat(graph.busy_ns[:, None], count, axis=1)
        self._ends: dict[int, Floats] = {}
        self._wanted = frozenset(graph.waits_for[graph.waits_for >= 0].tolist())
        self._recent = np.full((graph.depth, count), _NEVER)
        loads = [wait.period_ns for wait in graph.host_waits if wait.stream < 0]
        self._batches_ns = sum(loads)
        """What the processes that load need for the batches of a round."""
        self._rounds = 0
        self._gone = _Sparse([(e.gone, np.ones(len(e.gone))) for e in edits])
        self._durations = _Sparse([(e.rows, e.durations_ns) for e in edits])
        self._deltas = _Sparse([(e.delta_rows, e.deltas_ns) for e in edits])
        waits = range(len(graph.host_waits))
        self._waits = np.array([[n not in e.waits_gone for e in edits] for n in waits], np.bool_)
        self._sooner = {
            n: np.array([e.waits_sooner.get(n, 0.0) for e in edits])
            for n in {n for e in edits for n in e.waits_sooner}
        }
        self._stretches = stretches(graph)

    @property
    def host_ns(self) -> float:
        """When the host of the first variant is done."""
        return float(self._host[0])

    def round(self) -> Floats:
        """Run all steps once more; return when they ended."""
        for begin, end, waits in self._stretches:
            for number in waits:
                self._wait(number, self._graph.host_waits[number])
            if end > begin:
                self._stretch(begin, end)
        count = len(self._graph.label)
        rest = np.full((1, len(self._host)), self._graph.rest_ns)
        self._host = self._host + self._deltas.put(rest, count, count + 1)[0]
        self._rounds += 1
        ended: Floats = np.maximum(self._host, self._free.max(axis=0, initial=_NEVER))
        return ended

    def _wait(self, number: int, wait: HostWait) -> None:
        sooner = self._sooner.get(number, 0.0)
        arrived = self._host + np.maximum(0.0, wait.delta_ns - sooner)
        shorter = np.maximum(0.0, sooner - wait.delta_ns)
        blocks = self._waits[number]
        if wait.stream >= 0:
            until = self._free[wait.stream] + _less(wait.behind_ns, shorter)
        else:
            # They do not wait for the steps: a batch comes when it comes.
            until = np.full_like(arrived, self._rounds * self._batches_ns + wait.behind_ns)
        own = _less(wait.own_ns, shorter)
        self._host = np.where(blocks, np.maximum(arrived + own, until), arrived)
        if self._seen is not None:
            self._seen.waited[number] = self._host[0]

    def _stretch(self, begin: int, end: int) -> None:
        graph, count = self._graph, len(self._host)
        rows = slice(begin, end)
        shape = (end - begin, count)
        delta = self._deltas.put(np.broadcast_to(graph.delta_ns[rows, None], shape), begin, end)
        launched = np.cumsum(delta, axis=0)
        if graph.depth:
            # The host goes on when there is room again: when the kernel so far before has ended.
            room = np.maximum.accumulate(self._recent[: end - begin] - launched, axis=0)
            launched = launched + np.maximum(room, self._host)
        else:
            launched = launched + self._host
        self._host = launched[-1].copy()
        ready = launched + graph.latency_ns[rows, None]
        until = self._ends.get(int(graph.waits_for[begin]))
        if until is not None:
            until = until + graph.behind_ns[begin]
            ready[0] = np.maximum(ready[0], until)
        taken = self._durations.put(
            np.broadcast_to(graph.duration_ns[rows, None], shape), begin, end
        )
        gaps = np.broadcast_to(graph.gap_ns[rows, None], shape)
        if (gone := self._gone.at(begin, end)) is not None:
            at = (gone[0] - begin, gone[1])
            taken, gaps = np.array(taken), np.array(gaps)
            taken[at], gaps[at], ready[at] = 0.0, 0.0, _NEVER
            if until is not None:  # what comes behind a kernel that goes waits as it did
                ready[0] = np.maximum(ready[0], until)
        ends = self._run(graph.stream[rows], ready, taken, gaps)
        if self._seen is not None:
            self._seen.launched[rows], self._seen.ended[rows] = launched[:, 0], ends[:, 0]
        for row in range(begin, end) if self._wanted else ():
            if row in self._wanted:
                self._ends[row] = ends[row - begin].copy()
        if graph.depth:
            self._recent = np.concatenate([self._recent, ends])[-graph.depth :]

    def _run(self, streams: Integers, ready: Floats, taken: Floats, gaps: Floats) -> Floats:
        """Return when each kernel ends; ``ready`` does not know of the kernels before."""
        ends = np.empty_like(ready)
        for stream in np.unique(streams).tolist():
            own = np.flatnonzero(streams == stream)
            chosen = slice(None) if len(own) == len(streams) else own
            sums = np.cumsum(taken[chosen] + gaps[chosen], axis=0)
            latest = np.maximum.accumulate(ready[chosen] + taken[chosen] - sums, axis=0)
            ends[chosen] = sums + np.maximum(latest, self._free[stream])
            self._free[stream] = ends[own[-1]]
        return ends


def stretches(graph: StepGraph) -> list[tuple[int, int, list[int]]]:
    """Return begin and end of each stretch, and the waits of the host before it."""
    count = len(graph.label)
    waits: dict[int, list[int]] = {}
    for number, wait in enumerate(graph.host_waits):
        waits.setdefault(wait.before, []).append(number)
    cuts = {0, count, *waits, *np.flatnonzero(graph.waits_for >= 0).tolist()}
    longest = min(_LONGEST, graph.depth or _LONGEST)
    borders = sorted(cuts)
    found = []
    for begin, end in zip(borders, [*borders[1:], count], strict=True):
        for first in range(begin, end, longest):
            own = waits.get(first, []) if first == begin else []
            found.append((first, min(first + longest, end), own))
        if begin == end and begin in waits:
            found.append((begin, end, waits[begin]))
    return found


class _Sparse:
    """Values of a few rows of each variant."""

    def __init__(self, parts: list[tuple[Integers, Floats]]) -> None:
        rows = np.concatenate([rows for rows, _ in parts]).astype(np.int64)
        variants = np.repeat(np.arange(len(parts)), [len(rows) for rows, _ in parts])
        values = np.concatenate([values for _, values in parts])
        order = np.argsort(rows, kind="stable")
        self._rows, self._variants, self._values = rows[order], variants[order], values[order]

    def at(self, begin: int, end: int) -> tuple[Integers, Integers, Floats] | None:
        """Return rows, variants and values from ``begin`` to ``end``."""
        first, last = np.searchsorted(self._rows, (begin, end))
        if first == last:
            return None
        own = slice(first, last)
        return self._rows[own], self._variants[own], self._values[own]

    def put(self, base: Floats, begin: int, end: int) -> Floats:
        """Return ``base`` with the values of these rows."""
        found = self.at(begin, end)
        if found is None:
            return base
        changed = np.array(base)
        changed[found[0] - begin, found[1]] = found[2]
        return changed
