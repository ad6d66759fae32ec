"""All findings together: nothing saved twice, never more than the step."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.advisor.diagnose.causes import with_causes
from npufix.advisor.diagnose.savings import (
    _as_told,
    settle,
    total_saving,
    within_idle,
    without_explained,
)
from npufix.advisor.evidence.change import Change
from npufix.advisor.evidence.item import Item, rank_items, rank_replayed
from npufix.reports.prediction import Forecast, Prediction
from npufix.reports.report import Finding, Saving, StepSplit
from npufix.rules.diagnostic import Place

KERNELS = pd.DataFrame({"duration_ns": [1] * 10})
FINDING = Finding(
    rule="NPU999", name="x", summary="", path="", line=0, function="", code="", replacement="",
    safety="advice", conditions=[], problem="", fingerprint="", kernels=[], calls=0, device_ns=0,
    share=0.0, saving=None, kind="run",
)  # fmt: skip


def found(low: int, high: int, kernels: set[int] | None = None, *, is_idle: bool = False) -> Item:
    finding = msgspec.structs.replace(FINDING, saving=Saving(low, high, ""), device_ns=high)
    return Item(finding=finding, kernels=frozenset(kernels or ()), is_idle=is_idle)


def test_kernels_that_two_findings_free_count_once() -> None:
    total = total_saving(settle([found(10, 20, {1, 2}), found(6, 8, {2, 3})], None, KERNELS))
    assert (total.low_ns, total.high_ns) == (10 + 3, 20 + 4)


def test_waiting_is_removed_once_and_no_more_than_there_is() -> None:
    split = StepSplit(1, 100, 80, 5, 15)
    waits = [found(0, 40, is_idle=True), found(5, 12, is_idle=True)]
    assert total_saving(settle(waits, split, KERNELS)).high_ns == 15
    assert total_saving(settle(waits[1:], split, KERNELS)).low_ns == 5


def test_what_takes_most_comes_first_whatever_it_saves() -> None:
    unknown = Item(finding=msgspec.structs.replace(FINDING, device_ns=50))
    small, large = found(1, 2), found(0, 9)
    assert rank_items([small, large, unknown]) == [unknown, large, small]


def test_what_next_to_nothing_can_be_saved_of_counts_less() -> None:
    # Three products that read one tensor take 3.6 ms, of which 0.06 can go; reads cost 1.6 ms.
    hardly = replace(
        found(0, 60), finding=msgspec.structs.replace(found(0, 60).finding, device_ns=3560)
    )
    assert rank_items([hardly, found(1500, 1600)])[-1] is hardly
    assert rank_items([hardly, found(900, 1000)])[0] is hardly


def test_the_replay_says_what_a_finding_is_about() -> None:
    def replayed(item: Item, low: int, high: int, limit: str) -> Item:
        gain = Prediction(0, 0, 0, high, low, high, "gain", limit, 0)
        return replace(item, finding=msgspec.structs.replace(item.finding, predicted=gain))

    # Behind each read the device waits for 5, and launches are late by 18 for want of a lead.
    change = Change(frozenset(), keeps=(0, 0, 0))
    late = replace(found(0, 30, is_idle=True), is_symptom=True)
    pause = replace(late, change=Change(frozenset(), sooner_ns={1: 30}))
    late = replace(late, change=Change(frozenset(), hurries={1}))
    read = replace(found(5, 5, is_idle=True), change=change)
    ranked = rank_replayed([late, read], [late, replayed(read, 18, 18, "host")])
    assert [item.finding.device_ns for item in ranked] == [18, 30]
    assert rank_replayed([late, read], [late, replayed(read, 5, 5, "host")]) == [late, read]
    assert rank_replayed([pause, read], [pause, replayed(read, 18, 18, "host")])[0] is pause
    # While batches come late nothing else gains much, however long it takes.
    loads = replace(found(0, 14, is_idle=True), change=change)
    kernels = replace(found(20, 30, {1}), change=change)
    found_so = [replayed(kernels, 0, 8, "loading"), replayed(loads, 0, 14, "computing")]
    assert rank_replayed([kernels, loads], found_so) == [loads, kernels]
    found_so[0] = replayed(kernels, 20, 30, "computing")
    assert rank_replayed([kernels, loads], found_so) == [kernels, loads]


def test_a_pause_is_explained_by_no_collection_of_garbage_beside_it() -> None:
    # 25 ms in update(), and 14 ms of collections elsewhere in the step.
    pause = replace(found(0, 25, is_idle=True), is_symptom=True)
    collection = found(0, 14, is_idle=True)
    assert rank_items([pause, collection]) == [collection, pause]
    divided = [replace(each, is_divided=True) for each in (collection, pause)]
    assert rank_items(divided) == divided[::-1]


@pytest.mark.parametrize(
    ("exposed", "first"), [(90, "kernels"), (99, "kernels"), (101, "kernels"), (200, "exposed")]
)
def test_communication_as_much_as_usual_is_not_the_first_sentence(exposed: int, first: str) -> None:
    def unknown(share: int) -> Item:
        told = msgspec.structs.replace(FINDING, device_ns=share, share=share / 1000)
        return Item(finding=told)

    waits = replace(unknown(exposed), is_symptom=True, is_communication=True)
    kernels = unknown(70)
    ranked = rank_items([kernels, waits])
    assert (ranked[0] is kernels) == (first == "kernels")


def test_the_work_itself_comes_behind_what_is_beside_it() -> None:
    work = replace(found(0, 50), is_work=True)
    assert rank_items([work, found(0, 9)])[-1] is work


def test_what_no_table_shows_comes_behind_what_is_shown() -> None:
    small, work = (
        replace(one, finding=msgspec.structs.replace(one.finding, share=share))
        for one, share in ((found(0, 4), 0.0005), (replace(found(0, 60), is_work=True), 0.4))
    )
    assert rank_items([small, work]) == [work, small]


def test_what_a_job_loses_comes_first_and_of_it_what_is_certain() -> None:
    def of_job(item: Item, share: float) -> Item:
        return replace(
            item, of_job=True, finding=msgspec.structs.replace(item.finding, share=share)
        )

    sure, wide, tiny = of_job(found(5, 6), 0.02), of_job(found(0, 20), 0.1), of_job(found(9, 9), 0)
    own = found(0, 50)
    assert rank_items([own, tiny, wide, sure]) == [sure, wide, own, tiny]


def test_a_link_comes_before_the_group_that_waits_for_it() -> None:
    link, group = (replace(found(0, ns), of_job=True, is_communication=True) for ns in (80, 100))
    assert rank_items([link, group]) == [group, link]
    group = replace(group, is_symptom=True)
    assert rank_items([link, group]) == [link, group]
    slow, waits = (item.finding.saving for item in settle([link, group], None, KERNELS))
    assert slow is not None
    assert waits is not None
    assert (slow.high_ns, waits.high_ns) == (80, 20)
    assert rank_items([replace(link, finding=found(0, 20).finding), group])[0] is group


@pytest.mark.parametrize(("rank", "pause_ns", "first"), [(0, 60, 1), (2, 60, 0), (0, 40, 0)])
def test_what_the_last_rank_does_comes_before_who_waits_for_it(
    rank: int, pause_ns: int, first: int
) -> None:
    late = msgspec.structs.replace(FINDING, ranks=[0], device_ns=100)
    group = Item(finding=late, of_job=True, is_communication=True, is_symptom=True)
    pause = replace(found(0, pause_ns, is_idle=True), is_symptom=True)
    told = with_causes([group, pause], rank)
    assert [item.of_job for item in told] == [not first, bool(first)]
    assert [fact.name for fact in told[first].finding.evidence] == ["cause"] * first
    assert told[0].finding.ranks == [0]


@pytest.mark.parametrize(("hurries", "advice"), [((), "load ahead"), ((1,), "bind the process")])
def test_who_launches_late_what_others_launch_in_time_has_a_slow_host(
    hurries: tuple[int, ...], advice: str
) -> None:
    late = msgspec.structs.replace(FINDING, ranks=[0], device_ns=100, advice="bind the process")
    rank = Item(finding=late, of_job=True, is_idle=True)
    cause = found(0, 90, is_idle=True)
    change = Change(frozenset(), hurries=frozenset(hurries))
    told = msgspec.structs.replace(cause.finding, advice="load ahead")
    cause = replace(cause, finding=told, change=change)
    assert with_causes([rank, cause], 0)[0].finding.advice == advice


def test_a_pause_with_a_place_explains_a_late_rank_beside_a_small_cause() -> None:
    """1 ms of 28 behind ``.item()`` does not say why; what the host does for the others does."""
    late = Item(
        finding=msgspec.structs.replace(FINDING, ranks=[0], device_ns=100),
        of_job=True,
        is_idle=True,
    )
    small, pause = found(0, 4, is_idle=True), found(0, 90, is_idle=True)
    place = Place("log.py", 3, "on_step", 90, 1)
    logs = msgspec.structs.replace(pause.finding, name="host-pause", places=[place])
    told = with_causes([late, small, replace(pause, finding=logs, is_symptom=True)], 0)
    assert [f.value for f in told[0].finding.evidence] == [f"{FINDING.rule} host-pause"]
    assert told[0].finding.places == [place]
    # Its host needs 200 longer than others for the same launches: no pause of 90 is the cause.
    slow = replace(late, likely_ns=200)
    assert with_causes([slow, replace(pause, finding=logs)], 0)[0].finding.evidence == []


@pytest.mark.parametrize(
    ("step", "saved", "verdict", "expected"),
    [
        ((55, 45, 65), (45, 43, 47), "gain", (35, 55)),  # the ends of the step, read by a user
        ((98, 85, 111), (2, 1, 3), "gain", (1, 3)),  # steps vary by more than is saved
        ((90, 80, 95), (10, -2, 20), "unclear", (-2, 20)),
    ],
)
def test_the_headline_saves_what_is_between_the_ends_of_the_predicted_step(
    step: tuple[int, ...], saved: tuple[int, ...], verdict: str, expected: tuple[int, int]
) -> None:
    together = Prediction(*step, *saved, verdict, "computing", 40)
    assert _as_told(together, 100) == expected


def test_what_a_group_takes_comes_behind_the_collectives_that_one_rank_names() -> None:
    group = replace(found(0, 100), of_job=True, is_communication=True, is_symptom=True)
    share = msgspec.structs.replace(group.finding, share=0.6)
    group, stalled = replace(group, finding=share), replace(found(0, 90), is_communication=True)
    assert rank_items([group, stalled]) == [stalled, group]
    # That this rank communicates for as long is the same symptom.
    assert rank_items([group, replace(stalled, is_symptom=True)])[0] is group


def test_idle_time_of_a_rank_and_what_mends_it_count_once() -> None:
    late = replace(found(50, 50, is_idle=True), of_job=True)
    together = Prediction(45, 45, 55, 55, 45, 55, "gain", "computing", 40)
    total = total_saving([late], Forecast("replay", 100, 0.0, 1, 1, "host", 50, together))
    assert (total.low_ns, total.high_ns) == (50, 55)


def test_idle_time_that_the_replay_knows_and_another_finding_tells_counts_once() -> None:
    together = Prediction(20, 20, 100, 80, 0, 80, "gain", "computing", 20)
    told, replayed = found(0, 79, is_idle=True), found(0, 78, is_idle=True)
    predicted = msgspec.structs.replace(replayed.finding, predicted=together)
    forecast = Forecast("replay", 100, 0.0, 1, 1, "host", 50, together)
    change = Change(frozenset(), keeps=(1, 0, 0), sooner_ns={1: 78})
    total = total_saving([told, replace(replayed, finding=predicted, change=change)], forecast)
    assert (total.low_ns, total.high_ns) == (0, 81)


def test_fewer_launches_and_sooner_ones_are_no_sum() -> None:
    # A step of 100 with 60 of launches, of which fused kernels save 30: 55 are not 30 + 55.
    together = Prediction(70, 68, 72, 30, 28, 32, "gain", "host", 70)
    sooner = Prediction(45, 42, 100, 55, 0, 58, "gain", "computing", 40)
    fused, late = found(28, 32), found(0, 60, is_idle=True)
    forecast = Forecast("replay", 100, 0.0, 1, 1, "host", 100, together)
    fused = replace(
        fused,
        finding=msgspec.structs.replace(fused.finding, predicted=together),
        change=Change(frozenset({1}), keeps=(0, 0, 0)),
    )
    late = replace(
        late,
        finding=msgspec.structs.replace(late.finding, predicted=sooner),
        change=Change(frozenset(), keeps=(1, 0.5, 0), hurries=frozenset({2})),
    )
    total = total_saving([fused, late], forecast)
    assert (total.low_ns, total.high_ns) == (28, 58)
    # Where the launches were not recorded, what is told of them at most is no more than all.
    unknown = replace(late, finding=msgspec.structs.replace(late.finding, predicted=None))
    assert total_saving([fused, unknown], forecast).high_ns == 60


def test_small_collectives_come_before_the_communication_that_they_are() -> None:
    exposed = replace(found(0, 30), is_communication=True, is_symptom=True)
    small = replace(found(0, 29), is_communication=True)
    assert rank_items([exposed, small]) == [small, exposed]


def test_pauses_apart_are_not_said_to_be_the_same_idle_time() -> None:
    def pause(behind: int) -> Item:
        change = Change(frozenset(), keeps=(1, 0, 0), sooner_ns={behind: 9})
        return replace(found(0, 9, is_idle=True), change=change)

    same, apart = (settle([pause(1), pause(at)], None, KERNELS)[1] for at in (1, 2))
    assert same.finding.overlap == "part of the same idle time as 1"
    assert not apart.finding.overlap


def test_shared_time_is_said_and_counted_once() -> None:
    first, second, third = settle(
        [found(0, 20, {1, 2}), found(0, 8, {2}), found(0, 8, {3})], None, KERNELS
    )
    assert not first.finding.overlap
    assert second.finding.overlap == "the same 0.008 µs as 1"
    assert second.finding.saving is None
    assert third.finding.saving == Saving(0, 8, "")


@pytest.mark.parametrize(("exposed", "overlap"), [(11, "part of the same time as 1"), (20, "")])
def test_a_slow_link_and_what_stands_still_meanwhile_are_one_time(
    exposed: int, overlap: str
) -> None:
    link = replace(found(0, 9), of_job=True, is_communication=True)
    still = replace(found(0, 6, {1, 2}), is_communication=True)
    split = StepSplit(1, 20, 9, exposed, 0)
    assert settle([link, still], split, KERNELS)[1].finding.overlap == overlap


def test_waiting_that_an_earlier_finding_removes_saves_nothing_more() -> None:
    first, second = settle([found(0, 40, is_idle=True), found(0, 12, is_idle=True)], None, KERNELS)
    assert first.finding.saving == Saving(0, 40, "")
    assert second.finding.saving is None
    assert second.finding.overlap == "part of the same idle time as 1"


@pytest.mark.parametrize(("other", "left"), [({1, 2, 3}, 1), ({1, 2}, 1), ({1}, 2), (set(), 2)])
def test_a_hot_type_is_told_unless_another_finding_explains_it(other: set[int], left: int) -> None:
    kernels = pd.DataFrame({"duration_ns": [0, 10, 10, 20, 5]})
    hot = Item(finding=FINDING, kernels=frozenset({1, 2, 3}), yields=2)
    assert len(without_explained([found(0, 40, other), hot], kernels)) == left
    # What is about little of their time, a lower clock, explains none of it.
    assert len(without_explained([found(0, 1, other), hot], kernels)) == 2
    assert len(without_explained([found(0, 20, other), hot], kernels, steps=2)) == left


@given(
    st.lists(
        st.tuples(
            st.integers(0, 50), st.integers(50, 500), st.sets(st.integers(0, 9)), st.booleans()
        )
    ),
    st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200)),
)
def test_the_total_is_never_more_than_the_step(
    drawn: list[tuple[int, int, set[int], bool]], parts: tuple[int, int, int]
) -> None:
    everything = [found(low, high, rows, is_idle=idle) for low, high, rows, idle in drawn]
    computing, exposed, free = parts
    total = total_saving(
        settle(everything, StepSplit(1, sum(parts), computing, exposed, free), KERNELS)
    )
    assert 0 <= total.low_ns <= total.high_ns <= sum(parts)


def test_what_is_no_work_of_the_device_saves_no_more_than_it_is_idle() -> None:
    # The steps that were replayed waited 260 ms for the loader, the average one is idle for 60.
    split = StepSplit(1, 100, 40, 0, 60)
    items = within_idle([found(10, 50, is_idle=True), found(2, 3, {1})], split)
    items = within_idle([*items, found(20, 30, is_idle=True)], split)
    savings = [item.finding.saving for item in items]
    assert [s and (s.low_ns, s.high_ns) for s in savings] == [(10, 50), (2, 3), (10, 10)]
    assert total_saving([found(0, 80, is_idle=True), found(2, 3, {1})], None, split).high_ns == 63
