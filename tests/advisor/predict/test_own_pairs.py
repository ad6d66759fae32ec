"""Pairs of predicted and measured savings: kept whole, read with care, and used."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.advisor.predict.test_what_if import Regime, item

from npufix.advisor.evidence.lines import gather_evidence
from npufix.advisor.predict.own_pairs import (
    Pair,
    calibration_file,
    correct,
    keep_pairs,
    read_pairs,
)
from npufix.reports.report import Saving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "below" / "calibration.csv"
    monkeypatch.setenv("NPUFIX_CALIBRATION", str(path))
    return path


def pair(run: str, measured: int, rule: str = "NPU101", chip: str = "") -> Pair:
    return Pair(run, rule, chip, 80, 120, measured)


def test_pairs_are_kept_once(file: Path) -> None:
    assert keep_pairs([pair("a", 50), pair("b", 60)]) == file
    assert keep_pairs([pair("a", 70)]) == file
    assert read_pairs() == [pair("b", 60), pair("a", 70)]
    assert [path.name for path in file.parent.iterdir()] == ["calibration.csv"]


def test_nothing_is_kept_by_those_who_want_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUFIX_CALIBRATION", "off")
    assert calibration_file() is None
    assert keep_pairs([pair("a", 50)]) is None
    assert read_pairs() == []


def test_damaged_rows_and_formulas_are_no_pairs(file: Path) -> None:
    keep_pairs([pair("a", 50, chip="=cmd|'/c x'!A1")])
    text = file.read_text("utf-8")
    assert "=" not in text
    assert "|" not in text
    file.write_text(text + "b,NPU101,,80,x,50\nc\n,,,0,0,3\n\x00", "utf-8")
    assert [kept.run for kept in read_pairs()] == ["a"]
    file.write_bytes(b"\xff\xfe")
    assert read_pairs() == []


@pytest.mark.parametrize(
    ("measured", "verdict_of"),
    [((50, 50), "half"), ((-20, -40), "loss"), ((100, 100), "same"), ((50,), "same")],
)
def test_predictions_follow_what_was_measured(measured: tuple[int, ...], verdict_of: str) -> None:
    job = Regime(10).run()
    evidence, one = gather_evidence(job.profile(), {}), item(job, "norm", 40.0)
    rule = one.finding.rule
    keep_pairs(pair(str(at), value, rule) for at, value in enumerate(measured))
    (after,) = correct([one], evidence, "Ascend910B3")
    assert one.change is not None
    assert after.change is not None
    assert one.change.forward is not None
    assert after.change.forward is not None
    kernels = evidence.kernels.loc[list(one.change.kernels), "duration_ns"]
    old = float(kernels.sum()) / one.change.executions
    saved = old - one.change.forward.time_ns[1]
    now = old - after.change.forward.time_ns[1]
    expected = {"half": 0.5 * saved, "loss": -0.3 * saved, "same": saved}[verdict_of]
    assert now == pytest.approx(expected)


def test_what_was_stated_is_corrected_and_two_pairs_are_no_narrow_interval() -> None:
    job = Regime(10).run()
    evidence, one = gather_evidence(job.profile(), {}), item(job, "norm", 40.0)
    assert one.change is not None
    executions = one.change.executions / evidence.steps
    stated = Saving(round(50_000 * executions), round(70_000 * executions), "")
    one = replace(one, finding=msgspec.structs.replace(one.finding, saving=stated))
    keep_pairs([pair("a", 90, one.finding.rule), pair("b", 110, one.finding.rule)])
    ((after,), kernels) = correct([one], evidence, None), evidence.kernels["duration_ns"]
    assert after.change is not None
    assert after.change.forward is not None
    old = float(kernels.loc[list(one.change.kernels)].sum()) / one.change.executions
    assert [old - ns for ns in after.change.forward.time_ns] == pytest.approx(
        [42_000, 60_000, 78_000], rel=1e-3
    )


def test_pairs_of_another_chip_say_nothing() -> None:
    job = Regime(10).run()
    evidence, one = gather_evidence(job.profile(), {}), item(job, "norm", 40.0)
    keep_pairs(pair(str(at), 10, one.finding.rule, "Ascend310P3") for at in range(3))
    assert correct([one], evidence, "Ascend910B3") == [one]
