"""Tables of a page: the first rows are text in it, scripts show, sort and search all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.reports.wording import comparison as changes
from npufix.reports.wording import report as wording
from npufix.rules.shared.quantities import milliseconds, number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npufix.reports.html.details import Links
    from npufix.reports.report import (
        Critical,
        Finding,
        HotLine,
        HotModule,
        HotOperator,
        HotShape,
        Rank,
        Report,
    )

Row = tuple[object, ...]

TEXT, SAID, FINDINGS = "text", "said", "findings"
"""A name from the dump, a text of ours that is translated, and positions of findings."""
NS, HEAT, SHARE, CALLS, NUMBER, SIGNED, RELATIVE = (
    "ns", "heat", "share", "calls", "number", "signed", "relative",
)  # fmt: skip
"""Figures; ``None`` where one is unknown. ``HEAT`` is a time with a colour for its size, ``SHARE``
has a bar."""
_HEATS = 9
_SAME = 1.02
"""Times that differ by less are one colour."""


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table; ``columns`` are heads and kinds."""

    name: str
    caption: str
    columns: tuple[tuple[str, str], ...]
    rows: Sequence[Row]

    @property
    def kinds(self) -> list[str]:
        """Return the kind of each column."""
        return [kind for _, kind in self.columns]

    def heats(self) -> Mapping[int, tuple[int, int]]:
        """Return the smallest and largest value of each column that is coloured by it."""
        found = {}
        for column, kind in enumerate(self.kinds):
            values = [row[column] for row in self.rows] if kind == HEAT else []
            known = [value for value in values if isinstance(value, int)]
            if known:
                found[column] = min(known), max(known)
        return found


def is_figure(kind: str) -> bool:
    """Tell whether a column is one of numbers."""
    return kind not in {TEXT, SAID, FINDINGS}


def heat(value: int | None, low: int, high: int) -> int:
    """Return how hot a value is, 0 to 9."""
    if value is None or high <= _SAME * low:
        return 0
    return round(_HEATS * (value - low) / max(high - low, 1))


def figure(value: object, kind: str) -> str:
    """Return a number as the page shows it; shared.js shows the same."""
    if value is None:
        return "?" if kind == NUMBER else changes.UNKNOWN
    if isinstance(value, str):
        return value  # "new" and "gone" among relative changes
    return _FIGURES[kind](value)


_FIGURES: Mapping[str, Callable[..., str]] = {
    NS: milliseconds,
    HEAT: milliseconds,
    SHARE: percent,
    CALLS: number,
    NUMBER: str,
    SIGNED: changes.word_difference,
    RELATIVE: changes.relative_change,
}


def report_tables(report: Report) -> list[DataTable]:
    """Return the tables of a diagnosis that have rows; times and calls are per recorded step."""
    split = report.split
    steps = max(1, split.recorded_steps) if split else 1
    spent = (("per step", NS), ("calls", CALLS))
    owners = findings_by_type(report.findings)
    made = [
        DataTable(
            "operators",
            "Operators",
            (
                ("Type", TEXT), ("of compute", SHARE), *spent, ("mean", NS), ("p95", NS),
                ("max", NS), ("critical", NS), ("slack", NS), ("core", TEXT), ("bound", TEXT),
                ("busy", SHARE), ("line", TEXT), ("shapes", TEXT), ("findings", FINDINGS),
            ),
            [(*_operator(op, steps), owners.get(op.type, [])) for op in report.hot_operators],
        ),
        DataTable(
            "lines",
            "Lines",
            (("line", TEXT), ("function", TEXT), ("of compute", SHARE), *spent, ("critical", NS),
             ("slack", NS), ("Types", TEXT), ("through", TEXT)),
            [_line(hot, steps) for hot in report.hot_lines],
        ),
        DataTable(
            "modules",
            "Modules",
            (("nn.Module", TEXT), ("of compute", SHARE), *spent, ("Types", TEXT)),
            [
                (hot.module, *_render_spent(hot, steps), ", ".join(hot.types))
                for hot in report.hot_modules
            ],
        ),
        DataTable(
            "shapes",
            "Shapes",
            (("Type", TEXT), ("shapes", TEXT), ("of compute", SHARE), *spent, ("mean", NS),
             ("core", TEXT), ("bound", TEXT)),
            [_shape(hot, steps) for hot in report.hot_shapes],
        ),
    ]  # fmt: skip
    return [table for table in made if table.rows]


def findings_by_type(findings: Sequence[Finding]) -> dict[str, list[int]]:
    """Return the positions of the findings that are about a Type."""
    found: dict[str, list[int]] = {}
    for position, finding in enumerate(findings):
        for kernel in finding.kernels:
            found.setdefault(kernel, []).append(position)
    return found


def link_matrix(links: Links) -> list[tuple[int, list[tuple[str, int]]]]:
    """Return a row for each source that sends: its rank, and GB/s with how slow that is, 0 to 9."""
    known = [rate for row in links.gb_per_s for rate in row if rate is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)

    def cell(rate: float | None) -> tuple[str, int]:
        return ("", 0) if rate is None else (f"{rate:.3g}", _slowness(rate, low, high))

    return [
        (rank, [cell(rate) for rate in row])
        for rank, row in zip(links.ranks, links.gb_per_s, strict=True)
        if any(rate is not None for rate in row)
    ]


def _slowness(rate: float, low: float, high: float) -> int:
    return 0 if high <= _SAME * low else round(_HEATS * (high - rate) / (high - low))


def rank_table(report: Report) -> DataTable:
    """Return the ranks of a cluster, with the findings about each."""
    owners = findings_of_ranks(report.findings)
    return DataTable(
        "ranks",
        "Ranks",
        (
            ("rank", NUMBER), ("host", TEXT), ("computing", HEAT),
            ("exposed communication", HEAT), ("free", HEAT), ("role", SAID), ("note", SAID),
            ("findings", FINDINGS),
        ),
        [_rank(rank, owners.get(rank.rank, [])) for rank in report.ranks],
    )  # fmt: skip


def findings_of_ranks(findings: Sequence[Finding]) -> dict[int | None, list[int]]:
    """Return the positions of the findings that are about each rank."""
    found: dict[int | None, list[int]] = {}
    for position, finding in enumerate(findings):
        for rank in finding.ranks:
            found.setdefault(rank, []).append(position)
    return found


def _rank(rank: Rank, found: list[int]) -> Row:
    times = (rank.computing_ns, rank.exposed_communication_ns, rank.free_ns)
    note = rank.problem or ("diagnosed here" if rank.diagnosed else "")
    return (rank.rank, rank.host, *times, rank.role, note, found)


def _render_spent(hot: HotOperator | HotShape | HotLine | HotModule, steps: int) -> Row:
    return (hot.share, hot.total_ns / steps, hot.calls / steps)


def _critical(found: Critical | None) -> Row:
    """Return what of a step lies on its critical path, and the slack of what does not."""
    return (None, None) if found is None else (found.total_ns, found.slack_ns)


def _operator(op: HotOperator, steps: int) -> Row:
    times = (op.mean_ns, op.p95_ns, op.max_ns, *_critical(op.critical))
    limit = (op.core, op.bound, op.bound_ratio)
    return (
        op.type,
        *_render_spent(op, steps),
        *times,
        *limit,
        op.where,
        wording.few_tensors(op.shapes),
    )


def _shape(hot: HotShape, steps: int) -> Row:
    shapes = wording.few_tensors(hot.shapes)
    return (hot.type, shapes, *_render_spent(hot, steps), hot.mean_ns, hot.core, hot.bound)


def _line(hot: HotLine, steps: int) -> Row:
    place = (f"{hot.path}:{hot.line}", hot.function)
    return (
        *place,
        *_render_spent(hot, steps),
        *_critical(hot.critical),
        ", ".join(hot.types),
        hot.via,
    )
