"""Runs a graph again, in many variants at once.

A launch comes some time after the one before it, and a kernel starts at the latest of a few ends:
a recurrence of sums and maxima. Where all that a stream waits for is known its solution is closed:
with P the running sum of what a stream does, the n-th kernel ends at

    P[n] + max(stream free at first, max over i <= n of ready[i] + duration[i] - P[i])

so a run (``stretches``) is a few passes over arrays, one column a variant, however many kernels it
has.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.predict.graph.segments import has_no_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from npufix.advisor.predict.graph.step_graph import HostWait, StepGraph
    from npufix.advisor.predict.graph.stretches import Run, Stretch

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_MOST_CELLS = 4_000_000
"""Changed rows of all variants that are replayed at once."""
_NEVER = -1e18
_ROWS, _TIMES = np.zeros(0, np.int64), np.zeros(0)


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
    gap_rows: Integers = field(default_factory=lambda: _ROWS)
    gaps_ns: Floats = field(default_factory=lambda: _TIMES)
    """New ``gap_ns`` of ``gap_rows``: a copy before a kernel no longer holds it up."""
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
        changed = len(self.gone) or len(self.rows) or len(self.delta_rows) or len(self.gap_rows)
        return not (changed or self.waits_gone or self.waits_sooner)


NO_EDIT = Edit(_ROWS, _ROWS, _TIMES, _ROWS, _TIMES)


def replay(graph: StepGraph, edits: list[Edit]) -> tuple[Floats, Floats]:
    """Return the length of a step in each variant as recorded, and when it goes on so, ns.

    Where steps follow each other, the second round over the graph says how they go on: the first
    one ends with the host as far ahead of the device as it gets.
    """
    rounds = [_replay_some(graph, own) for own in _portions(edits)]
    first, again = (np.concatenate(ones) for ones in zip(*rounds, strict=True))
    return first / graph.steps, again / graph.steps


def _replay_some(graph: StepGraph, edits: list[Edit]) -> tuple[Floats, Floats]:
    if has_no_host(graph, edits):
        ended = graph.segments.replay(edits) - graph.lead_ns
        return ended, ended
    run = _Replay(graph, edits)
    first = run.round()
    again = run.round() - first if graph.repeats else first - graph.lead_ns
    return first - graph.lead_ns, again


def _portions(edits: list[Edit]) -> list[list[Edit]]:
    """Return the variants in groups that change only so many rows, which bounds the memory."""
    found: list[list[Edit]] = [[]]
    cells = 0
    for edit in edits:
        own = len(edit.gone) + len(edit.rows) + len(edit.delta_rows) + len(edit.gap_rows)
        if found[-1] and cells + own > _MOST_CELLS:
            found.append([])
            cells = 0
        found[-1].append(edit)
        cells += own
    return found


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
    if has_no_host(graph):
        ended = graph.segments.ended()
        return Times(np.zeros(count), ended, np.zeros(0), 0.0, float(ended.max()))
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
        self._sources = np.full((len(graph.awaited), count), _NEVER)
        """When what others wait for has ended."""
        self._stretches = graph.stretches
        self._recent = np.full((graph.depth, count), _NEVER)
        loads = [wait.period_ns for wait in graph.host_waits if wait.stream < 0]
        self._batches_ns = sum(loads)
        """What the processes that load need for the batches of a round."""
        self._rounds = 0
        # The row behind the last one is a stretch of its own: what the host does at the end.
        rows = len(graph.label)
        borders = np.array([*((one.begin, one.end) for one in self._stretches), (rows, rows + 1)])
        self._gone = _Sparse([(e.gone, np.ones(len(e.gone))) for e in edits], borders)
        self._durations = _Sparse([(e.rows, e.durations_ns) for e in edits], borders)
        self._deltas = _Sparse([(e.delta_rows, e.deltas_ns) for e in edits], borders)
        self._gaps = _Sparse([(e.gap_rows, e.gaps_ns) for e in edits], borders)
        waits = range(len(graph.host_waits))
        self._waits = np.array([[n not in e.waits_gone for e in edits] for n in waits], np.bool_)
        self._sooner = {
            n: np.array([e.waits_sooner.get(n, 0.0) for e in edits])
            for n in {n for e in edits for n in e.waits_sooner}
        }

    @property
    def host_ns(self) -> float:
        """When the host of the first variant is done."""
        return float(self._host[0])

    def round(self) -> Floats:
        """Run all steps once more; return when they ended."""
        for at, stretch in enumerate(self._stretches):
            for number in stretch.waits:
                self._wait(number, self._graph.host_waits[number])
            if stretch.end > stretch.begin:
                self._stretch(at, stretch)
        rest = self._deltas.put(np.full((1, 1), self._graph.rest_ns), len(self._stretches))
        self._host = self._host + rest[0]
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

    def _stretch(self, at: int, stretch: Stretch) -> None:
        graph, (begin, end) = self._graph, stretch[:2]
        rows = slice(begin, end)
        # Until something differs between the variants, one column is all of them.
        launched = self._deltas.put(graph.delta_ns[rows, None], at).cumsum(axis=0)
        if graph.depth:
            # The host goes on when there is room again: when the kernel so far before has ended.
            room = np.maximum.accumulate(self._recent[: end - begin] - launched, axis=0)
            launched = launched + np.maximum(room, self._host)
        else:
            launched = launched + self._host
        self._host = launched[-1].copy()
        ready = launched + graph.latency_ns[rows, None]
        taken = self._durations.put(graph.duration_ns[rows, None], at)
        gaps = self._gaps.put(graph.gap_ns[rows, None], at)
        if (gone := self._gone.at(at)) is not None:
            cells = gone[:2]
            taken, gaps = (np.array(np.broadcast_to(one, ready.shape)) for one in (taken, gaps))
            taken[cells], gaps[cells], ready[cells] = 0.0, 0.0, _NEVER
        ends = self._run(stretch, ready, taken, taken + gaps)
        if self._seen is not None:
            self._seen.launched[rows], self._seen.ended[rows] = launched[:, 0], ends[:, 0]
        if graph.depth:
            self._recent = np.concatenate([self._recent, ends])[-graph.depth :]

    def _run(self, stretch: Stretch, ready: Floats, taken: Floats, costs: Floats) -> Floats:
        """Return when each kernel ends; ``ready`` does not know of the kernels before."""
        if len(stretch.runs) == 1:
            return self._run_stream(stretch.begin, stretch.runs[0], ready, taken, costs)
        ends = np.empty_like(ready)
        for run in stretch.runs:
            parts = (each[run.rows] for each in (ready, taken, costs))
            ends[run.rows] = self._run_stream(stretch.begin, run, *parts)
        return ends

    def _run_stream(
        self, begin: int, run: Run, ready: Floats, taken: Floats, costs: Floats
    ) -> Floats:
        if len(run.waiting):  # what comes behind a kernel that goes waits as it did
            behind = self._graph.behind_ns[begin + run.rows[run.waiting], None]
            until = self._sources[run.sources] + behind
            ready[run.waiting] = np.maximum(ready[run.waiting], until)
        sums = costs.cumsum(axis=0)
        latest = np.maximum.accumulate(ready + taken - sums, axis=0)
        ends: Floats = sums + np.maximum(latest, self._free[run.stream])
        self._free[run.stream] = ends[-1]
        self._sources[run.numbers] = ends[run.awaited]
        return ends


class _Sparse:
    """Values of a few rows of each variant, by stretch."""

    def __init__(self, parts: list[tuple[Integers, Floats]], borders: Integers) -> None:
        rows = np.concatenate([rows for rows, _ in parts]).astype(np.int64)
        variants = np.repeat(np.arange(len(parts)), [len(rows) for rows, _ in parts])
        values = np.concatenate([values for _, values in parts])
        order = np.argsort(rows, kind="stable")
        self._rows, self._variants, self._values = rows[order], variants[order], values[order]
        self._count = len(parts)
        self._begins = borders[:, 0].tolist()
        self._borders = np.searchsorted(self._rows, borders).tolist()

    def at(self, number: int) -> tuple[Integers, Integers, Floats] | None:
        """Return rows, counted from its first one, variants and values of a stretch."""
        first, last = self._borders[number]
        if first == last:
            return None
        own = slice(first, last)
        return self._rows[own] - self._begins[number], self._variants[own], self._values[own]

    def put(self, base: Floats, number: int) -> Floats:
        """Return ``base``, one column for all variants, with the values of these rows."""
        found = self.at(number)
        if found is None:
            return base
        changed = np.repeat(base, self._count, axis=1)
        changed[found[0], found[1]] = found[2]
        return changed
