"""Any graph in any variant runs as it does where its rows are gone through one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.advisor.predict.graph.critical_path import critical_path
from npufix.advisor.predict.graph.replay import NO_EDIT, Edit, replay, replay_times
from npufix.advisor.predict.graph.step_graph import HostWait, StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIMES = st.integers(0, 9).map(float)


@st.composite
def graphs(draw: st.DrawFn) -> StepGraph:
    count, streams = draw(st.integers(1, 24)), draw(st.integers(1, 3))
    stream = [draw(st.integers(0, streams - 1)) for _ in range(count)]
    coarse = draw(st.booleans())

    def times(*, of_host: bool = False) -> NDArray[np.float64]:
        return np.array([0.0 if coarse and of_host else draw(TIMES) for _ in range(count)])

    sources = []
    for row in range(count):
        others = [source for source in range(row) if stream[source] != stream[row]]
        sources.append(draw(st.sampled_from([-1, -1, *others])))
    places = [] if coarse else sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    waits = [
        HostWait(
            at, draw(TIMES), draw(TIMES), draw(st.sampled_from(sorted(set(stream)))), draw(TIMES)
        )
        for at in places
    ]
    busy = np.zeros(streams)
    return StepGraph(
        label=np.arange(count), stream=np.array(stream), duration_ns=times(),
        delta_ns=times(of_host=True), own_ns=np.zeros(count), latency_ns=times(of_host=True),
        gap_ns=times(), waits_for=np.array(sources), behind_ns=times(), host_waits=tuple(waits),
        rest_ns=0.0, depth=0 if coarse else draw(st.sampled_from([0, 0, 2, 5])), steps=1,
        measured_ns=1.0, spread=0.0, alike=1.0, repeats=False, coarse=coarse, streams=streams,
        busy_ns=busy, lead_ns=0.0, communication=np.zeros(count, np.bool_),
        backward=np.zeros(count, np.bool_),
    )  # fmt: skip


@st.composite
def edits_of(draw: st.DrawFn, graph: StepGraph) -> Edit:
    def some() -> NDArray[np.int64]:
        count = len(graph.label)
        return np.array(sorted(draw(st.sets(st.integers(0, count - 1)))), np.int64)

    rows, gaps = some(), some()
    return replace(
        NO_EDIT,
        gone=some(),
        rows=rows,
        durations_ns=np.array([draw(TIMES) for _ in rows]),
        gap_rows=gaps,
        gaps_ns=np.array([draw(TIMES) for _ in gaps]),
    )


def run_row_by_row(graph: StepGraph, edit: Edit) -> tuple[list[float], float]:
    """Return when each kernel ends, and the step."""
    taken, gaps = graph.duration_ns.copy(), graph.gap_ns.copy()
    taken[edit.rows], gaps[edit.gap_rows] = edit.durations_ns, edit.gaps_ns
    taken[edit.gone] = gaps[edit.gone] = 0.0
    goes = set(edit.gone.tolist())
    host, ended, free = 0.0, [], [0.0] * graph.streams
    for row in range(len(graph.label) + 1):
        for wait in graph.host_waits:
            if wait.before == row:
                host = max(host + wait.delta_ns + wait.own_ns, free[wait.stream] + wait.behind_ns)
        if row == len(graph.label):
            break
        host += graph.delta_ns[row]
        if graph.depth and row >= graph.depth:
            host = max(host, ended[row - graph.depth])
        ready = -1.0 if row in goes else host + graph.latency_ns[row]
        if (source := int(graph.waits_for[row])) >= 0:
            ready = max(ready, ended[source] + graph.behind_ns[row])
        stream = int(graph.stream[row])
        free[stream] = max(free[stream] + gaps[row], ready) + taken[row]
        ended.append(free[stream])
    return ended, max(host, *free)


@given(st.data())
def test_every_variant_ends_as_row_by_row(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    edits = [NO_EDIT, *data.draw(st.lists(edits_of(graph), max_size=3))]
    expected = [run_row_by_row(graph, edit)[1] for edit in edits]
    assert replay(graph, edits)[0] == pytest.approx(expected)


@given(graphs())
def test_every_kernel_ends_as_row_by_row(graph: StepGraph) -> None:
    assert replay_times(graph).ended == pytest.approx(run_row_by_row(graph, NO_EDIT)[0])


@given(graphs(), st.data())
def test_slack_is_what_a_kernel_may_be_late(graph: StepGraph, data: st.DataObject) -> None:
    slack, end = critical_path(graph).slack_ns, run_row_by_row(graph, NO_EDIT)[1]
    row = data.draw(st.integers(0, len(slack) - 1))
    for late in (0.0, 3.0):
        longer = graph.duration_ns[row] + slack[row] + late
        edit = replace(NO_EDIT, rows=np.array([row]), durations_ns=np.array([longer]))
        assert run_row_by_row(graph, edit)[1] == pytest.approx(end + late)
