"""A history file and its verdict: what is kept, what fails, what cannot be told."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec
import pytest
from histories import history

from npufix.advisor.history import entries, trends
from npufix.advisor.history.entries import HistoryError
from npufix.reports.baseline import BaselineEnvironment
from npufix.reports.history import from_text, make_entry, to_line
from npufix.reports.report import ReportError

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.reports.history import HistoryEntry
    from npufix.reports.trend_report import TrendReport


def look(found: list[HistoryEntry], tolerance: float = 0.03) -> TrendReport:
    return trends.examine_history(found, trends.TrendRequest("history.jsonl", 200, tolerance))


def test_a_steady_program_passes() -> None:
    made = look(history([1.0] * 40))

    assert (made.verdict, made.exit_status) == ("pass", 0)


def test_a_step_fails_and_names_its_run_and_operator() -> None:
    made = look(history([1.0] * 30 + [1.1] * 10))

    assert (made.verdict, made.exit_status) == ("fail", 1)
    (shift,) = made.metrics[0].shifts
    assert shift.first == 30
    assert "2026-03-31" in made.headline
    assert shift.why[0].startswith("MatMulV2 64,64")


def test_a_drift_fails_and_a_smaller_one_than_the_tolerance_does_not() -> None:
    drifting = history([1.04 ** (day / 30) for day in range(90)])

    assert look(drifting).verdict == "fail"
    assert "drift" in look(drifting).headline
    assert look(drifting, tolerance=0.2).verdict == "pass"


def test_what_became_slower_and_fast_again_passes() -> None:
    assert look(history([1.0] * 20 + [1.2] * 20 + [1.0] * 20)).verdict == "pass"


def test_an_improvement_is_what_later_runs_are_compared_with() -> None:
    assert look(history([1.0] * 20 + [0.8] * 20)).verdict == "pass"
    assert look(history([1.0] * 20 + [0.8] * 20 + [0.9] * 10)).verdict == "fail"


def test_two_slow_runs_cannot_be_told_from_luck() -> None:
    made = look(history([1.0] * 30 + [1.2] * 2))

    assert (made.verdict, made.exit_status) == ("inconclusive", 3)
    assert "1 more run would decide" in made.headline


def test_few_runs_are_no_ground() -> None:
    assert look(history([1.0] * 5)).exit_status == 3


def test_runs_of_another_chip_are_left_out_and_said() -> None:
    other = BaselineEnvironment(chip="Ascend910B3", world_size=8)
    older = history([1.0] * 30, other)
    newer = [
        make_entry(entry.moment + dt.timedelta(days=60), entry.run)
        for entry in history([1.5] * 3)
    ]  # fmt: skip

    made = look([*older, *newer])

    assert (made.exit_status, made.left_out) == (3, 30)
    assert "Ascend910B3" in made.headline


def test_an_accepted_level_passes_and_the_next_step_fails() -> None:
    slower = history([1.0] * 20 + [1.1] * 20 + [1.25] * 10)
    accepted = make_entry(slower[39].moment, None, "a longer context")
    before = slower[:40]

    assert look(before).verdict == "fail"
    assert look([*before, accepted]).verdict == "pass"
    assert look([*before, accepted]).accepted == "a longer context"
    assert look([*before, accepted, *slower[40:]]).verdict == "fail"


def test_a_file_is_read_in_order_of_time_whatever_the_order_of_lines(tmp_path: Path) -> None:
    made = history([1.0] * 4)
    file = tmp_path / "history.jsonl"
    entries.append(file, made[2:])
    entries.append(file, made[:2])

    assert entries.read(file) == made


def test_a_line_without_its_end_gets_one(tmp_path: Path) -> None:
    made = history([1.0] * 2)
    file = tmp_path / "history.jsonl"
    file.write_text(to_line(made[0]).rstrip("\n"), encoding="utf-8")
    entries.append(file, made[1:])

    assert len(entries.read(file)) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("<<<<<<< HEAD", "conflict of a merge"),
        ("{", "line 2 is no run"),
        ('{"npufix_history": 9, "time": "2026-03-01T00:00:00+00:00", "accepted": "x"}', "schema 9"),
        ('{"npufix_history": 1, "time": "2026-03-01T00:00:00", "accepted": "x"}', "no offset"),
        ('{"npufix_history": 1, "time": "soon", "accepted": "x"}', "line 2 is no run"),
        ('{"npufix_history": 1, "time": "2026-03-01T00:00:00+00:00"}', "neither"),
    ],
)
def test_what_is_no_history_is_named_with_its_line(line: str, said: str) -> None:
    with pytest.raises(ReportError, match=said):
        from_text(to_line(history([1.0])[0]) + line + "\n")


def test_a_run_that_no_one_measured_is_refused() -> None:
    text = to_line(history([1.0])[0]).replace('"runs":[', '"runs":[-', 1)

    with pytest.raises(ReportError, match="line 1"):
        from_text(text)


def test_a_file_that_is_not_there_says_how_to_begin_it(tmp_path: Path) -> None:
    with pytest.raises(HistoryError) as error:
        entries.read(tmp_path / "none.jsonl")
    assert "history add" in error.value.remedy


def test_a_run_that_two_branches_brought_counts_once() -> None:
    runs = history([1.0] * 5 + [1.3])
    merged = from_text("".join(to_line(entry) for entry in [*runs, *runs[3:], runs[-1]]))
    assert merged == runs
    assert look(merged).exit_status == 3


def test_a_metric_that_the_newest_run_lacks_is_not_known() -> None:
    runs = history([1.0] * 20)
    newest = runs[-1].run
    assert newest is not None
    part = msgspec.structs.replace(newest, metrics={"compute": newest.metrics["step-time"]})
    made = look([*runs[:-1], msgspec.structs.replace(runs[-1], run=part)])
    assert (made.exit_status, made.headline) == (3, "step-time: the newest run did not record it")


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_runs_of_another_batch_are_no_step(factor: float) -> None:
    runs = history([1.0] * 20 + [factor] * 5)
    for at, entry in enumerate(runs[20:], 20):
        assert entry.run is not None
        hot = {"MatMulV2|128,64": entry.run.hot_ops["MatMulV2|64,64"]}
        other = msgspec.structs.replace(entry.run, hot_ops=hot)
        runs[at] = msgspec.structs.replace(entry, run=other)
    made = look(runs)
    assert (made.exit_status, made.left_out) == (3, 20)
    assert "other work" in made.headline
