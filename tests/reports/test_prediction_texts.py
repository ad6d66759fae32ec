"""What is said of predictions: losses are losses, and what is not understood predicts nothing."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.advisor.predict.test_what_if import finding

from npufix.reports.prediction import Bar, Critical, Forecast, Prediction, Question
from npufix.reports.report import Saving
from npufix.reports.terminal.tables import show_waterfall
from npufix.reports.wording.prediction import doubt_text, forecast_lines

_MS = 1_000_000
_GAIN = Prediction(
    62 * _MS, 60 * _MS, 64 * _MS, 41 * _MS, 39 * _MS, 43 * _MS, "gain", "host", 58 * _MS
)
_NOW = Forecast("replay", 103 * _MS, 0.004, 3, 900, "computing", 99 * _MS, _GAIN)


def test_a_terminal_shows_how_changes_lead_from_step_to_step() -> None:
    named = replace(finding("NPU101"), name="eager-norm")
    bars = [Bar(1, "NPU101", 40, 60), Bar(2, "NPU103", 0, 60), Bar(3, "NPU9", -20, 80)]
    report = SimpleNamespace(findings=[named] * 3)
    out = io.StringIO()
    show_waterfall(bars, report, Console(file=out, width=84))  # type: ignore[arg-type]
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert rows[1:] == [
        ["0.1", "µs", "█" * 22],
        ["1", "NPU101", "eager-norm", "0.04", "µs", "0.06", "µs", "█" * 13 + "░" * 9],
        ["3", "NPU9", "eager-norm", "-0.02", "µs", "0.08", "µs", "█" * 18],
    ]


def test_the_answer_to_what_was_asked_comes_first() -> None:
    asked = Question(["NPU101", "NPU999"], False, [1], ["NPU999"], _GAIN)  # noqa: FBT003 - a field
    bars = [Bar(1, "NPU101", 30 * _MS, 73 * _MS), Bar(2, "NPU103", 11 * _MS, 62 * _MS)]
    none = finding("NPU1")
    saves = replace(none, saving=Saving(1, 2, ""))
    told = replace(_NOW, question=asked, waterfall=bars)
    lines = [*forecast_lines(told, [saves, saves, none, saves])]
    change = "103 ms -> 62 ms (60 ms to 64 ms); the limit then is the host (58 ms)."
    replayed = (
        "Replayed without a change: 103 ms per step, 0.4% off the recorded one; the limit is the"
        " device (99 ms)."
    )
    assert lines == [
        f"What if NPU101, NPU999: {change}",
        "No finding of this run whose change can be replayed: NPU999.",
        f"All changes together: {change}",
        "Not in it, for it cannot be replayed: 4.",
        replayed,
    ]


def test_what_is_not_understood_predicts_nothing() -> None:
    asked = Question(["NPU101"], True, [], [], None)  # noqa: FBT003 - a field
    lines = [*forecast_lines(replace(_NOW, error=0.3, together=None, question=asked))]
    assert lines == ["The replay of this recording is 30.0% off: nothing can be predicted from it."]
    assert [*forecast_lines(None)] == []


@pytest.mark.parametrize(
    ("verdict", "low", "high", "text"),
    [
        ("gain", 1, 2, ""),
        ("none", 0, 0, "the step stays as long: something else limits it"),
        ("loss", -2, -1, "makes this run slower, by 1 ms to 2 ms per step"),
        ("unclear", 0, 1, "cannot tell whether it pays: at most 1 ms faster per step"),
        ("unclear", -2, 1, "cannot tell whether it pays: from 2 ms slower to 1 ms faster per step"),
    ],
)
def test_a_loss_is_said_to_be_one(verdict: str, low: int, high: int, text: str) -> None:
    found = replace(_GAIN, verdict=verdict, saved_low_ns=low * _MS, saved_high_ns=high * _MS)
    assert doubt_text(replace(finding("NPU101"), predicted=found)) == text
    assert doubt_text(finding("NPU101")) == ""


def test_what_is_off_the_critical_path_is_said_to_be() -> None:
    off = replace(_GAIN, verdict="none", critical=Critical(0, 0, 3 * _MS))
    found = replace(finding("NPU101"), predicted=off)
    assert doubt_text(found) == "off the critical path: the step stays as long"
    assert doubt_text(replace(found, saving=Saving(1, 2, ""))) == "", "behind others it gains"


def test_the_parts_of_the_critical_path_are_told_the_largest_first() -> None:
    parts = {"computing": 2 * _MS, "communication": 0, "host": 90 * _MS, "between": 1_000}
    *_, line = forecast_lines(replace(_NOW, critical_path=parts))
    said = "host 90 ms, computing 2 ms, between kernels 1 µs"
    assert line == f"The critical path of a step: {said}."
