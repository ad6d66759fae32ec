"""Folded stacks and speedscope: all of the device time, below the frames that asked for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import npufix
from npufix.advisor.commands.run_outputs import DiagnosedRun
from npufix.reports.formats import Result, formats

DUMP = Path(__file__).parents[2] / "examples/dump"


@pytest.fixture(scope="module")
def result() -> Result[object]:
    recording = npufix.load(DUMP)
    return Result(recording.report, run=DiagnosedRun(recording._diagnosis, None))


def test_folded_stacks_hold_all_time(result: Result[object]) -> None:
    lines = str(formats()["folded"].render(result)).splitlines()
    spent = sum(int(line.rpartition(" ")[2]) for line in lines)
    assert spent * 1000 == pytest.approx(result.report.compute_ns, rel=1e-3)  # type: ignore[attr-defined] - a Report
    hottest = lines[0].rpartition(" ")[0].split(";")
    assert hottest[-1] == "IndexPutV2"
    assert "masking.py:30" in lines[0]
    assert "train.py" in hottest[0], "the outermost frame first"


def test_speedscope_holds_the_same(result: Result[object]) -> None:
    made = json.loads(str(formats()["speedscope"].render(result)))
    (profile,) = made["profiles"]
    names = [frame["name"] for frame in made["shared"]["frames"]]
    assert len(set(names)) == len(names)
    assert profile["unit"] == "nanoseconds"
    assert sum(profile["weights"]) == profile["endValue"] == result.report.compute_ns  # type: ignore[attr-defined] - same
    folded = str(formats()["folded"].render(result)).splitlines()
    first = ";".join(names[number] for number in profile["samples"][0])
    assert folded[0].rpartition(" ")[0] == first
