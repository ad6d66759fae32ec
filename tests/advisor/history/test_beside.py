"""The history beside a verdict: its runs as bars, in the comment and on the terminal."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from histories import CHIP, START, history, run

from npufix.advisor.gate.baselines import merge_baseline
from npufix.advisor.gate.gating import Asked, gate
from npufix.advisor.gate.measuring import MeasuredRun
from npufix.advisor.history import entries
from npufix.advisor.history.beside import with_history
from npufix.advisor.project.gate_settings import GateSettings
from npufix.reports.formats import Result
from npufix.reports.formats.terminal import FORMAT
from npufix.reports.history import make_entry, to_line
from npufix.reports.markdown.gate import to_comment
from npufix.reports.measurement import MeasuredMetric, Measurement
from npufix.reports.report import Environment, Report

if TYPE_CHECKING:
    from npufix.reports.gate_report import GateReport

EMPTY = Report(
    tool="npufix", headline="", dump="", source="", environment=None, split=None, compute_ns=1,
    attributed=0.0, hot_operators=[], hot_shapes=[], findings=[], problems=[], next_steps=[],
)  # fmt: skip


def measured(*step_ms: float) -> list[MeasuredRun]:
    chip = Environment(None, 8, None, None, None, None, None, "Ascend910B2", [0])
    metrics = [{"step-time": MeasuredMetric(step * 1e6 + 1, "ns")} for step in step_ms]
    return [MeasuredRun(Measurement("run", chip, 8, each), EMPTY, ()) for each in metrics]


def gated() -> tuple[GateReport, list[MeasuredRun]]:
    now = measured(110, 111, 112)
    before = [each.measurement for each in measured(100, 101, 102)]
    today = dt.date(2026, 11, 22)
    return gate(now, Asked(GateSettings(), Path("b"), merge_baseline(before), today)), now


def test_the_runs_before_are_bars_beside_the_verdict() -> None:
    made, now = gated()
    other = msgspec.structs.replace(CHIP, chip="Ascend910B3")
    past = [*history([1.0] * 8), make_entry(START, run(900_000, 99, other))]
    shown = with_history(made, past, now)
    (step,) = [metric for metric in shown.metrics if metric.name == "step-time"]
    assert len(step.history) == 9
    assert step.history[-1] == pytest.approx(111e6, rel=1e-3)
    assert max(step.history) == step.history[-1]  # nothing of the other machine
    comment, text = to_comment(shown), str(FORMAT.render(Result(shown)))
    assert "8 earlier runs and now" in comment
    assert "8 earlier runs and now" in text
    assert "█" in comment
    assert "█" in text
    assert "█" not in to_comment(made)
    # What it is shown beside is as it was.
    assert (shown.verdict, shown.reasons) == (made.verdict, made.reasons)


def test_a_history_of_other_machines_is_said_to_be_one() -> None:
    made, now = gated()
    other = msgspec.structs.replace(CHIP, chip="Ascend910B3")
    shown = with_history(made, history([1.0] * 8, other), now)
    assert any("no run of this environment" in problem.what for problem in shown.problems)


def test_a_metric_in_another_unit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    good = history([1.0])
    path.write_text("".join(map(to_line, good)), encoding="utf-8")
    assert len(entries.read(path)) == 1
    path.write_text(path.read_text(encoding="utf-8").replace('"us"', '"bytes"'), encoding="utf-8")
    with pytest.raises(entries.HistoryError, match=r"unit is 'bytes', not 'us'"):
        entries.read(path)
