"""Which kernels and launches a step waits for, and how much later the others could end.

The path is followed backwards through the replayed times, from what ends last to what it waited
for. The slack of a kernel is what is left of the step behind its end less the longest way from
there to the end of the step: the recurrence of ``replay`` from behind, and closed in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from npufix.advisor.predict.graph.replay import Times, replay_times
from npufix.advisor.predict.graph.segments import has_no_host
from npufix.reports.prediction import Critical

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from npufix.advisor.predict.graph.step_graph import StepGraph

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

_ROUNDS, _MOST_ROWS = 3, 1_000_000
"""The path of a round in the middle is neither that of a cold start nor of the last step's end."""
_SAME_NS = 0.01
PARTS = ("computing", "communication", "host", "loading", "between")
"""What the path runs through; ``between``: from one kernel to the next."""


@dataclass(frozen=True)
class CriticalPath:
    """The rows of a ``StepGraph``, times over all of its steps."""

    label: Integers
    """Index of ``Profile.kernels``."""
    device_ns: Floats
    """Of each kernel, its duration where it lies on the path, else 0."""
    host_ns: Floats
    """What the host takes for its launch, where that lies on the path."""
    slack_ns: Floats
    """How much later it could end, and the step would not."""
    steps: int
    parts: dict[str, int]
    """Nanoseconds per step by ``PARTS``."""

    def of(self, rows: Integers) -> Critical | None:
        """Return what is said of some rows, ``None`` for none."""
        if not len(rows):
            return None
        device, host = (float(all_[rows].sum()) for all_ in (self.device_ns, self.host_ns))
        slack = round(float(self.slack_ns[rows].min()))
        return Critical(round(device / self.steps), round(host / self.steps), slack)

    def lookup(self, index: pd.Index[int]) -> Callable[[Integers], Critical | None]:
        """Return ``of`` for positions in an index of ``Profile.kernels``."""
        places = np.full(len(index), -1, np.int64)
        places[index.get_indexer(pd.Index(self.label))] = np.arange(len(self.label))

        def critical(positions: Integers) -> Critical | None:
            rows = places[positions]
            return self.of(rows[rows >= 0])

        return critical


def critical_path(graph: StepGraph) -> CriticalPath:
    """Return the critical path of a graph with at least one row."""
    count = len(graph.label)
    rounds = _ROUNDS if graph.repeats and _ROUNDS * count <= _MOST_ROWS else 1
    whole = _repeat(graph, rounds) if rounds > 1 else graph
    times = replay_times(whole)
    own = slice(count * (rounds // 2), count * (rounds // 2 + 1))
    path = _follow(whole, times)
    device = np.where(path.kernels, whole.duration_ns, 0.0)[own]
    host = np.where(path.launches, whole.delta_ns, 0.0)[own]
    slack = (times.end_ns - times.ended - _behind(whole))[own]
    communicates = graph.communication
    waits = {"host": 0.0, "loading": 0.0}
    for number, (what, cost) in path.waits.items():
        if own.start <= whole.host_waits[number].before < own.stop:
            waits[what] += cost
    sums = {
        "computing": float(device[~communicates].sum()),
        "communication": float(device[communicates].sum()),
        "host": float(host.sum()) + waits["host"] + path.rest_ns * (rounds == 1),
        "loading": waits["loading"],
        "between": float(path.between_ns[own].sum()),
    }
    return CriticalPath(
        graph.label, device, host, np.maximum(slack, 0.0), graph.steps,
        {name: round(sums[name] / graph.steps) for name in PARTS},
    )  # fmt: skip


def _repeat(graph: StepGraph, rounds: int) -> StepGraph:
    """Return some rounds over a graph as one."""
    count = len(graph.label)
    shifts = np.repeat(np.arange(rounds) * count, count)
    waits_for = np.tile(graph.waits_for, rounds)
    delta = np.tile(graph.delta_ns, rounds)
    batches = sum(wait.period_ns for wait in graph.host_waits if wait.stream < 0)
    waits = []
    for at in range(rounds):
        own = [
            replace(
                wait,
                before=wait.before + at * count,
                behind_ns=wait.behind_ns + at * batches * (wait.stream < 0),
            )
            for wait in graph.host_waits
        ]
        # The rest of one round comes before whatever the next one begins with.
        if at and own and graph.host_waits[0].before == 0:
            own[0] = replace(own[0], delta_ns=own[0].delta_ns + graph.rest_ns)
        elif at:
            delta[at * count] += graph.rest_ns
        waits += own
    return replace(
        graph,
        label=np.tile(graph.label, rounds),
        stream=np.tile(graph.stream, rounds),
        duration_ns=np.tile(graph.duration_ns, rounds),
        latency_ns=np.tile(graph.latency_ns, rounds),
        gap_ns=np.tile(graph.gap_ns, rounds),
        behind_ns=np.tile(graph.behind_ns, rounds),
        communication=np.tile(graph.communication, rounds),
        backward=np.tile(graph.backward, rounds),
        delta_ns=delta,
        waits_for=np.where(waits_for >= 0, waits_for + shifts, -1),
        host_waits=tuple(waits),
    )


class _Path(NamedTuple):
    kernels: NDArray[np.bool_]
    launches: NDArray[np.bool_]
    between_ns: Floats
    """Before each kernel on the path."""
    waits: dict[int, tuple[str, float]]
    """Numbers of the waits of the host that lie on it, and what they add to which part."""
    rest_ns: float


def _follow(graph: StepGraph, times: Times) -> _Path:
    """Walk back from the end; nodes are kernels, then launches, then waits of the host."""
    count = len(graph.label)
    rows = np.arange(count)
    before = row_before(graph.stream)
    starts = times.ended - graph.duration_ns
    waited = graph.waits_for
    by_stream = (before >= 0) & (times.ended[before] + graph.gap_ns >= starts - _SAME_NS)
    by_event = (waited >= 0) & (times.ended[waited] + graph.behind_ns >= starts - _SAME_NS)
    sources = np.where(by_event, waited, np.where(by_stream, before, count + rows))
    between = np.where(
        by_event, graph.behind_ns, np.where(by_stream, graph.gap_ns, graph.latency_ns)
    )
    chain = count + rows - 1
    last_wait: dict[int, int] = {}
    of_waits, costs = _wait_sources(graph, times, last_wait)
    for row, number in last_wait.items():
        if row < count:
            chain[row] = 2 * count + number
    if count:
        chain[0] = chain[0] if 0 in last_wait else -1
    full = np.zeros(count, np.bool_)
    if graph.depth:
        full[graph.depth :] = (
            times.launched[graph.depth :] <= times.ended[: -graph.depth] + _SAME_NS
        )
    launches = np.where(full, rows - graph.depth, chain)
    nodes = np.concatenate([sources, launches, np.array(of_waits, np.int64)])
    host_end = (2 * count + last_wait[count]) if count in last_wait else 2 * count - 1
    host_ends = times.host_end_ns >= times.end_ns - _SAME_NS
    at = host_end if host_ends else int(times.ended.argmax())
    seen = []
    while at >= 0:
        seen.append(at)
        at = nodes.item(at)
    on = np.zeros(2 * count + len(of_waits), np.bool_)
    on[seen] = True
    waits = {number: costs[number] for number in np.flatnonzero(on[2 * count :]).tolist()}
    return _Path(
        on[:count], on[count : 2 * count] & ~full, np.where(on[:count], between, 0.0),
        waits, graph.rest_ns if host_ends else 0.0,
    )  # fmt: skip


def _wait_sources(
    graph: StepGraph, times: Times, last: dict[int, int]
) -> tuple[list[int], list[tuple[str, float]]]:
    """Return the node before each wait of the host, and what it takes from there.

    ``last`` gets the number of the last wait before each row.
    """
    count = len(graph.label)
    of_stream = [np.flatnonzero(graph.stream == stream) for stream in range(graph.streams)]
    nodes, costs = [], []
    loaded, came = -1, 0.0
    for number, wait in enumerate(graph.host_waits):
        earlier = last.get(wait.before, -1)
        chain = 2 * count + earlier if earlier >= 0 else count + wait.before - 1
        node = chain if wait.before or earlier >= 0 else -1
        moment = times.waited[number]
        cost = "host", wait.delta_ns + wait.own_ns
        if wait.stream >= 0:
            rows = of_stream[wait.stream]
            at = int(np.searchsorted(rows, wait.before)) - 1
            if at >= 0 and times.ended[rows[at]] + wait.behind_ns >= moment - _SAME_NS:
                node, cost = int(rows[at]), ("host", wait.behind_ns)
        elif wait.behind_ns >= moment - _SAME_NS:
            node, cost = 2 * count + loaded if loaded >= 0 else -1, ("loading", moment - came)
        if wait.stream < 0:
            loaded, came = number, moment
        last[wait.before] = number
        nodes.append(node)
        costs.append(cost)
    return nodes, costs


def row_before(stream: Integers) -> Integers:
    """Return the row before each one on its stream, -1 for the first."""
    order = np.argsort(stream, kind="stable")
    found = np.full(len(stream), -1, np.int64)
    same = np.flatnonzero(stream[order][1:] == stream[order][:-1])
    found[order[same + 1]] = order[same]
    return found


def _behind(graph: StepGraph) -> Floats:
    """Return the longest way from the end of each kernel to the end of everything."""
    if has_no_host(graph):
        return graph.segments.behind()
    count = len(graph.label)
    found, launched = np.zeros(count), np.zeros(count)
    least = np.zeros(count)
    """What waits for a kernel elsewhere than on its stream."""
    streams = np.zeros(graph.streams)
    own = [np.flatnonzero(graph.stream == stream) for stream in range(graph.streams)]
    host = graph.rest_ns
    costs, starts = graph.duration_ns + graph.gap_ns, graph.latency_ns + graph.duration_ns
    for stretch in reversed(graph.stretches):
        begin, end = stretch[:2]
        rows = slice(begin, end)
        if graph.depth and begin + graph.depth < count:
            room = launched[begin + graph.depth : end + graph.depth]
            least[begin : begin + len(room)] = np.maximum(least[begin : begin + len(room)], room)
        for run in reversed(stretch.runs):
            mine = begin + run.rows
            sums = costs[mine].cumsum()
            ways = least[mine] + sums
            ways[-1] = max(ways[-1], streams[run.stream] + sums[-1])
            found[mine] = np.maximum.accumulate(ways[::-1])[::-1] - sums
            streams[run.stream] = found[mine[0]] + sums[0]
            if len(run.waiting):
                waiting = mine[run.waiting]
                way = graph.behind_ns[waiting] + graph.duration_ns[waiting] + found[waiting]
                np.maximum.at(least, graph.awaited[run.sources], way)
        if end > begin:
            sums = graph.delta_ns[rows].cumsum()
            ways = starts[rows] + found[rows] + sums
            ways[-1] = max(ways[-1], host + sums[-1])
            launched[rows] = np.maximum.accumulate(ways[::-1])[::-1] - sums
            host = launched[begin] + sums[0]
        for number in reversed(stretch.waits):
            wait = graph.host_waits[number]
            if wait.stream >= 0:
                at = int(np.searchsorted(own[wait.stream], wait.before)) - 1
                if at >= 0:
                    row = own[wait.stream][at]
                    least[row] = max(least[row], wait.behind_ns + host)
            host += wait.delta_ns + wait.own_ns
    return found
