"""A report as tables: one row an operator, shape, line, module, collective, finding, rank, step.

Names of columns carry their unit, and stay as they are: programs read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npufix.reports.report import Critical, Finding, HotOperator, HotShape, Report

    Value = str | int | float | None

_LONGEST_TEXT = 32_000
"""A cell of Excel holds 32,767 characters; what is longer it spills over other rows."""
TEXT, COUNT, MICROSECONDS, SHARE, RATIO = "text", "count", "us", "share", "ratio"


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``kind`` says how a spreadsheet shows its numbers."""

    name: str
    kind: str = TEXT


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts and numbers; ``None`` is unknown. Times are microseconds."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One recorded step on one device."""

    step: int | None
    device: int
    computing_ns: int
    exposed_communication_ns: int
    overlapped_ns: int
    free_ns: int
    left_out: str
    """Why no average contains it: ``warm-up`` or ``outlier``; "" where one does."""


def tables_of(report: Report, steps: Sequence[StepRow] = ()) -> list[Table]:
    """Return all tables of a report, also those without a row: who reads them finds each."""
    return [
        Table("operators", _OPERATOR_COLUMNS, [_operator(hot) for hot in report.hot_operators]),
        Table("shapes", _SHAPE_COLUMNS, [_shape(hot) for hot in report.hot_shapes]),
        _lines(report),
        _modules(report),
        _collectives(report),
        Table(
            "findings",
            _FINDING_COLUMNS,
            [_finding(number, found) for number, found in enumerate(report.findings, 1)],
        ),
        _ranks(report),
        _steps(steps),
    ]


def cell_text(value: str) -> str:
    """Return a text that a cell can hold: of control characters only the ends of lines stay."""
    unified = value.replace("\r\n", "\n").replace("\r", "\n")
    if not unified.isprintable():
        unified = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in unified)
    if len(unified) <= _LONGEST_TEXT:
        return unified
    return f"{unified[:_LONGEST_TEXT]} ... ({len(unified):,} characters)"


def _columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, _kind(name)) for name in names)


def _kind(name: str) -> str:
    if name.endswith("_us"):
        return MICROSECONDS
    if name.startswith("share"):
        return SHARE
    if name in {"bound_ratio", "gb_per_s"}:
        return RATIO
    numbers = {
        "calls",
        "line",
        "rank",
        "step",
        "device",
        "number",
        "other_shapes",
        "lines",
        "size_bytes",
    }
    return COUNT if name in numbers else TEXT


_CRITICAL = ("critical_us", "critical_host_us", "slack_us")
_OPERATOR_COLUMNS = _columns(
    "type", "core", "calls", "total_us", "mean_us", "p50_us", "p95_us", "max_us", "share",
    "share_of_step", "bound", "bound_ratio", "shapes", "other_shapes", "where", "function", "via",
    "lines", *_CRITICAL,
)  # fmt: skip
_SHAPE_COLUMNS = _columns(
    "type", "core", "shapes", "calls", "total_us", "mean_us", "p50_us", "p95_us", "max_us",
    "share", "bound",
)  # fmt: skip
_FINDING_COLUMNS = _columns(
    "number", "rule", "name", "kind", "summary", "path", "line", "function", "safety", "calls",
    "device_us", "share_of_step", "saving_low_us", "saving_high_us", "saving_basis", "kernels",
    "open_conditions", "code", "replacement", "what", "advice", "not_written", "verdict",
    "verdict_on", "verdict_reason", "fingerprint",
)  # fmt: skip


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1000


def _all_us(numbers: Iterable[float | None]) -> list[float | None]:
    return [_us(ns) for ns in numbers]


def _operator(hot: HotOperator) -> list[Value]:
    times = (hot.total_ns, hot.mean_ns, hot.p50_ns, hot.p95_ns, hot.max_ns)
    return [
        hot.type, hot.core, hot.calls, *_all_us(times), hot.share, hot.share_of_step or None,
        hot.bound, hot.bound_ratio, hot.shapes, hot.other_shapes, hot.where, hot.function, hot.via,
        hot.lines, *_critical(hot.critical),
    ]  # fmt: skip


def _critical(found: Critical | None) -> list[Value]:
    """Return what lies on the critical path per step, of the device and of the host, and slack."""
    if found is None:
        return [None, None, None]
    return [_us(found.device_ns), _us(found.host_ns), _us(found.slack_ns)]


def _shape(hot: HotShape) -> list[Value]:
    times = (hot.total_ns, hot.mean_ns, hot.p50_ns, hot.p95_ns, hot.max_ns)
    return [hot.type, hot.core, hot.shapes, hot.calls, *_all_us(times), hot.share, hot.bound]


def _lines(report: Report) -> Table:
    columns = _columns(
        "path", "line", "function", "level", "via", "calls", "total_us", "share", "types",
        *_CRITICAL,
    )  # fmt: skip
    rows = [
        [hot.path, hot.line, hot.function, hot.level, hot.via, hot.calls, _us(hot.total_ns),
         hot.share, ", ".join(hot.types), *_critical(hot.critical)]
        for hot in report.hot_lines
    ]  # fmt: skip
    return Table("lines", columns, rows)


def _modules(report: Report) -> Table:
    rows = [
        [hot.module, hot.calls, _us(hot.total_ns), hot.share, ", ".join(hot.types)]
        for hot in report.hot_modules
    ]
    return Table("modules", _columns("module", "calls", "total_us", "share", "types"), rows)


def _collectives(report: Report) -> Table:
    columns = _columns(
        "name", "kind", "group", "calls", "total_us", "moving_us", "waiting_us", "idle_us",
        "size_bytes", "gb_per_s",
    )  # fmt: skip
    rows = [
        [hot.name, hot.kind, hot.group, hot.calls,
         *_all_us((hot.elapse_ns, hot.transit_ns, hot.wait_ns, hot.idle_ns)),
         hot.size_bytes if hot.size_bytes >= 0 else None, hot.gb_per_s]
        for hot in report.hot_collectives
    ]  # fmt: skip
    return Table("collectives", columns, rows)


def _finding(number: int, found: Finding) -> list[Value]:
    saving, verdict = found.saving, found.verdict
    return [
        number, found.rule, found.name, found.kind, found.summary, found.path,
        found.line or None, found.function, found.safety, found.calls, _us(found.device_ns),
        found.share, *(_all_us((saving.low_ns, saving.high_ns)) if saving else (None, None)),
        saving.basis if saving else "", ", ".join(found.kernels),
        ", ".join(c.name for c in found.conditions if c.basis == "open"), found.code,
        found.replacement, found.what, found.advice, found.problem,
        verdict.status if verdict else "", verdict.on if verdict else "",
        verdict.reason if verdict else "", found.fingerprint,
    ]  # fmt: skip


def _ranks(report: Report) -> Table:
    columns = _columns(
        "rank", "host", "role", "computing_us", "exposed_communication_us", "free_us",
        "diagnosed", "problem", "dump",
    )  # fmt: skip
    rows = [
        [row.rank, row.host, row.role,
         *_all_us((row.computing_ns, row.exposed_communication_ns, row.free_ns)),
         "yes" if row.diagnosed else "no", row.problem, row.dump]
        for row in report.ranks
    ]  # fmt: skip
    return Table("ranks", columns, rows)


def _steps(steps: Sequence[StepRow]) -> Table:
    columns = _columns(
        "step", "device", "total_us", "computing_us", "exposed_communication_us", "free_us",
        "overlapped_us", "left_out",
    )  # fmt: skip
    rows = []
    for row in steps:
        parts = (row.computing_ns, row.exposed_communication_ns, row.free_ns)
        device = row.device if row.device >= 0 else None
        times = _all_us((sum(parts), *parts, row.overlapped_ns))
        rows.append([row.step, device, *times, row.left_out])
    return Table("steps", columns, rows)
