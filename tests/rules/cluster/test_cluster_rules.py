"""Rules about the ranks of a job: silent where nothing is wrong, right about what is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from benchmarks.generator.ranks import Layout, fault
from benchmarks.generator.ranks_power import RULES, SHAPES, find_seen, simulate_job

from npufix.advisor.cluster.reporting import observe_cluster
from npufix.advisor.diagnose.savings import settle, total_saving
from npufix.reports.report import StepSplit
from npufix.rules import cluster as folder
from npufix.rules.cluster_diagnostic import (
    Cluster,
    ClusterDiagnostic,
    ClusterObservation,
    RankDetail,
)
from npufix.rules.registry import all_cluster_diagnostics
from npufix.rules.shared.quantities import milliseconds
from npufix.rules.shared.ranks.comparing import late_ranks, step_ns
from npufix.rules.shared.ranks.groups import stages

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = {rule.id: rule for rule in all_cluster_diagnostics()}
each_rule = pytest.mark.parametrize("rule", ALL.values(), ids=list(ALL))
MS = 1_000_000


@cache
def cluster(text: str = "", ranks: int = 16, tp: int = 2, pp: int = 2, seed: int = 1) -> Cluster:
    faults = tuple(fault(each) for each in text.split())
    return simulate_job(Layout(ranks, tp, pp, faults=faults), seed=seed)


def found(rule: str, looked_at: Cluster) -> list[ClusterObservation]:
    return list(ALL[rule].check(looked_at))


def test_every_file_is_found() -> None:
    files = {path.stem for path in Path(str(folder.__file__)).parent.glob("*.py")}
    assert len(files) - 1 == len(ALL)


@each_rule
def test_tables_without_rows_say_nothing(rule: ClusterDiagnostic) -> None:
    full = cluster()
    tables = ("steps", "operators", "collectives", "transports", "links", "groups")
    bare = replace(full, all_steps=None, **{name: getattr(full, name)[:0] for name in tables})
    assert list(rule.check(bare)) == []
    for name in tables:
        list(rule.check(replace(full, **{name: getattr(full, name)[:0]})))


def test_jobs_in_which_nothing_is_wrong_are_left_alone() -> None:
    # ``python -m benchmarks.generator.ranks_power`` counts them in hundreds of jobs.
    alarms = [
        (shape, find_seen(Layout(*shape), seed))
        for shape in SHAPES
        for seed in ((1, 2) if shape[0] < 16 else (1,))
    ]
    assert [each for each in alarms if each[1]] == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("slow-compute:5", {5}), ("slow-host:2", {2}), ("straggler:9@4", {9}),
        ("slow-link:0-1", {0, 1}), ("tp-imbalance", {1, 3, 5, 7, 9, 11, 13, 15}),
        ("expert-imbalance:6", {6}), ("stage-imbalance", set(range(8, 16))),
        ("bubbles", set(range(16))), ("small-packets", set(range(16))),
        ("retransmission:0@3", {0, 2, 4, 6}),
    ],
)  # fmt: skip
def test_a_fault_is_found_at_its_ranks(text: str, at: set[int]) -> None:
    looked_at = cluster(text)
    if text.startswith("retransmission"):
        looked_at = simulate_job(Layout(16, 2, 2, per_host=4, faults=(fault(text),)), seed=3)
    (seen,) = found(RULES[text.split(":", maxsplit=1)[0]], looked_at)
    assert set(seen.ranks) == at
    assert seen.cost_ns > 0
    if seen.saving_ns is not None:
        assert 0 <= seen.saving_ns[0] <= seen.saving_ns[1]


@pytest.mark.parametrize("hot", [3, 4])
def test_a_rank_that_becomes_slow_halfway_costs_what_the_average_step_does(hot: int) -> None:
    base = cluster(ranks=4, tp=1, pp=1)
    steps = base.steps.copy()
    names = sorted(steps["step"].unique())[:4]
    steps = steps[steps["step"].isin(names)]
    steps["computing_ns"] = 20 * MS
    late = (steps["rank"] == 2) & steps["step"].isin(names[-hot:])
    steps.loc[late, "computing_ns"] = 28 * MS
    (seen,) = found("NPU601", replace(base, steps=steps, all_steps=None))
    assert seen.cost_ns == 2 * MS * hot
    assert ("in 3 of 4 steps" in seen.what) == (hot < len(names))
    assert seen.saving_ns is not None
    assert seen.saving_ns[1] <= 2 * MS * hot


def test_a_rank_that_is_late_by_as_much_as_never_twice_is_late_in_all_steps() -> None:
    # A pause of 20 ms lies in each step of the host, and two of them in one of the device.
    looked_at = alone([(30.0, 28.0, 0.1)] * 3 + [(30.0, 5.0, 37.0)])
    rows = looked_at.steps[looked_at.steps["step"] < 2].copy()
    rows.loc[(rows["rank"] == 3) & (rows["step"] == 1), "free_ns"] = 9 * MS
    (seen,) = found("NPU602", replace(looked_at, steps=rows))
    assert seen.ranks == (3,)
    assert seen.cost_ns == 22_900_000
    assert "in 1 of 2 steps" not in seen.what


@pytest.mark.parametrize(("stated", "told"), [(100 * MS, 100 * MS), (0, 0), (-1, 0)])
def test_the_bubble_that_the_steps_state_counts_without_collectives(stated: int, told: int) -> None:
    base = cluster("bubbles")
    bare = {name: getattr(base, name)[:0] for name in ("collectives", "transports")}
    exposed = base.steps["communication_exposed_ns"] + 50 * MS
    steps = base.steps.assign(bubble_ns=stated, communication_exposed_ns=exposed)
    seen = found("NPU608", replace(base, steps=steps, **bare))
    assert [each.cost_ns for each in seen] == ([told] if told else [])
    # Where both are known, sends and receives may be batched: the longer one is the bubble.
    (both,) = found("NPU608", replace(base, steps=steps))
    assert both.cost_ns >= max(0.75 * told, 50 * MS)  # less what moves
    # Around a ring that is slow all of it is data that moves.
    assert base.transports is not None
    links = base.transports.assign(transit_ns=base.transports["transit_ns"] + 1000 * MS)
    assert not found("NPU608", replace(base, steps=steps, transports=links, groups=base.groups[:0]))
    # Where no group is called a pipeline, the ranks that receive are one.
    unnamed = found("NPU608", replace(base, steps=steps, groups=base.groups[:0], **bare))
    assert [each.cost_ns for each in unnamed] == ([told] if told else [])


def steps(own: Sequence[tuple[float, float, float]]) -> pd.DataFrame:
    """Return three steps of each rank from computing, exposed communication and idle time."""
    rows = [
        {"rank": rank, "step": step, "device": -1, "computing_ns": round(computing * MS),
         "communication_exposed_ns": round(exposed * MS), "overlapped_ns": 0,
         "communication_ns": round(exposed * MS), "free_ns": round(free * MS), "bubble_ns": -1}
        for rank, (computing, exposed, free) in enumerate(own) for step in range(3)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def alone(own: Sequence[tuple[float, float, float]]) -> Cluster:
    """Return ranks of which only the steps are known."""
    full = cluster(ranks=len(own), tp=1, pp=1)
    tables = ("operators", "collectives", "transports", "links", "groups")
    empty = {name: getattr(full, name)[:0] for name in tables}
    return replace(full, steps=steps(own), all_steps=None, **empty)


@pytest.mark.parametrize(
    ("own", "late"),
    [
        ([(100, 20, 5), (101, 19, 5), (99, 21, 5), (118, 2, 5)], [3]),
        ([(100, 20, 5), (101, 19, 5), (99, 21, 5), (104, 16, 5)], []),  # within 5 %
        ([(100, 20, 25), (101, 19, 25), (99, 21, 25), (118, 20, 7)], []),  # computes, idles less
        ([(100, 20, 5), (112, 8, 5)], [1]),
        ([(100, 20, 5), (108, 12, 5)], []),  # of two, 10 %
        ([(90, 30, 5), (110, 10, 5), (100, 20, 5), (120, 0, 5)], []),  # all differ
        ([(0.1, 0, 0), (0.1, 0, 0), (0.15, 0, 0)], []),  # too short
    ],
)
def test_a_rank_is_late_beyond_what_ranks_differ_by(
    own: list[tuple[float, float, float]], late: list[int]
) -> None:
    ranks = [rank for each in late_ranks(alone(own), "computing_ns") for rank in each.ranks]
    assert ranks == late


def test_the_step_gains_the_lead_over_all_others_at_least() -> None:
    own = [(100.0, 25.0, 0.0), (101.0, 24.0, 0.0), (99.0, 26.0, 0.0), (125.0, 0.0, 0.0)]
    (seen,) = found("NPU601", alone([*own, (100.0, 25.0, 0.0), (104.0, 21.0, 0.0)]))
    assert seen.ranks == (3,)
    assert seen.cost_ns == 25 * MS
    assert seen.saving_ns == (21 * MS, 25 * MS)


def test_half_of_the_ranks_are_found_where_they_are_one_host() -> None:
    own = [(100.0 + rank % 3, 30.0, 2.0) for rank in range(8)]
    slow = [(120.0 + rank % 3, 10.0, 2.0) for rank in range(8)]
    (seen,) = found("NPU601", alone([*own, *slow]))
    assert set(seen.ranks) == set(range(8, 16))
    assert "(all of host h1)" in seen.what


@pytest.mark.parametrize(
    ("count", "times", "why"),
    [(1.0, 1.2, "clock"), (1.5, 1.5, "more work"), (1.0, None, "longer inputs")],
)
def test_the_operators_tell_why(count: float, times: float | None, why: str) -> None:
    base = alone([(100.0, 20.0, 2.0)] * 5 + [(120.0, 0.0, 2.0)])
    rows = []
    for rank in range(6):
        for name, total in (("MatMulV2", 60.0), ("Add", 30.0), ("Softmax", 10.0)):
            factor = 1.0
            if rank == 5:
                factor = times if times is not None else (1.6 if name == "Softmax" else 1.01)
            calls = round(100 * (count if rank == 5 else 1))
            rows.append((rank, name, "AI_CORE", calls, round(total * factor * MS)))
    operators = pd.DataFrame(rows, columns=["rank", "type", "core", "count", "total_ns"])
    (seen,) = found("NPU601", replace(base, operators=operators))
    assert why in dict(seen.evidence)["why"]


@pytest.mark.parametrize(
    ("kind", "beside", "advised", "tokens"),
    [
        ("MatMulV2", 1.23, "lengths of the inputs", False),
        ("GroupedMatmul", 1.23, "load-balancing-type aux_loss", False),
        ("GroupedMatmul", 1.0, "load-balancing-type aux_loss", True),
    ],
)
def test_all_operators_take_longer_with_longer_inputs(
    kind: str, beside: float, advised: str, *, tokens: bool
) -> None:
    base = alone([(100.0, 20.0, 2.0)] * 5 + [(125.0, 0.0, 2.0)])
    names = (kind, "FlashAttentionScore", "Add")

    def rows(rank: int, *where: str) -> list[tuple[object, ...]]:
        cells = [10] if where else [f"{rank},8", 10]
        longer = {name: (1.3 if name == kind else beside) if rank == 5 else 1 for name in names}
        return [(*where, n, "AI_CORE", *cells, round(25 * MS * longer[n])) for n in names]

    every = [(rank, *row[1:]) for rank in range(6) for row in rows(rank, "")]
    operators = pd.DataFrame(every, columns=["rank", "type", "core", "count", "total_ns"])
    columns = ["type", "core", "shapes", "calls", "total_ns"]
    lines = pd.DataFrame(columns=["path", "line", "function", "calls", "total_ns"])
    details = {r: RankDetail(pd.DataFrame(rows(r), columns=columns), lines) for r in (0, 5)}
    (seen,) = found("NPU601", replace(base, operators=operators, details=details))
    assert "longer inputs" in dict(seen.evidence)["why"]
    assert advised in seen.advice
    assert ("which get more tokens" in seen.what) == tokens


@pytest.mark.parametrize(
    ("shapes", "mhz", "why", "told"),
    [
        (("8,8", "8,8"), 0.0, "clock", "same kernels with the same shapes"),
        (("8,8", "9,8"), 0.0, "longer inputs", "MatMulV2"),
        (("8,8", "9,8"), 1530.0, "clock", "AI core clock"),
    ],
)
def test_a_throttled_rank_is_told_by_equal_kernels_or_its_clock(
    shapes: tuple[str, str], mhz: float, why: str, told: str
) -> None:
    """The cubes take 25 % longer, what waits for memory 5 %."""
    base = alone([(100.0, 20.0, 2.0)] * 5 + [(118.0, 2.0, 2.0)])
    usual = {"MatMulV2": 40.0, "FlashAttentionScore": 25.0, "Add": 20.0, "RmsNorm": 15.0}

    def rows(rank: int) -> list[tuple[str, float]]:
        slow = (1.25, 1.25, 1.05, 1.05) if rank == 5 else (1.0, 1.0, 1.0, 1.0)
        return [(name, usual[name] * by * MS) for name, by in zip(usual, slow, strict=True)]

    every = [(r, name, "AI_CORE", 100, round(total)) for r in range(6) for name, total in rows(r)]
    operators = pd.DataFrame(every, columns=["rank", "type", "core", "count", "total_ns"])

    def detail(rank: int) -> RankDetail:
        own = [(n, "AI_CORE", shapes[rank == 5], 10, round(t)) for n, t in rows(rank)]
        table = pd.DataFrame(own, columns=["type", "core", "shapes", "calls", "total_ns"])
        return RankDetail(
            table,
            pd.DataFrame(columns=["path", "line", "function", "calls", "total_ns"]),
            (mhz if rank == 5 else 1800) * bool(mhz),
        )

    details = {} if not mhz and shapes[0] != shapes[1] else {0: detail(0), 5: detail(5)}
    (seen,) = found("NPU601", replace(base, operators=operators, details=details))
    assert why in dict(seen.evidence)["why"]
    assert told in dict(seen.evidence)


def test_a_host_is_as_late_as_it_needs_longer_to_launch() -> None:
    base = alone([(5.0, 14.0, 4.0)] * 5 + [(5.0, 0.0, 18.0)])
    (unknown,) = found("NPU602", base)
    assert unknown.likely_ns is None

    def detail(host_ms: int) -> RankDetail:
        columns = ["path", "line", "function", "calls", "total_ns"]
        return RankDetail(pd.DataFrame(), pd.DataFrame(columns=columns), host_ns=host_ms * MS)

    (seen,) = found("NPU602", replace(base, details={5: detail(20), 0: detail(16)}))
    assert seen.likely_ns == pytest.approx(23 * MS * (1 - 16 / 20), rel=0.01)
    assert seen.saving_ns is not None
    assert seen.saving_ns[0] <= seen.likely_ns <= seen.saving_ns[1]
    # A late host launches its collectives late as well: half of the 4 ms that none hides may.
    exposed = alone([(5.0, 14.0, 4.0)] * 5 + [(5.0, 4.0, 18.0)])
    (more,) = found("NPU602", exposed)
    assert more.saving_ns is not None
    assert unknown.saving_ns is not None
    assert more.saving_ns[1] == unknown.saving_ns[1] + 2 * MS


def test_the_lines_of_a_late_rank_are_those_that_differ() -> None:
    base = alone([(100.0, 20.0, 2.0)] * 5 + [(120.0, 0.0, 2.0)])

    def detail(slow: int) -> RankDetail:
        rows = [("a.py", 1, "f", 4, 10 * MS), ("a.py", 2, "f", 4, (20 + slow) * MS)]
        names = ["path", "line", "function", "calls", "total_ns"]
        return RankDetail(pd.DataFrame(), pd.DataFrame(rows, columns=names))

    (seen,) = found("NPU601", replace(base, details={5: detail(20), 0: detail(0)}))
    assert [(place.line, place.cost_ns) for place in seen.places] == [(2, 20 * MS)]


def test_who_is_late_in_another_step_each_time_gets_other_advice() -> None:
    (one,) = found("NPU603", cluster("straggler:9@4 straggler:9@6"))
    (many,) = found("NPU603", cluster("straggler:9@4 straggler:3@6 straggler:12@7"))
    assert "gc.freeze()" not in one.advice
    assert "gc.freeze()" in many.advice
    assert set(many.ranks) == {3, 9, 12}


def test_what_takes_far_longer_than_setting_up_is_no_small_packet() -> None:
    base = cluster("small-packets")
    assert found("NPU609", base)
    slow = base.transports.assign(transit_ns=base.transports["transit_ns"] * 1000)
    assert found("NPU609", replace(base, transports=slow)) == []


def test_collectives_that_the_next_kernel_needs_become_no_larger_buckets() -> None:
    base = cluster("small-packets")
    assert not any(seen.advice for seen in found("NPU609", base))  # that of the rule: buckets
    pairs = base.collectives[["group", "name"]].astype(str).drop_duplicates()
    waited = frozenset(pairs.itertuples(index=False, name=None))
    detail = RankDetail(pd.DataFrame(), pd.DataFrame(), waited_for=waited)
    (seen,) = found("NPU609", replace(base, details={0: detail}))
    assert seen.advice
    assert "bucket" not in seen.advice
    large = base.transports.assign(size_bytes=base.transports["size_bytes"] * 20)
    assert found("NPU609", replace(base, details={0: detail}, transports=large)) == []


def test_a_rank_that_is_busy_between_two_steps_is_late_in_the_next() -> None:
    base = cluster()
    steps = base.steps.copy()
    number = sorted(steps["step"].unique())[1]
    others = (steps["step"] == number) & (steps["rank"] != 3)
    for column in ("communication_ns", "communication_exposed_ns"):
        steps.loc[others, column] += 400 * MS
    (seen,) = found("NPU603", replace(base, steps=steps, all_steps=None))
    assert seen.ranks == (3,)
    assert seen.cost_ns == pytest.approx(400 * MS / steps["step"].nunique(), rel=0.02)
    assert ("what the host does before the step") in dict(seen.evidence)["what is longer"]
    # Where a step lasts from mark to mark, the pause is in the free time of the one before.
    before = min(steps["step"])
    marked = steps.copy()
    marked.loc[(steps["step"] == before) & (steps["rank"] == 3), "free_ns"] += 400 * MS
    (once,) = found("NPU603", replace(base, steps=marked, all_steps=None))
    assert once.cost_ns == pytest.approx(seen.cost_ns, rel=0.02)
    # All ranks wait longer, for the network say: nobody is late.
    steps.loc[(steps["step"] == number) & (steps["rank"] == 3), ["communication_exposed_ns"]] += (
        400 * MS
    )
    assert found("NPU603", replace(base, steps=steps, all_steps=None)) == []
    # A rank that waits for nobody and has less to do in a step is not late either.
    shorter = base.steps.copy()
    one = (shorter["step"] == number) & (shorter["rank"] == 3)
    shorter.loc[one, "computing_ns"] = shorter.loc[one, "computing_ns"] // 2
    assert found("NPU603", replace(base, steps=shorter, all_steps=None)) == []


@pytest.mark.parametrize(
    ("pairs", "role", "kinds", "expected"),
    [
        ("01 12 23", "default", "p2p", {0: 0, 1: 1, 2: 2, 3: 3}),
        ("02 24 13 35", "", "p2p", {0: 0, 2: 1, 4: 2, 1: 0, 3: 1, 5: 2}),
        ("01 12 23 30", "", "p2p", {}),  # a ring: parts of a sequence
        ("01", "", "p2p", {}),  # a ring of two, or two stages
        ("01", "pp0-1", "p2p", {0: 0, 1: 1}),
        ("01 12 23", "cp", "p2p", {}),
        ("01 12 13", "", "p2p", {}),
        ("01 12 23", "", "p2p collective", {}),
    ],
)
def test_ranks_that_send_in_a_row_are_stages(
    pairs: str, role: str, kinds: str, expected: dict[int, int]
) -> None:
    ends = [(int(pair[0]), int(pair[1])) for pair in pairs.split()]
    groups = [(rank, f"g{at}", role, pair) for at, pair in enumerate(ends) for rank in pair]
    calls = [(kind, f"g{at}") for at in range(len(ends)) for kind in kinds.split()]
    looked_at = replace(
        cluster(),
        groups=pd.DataFrame(groups, columns=["rank", "group", "role", "members"]),
        collectives=pd.DataFrame(calls, columns=["kind", "group"]),
    )
    assert stages(looked_at) == expected


def test_all_links_of_a_rank_or_host_are_told_as_such() -> None:
    base = cluster(ranks=32, tp=8, pp=1)
    for chosen, where in (({5}, "rank 5"), (set(range(8, 16)), "host h1")):
        links = base.links.copy()
        at = links["source"].isin(chosen) | links["destination"].isin(chosen)
        links.loc[at, "transit_ns"] *= 3
        seen = found("NPU604", replace(base, links=links))
        assert any(f"all at {where}" in each.what for each in seen), [s.what for s in seen]


@pytest.mark.parametrize(("times", "slow"), [(10, 0), (15, 0), (60, 2)])
def test_half_of_a_few_links_may_be_slow(times: int, slow: int) -> None:
    base = cluster(ranks=4, tp=2, pp=1)
    links = base.links.copy()
    behind = (links["source"] >= 2) & (links["destination"] >= 2)
    assert 0 < behind.sum() < len(links)
    links.loc[behind, "transit_ns"] = links["transit_ns"][behind] * times // 10
    seen = found("NPU604", replace(base, links=links))
    assert [each.ranks for each in seen] == ([(2, 3)] if slow else []), [s.what for s in seen]


@pytest.mark.parametrize(("times", "slow"), [(15, 0), (60, 12)])
def test_all_links_of_one_of_two_groups_may_be_slow(times: int, slow: int) -> None:
    base = cluster(ranks=8, tp=2, pp=1)
    row, pairs = base.links.iloc[0], [(s, d) for s in range(8) for d in range(8)]
    pairs = [(s, d) for s, d in pairs if s != d and s // 4 == d // 4]
    links = pd.DataFrame([row] * len(pairs)).assign(
        source=[s for s, _ in pairs],
        destination=[d for _, d in pairs],
        transit_ns=[50_000_000 * (times if s > 3 else 10) // 10 for s, _ in pairs],
        size_bytes=10**9,
    )
    seen = found("NPU604", replace(base, links=links.astype({"transport": "category"})))
    assert [each.ranks for each in seen] == ([(4, 5, 6, 7)] if slow else [])


@pytest.mark.parametrize(("times", "slow"), [(12, []), (17, [(2,)]), (60, [(2,)])])
def test_links_of_one_rank_may_be_half_of_a_mesh(times: int, slow: list[tuple[int, ...]]) -> None:
    base = cluster(ranks=4, tp=4, pp=1)
    pairs = [(s, d) for s in range(4) for d in range(4) if s != d]
    links = pd.DataFrame([base.links.iloc[0]] * len(pairs)).assign(
        source=[s for s, _ in pairs],
        destination=[d for _, d in pairs],
        transit_ns=[500_000_000 * (times if 2 in pair else 10) // 10 for pair in pairs],
        size_bytes=10**9,
    )
    seen = found("NPU604", replace(base, links=links.astype({"transport": "category"})))
    assert [each.ranks for each in seen] == slow
    assert all("all at rank 2" in each.what for each in seen)


@pytest.mark.parametrize(("ends", "slow"), [((7, 0), [(3, 4)]), ((4, 3), [])])
def test_of_two_links_one_may_be_slow_but_not_one_way_of_a_link(
    ends: tuple[int, int], slow: list[tuple[int, int]]
) -> None:
    # Two hosts of four: of their ring only 3 to 4 and 7 to 0 cross the network.
    base = cluster(ranks=8, tp=8, pp=1)
    links = base.links.iloc[[0, 0]].assign(
        source=[3, ends[0]],
        destination=[4, ends[1]],
        transport="RDMA",
        transit_ns=base.links["transit_ns"].sum() * np.array([5, 1]),
    )
    seen = found("NPU604", replace(base, links=links))
    assert [each.ranks for each in seen] == slow
    # Collectives of two streams share it: a step that only waits for it would take a fifth.
    assert all(each.cost_ns <= round(0.8 * step_ns(base)) for each in seen)


def test_a_detour_between_ranks_of_a_host_is_told() -> None:
    base = cluster(ranks=8, tp=8, pp=1)
    links = base.links.copy()
    around = (links["source"] == 2) & (links["destination"] == 3)
    links.loc[around, "transport"] = "PCIE"
    links.loc[around, "transit_ns"] *= 4
    (seen,) = found("NPU604", replace(base, links=links))
    assert "use PCIE while the others use HCCS" in seen.what


def test_a_rule_that_fails_is_a_problem_not_the_end() -> None:
    def check(_: Cluster) -> list[ClusterObservation]:
        raise ZeroDivisionError("no ranks")

    broken = ClusterDiagnostic("NPU699", "broken-rule", "", "", check)
    rules = [broken, *all_cluster_diagnostics()]
    seen, (problem,) = observe_cluster(cluster("slow-compute:5"), rules, 300 * MS)
    assert "NPU699: ZeroDivisionError" in problem.what
    first = next(item for item in seen if item.finding.rule == "NPU601")
    assert first.of_job
    assert first.finding.ranks == [5]
    assert first.finding.kind == "run"


NONE = pd.DataFrame({"duration_ns": [1, 1]})


def test_what_the_ranks_gain_together_is_the_largest_of_its_sides() -> None:
    seen, _ = observe_cluster(
        cluster("slow-compute:5 slow-link:0-1"), all_cluster_diagnostics(), 400 * MS
    )
    highs = [item.finding.saving.high_ns for item in seen if item.finding.saving]
    assert total_saving(settle(seen, None, NONE)).high_ns == max(highs)
    assert len(highs) > 1
    own = replace(seen[0], of_job=False, kernels=frozenset({1}))
    both = total_saving(settle([own, *seen], None, NONE))
    low, high = (own.finding.saving.low_ns, max(highs)) if own.finding.saving else (0, 0)
    assert (both.low_ns, both.high_ns) == (low, 2 * high)
    split = StepSplit(1, 100 * MS, 80 * MS, 15 * MS, 5 * MS)
    assert total_saving(settle([own, *seen], split, NONE)).high_ns <= 100 * MS


def test_ranks_that_are_heavy_in_turn_are_even_on_average_only() -> None:
    base = cluster(ranks=8, tp=1, pp=1)
    own = steps([(100, 20, 5)] * 8)
    heavy = (own["step"] * 3) % 8 == own["rank"]
    own.loc[heavy, "computing_ns"] += 40 * MS
    (seen,) = found("NPU605", replace(base, steps=own))
    assert seen.cost_ns == pytest.approx(35 * MS)
    assert set(seen.ranks) == {0, 3, 6}
    alone = replace(base, steps=own, groups=base.groups.assign(role="default_group"))
    (seen,) = found("NPU605", alone)  # no group is called one of the same work
    assert seen.cost_ns == pytest.approx(35 * MS)
    assert seen.what.startswith("some ranks compute 35 ms per step more")
    assert found("NPU605", replace(base, steps=steps([(100, 20, 5)] * 8))) == []


def test_the_tokens_of_experts_are_looked_at_once() -> None:
    looked_at = cluster("expert-imbalance:6")
    (seen,) = found("NPU606", looked_at)
    found("NPU601", looked_at)
    assert found("NPU606", looked_at) == [seen]
    assert len(looked_at.kept) == 1


def test_of_a_group_that_not_all_recorded_each_rank_says_how_long_it_waits() -> None:
    # Level0 writes no communication.json: what is there alone is no transfer of all its time.
    base = cluster("straggler:9@4")
    rows = base.collectives[(base.collectives["rank"] == 0).to_numpy()]
    group = rows.loc[rows["kind"].astype(str) == "collective", "group"].iloc[0]
    own = rows[(rows["group"] == group).to_numpy()]
    waited = own.assign(elapse_ns=80 * MS, wait_ns=60 * MS, transit_ns=18 * MS)
    steps = base.steps.assign(communication_ns=90 * MS, communication_exposed_ns=90 * MS)
    few = replace(base, collectives=waited, transports=base.transports[:0], steps=steps)
    (seen,) = found("NPU611", few)
    calls = len(own) / own["step"].nunique()
    assert f"{milliseconds(calls * 60 * MS)} wait for the last rank" in seen.what
    assert f"{milliseconds(calls * 18 * MS)} move data" in seen.what
    links = base.transports[base.transports["group"].astype(str) == str(group)]
    links = links.assign(transport="RDMA", size_bytes=3 * MS, transit_ns=2 * MS)
    moves = waited.assign(wait_ns=0, transit_ns=80 * MS)
    (seen,) = found("NPU611", replace(few, collectives=moves, transports=links))
    assert "at 1.50 GB/s over RDMA" in seen.what
    # Where collectives run beside each other, their sum is longer than the rank communicates.
    steps = steps.assign(communication_ns=40 * MS, communication_exposed_ns=40 * MS)
    (seen,) = found("NPU611", replace(few, steps=steps))
    assert seen.cost_ns <= 40 * MS


def test_who_waits_for_ranks_that_nobody_recorded_does_not_stand_still() -> None:
    base = cluster("straggler:9@4")
    rows = base.collectives[base.collectives["rank"].isin([0, 1]).to_numpy()]
    rows = rows[(rows["kind"].astype(str) == "collective").to_numpy()]
    waited = rows.assign(elapse_ns=80 * MS, wait_ns=60 * MS, transit_ns=18 * MS)
    steps = base.steps.assign(communication_ns=90 * MS, communication_exposed_ns=90 * MS)
    groups = base.groups[:0]
    few = replace(
        base, collectives=waited, transports=base.transports[:0], steps=steps, groups=groups
    )
    for seen in found("NPU611", few):
        assert "mostly waiting" in seen.advice
        assert ": 0 µs wait for the last rank" not in seen.what


def test_a_job_that_only_sends_and_receives_has_no_group() -> None:
    base = cluster("straggler:9@4")
    alone = base.collectives.assign(kind=pd.Categorical(["p2p"] * len(base.collectives)))
    assert found("NPU611", replace(base, collectives=alone)) == []


@pytest.mark.parametrize(
    ("role", "name", "advised"),
    [
        ("dp", "hcom_allReduce__1_0_1", "--overlap-grad-reduce"),
        ("tp", "hcom_allReduce__1_0_1", "--use-ascend-mc2"),
        ("ep", "hcom_alltoAllV__1_0_1", "--moe-alltoall-overlap-comm"),
    ],
)
def test_what_hides_a_transfer_depends_on_what_is_exchanged(
    role: str, name: str, advised: str
) -> None:
    base = cluster("straggler:9@4")
    rows = base.collectives[(base.collectives["kind"].astype(str) == "collective").to_numpy()]
    moved = rows.assign(elapse_ns=80 * MS, wait_ns=0, transit_ns=79 * MS, name=name)
    steps = base.steps.assign(communication_ns=90 * MS, communication_exposed_ns=90 * MS)
    bare = {"collectives": moved, "transports": base.transports[:0], "steps": steps}
    groups = base.groups.assign(role=role)
    advice = {seen.advice for seen in found("NPU611", replace(base, groups=groups, **bare))}
    assert [advised in text for text in advice] == [True]


@pytest.mark.parametrize(("slowest_waits", "is_symptom"), [(10, True), (90, False)])
def test_what_the_heaviest_stage_waits_is_no_symptom_of_uneven_stages(
    slowest_waits: int, is_symptom: object
) -> None:
    # Ranks 8 to 15 compute 60 ms longer, 30 ms beyond the mean; for nobody do they wait that long.
    base = cluster("bubbles")
    last = base.steps["rank"] >= 8
    steps = base.steps.assign(
        computing_ns=base.steps["computing_ns"] + last * 60 * MS,
        bubble_ns=(~last * 150 + last * slowest_waits) * MS,
        communication_exposed_ns=200 * MS,
    )
    bare = {name: getattr(base, name)[:0] for name in ("collectives", "transports")}
    (seen,) = found("NPU608", replace(base, steps=steps, **bare))
    assert seen.is_symptom is is_symptom
    assert seen.cost_ns == pytest.approx(((150 + slowest_waits) / 2 - 30) * MS, rel=0.05)
    # With 30 ms more to do, the first stage fills and drains the pipeline for longer.
    (uneven,) = found("NPU607", replace(base, steps=steps, **bare))
    first = float(steps["computing_ns"][~last].median())
    longer = slowest_waits * MS * uneven.cost_ns / first
    assert uneven.saving_ns == (0, pytest.approx(max(0, uneven.cost_ns - longer), rel=0.05))
