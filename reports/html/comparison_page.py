"""Two runs side by side as one HTML file, made as the page of a diagnosis is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.html import bars
from npufix.reports.html.rendering import render_page
from npufix.reports.html.tables import (
    CALLS,
    NS,
    RELATIVE,
    SAID,
    SIGNED,
    TEXT,
    DataTable,
)
from npufix.reports.wording import comparison as words
from npufix.reports.wording.report import few_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npufix.reports.comparison import (
        Comparison,
        Explanation,
        HostOperatorChange,
        LineChange,
        OperatorChange,
        Prediction,
        Side,
        StepTime,
    )
    from npufix.reports.html.tables import Row

_MOST_STEPS = 100
"""Steps of a run that the page draws: the last ones."""
_CARDS = 4
_OPERATORS = 20
_SEEN = 0.001
"""Of the difference: less is not seen in a chart."""
_SUMS = (
    ("before", NS), ("after", NS), ("change", SIGNED), ("relative", RELATIVE),
    ("kernels before", CALLS), ("kernels after", CALLS),
)  # fmt: skip
_ENVIRONMENT = (
    ("chip", "chip"), ("torch", "torch"), ("torch_npu", "torch_npu"), ("CANN", "cann"),
    ("profiler level", "profiler_level"), ("rank", "rank"), ("world size", "world_size"),
)  # fmt: skip


def to_html(comparison: Comparison) -> str:
    """Return a comparison as a page."""
    tables = [table for table in _tables(comparison) if table.rows]
    sides = (comparison.before, comparison.after)
    explained = comparison.explanation
    differs = bool(explained and explained.difference_ns)
    predictions = _predictions(comparison)
    return render_page(
        "comparison.html",
        (),
        tables,
        {},
        comparison=comparison,
        sides=[("before", sides[0]), ("after", sides[1])],
        simulated=_list_simulated(*sides),
        cards=list(_cards(comparison)),
        facts=list(_facts(*sides)),
        split=_split(comparison),
        explained=_waterfall(explained) if explained is not None and differs else [],
        changed=bars.pairs(_list_changed(comparison)[:_OPERATORS]),
        predictions=predictions,
        intervals=bars.intervals(
            [(words.word_applied(p), p.low_ns, p.high_ns, p.measured_ns) for p in predictions]
        ),
        steps=_steps(sides),
        raw=tables,
    )


def _split(comparison: Comparison) -> list[tuple[str, str, list[bars.Part], float]]:
    """Return what the steps of both runs are made of, as bars on one scale: name, time, parts."""
    metrics = {metric.name: metric for metric in comparison.metrics}
    wanted = ("step-time", "compute", "exposed-communication", "free-time")
    found = [metrics[name] for name in wanted if name in metrics]
    if len(found) < len(wanted):
        return []
    rows = []
    for name, side in (("before", "before"), ("after", "after")):
        whole, *several = (getattr(metric, side) for metric in found)
        if whole is None or None in several:
            return []
        kinds = (("compute", "computing"), ("communication", "exposed communication"),
                 ("idle", "free"))  # fmt: skip
        parts = [(*kind, round(ns)) for kind, ns in zip(kinds, several, strict=True)]
        rows.append((name, words.time(whole), bars.parts(parts), sum(several)))
    longest = max(length for *_, length in rows) or 1
    return [(name, text, parts, length / longest) for name, text, parts, length in rows]


def _cards(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yield the numbers on top of the page: value, name, note; none that the first sentence says.

    That one is about the mean of the steps, these are medians: two figures for one thing.
    """
    told = comparison.explanation.of if comparison.explanation else ""
    told = {"step": "step-time", "recording": "step-time"}.get(told, told)
    shown = [m for m in comparison.metrics if (m.before or m.after) and m.name != told]
    for metric in shown[:_CARDS]:
        before, after, change = words.metric_values(metric)
        relative = words.relative(metric.before, metric.after)
        name = words.METRIC_NAMES.get(metric.name, metric.name)
        yield relative or change, name, f"{before} → {after}"


def _list_simulated(before: Side, after: Side) -> list[tuple[str, str]]:
    """Return which runs are simulated, and how."""
    one, other = (
        (side.environment.simulated or "") if side.environment else "" for side in (before, after)
    )
    if one == other:
        return [("Simulated", one)] if one else []
    named = (("before, simulated", one), ("after, simulated", other))
    return [(name, text) for name, text in named if text]


def _facts(before: Side, after: Side) -> Iterator[tuple[str, str, str]]:
    """Yield what is known about the two runs: name, before, after."""
    for name, field in _ENVIRONMENT:
        one, other = (
            getattr(side.environment, field) if side.environment else None
            for side in (before, after)
        )
        if one is not None or other is not None:
            yield name, _describe_known(one), _describe_known(other)


def _describe_known(value: object) -> str:
    return words.UNKNOWN if value is None else str(value)


def _list_changed(comparison: Comparison) -> list[tuple[str, int | None, int | None]]:
    """Return the operators to draw: what both runs have names for, and their times."""
    if comparison.across_devices:
        hosts = comparison.host_operators
        rows = [(words.host_name(op), op.before_ns, op.after_ns) for op in hosts]
    else:
        rows = [(op.type, op.before_ns, op.after_ns) for op in comparison.operators]
    return [row for row in rows if row[1] != row[2]]


def _predictions(comparison: Comparison) -> list[Prediction]:
    """Return what the changes were to save, each, and of several all together."""
    together = comparison.predicted if len(comparison.predictions) > 1 else None
    return [*comparison.predictions, *([together] if together is not None else [])]


def _has_steps(side: Side) -> bool:
    return side.unit == "step" and bool(side.recorded)


def _tables(comparison: Comparison) -> Iterator[DataTable]:
    yield DataTable(
        "operators",
        "Operators",
        (("Type", TEXT), ("kind", SAID), *_SUMS),
        [(op.type, _kind(op), *_sums(op)) for op in comparison.operators],
    )
    yield DataTable(
        "shapes",
        "Shapes",
        (("Type", TEXT), ("shapes", TEXT), *_SUMS),
        [(op.type, few_tensors(op.shapes), *_sums(op)) for op in comparison.shapes],
    )
    yield DataTable(
        "lines",
        "Lines",
        (("line", TEXT), ("state", SAID), ("Types", TEXT), *_SUMS),
        [
            (words.place(line), line.state, words.types_text(line), *_sums(line))
            for line in comparison.lines
        ],
    )
    yield DataTable(
        "hosts",
        "Operators of PyTorch",
        (
            ("operator", TEXT), *_SUMS[:4], ("calls before", CALLS), ("calls after", CALLS),
            *_SUMS[4:], ("dtype", TEXT), ("also named", TEXT),
        ),
        [_host(op) for op in comparison.host_operators],
    )  # fmt: skip
    yield DataTable(
        "findings",
        "Findings",
        (("state", SAID), ("rule", TEXT), ("place", TEXT), ("before", NS), ("after", NS)),
        [
            (
                finding.state, f"{finding.rule} {finding.name}", words.finding_place(finding),
                None if finding.state == "new" else finding.before_ns,
                None if finding.state == "gone" else finding.after_ns,
            )
            for finding in comparison.findings
        ],
    )  # fmt: skip


def _kind(op: OperatorChange) -> str:
    return "communication" if op.communication else "compute"


def _host(op: HostOperatorChange) -> Row:
    others = sorted({*op.before_names, *op.after_names} - {op.name})
    calls = (op.before_calls, op.after_calls)
    kernels = (op.before_kernels, op.after_kernels)
    dtypes = words.dtypes_text(op)
    return (words.host_name(op), *_times(op), *calls, *kernels, dtypes, ", ".join(others))


def _sums(row: OperatorChange | LineChange) -> Row:
    return (*_times(row), row.before_calls, row.after_calls)


def _times(row: HostOperatorChange | OperatorChange | LineChange) -> Row:
    one, other = row.before_ns, row.after_ns
    if one is None or other is None:
        return (one, other, None, None)
    text = words.relative(one, other)
    relative = other / one - 1 if one and other else text or None
    return (one, other, other - one, relative)


def _waterfall(explanation: Explanation) -> list[bars.Bar]:
    """Return what leads from before to after."""
    steps = [(part.what, float(part.after_ns - part.before_ns)) for part in explanation.parts]
    if explanation.others:
        steps.append(("smaller parts", float(explanation.others_ns)))
    if abs(explanation.unexplained_ns) > _SEEN * abs(explanation.difference_ns):
        steps.append(("unexplained", float(explanation.unexplained_ns)))
    return bars.waterfall(steps, explanation.before_ns, explanation.after_ns)


def _steps(sides: Iterable[Side]) -> list[list[tuple[StepTime, int, float, list[bars.Part]]]]:
    """Return the steps of each run: length, how long of the longest of all, and the parts."""
    runs = [side.recorded[-_MOST_STEPS:] for side in sides if _has_steps(side)]
    longest = max((sum(_lengths(step)) for run in runs for step in run), default=0) or 1
    return [[_step(step, longest) for step in run] for run in runs]


def _step(step: StepTime, longest: int) -> tuple[StepTime, int, float, list[bars.Part]]:
    lengths = _lengths(step)
    kinds = (("compute", "computing"), ("communication", "exposed communication"), ("idle", "free"))
    parts = [(*kind, ns) for kind, ns in zip(kinds, lengths, strict=True)]
    return step, sum(lengths), sum(lengths) / longest, bars.parts(parts)


def _lengths(step: StepTime) -> tuple[int, int, int]:
    return step.computing_ns, step.exposed_communication_ns, step.free_ns
