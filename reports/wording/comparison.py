"""Figures of a comparison in words, the same in all outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.language import tr
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent

if TYPE_CHECKING:
    from npufix.reports.comparison import (
        Explanation,
        FindingChange,
        HostOperatorChange,
        LineChange,
        MetricChange,
        Prediction,
        Side,
    )

UNKNOWN = "—"
_ROUNDING = 1e-4
_TIMES_AS_MUCH = 10
_MOST_TIMES = 30
_MIB = 1 << 20
METRIC_NAMES = {
    "step-time": "step",
    "compute": "compute",
    "exposed-communication": "exposed communication",
    "free-time": "free time",
    "launches": "kernels",
    "peak-memory": "peak memory",
}
_VERDICTS = {
    "larger": "more than the steps differ",
    "within": "within what the steps differ",
    "unknown": "noise unknown",
}


def time(ns: float | None) -> str:
    """Return a time, or that it is not known."""
    return UNKNOWN if ns is None else milliseconds(ns)


def change(before: float | None, after: float | None) -> str:
    """Return ``+0.3 ms``."""
    return UNKNOWN if before is None or after is None else word_difference(after - before)


def word_difference(ns: float) -> str:
    """Return a difference of times."""
    sign = "+" if round(ns) > 0 else "-" if round(ns) < 0 else ""
    return f"{sign}{milliseconds(abs(ns))}"


def relative(before: float | None, after: float | None) -> str:
    """Return ``-15.4%``, ``12.5x``; ``new`` and ``gone`` where one of them is nothing."""
    if before is None or after is None:
        return ""
    if not before or not after:
        return "" if before == after else "gone" if before else "new"
    return relative_change(after / before - 1)


def relative_change(change: float) -> str:
    """Return ``+8.0%``; how many times as much, ``12.5x`` or ``>30x``, from ten times on."""
    if change >= _MOST_TIMES:
        return f">{_MOST_TIMES}x"
    return f"{number(change + 1)}x" if change + 1 >= _TIMES_AS_MUCH else f"{change:+.1%}"


def calls(before: float | None, after: float | None) -> str:
    """Return ``96 -> 12``, ``96`` where nothing has changed."""
    one, other = (UNKNOWN if n is None else number(n) for n in (before, after))
    return one if one == other else f"{one} -> {other}"


def metric_values(metric: MetricChange) -> tuple[str, str, str]:
    """Return before, after and the difference in the metric's unit."""
    one, other = metric.before, metric.after
    if metric.unit == "ns":
        return time(one), time(other), change(one, other)
    if metric.unit == "bytes":
        text = [UNKNOWN if value is None else f"{value / _MIB:,.0f} MiB" for value in (one, other)]
        gap = UNKNOWN if one is None or other is None else f"{(other - one) / _MIB:+,.0f} MiB"
        return text[0], text[1], gap
    text = [UNKNOWN if value is None else number(value) for value in (one, other)]
    if one is None or other is None:
        return text[0], text[1], UNKNOWN
    return text[0], text[1], "0" if one == other else f"{other - one:+,.0f}"


def spread_text(metric: MetricChange) -> str:
    """Return how much the steps of both runs vary: ``±0.2% ±0.3%``."""
    if metric.before_spread is None and metric.after_spread is None:
        return ""
    spreads = (metric.before_spread, metric.after_spread)
    return " ".join(UNKNOWN if s is None else f"±{percent(s)}" for s in spreads)


def verdict_text(metric: MetricChange) -> str:
    """Say whether a difference is more than noise."""
    return _VERDICTS[metric.verdict]


def side_text(side: Side) -> str:
    """Return what a run is: ``dump run1, 8 steps``."""
    noun = {"baseline": "run"}.get(side.kind, "step")
    amount = format_count(side.steps, noun) if side.unit == "step" else "without steps"
    return f"{side.kind} {side.origin}, {amount}"


def part_text(line: str) -> str:
    """Return a part, ``-1 ms  free time: 3 ms -> 2 ms``, in the current language."""
    gap, mark, part = line.partition("  ")
    return f"{gap}{mark}{tr(part)}"


def rest_text(explanation: Explanation) -> str:
    """Return what no part says, so that everything sums up."""
    parts = []
    if explanation.others:
        noun = tr(format_count(explanation.others, "smaller part"))
        parts.append(f"{word_difference(explanation.others_ns)}  {noun}")
    if abs(explanation.unexplained_ns) > _ROUNDING * abs(explanation.difference_ns):
        parts.append(tr(f"{word_difference(explanation.unexplained_ns)} unexplained"))
    return "; ".join(parts) or "Nothing is left unexplained."


def place(line: LineChange) -> str:
    """Return ``norm.py:12 -> 14 forward``."""
    numbers = [", ".join(map(str, lines[:3])) + (", …" if len(lines) > 3 else "")  # noqa: PLR2004 - a few
               for lines in (line.before_lines, line.after_lines)]  # fmt: skip
    where = " -> ".join(dict.fromkeys(filter(None, numbers)))
    return f"{line.path}:{where} {line.function}".rstrip()


def types_text(line: LineChange) -> str:
    """Return the Types of a line, before and after where they differ."""
    one, other = ", ".join(line.before_types), ", ".join(line.after_types)
    if not one or not other or set(line.before_types) == set(line.after_types):
        return one or other
    return f"{one} -> {other}"


def host_name(operator: HostOperatorChange) -> str:
    """Return the name of a host operator."""
    return operator.name or "(no known operator)"


def dtypes_text(operator: HostOperatorChange) -> str:
    """Say so if the two runs compute in different precision, "" if they do not."""
    one, other = operator.before_dtypes, operator.after_dtypes
    if not one or not other or one[0] == other[0]:
        return ""
    return f"{one[0]} -> {other[0]}"


def ratio_text(operator: HostOperatorChange) -> str:
    """Return how many times as long the second run takes."""
    one, other = operator.before_ns, operator.after_ns
    if one is None or other is None:
        return ""
    if not one or not other:
        return "" if one == other else "only 1st" if one else "only 2nd"
    return f"{other / one:.3g}x"


def word_predicted(prediction: Prediction) -> str:
    """Return the interval: ``1 to 1.2 ms``."""
    low, high = milliseconds(prediction.low_ns), milliseconds(prediction.high_ns)
    return low if low == high else f"{low} to {high}"


def finding_place(finding: FindingChange) -> str:
    """Return ``norm.py:12 -> 14 forward``, "" for a finding about the run."""
    lines = dict.fromkeys(str(n) for n in (finding.before_line, finding.after_line) if n)
    return f"{finding.path}:{' -> '.join(lines)} {finding.function}" if finding.path else ""


def word_applied(prediction: Prediction) -> str:
    """Return which findings, and where."""
    if not prediction.path:
        return "All together"
    lines = ", ".join(map(str, prediction.lines))
    return f"{' + '.join(prediction.rules)} {prediction.path}:{lines} {prediction.function}"
