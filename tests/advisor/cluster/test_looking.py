"""From the ranks of a folder to the one that is diagnosed, its neighbours, and the cache."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pandas as pd
from cluster_dumps import dump_paths, output

from npufix.advisor.cluster import tasks
from npufix.advisor.cluster.choosing import find_slowest, roles
from npufix.advisor.cluster.jobs import job_of
from npufix.advisor.cluster.looking import Looking, Ways
from npufix.advisor.cluster.reporting import rank_problems, rank_rows, rank_steps
from npufix.advisor.commands.cli import cli
from npufix.profiling_parsers.cluster.summary import Summary, Table
from npufix.reports.report import Rank
from npufix.reports.wording.ranks import rank_rows as shown_rows

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from npufix.advisor.cluster.looking import Ranks
    from npufix.rules.cluster_diagnostic import Cluster


def look(folder: Path, **ways: Any) -> tuple[Ranks, Cluster]:
    with closing(Looking(Ways(**ways))) as looking:
        ranks = looking.ranks(dump_paths(folder), None)
        _, cluster = looking.whole(ranks)
    assert cluster is not None
    return ranks, cluster


def refuse(*_: object) -> NoReturn:
    raise AssertionError("read again")


def slow_down(dump: Path, factor: float) -> None:
    """Let a rank compute longer than its files say."""
    file = output(dump) / "step_trace_time.csv"
    head, *rows = file.read_text("utf-8").splitlines()
    columns = head.split(",")
    changed = [head]
    for row in rows:
        cells = row.split(",")
        more = float(cells[columns.index("Computing")]) * (factor - 1)
        for name in ("Computing", "Stage"):
            at = columns.index(name)
            cells[at] = f"{float(cells[at]) + more:.3f}"
        changed.append(",".join(cells))
    file.write_text("\n".join(changed) + "\n", "utf-8")


def test_all_ranks_become_tables(own_job: Path) -> None:
    dumps = dump_paths(own_job)
    slow_down(dumps[4], 1.5)
    ranks, cluster = look(own_job)
    assert list(cluster.ranks["rank"]) == [0, 1, 2, 3, 4, 5]
    assert ranks.chosen == 4
    assert ranks.roles[4] == "slowest"
    assert sorted(cluster.details) == sorted(ranks.roles)
    # The first step is warm-up for all of them.
    assert sorted(set(cluster.steps["step"])) == [11, 12, 13]
    assert len(cluster.steps) == 18
    assert cluster.world_size == 6
    group = cluster.groups[cluster.groups["rank"] == 3].iloc[0]
    assert (group["role"], group["members"]) == ("default_group", (0, 1, 2, 3, 4, 5))
    assert set(cluster.collectives["group"]) == {group["group"]}
    pairs = set(zip(cluster.links["source"], cluster.links["destination"], strict=True))
    assert pairs == {(a, b) for a in range(6) for b in range(6) if a != b}
    detail = cluster.details[4]
    assert detail.operators["total_ns"].is_monotonic_decreasing
    assert detail.operators["calls"].min() >= 0
    (row,) = (row for row in rank_rows(ranks) if row.diagnosed)
    own = cluster.steps[cluster.steps["rank"] == 4]
    assert row.computing_ns == round(own["computing_ns"].mean())
    steps = rank_steps(ranks)
    assert steps is not None
    assert steps.steps == [10, 11, 12, 13]
    assert [len(table) for table in (steps.computing_ns, steps.free_ns)] == [6, 6]


def test_a_second_look_reads_nothing_again(
    own_job: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, cluster = look(own_job)
    works = tasks.summarise
    monkeypatch.setattr(tasks, "summarise", refuse)
    monkeypatch.setattr(tasks, "whole_of", refuse)
    second, again = look(own_job)
    assert second.summaries == first.summaries
    assert sorted(again.details) == sorted(cluster.details)
    # The content counts, not the time of a file, and not where it lies.
    moved = shutil.move(own_job, own_job.with_name("moved"))
    assert look(moved)[0].summaries == first.summaries
    # What is changed, damaged or not kept is read again.
    monkeypatch.setattr(tasks, "summarise", works)
    slow_down(dump_paths(moved)[1], 1.5)
    assert look(moved)[0].chosen == 1
    for file in cache_folder.iterdir():
        file.write_bytes(file.read_bytes()[:-7])
    assert look(moved)[0].chosen == 1
    monkeypatch.setattr(tasks, "summarise", refuse)
    with closing(Looking(Ways(cache=False))) as looking:
        unread = looking.ranks(dump_paths(moved), None)
    assert all("read again" in found.problem for found in unread.summaries)


def test_a_cache_that_cannot_be_written_is_none(own_job: Path, cache_folder: Path) -> None:
    cache_folder.parent.mkdir(parents=True)
    cache_folder.write_text("a file where the folder should be", "utf-8")
    assert look(own_job)[0].summaries == look(own_job, cache=False)[0].summaries


def test_broken_ranks_are_told_and_read_again(own_job: Path) -> None:
    dumps = dump_paths(own_job)
    (output(dumps[1]) / "communication.json").write_text("{", "utf-8")
    shutil.rmtree(output(dumps[3]))
    ranks, cluster = look(own_job)
    rows = rank_rows(ranks)
    assert [bool(row.problem) for row in rows] == [False, True, False, True, False, False]
    assert rows[1].computing_ns is not None
    assert "not JSON" in rows[1].problem
    assert (rows[3].computing_ns, rows[3].readable) == (None, False)
    assert 3 not in set(cluster.ranks["rank"])
    told = rank_problems(ranks)
    assert [problem.where for problem in told if problem.damaged] == [
        str(dumps[1]), str(dumps[3]),
    ]  # fmt: skip
    shutil.copy(output(dumps[0]) / "communication.json", output(dumps[1]))
    assert not look(own_job)[0].summaries[1].problem


def summary(rank: int | None, world: int | None = 4, hour: int = 0, **more: Any) -> Summary:
    return Summary(
        rank=rank, world_size=world, recorded_ns=(1 + hour * 3600) * 10**9,
        tables={"groups": Table()}, **more,
    )  # fmt: skip


def sorted_job(tmp_path: Path, *summaries: Summary) -> Any:
    return job_of([tmp_path / str(place) for place in range(len(summaries))], summaries)


def test_of_several_dumps_of_a_rank_the_latest_is_compared(tmp_path: Path) -> None:
    two = [summary(rank, 2, hour) for hour in (1, 0) for rank in (0, 1)]
    job = sorted_job(tmp_path, *two)
    assert [(dump.rank, dump.place) for dump in job.dumps] == [(0, 0), (1, 1)]
    assert set(job.set_aside) == {2, 3}
    assert "several dumps of ranks 0, 1" in job.remarks[0][0]


def test_ranks_of_another_job_are_set_aside(tmp_path: Path) -> None:
    job = sorted_job(tmp_path, *(summary(rank) for rank in range(4)), summary(1, 8), summary(7, 8))
    assert [dump.rank for dump in job.dumps] == [0, 1, 2, 3]
    assert set(job.set_aside) == {4, 5}
    assert job.remarks[0][0] == (
        "holds dumps of different jobs: 4 of a job of 4 ranks, 2 of a job of 8 ranks"
    )


def test_missing_and_distant_ranks_are_told(tmp_path: Path) -> None:
    job = sorted_job(tmp_path, summary(0), summary(3, hour=5))
    told = " ".join(what for what, _ in job.remarks)
    assert "2 of 4 ranks are here; ranks 1, 2 missing" in told
    assert "recorded up to 5 h apart" in told
    assert not sorted_job(tmp_path, *(summary(rank) for rank in range(4))).remarks


def test_times_of_different_clocks_are_not_compared(tmp_path: Path) -> None:
    known = [summary(rank) for rank in range(3)]
    job = sorted_job(tmp_path, *known, summary(3, hour=8, local_time=True))
    assert job.remarks == ()
    local = [summary(rank, hour=hour, local_time=True) for rank, hour in ((2, 0), (3, 8))]
    job = sorted_job(tmp_path, *known[:2], *local)
    assert "up to 8 h apart" in job.remarks[0][0]


def test_ranks_with_other_software_are_named(tmp_path: Path) -> None:
    usual = [summary(rank, torch_npu="2.7.1", cann="8.3.RC1") for rank in range(3)]
    job = sorted_job(tmp_path, *usual, summary(3, torch_npu="2.1.0", cann="8.0.0"))
    assert job.remarks[0][0] == (
        "rank 3 with torch_npu 2.1.0 and CANN 8.0.0, 3 others with torch_npu 2.7.1 and CANN 8.3.RC1"
    )
    assert not sorted_job(tmp_path, *usual, summary(3)).remarks


def test_a_gpu_is_no_rank_of_npus(tmp_path: Path) -> None:
    npus = [summary(rank, format="ascend-text") for rank in range(4)]
    job = sorted_job(tmp_path, *npus, summary(None, None, format="kineto"))
    assert [dump.rank for dump in job.dumps] == [0, 1, 2, 3]
    assert set(job.set_aside) == {4}
    assert job.remarks[0][0] == (
        "holds dumps of NPUs (4) and traces of GPUs (1): only the dumps of NPUs are compared"
    )


def test_ranks_without_a_number_get_one(tmp_path: Path) -> None:
    job = sorted_job(tmp_path, summary(2, None), summary(None, None), summary(None, None))
    assert sorted(dump.rank for dump in job.dumps) == [1, 2, 3]


def test_the_odd_ranks_are_found() -> None:
    random = np.random.default_rng(0)
    computing = random.normal(100e6, 1e6, 64)
    computing[[7, 20]] = 140e6, 125e6
    free = random.normal(5e6, 0.2e6, 64)
    free[33] = 30e6
    means = pd.DataFrame(
        {"computing_ns": computing, "communication_exposed_ns": 0.0, "free_ns": free}
    )
    found = roles(means)
    assert found[7] == "slowest"
    assert found[20] == found[33] == "outlier"
    assert sorted(found.values()) == ["fastest", "median", "outlier", "outlier", "slowest"]
    alike = means.assign(computing_ns=100e6, free_ns=random.normal(5e6, 1e4, 64))
    assert sorted(roles(alike).values()) == ["fastest", "median", "slowest"]


def test_of_ranks_that_do_not_wait_for_each_other_one_with_a_long_step_is_diagnosed() -> None:
    means = pd.DataFrame(
        {
            "computing_ns": [9.5e6, 9e6, 9.1e6, 9e6],
            "communication_exposed_ns": [7e6, 64e6, 63e6, 7e6],
            "free_ns": 0.0,
        }
    )
    assert find_slowest(means) == 2
    alike = means.assign(communication_exposed_ns=[7e6, 7e6, 7e6, 7e6])
    assert find_slowest(alike) == 0


def test_of_a_thousand_ranks_a_dozen_is_shown() -> None:
    ranks = [Rank(i, f"d{i}", 1000 + i, 0, 0, host=f"n{i // 8}") for i in range(1000)]
    ranks[3] = Rank(3, "d3", 1003, 0, 0, role="fastest")
    ranks += [
        Rank(1000 + i, "d", None, None, None, problem="raw", readable=False) for i in range(9)
    ]
    shown = shown_rows(ranks)
    assert [row.rank for row in shown.rows] == [*range(999, 988, -1), 3]
    assert (shown.more, len(shown.broken)) == (988, 4)
    assert shown.more_broken == "1004, 1005, 1006, 1007, 1008"


def test_the_command_compares_the_ranks(own_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow_down(dump_paths(own_job)[2], 1.5)
    # The whole command line: a command keeps the names of its help option from its first call.
    cli.main(["diagnose", str(own_job), "--json", "--all"], standalone_mode=False)
    report = json.loads(capsys.readouterr().out)
    assert [row["role"] for row in report["ranks"]].count("asked") >= 3
    assert [row["rank"] for row in report["ranks"] if row["diagnosed"]] == [2]
    assert any(2 in found["ranks"] for found in report["findings"])
