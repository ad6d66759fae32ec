"""A rank that is not the slow one gains nothing by itself: its collectives wait for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace as with_fields
from tests.advisor.predict.job import LINK, Op, run
from tests.advisor.predict.test_what_if import Regime, finding, item, norm_us

from npufix.advisor.diagnose.foreseeing import foresee
from npufix.advisor.evidence.change import Change
from npufix.advisor.evidence.item import Item
from npufix.advisor.evidence.lines import gather_evidence
from npufix.advisor.predict import intervals
from npufix.advisor.predict.changes import edits
from npufix.advisor.predict.graph.replay import NO_EDIT, replay
from npufix.advisor.predict.other_ranks import OtherRanks, other_ranks
from npufix.advisor.predict.recorded import step_graph
from npufix.advisor.predict.what_if import Asked, predict
from npufix.profiling_parsers.signals import SCHEMAS, Signals
from npufix.reports.report import CAUSE, Fact, Saving
from npufix.reports.wording.prediction import alone_text
from npufix.reports.wording.report import headline
from npufix.rules.cluster_diagnostic import Cluster

if TYPE_CHECKING:
    from npufix.reports.prediction import Prediction

_LINK = "hcom_allReduce_"


def foreseen(waited_us: float, ahead_us: float) -> Prediction:
    """Return what fusing norms does on a rank that waits so long in each collective."""
    regime = Regime(2.0, link_us=400.0)
    job = regime.run()
    others = OtherRanks(*(pd.Series({_LINK: 1000.0 * us}) for us in (waited_us, ahead_us)))
    evidence = gather_evidence(job.profile(), {})
    found = predict(evidence, [item(job, "norm", norm_us(regime))], 0, others=others)
    assert found is not None
    assert found.alone[0].verdict == "gain"
    return found.alone[0]


def test_a_rank_that_waits_for_others_gains_nothing_alone() -> None:
    predicted = foreseen(300, 0)
    assert predicted.alone_ns == pytest.approx(0, abs=0.1 * predicted.saved_ns)
    said = alone_text(with_fields(finding("NPU101"), predicted=predicted))
    assert said.endswith("it waits for the other ranks")


def test_the_rank_that_others_wait_for_gains_as_much_as_they_wait() -> None:
    all_of_it, little = foreseen(0, 300), foreseen(0, 5)
    assert all_of_it.alone_ns == pytest.approx(all_of_it.saved_ns, rel=0.02)
    assert alone_text(with_fields(finding("NPU101"), predicted=all_of_it)) == ""
    assert little.alone_ns is not None
    assert 0 < little.alone_ns < 0.5 * little.saved_ns


def test_what_holds_up_one_collective_is_what_the_others_wait_for_there() -> None:
    # A pause of 3 ms before the first of four: on average the others wait 0.75 ms in each.
    layer = [Op("mm", 25, (("MatMulV3", 200.0),))] * 3
    layer += [Op("all_reduce", 30, ((_LINK, 100.0),), stream=LINK)]
    layer += [Op("add", 20, (("Add", 10.0),), after_link=True)]
    job = run([Op("collect", 3_000), *layer * 4, Op("aten::_local_scalar_dense", 20, waits=True)])
    count = len(layer) * 4
    sooner = dict.fromkeys(range(0, len(job.kernels), count), 3_000_000)
    pause = Change(frozenset(), keeps=(1, 0, 0), sooner_ns=sooner)
    others = OtherRanks(*(pd.Series({_LINK: ns}) for ns in (0.0, 750_000.0)))
    evidence = gather_evidence(job.profile(), {})
    caused = with_fields(
        finding("NPU602"),
        saving=Saving(0, 400_000, ""),
        ranks=[0],
        evidence=[Fact(CAUSE, "NPU409 pause")],
    )
    late = Item(finding=caused, of_job=True, is_idle=True)
    told = [Item(finding=finding("NPU409"), change=pause), late]
    found = predict(evidence, told, 0, others=replace(others, rank=0))
    assert found is not None
    assert found.alone[0].alone_ns == pytest.approx(found.alone[0].saved_ns, rel=0.2)
    assert found.alone[1].saved_ns == pytest.approx(found.alone[0].saved_ns, rel=0.02)
    without = [told[0], replace(late, finding=with_fields(caused, evidence=[]))]
    found = predict(evidence, without, 0, others=replace(others, rank=0))
    assert found is not None
    assert found.alone[1].saved_ns <= 400_000


def test_who_waits_is_in_the_small_files_of_the_ranks() -> None:
    rows = pd.DataFrame(
        {"rank": [0, 1, 2], "group": "g", "count": 2, "wait_ns": [600, 100, 40], "step": 1}
    )
    own = pd.DataFrame([dict.fromkeys(SCHEMAS["collectives"], 0)]).assign(
        name="one", group="g", wait_ns=300
    )
    empty = pd.DataFrame()
    cluster = Cluster(empty, empty, empty, rows, empty, empty, empty, {})
    found = other_ranks(Signals(collectives=own), cluster, 0)
    assert found is not None
    assert (found.waited["one"], found.ahead["one"]) == (300, 20)
    assert other_ranks(Signals(collectives=own), cluster, None) is None


@pytest.mark.parametrize(("rank", "is_idle"), [(0, False), (1, False), (0, True)])
def test_what_a_job_gains_is_replayed_on_the_late_rank_and_on_one_that_waits(
    rank: int,
    is_idle: bool,  # noqa: FBT001 - a case
) -> None:
    link = Op("all_reduce", 30, ((_LINK, 100.0),), stream=LINK)
    layer = [
        Op("mm", 25, (("MatMulV3", 200.0),)),
        link,
        Op("add", 20, (("Add", 9.0),), after_link=True),
    ]
    job = (
        Regime(0.1).run()
        if is_idle
        else run([*layer * 8, Op("aten::_local_scalar_dense", 20, waits=True)])
    )
    saving = Saving(400_000, 600_000, "")
    late = with_fields(finding("NPU602" if is_idle else "NPU601"), saving=saving, ranks=[0])
    waits = pd.Series({_LINK: 0.0 if rank == 0 else 80_000.0})
    others = OtherRanks(waits, pd.Series({_LINK: 0.0}), rank=rank)
    told = Item(finding=late, of_job=True, is_idle=is_idle)
    evidence = gather_evidence(job.profile(), {})
    found = predict(evidence, [told], 0, others=others)
    assert found is not None
    assert found.alone[0].verdict == "gain"
    assert found.alone[0].saved_ns == pytest.approx(500_000, rel=0.1)
    assert found.alone[0].alone_ns is None
    assert found.alone[0].limit != "loading", "it waits for the next rank"
    assert (found.forecast.together is None) == (rank != 0), "of others, where they are late"


def test_what_a_late_host_becomes_is_less_sure_than_a_recorded_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # How quick the hosts of other ranks are says no more than about how quick this one becomes.
    evidence = gather_evidence(Regime(0.1).run().profile(), {})
    saving = Saving(600_000, 600_000, "")
    late = with_fields(finding("NPU602"), saving=saving, ranks=[0])
    told = Item(finding=late, of_job=True, is_idle=True)
    no_wait = pd.Series({_LINK: 0.0})
    others = OtherRanks(no_wait, no_wait, rank=0)
    found = predict(evidence, [told], 0, others=others)
    monkeypatch.setattr(intervals, "_OFF_OF_LATE_HOST", 0.0)
    narrow = predict(evidence, [told], 0, others=others)
    assert found is not None
    assert narrow is not None
    wide, recorded = (each.alone[0] for each in (found, narrow))
    assert wide.saved_ns == recorded.saved_ns == pytest.approx(600_000, rel=0.1)
    above, usual = (one.step_high_ns - one.step_ns for one in (wide, recorded))
    assert above == pytest.approx(np.hypot(usual, 0.15 * wide.saved_ns), rel=0.01)


def test_what_a_slow_link_costs_goes_from_the_collectives() -> None:
    job = Regime(0.2, link_us=400.0).run()
    slow = with_fields(finding("NPU604"), saving=Saving(0, 800_000, ""), ranks=[1])
    told = Item(finding=slow, of_job=True, is_communication=True)
    others = OtherRanks(pd.Series({_LINK: 0.0}), pd.Series({_LINK: 0.0}), rank=0)
    found = predict(gather_evidence(job.profile(), {}), [told], 0, others=others)
    assert found is not None
    assert found.alone[0].saved_ns == pytest.approx(800_000, rel=0.1)
    assert found.alone[0].step_high_ns > found.forecast.now_ns - 100_000, "at most"
    hidden = replace(told, lost_ns=1_200_000)
    whole = predict(gather_evidence(job.profile(), {}), [hidden], 0, others=others)
    assert whole is not None
    assert 800_000 < whole.alone[0].saved_ns < 1_200_000


def test_a_wait_for_another_stage_is_shorter_where_that_changes_alike() -> None:
    regime = Regime(2.0, link_us=400.0)
    job = regime.run()
    evidence = gather_evidence(job.profile(), {})
    waits = pd.Series({_LINK: 300_000.0}), pd.Series({_LINK: 0.0})
    kernels = evidence.kernels
    keys = zip(kernels["type"].astype(str), kernels["input_shapes"].astype(str), strict=True)
    alike = dict.fromkeys(keys, 1.0)
    norm = item(job, "norm", norm_us(regime))
    alone, same, other = (
        predict(evidence, [norm], 0, others=OtherRanks(*waits, 1.0, 0, stages, kinds))
        for stages, kinds in (
            (frozenset[str](), {}),
            (frozenset({_LINK}), alike),
            (frozenset({_LINK}), dict.fromkeys(alike, 0.0)),
        )
    )
    assert alone is not None
    assert same is not None
    assert other is not None
    assert same.alone[0].saved_ns > 1.05 * alone.alone[0].saved_ns
    assert other.alone[0].saved_ns == alone.alone[0].saved_ns


def test_a_copy_that_runs_beside_no_longer_holds_up_a_kernel() -> None:
    graph = step_graph(gather_evidence(Regime(2.0).run().profile(), {}), 0)
    assert graph is not None
    row = len(graph.label) // 2
    gap = graph.gap_ns.copy()
    gap[row] += 500_000
    held = replace(graph, gap_ns=gap)
    freed = {int(graph.label[row]): 500_000}
    none, likely, _ = edits(held, Change(frozenset(), keeps=(1.0, 0.0, 0.0), freed_ns=freed))
    assert none.is_empty
    now, beside = replay(held, [NO_EDIT, likely])[0].tolist()
    assert 0 < now - beside <= 500_000 / graph.steps


def test_collectives_that_are_joined_are_launched_less_often() -> None:
    job = Regime(0.02, link_us=5.0).run()  # the host limits it
    told = Item(
        finding=with_fields(finding("NPU609"), saving=Saving(0, 10_000, ""), ranks=[0, 1]),
        of_job=True,
        is_communication=True,
    )
    others = OtherRanks(pd.Series({_LINK: 0.0}), pd.Series({_LINK: 0.0}), rank=0)
    shorter, fewer = (
        predict(gather_evidence(job.profile(), {}), [each], 0, others=others)
        for each in (told, replace(told, goes=0.75))
    )
    assert shorter is not None
    assert fewer is not None
    assert shorter.alone[0].verdict == "none"
    assert fewer.alone[0].verdict == "gain"
    assert fewer.alone[0].step_high_ns >= fewer.forecast.now_ns, "none of it is certain"


def test_of_two_findings_about_the_same_collectives_that_of_the_rank_counts() -> None:
    job = Regime(0.2, link_us=400.0).run()
    labels = frozenset(at for at, row in enumerate(job.profile().kernels["communication"]) if row)
    saving = Saving(0, 800_000, "")
    of_job = Item(
        finding=with_fields(finding("NPU609"), saving=saving, ranks=[0, 1]),
        of_job=True,
        is_communication=True,
    )
    own = Item(finding=finding("NPU503"), change=Change(labels, keeps=(1.0, 0.1, 0.1)))
    others = OtherRanks(pd.Series({_LINK: 0.0}), pd.Series({_LINK: 0.0}), rank=0)
    asked = Asked(("NPU609", "NPU503"))
    found = predict(gather_evidence(job.profile(), {}), [of_job, own], 0, asked, others)
    assert found is not None
    question = found.forecast.question
    assert question is not None
    assert question.answer is not None
    assert question.findings == [1, 2]
    assert question.answer.saved_ns == pytest.approx(found.alone[1].saved_ns, rel=0.01)
    assert found.alone[0].saved_ns < 0.9 * found.alone[1].saved_ns


@pytest.mark.parametrize(("keeps", "counts"), [(0.1, 1), (0.9, 0)])
def test_a_collective_takes_what_is_left_when_link_and_calls_are_mended(
    keeps: float, counts: int
) -> None:
    job = Regime(0.2, link_us=400.0).run()
    labels = frozenset(at for at, row in enumerate(job.profile().kernels["communication"]) if row)
    slow = with_fields(finding("NPU604"), saving=Saving(0, 800_000, ""), ranks=[0, 1])
    of_job = Item(finding=slow, of_job=True, is_communication=True)
    own = Item(finding=finding("NPU505"), change=Change(labels, keeps=(1.0, keeps, keeps)))
    others = OtherRanks(pd.Series({_LINK: 0.0}), pd.Series({_LINK: 0.0}), rank=0)
    asked = Asked(("NPU604", "NPU505"))
    found = predict(gather_evidence(job.profile(), {}), [of_job, own], 0, asked, others)
    assert found is not None
    assert found.forecast.question is not None
    assert found.forecast.question.answer is not None
    saved = [found.alone[at].saved_ns for at in range(2)]
    assert saved[counts] > 1.2 * saved[1 - counts]
    assert found.forecast.question.answer.saved_ns == pytest.approx(saved[counts], rel=0.01)


def test_of_communication_as_much_goes_as_is_expected() -> None:
    layer = [Op("mm", 25, (("MatMulV3", 200.0),))] * 3
    layer += [Op("all_reduce", 30, ((_LINK, 400.0),), stream=LINK)]
    layer += [Op("add", 20, (("Add", 10.0),), after_link=True)]
    job = run([*layer * 4, Op("aten::_local_scalar_dense", 20, waits=True)])
    exposed = with_fields(finding("NPU611"), saving=Saving(0, 1_200_000, ""), ranks=[1])
    told = Item(
        finding=exposed, of_job=True, is_communication=True, is_symptom=True, likely_ns=800_000
    )
    others = OtherRanks(*(pd.Series({_LINK: 0.0}) for _ in range(2)), rank=0)
    found = predict(gather_evidence(job.profile(), {}), [told], 0, others=others)
    assert found is not None
    assert found.alone[0].saved_ns == pytest.approx(800_000, rel=0.02)
    assert found.alone[0].saved_low_ns == pytest.approx(400_000, rel=0.05)
    # What is said of links is no more than the replay allows.
    more = replace(told, finding=with_fields(exposed, saving=Saving(0, 90_000_000, "")))
    evidence = gather_evidence(job.profile(), {})
    (item_told,) = foresee([more], evidence, 0, None, None, others).items
    assert item_told.finding.saving is not None
    assert item_told.finding.predicted is not None
    assert item_told.finding.saving.high_ns == item_told.finding.predicted.saved_high_ns
    # What this rank knows of it counts: half of its own collectives.
    labels = frozenset(at for at, row in enumerate(job.profile().kernels["communication"]) if row)
    change = Change(labels, keeps=(1.0, 0.5, 0.0))
    own = Item(finding=finding("NPU501"), change=change, is_communication=True, is_symptom=True)
    asked = Asked(("NPU501", "NPU611"))
    evidence = gather_evidence(job.profile(), {})
    both = predict(evidence, [told, own], 0, asked, others)
    assert both is not None
    assert both.forecast.question is not None
    assert both.forecast.question.answer is not None
    assert both.forecast.question.answer.step_ns == both.alone[1].step_ns


def test_the_first_sentence_is_about_the_slowest_of_several_groups() -> None:
    group = with_fields(finding("NPU611"), what="groups of dp1 take 17 ms", share=0.3)
    other = with_fields(group, what="groups of world take 6 ms", share=0.1, ranks=[1])
    for ranked in ([group, other], [other, group]):
        said = headline(ranked, Saving(0, 1, ""), None, [], with_source=False)
        assert said.startswith(ranked[0].what.replace("groups", "Groups"))
    late = with_fields(other, rule="NPU601", what="computing takes 6 ms longer on rank 1")
    said = headline([group, late], Saving(0, 1, ""), None, [], with_source=False)
    assert said.startswith("Computing"), "what one rank costs all others"
    pause = with_fields(finding("NPU409"), summary="garbage is collected")
    caused = with_fields(late, evidence=[Fact(CAUSE, "NPU409 python-garbage-collection")])
    said = headline([caused, pause], Saving(0, 1, ""), None, [], with_source=False)
    assert ", because on rank 1 garbage is collected" in said
