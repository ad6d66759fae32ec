"""Replays a step whose launches are not known, segment by segment.

Nothing holds a kernel up there but the one before it on its stream, and that of another stream that
it waits for. Between two such borders a stream only adds up: with the sum of each segment, a
replay takes one step a segment, not one a kernel.

    rows       a b c d e F g       F waits for c, g for F, the others run on one stream
    segments   a b c | d e | F | g
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from npufix.advisor.predict.graph.replay import Edit
    from npufix.advisor.predict.graph.step_graph import StepGraph

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]


def has_no_host(graph: StepGraph, edits: Sequence[Edit] = ()) -> bool:
    """Whether a graph knows of no host, nor does one of its variants."""
    knows = graph.host_waits or graph.rest_ns or graph.delta_ns.any() or graph.latency_ns.any()
    return graph.coarse and not knows and not any(edit.deltas_ns.any() for edit in edits)


class Segments:
    """The kernels of a coarse graph."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        waits = graph.waits_for >= 0
        awaited = np.zeros(len(waits), np.bool_)
        awaited[graph.waits_for[waits]] = True
        order = np.argsort(graph.stream, kind="stable")
        begins = np.ones(len(order), np.bool_)
        stream = graph.stream[order]
        begins[1:] = (stream[1:] != stream[:-1]) | waits[order][1:] | awaited[order][:-1]
        starts = np.flatnonzero(begins)
        by_row = np.argsort(order[starts])
        rank = np.empty(len(starts), np.int64)
        rank[by_row] = np.arange(len(starts))
        self._segment = np.empty(len(order), np.int64)
        """Of each row; a segment comes behind those it waits for."""
        self._segment[order] = rank[begins.cumsum() - 1]
        self._order, self._starts = order, starts
        self._first = order[starts][by_row]
        """Row of each segment."""
        self._stream = graph.stream[self._first].tolist()
        own = waits[self._first]
        waits_for = graph.waits_for[self._first]
        self._waits = own
        self._source = np.where(own, self._segment[waits_for], -1).tolist()
        self._behind = np.where(own, graph.behind_ns[self._first], 0.0).tolist()

    @cached_property
    def _sums(self) -> Floats:
        return self._sum(self._graph.duration_ns + self._graph.gap_ns)

    def _sum(self, costs: Floats, rows: Integers | slice = slice(None)) -> Floats:
        sums: Floats = np.bincount(self._segment[rows], costs, len(self._first)).astype(np.float64)
        return sums

    def _costs(self, edit: Edit) -> tuple[Floats, Floats]:
        """Return what each segment takes, and how much of it is the gap before its first row."""
        graph = self._graph
        gaps = np.where(self._waits, graph.gap_ns[self._first], 0.0)
        rows = np.unique(np.concatenate([edit.gone, edit.rows, edit.gap_rows]))
        if not len(rows):
            return self._sums, gaps
        taken, before = graph.duration_ns[rows], graph.gap_ns[rows]
        now = taken + before
        taken[np.searchsorted(rows, edit.rows)] = edit.durations_ns
        before[np.searchsorted(rows, edit.gap_rows)] = edit.gaps_ns
        taken[gone := np.searchsorted(rows, edit.gone)] = 0.0
        before[gone] = 0.0
        own = self._segment[rows]
        first = (self._first[own] == rows) & self._waits[own]
        gaps[own[first]] = before[first]
        return self._sums + self._sum(taken + before - now, rows), gaps

    def replay(self, edits: Sequence[Edit]) -> Floats:
        """Return when the step ends in each variant, ns."""
        costs = [self._costs(edit) for edit in edits]
        sums, gaps = (np.stack(each, axis=1) for each in zip(*costs, strict=True))
        free = np.repeat(self._graph.busy_ns[:, None], len(edits), axis=1)
        self._run(sums - gaps, gaps, free)
        ended: Floats = free.max(axis=0, initial=0.0)
        return ended

    def _run(self, rests: Floats, gaps: Floats, free: Floats) -> Floats:
        """Return when each segment ends."""
        ends = np.empty_like(rests)
        places = zip(self._stream, self._source, self._behind, strict=True)
        for at, (stream, source, behind) in enumerate(places):
            now = free[stream]
            if source >= 0:  # what comes behind a kernel that goes waits as it did
                now += gaps[at]
                np.maximum(now, ends[source] + behind, out=now)
            now += rests[at]
            ends[at] = now
        return ends

    def ended(self) -> Floats:
        """Return when each kernel ends without a change, ns."""
        graph = self._graph
        gaps = np.where(self._waits, graph.gap_ns[self._first], 0.0)
        rests = (self._sums - gaps)[:, None]
        ends = self._run(rests, gaps[:, None], graph.busy_ns[:, None].copy())[:, 0]
        return ends[self._segment] - self._after(graph.duration_ns + graph.gap_ns)

    def behind(self) -> Floats:
        """Return the longest way from the end of each kernel to the end of everything."""
        graph = self._graph
        first, rests = self._first, self._sums.tolist()
        taken = (graph.behind_ns[first] + graph.duration_ns[first]).tolist()
        after = self._after(graph.duration_ns + graph.gap_ns)
        lead = after[first].tolist()
        streams, least = [0.0] * graph.streams, [0.0] * len(rests)
        for at in reversed(range(len(rests))):
            stream, source = self._stream[at], self._source[at]
            way = max(streams[stream], least[at])
            least[at] = way
            streams[stream] = way + rests[at]
            if source >= 0:
                least[source] = max(least[source], taken[at] + lead[at] + way)
        return np.array(least)[self._segment] + after

    def _after(self, costs: Floats) -> Floats:
        """Return what a segment takes from the end of each row on."""
        sums = costs[self._order].cumsum()
        lengths = np.diff(np.append(self._starts, len(sums)))
        last = np.repeat(sums[self._starts + lengths - 1], lengths)
        after = np.empty_like(sums)
        after[self._order] = last - sums
        return after
