"""What the replay of a run predicts, in sentences that all outputs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.prediction import WORST_ERROR
from npufix.rules.shared.quantities import milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.prediction import Forecast, Prediction, Question
    from npufix.reports.report import Finding

_LIMITS = {
    "host": "the host",
    "computing": "the device",
    "communication": "the network",
    "pauses": "pauses of the device",
    "loading": "the processes that load",
}
_MOST = 0.8
_OFF = "off the critical path: the step stays as long"
_NOTHING = "the step stays as long: something else limits it"
_PARTS = {"between": "between kernels"}
_COARSE = (
    "A coarse replay: when the host launched each kernel is not recorded, so pauses of the device "
    "are taken to go with the kernels behind them, or to stay."
)


def forecast_lines(forecast: Forecast | None, findings: Sequence[Finding] = ()) -> Iterator[str]:
    """Yield what is predicted, the answer to what was asked first; nothing without a forecast."""
    if forecast is None:
        return
    if forecast.question is not None:
        yield from _answer(forecast, forecast.question)
    if forecast.together is not None and len(forecast.waterfall) > 1:
        yield f"All changes together: {step_text(forecast, forecast.together)}."
        yield from _left_out(forecast, findings)
    limit, busy = _LIMITS[forecast.limit], milliseconds(forecast.limit_ns)
    if forecast.error > WORST_ERROR:
        yield (
            f"The replay of this recording is {percent(forecast.error)} off: nothing can be "
            "predicted from it."
        )
        return
    if forecast.model == "pauses":
        yield _COARSE
    yield (
        f"Replayed without a change: {milliseconds(forecast.now_ns)} per step, "
        f"{percent(forecast.error)} off the recorded one; the limit is {limit} ({busy})."
    )
    if path := path_text(forecast):
        yield path


def path_text(forecast: Forecast) -> str:
    """Return what the critical path of a step runs through, the most first; "" if unknown."""
    parts = sorted(forecast.critical_path.items(), key=lambda part: -part[1])
    told = [f"{_PARTS.get(name, name)} {milliseconds(ns)}" for name, ns in parts if ns]
    return f"The critical path of a step: {', '.join(told)}." if told else ""


def _left_out(forecast: Forecast, findings: Sequence[Finding]) -> Iterator[str]:
    """Say which findings save something that is not among what all changes make together."""
    replayed = {bar.finding for bar in forecast.waterfall}
    numbers = [
        str(number)
        for number, finding in enumerate(findings, 1)
        if finding.saving is not None and number not in replayed
    ]
    if numbers:
        yield f"Not in it, for it cannot be replayed: {', '.join(numbers)}."


def forecast_summary(forecast: Forecast | None) -> Iterator[str]:
    """Yield the same in a line or two: what was asked, and what all changes make together."""
    if forecast is None:
        return
    if forecast.question is not None:
        yield from _answer(forecast, forecast.question)
    elif (made := forecast.together) is not None and forecast.model == "replay":
        if made.verdict == "none":  # what could be saved is of findings that no replay knows
            return
        now, after = milliseconds(forecast.now_ns), milliseconds(made.step_ns)
        low, high = milliseconds(made.step_low_ns), milliseconds(made.step_high_ns)
        limit = _LIMITS[made.limit]
        yield f"Together: {now} -> {after} ({low} to {high}); the limit then is {limit}."


def _answer(forecast: Forecast, question: Question) -> Iterator[str]:
    rules = ", ".join(question.rules)
    asked = f"Without {rules}" if question.without else f"What if {rules}"
    if question.answer is not None:
        yield f"{asked}: {step_text(forecast, question.answer)}."
    elif not question.missing and forecast.error <= WORST_ERROR:
        yield f"{asked}: nothing changes that can be replayed."
    if question.missing and forecast.error <= WORST_ERROR:
        yield f"No finding of this run whose change can be replayed: {', '.join(question.missing)}."


def step_text(forecast: Forecast, predicted: Prediction) -> str:
    """Return ``103 ms -> 62 ms (60 ms to 64 ms); the limit then is the host (58 ms)``."""
    now, after = milliseconds(forecast.now_ns), milliseconds(predicted.step_ns)
    low, high = milliseconds(predicted.step_low_ns), milliseconds(predicted.step_high_ns)
    limit, busy = _LIMITS[predicted.limit], milliseconds(predicted.limit_ns)
    return f"{now} -> {after} ({low} to {high}); the limit then is {limit} ({busy})"


def alone_text(finding: Finding) -> str:
    """Return what is left of a saving where only the diagnosed rank is changed, "" if most."""
    predicted = finding.predicted
    if predicted is None or predicted.alone_ns is None or predicted.verdict != "gain":
        return ""
    if predicted.alone_ns > _MOST * predicted.saved_ns:
        return ""
    left = milliseconds(max(0, predicted.alone_ns))
    return f"on this rank alone it saves {left}: it waits for the other ranks"


def doubt_text(finding: Finding) -> str:
    """Return what speaks against a change, "" if nothing does."""
    predicted = finding.predicted
    if finding.unpredicted:
        return f"cannot tell what the step would be: {finding.unpredicted}"
    if predicted is None or predicted.verdict == "gain":
        return ""
    if predicted.verdict == "none":
        off = predicted.critical is not None and not predicted.critical.total_ns
        gains = finding.saving is not None  # behind the changes before it
        return "" if gains else _OFF if off else _NOTHING
    loss = milliseconds(-predicted.saved_low_ns)
    if predicted.verdict == "loss":
        least = milliseconds(-predicted.saved_high_ns)
        return f"makes this run slower, by {least} to {loss} per step"
    gain = milliseconds(predicted.saved_high_ns)
    if predicted.saved_low_ns < 0:
        return f"cannot tell whether it pays: from {loss} slower to {gain} faster per step"
    return f"cannot tell whether it pays: at most {gain} faster per step"
