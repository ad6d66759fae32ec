"""What is said of predictions: losses are losses, and what is not understood predicts nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from npufix.reports.prediction import Bar, Forecast, Prediction, Question
from npufix.reports.wording.prediction import doubt_text, forecast_lines

_MS = 1_000_000
_GAIN = Prediction(
    62 * _MS, 60 * _MS, 64 * _MS, 41 * _MS, 39 * _MS, 43 * _MS, "gain", "host", 58 * _MS
)
_NOW = Forecast("replay", 103 * _MS, 0.004, 3, 900, "computing", 99 * _MS, _GAIN)


def test_the_answer_to_what_was_asked_comes_first() -> None:
    asked = Question(["NPU101", "NPU999"], False, [1], ["NPU999"], _GAIN)  # noqa: FBT003 - a field
    bars = [Bar(1, "NPU101", 30 * _MS, 73 * _MS), Bar(2, "NPU103", 11 * _MS, 62 * _MS)]
    lines = [*forecast_lines(replace(_NOW, question=asked, waterfall=bars))]
    change = "103 ms -> 62 ms (60 ms to 64 ms); the limit then is the host (58 ms)."
    replayed = (
        "Replayed without a change: 103 ms per step, 0.4% off the recorded one; the limit is the"
        " device (99 ms)."
    )
    assert lines == [
        f"What if NPU101, NPU999: {change}",
        "No finding of this run whose change can be replayed: NPU999.",
        f"All changes together: {change}",
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
        ("none", 0, 0, ""),
        ("loss", -2, -1, "makes this run slower, by 1 ms to 2 ms per step"),
        ("unclear", -2, 1, "cannot tell whether it pays: from 2 ms slower to 1 ms faster per step"),
    ],
)
def test_a_loss_is_said_to_be_one(verdict: str, low: int, high: int, text: str) -> None:
    found = replace(_GAIN, verdict=verdict, saved_low_ns=low * _MS, saved_high_ns=high * _MS)
    assert doubt_text(found) == text
    assert doubt_text(None) == ""
