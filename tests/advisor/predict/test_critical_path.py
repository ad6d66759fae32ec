"""The critical path is as long as the step, and slack is what a kernel can be late, to the ns."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.advisor.predict.test_what_if import REGIMES, Regime, foreseen, item, norm_us

from npufix.advisor.diagnose.pictures.timeline import timeline
from npufix.advisor.evidence.change import Change
from npufix.advisor.evidence.lines import gather_evidence
from npufix.advisor.predict.graph.critical_path import critical_path
from npufix.advisor.predict.graph.replay import NO_EDIT, Edit, replay
from npufix.advisor.predict.recorded import step_graph

if TYPE_CHECKING:
    from npufix.advisor.predict.graph.step_graph import StepGraph

WAITING = "waiting"
NAMES = [*REGIMES, WAITING]


def graph_of(name: str) -> StepGraph:
    """Return a graph of one of the regimes, the last one with waits in the step."""
    job = Regime(0.8).run(waits=True) if name == WAITING else REGIMES[name].run()
    graph = step_graph(gather_evidence(job.profile(), {}), 0)
    assert graph is not None
    return graph


@pytest.mark.parametrize("name", NAMES)
def test_the_path_is_as_long_as_the_step(name: str) -> None:
    graph = graph_of(name)
    path = critical_path(graph)
    now = replay(graph, [NO_EDIT])[1][0]
    assert sum(path.parts.values()) == pytest.approx(now, rel=1e-3)
    largest = max(path.parts, key=lambda part: path.parts[part])
    expected = {"compute": "computing", "queue": "computing", "waiting": "host"}
    assert largest == expected.get(name, name.split(maxsplit=1)[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_may_be_late_by_its_slack_and_not_by_more(name: str) -> None:
    graph = replace(graph_of(name), repeats=False)
    slack = critical_path(graph).slack_ns
    rows = np.arange(0, len(graph.label), 17)
    before = replay(graph, [NO_EDIT])[0][0]
    for late in (0.0, 600.0):
        after = replay(graph, [_longer(graph, row, slack[row] + late) for row in rows])[0]
        assert after - before == pytest.approx(np.full(len(rows), late / graph.steps), abs=0.1)


def _longer(graph: StepGraph, row: int, more_ns: float) -> Edit:
    rows = np.array([row])
    return replace(NO_EDIT, rows=rows, durations_ns=graph.duration_ns[rows] + more_ns)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_saves_more_than_what_of_it_lies_on_the_path(name: str) -> None:
    regime = Regime(0.8) if name == WAITING else REGIMES[name]
    job = regime.run(waits=name == WAITING)
    part = Change(job.labels("gate"), keeps=(0.6, 0.5, 0.4))
    found = foreseen(job, replace(item(job, "gate", 1.0), change=part))
    critical = found.alone[0].critical
    assert critical is not None
    assert found.alone[0].saved_high_ns <= critical.device_ns + 1
    if not critical.device_ns:
        assert found.alone[0].verdict == "none"
        assert critical.slack_ns > 0


def test_kernels_off_the_path_are_not_said_to_save() -> None:
    regime = REGIMES["loading"]
    job = regime.run()
    found = foreseen(job, item(job, "norm", norm_us(regime)))
    critical = found.alone[0].critical
    assert critical is not None
    assert (critical.total_ns, found.alone[0].saved_ns) == (0, 0)
    assert found.alone[0].verdict == "none"


def test_the_time_line_has_a_lane_of_what_the_step_waits_for() -> None:
    job = Regime(0.8).run(waits=True)
    evidence = gather_evidence(job.profile(), {})
    drawn = timeline(evidence, {}, {}, foreseen(job).path)
    assert drawn is not None
    number = next(at for at, lane in enumerate(drawn.lanes) if lane.kind == "critical")
    spans = [span for span in drawn.spans if span[0] == number]
    assert sum(span[2] for span in spans) == pytest.approx(drawn.length_ns, rel=1e-3)
    assert {"host", "MatMulV3"} <= {drawn.labels[span[3]] for span in spans}
    assert all(one[1] + one[2] <= other[1] for one, other in pairwise(spans))
