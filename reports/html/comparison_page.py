"""Two runs side by side as one HTML file, made as the page of a diagnosis is."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from collections.abc import Iterator

    from npufix.reports.comparison import (
        Comparison,
        Explanation,
        HostOperatorChange,
        LineChange,
        MetricChange,
        OperatorChange,
        Prediction,
        Side,
    )
    from npufix.reports.html.tables import Row

_MOST_STEPS = 400
"""Steps of a run that the page draws: the last ones."""
_CARDS = 4
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
    return render_page(
        "comparison.html",
        ("comparison.js",),
        tables,
        _data(comparison),
        comparison=comparison,
        sides=[("before", sides[0]), ("after", sides[1])],
        simulated=_simulated(*sides),
        cards=[_card(m) for m in comparison.metrics if m.before or m.after][:_CARDS],
        facts=list(_facts(*sides)),
        differs=bool(comparison.explanation and comparison.explanation.difference_ns),
        changed=_changed(comparison),
        predictions=_predictions(comparison),
        steps=any(_has_steps(side) for side in sides),
        raw=tables,
    )


def _card(metric: MetricChange) -> tuple[str, str, str]:
    """Return a number on top of the page: value, name, note."""
    before, after, change = words.metric_values(metric)
    relative = words.relative(metric.before, metric.after)
    name = words.METRIC_NAMES.get(metric.name, metric.name)
    return relative or change, name, f"{before} → {after}"


def _simulated(before: Side, after: Side) -> list[tuple[str, str]]:
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
            yield name, _known(one), _known(other)


def _known(value: object) -> str:
    return words.UNKNOWN if value is None else str(value)


def _changed(comparison: Comparison) -> list[tuple[str, int | None, int | None]]:
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


def _data(comparison: Comparison) -> dict[str, object]:
    """Return what the scripts draw."""
    return {
        "explanation": _parts(comparison.explanation) if comparison.explanation else None,
        "operators": _changed(comparison),
        "predictions": [
            (words.applied_text(p), p.low_ns, p.high_ns, p.measured_ns)
            for p in _predictions(comparison)
        ],
        "steps": [
            side.recorded[-_MOST_STEPS:] if _has_steps(side) else []
            for side in (comparison.before, comparison.after)
        ],
    }


def _parts(explanation: Explanation) -> list[tuple[str, float, float | None, float | None]]:
    """Return what leads from before to after: name, change, and its time before and after."""
    parts: list[tuple[str, float, float | None, float | None]] = [
        (part.what, part.after_ns - part.before_ns, part.before_ns, part.after_ns)
        for part in explanation.parts
    ]
    if explanation.others:
        parts.append(("smaller parts", explanation.others_ns, None, None))
    if abs(explanation.unexplained_ns) > _SEEN * abs(explanation.difference_ns):
        parts.append(("unexplained", explanation.unexplained_ns, None, None))
    return [
        ("before", explanation.before_ns, None, None),
        *parts,
        ("after", explanation.after_ns, None, None),
    ]
