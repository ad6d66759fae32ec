"""Tables of a page: the first rows are text in it, scripts show, sort and search all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.reports.wording import comparison as changes
from npufix.reports.wording import report as wording
from npufix.rules.shared.quantities import milliseconds, number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npufix.reports.report import Finding, HotLine, HotOperator, HotShape, Rank, Report

Row = tuple[object, ...]

TEXT, SAID, FINDINGS = "text", "said", "findings"
"""A name from the dump, a text of ours that is translated, and positions of findings."""
NS, HEAT, SHARE, COUNT, CALLS, NUMBER, SIGNED, RELATIVE = (
    "ns", "heat", "share", "count", "calls", "number", "signed", "relative",
)  # fmt: skip
"""Figures; ``None`` where one is unknown. ``HEAT`` is a time with a colour for its size."""
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
    COUNT: "{:,}".format,
    CALLS: number,
    NUMBER: str,
    SIGNED: changes.signed_time,
    RELATIVE: "{:+.1%}".format,
}


def report_tables(report: Report) -> list[DataTable]:
    """Return the tables of a diagnosis that have rows."""
    spent = (("calls", COUNT), ("total", NS), ("mean", NS))
    made = [
        DataTable(
            "operators",
            "Operators",
            (
                ("Type", TEXT), ("core", TEXT), *spent, ("p50", NS), ("p95", NS), ("max", NS),
                ("share", SHARE), ("bound", TEXT), ("line", TEXT), ("shapes", TEXT),
            ),
            [_operator(op) for op in report.hot_operators],
        ),
        DataTable(
            "shapes",
            "Shapes",
            (("Type", TEXT), ("core", TEXT), ("shapes", TEXT), *spent, ("share", SHARE),
             ("bound", TEXT)),
            [_shape(hot) for hot in report.hot_shapes],
        ),
        DataTable(
            "lines",
            "Lines",
            (("line", TEXT), ("function", TEXT), ("through", TEXT), ("Types", TEXT),
             *spent[:2], ("share", SHARE)),
            [_line(hot) for hot in report.hot_lines],
        ),
        DataTable(
            "modules",
            "Modules",
            (("nn.Module", TEXT), ("Types", TEXT), *spent[:2], ("share", SHARE)),
            [
                (hot.module, ", ".join(hot.types), hot.calls, hot.total_ns, hot.share)
                for hot in report.hot_modules
            ],
        ),
    ]  # fmt: skip
    return [table for table in made if table.rows]


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


def _operator(op: HotOperator) -> Row:
    spent = (op.calls, op.total_ns, op.mean_ns, op.p50_ns, op.p95_ns, op.max_ns, op.share)
    return (op.type, op.core, *spent, op.bound, op.where, wording.few_tensors(op.shapes))


def _shape(hot: HotShape) -> Row:
    spent = (hot.calls, hot.total_ns, hot.mean_ns, hot.share)
    return (hot.type, hot.core, wording.few_tensors(hot.shapes), *spent, hot.bound)


def _line(hot: HotLine) -> Row:
    place = (f"{hot.path}:{hot.line}", hot.function, hot.via)
    return (*place, ", ".join(hot.types), hot.calls, hot.total_ns, hot.share)
