"""What the difference of two runs is made of, in three parts that do not overlap, and the rest.

step = computing + exposed communication + free time, and computing is the sum of the kernels less
what ran at the same time. So the parts are exposed communication, free time, and the kernels by
line, Type or host operator: by whichever of these puts most of the difference into few parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.reports.comparison import Explanation
from npufix.reports.gate_report import Change
from npufix.reports.wording.comparison import word_difference
from npufix.reports.wording.report import few_tensors
from npufix.rules.shared.quantities import milliseconds, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.compare.side import ComparedRun
    from npufix.reports.comparison import HostOperatorChange, LineChange, OperatorChange

_PARTS = 3
_BETTER = 0.1
"""How much more a grouping must put into few parts to be taken before a more telling one."""
_MOST_OF = 0.8


@dataclass(frozen=True, slots=True)
class CostTables:
    """What there is to group the kernels by."""

    operators: list[OperatorChange]
    shapes: list[OperatorChange]
    lines: list[LineChange]
    host_operators: list[HostOperatorChange]
    across_devices: bool


def explain(before: ComparedRun, after: ComparedRun, tables: CostTables) -> Explanation | None:
    """Return what explains the difference; None where a run says nothing about its time."""
    ends = _ends(before, after)
    if ends is None:
        return None
    of, start, end, rest = ends
    parts = [*rest, *_group_kernels(tables)]
    # Equal in both directions: by size, then by name.
    parts.sort(key=lambda part: (-abs(_change(part)), part.kind, part.what))
    moved = [part for part in parts if _change(part)]
    shown, others = moved[:_PARTS], moved[_PARTS:]
    other_ns = sum(round(_change(part)) for part in others)
    unexplained = end - start - other_ns - sum(round(_change(part)) for part in shown)
    return Explanation(
        of=of,
        before_ns=start,
        after_ns=end,
        parts=shown,
        others_ns=other_ns,
        others=len(others),
        unexplained_ns=unexplained,
        lines=[in_words(part) for part in shown],
    )


def _change(part: Change) -> float:
    return part.after_ns - part.before_ns


def _ends(before: ComparedRun, after: ComparedRun) -> tuple[str, int, int, list[Change]] | None:
    """Return what is compared, its two lengths, and the parts beside the kernels."""
    one, other = before.split, after.split
    if one is None or other is None:
        if before.compute_ns is None or after.compute_ns is None:
            return None
        return "compute", round(before.compute_ns), round(after.compute_ns), []
    rest = [
        Change("exposed communication", "communication", one.exposed_communication_ns,
               other.exposed_communication_ns),
        Change("free time", "free time", one.free_ns, other.free_ns),
    ]  # fmt: skip
    recording = "recording" in {before.shown.unit, after.shown.unit}
    return "recording" if recording else "step", one.total_ns, other.total_ns, rest


def _group_kernels(tables: CostTables) -> list[Change]:
    """Return the kernels in groups that do not overlap."""
    if tables.across_devices:
        return _of_hosts(tables.host_operators)
    by_type = _of_types(tables)
    by_line = _of_lines(tables)
    if not by_line or not by_type:
        return by_line or by_type or _of_shapes(tables.shapes)
    # Kernels that no line is known for are one more group, which explains nothing.
    rest = _rest(by_type, by_line)
    if _concentration(by_line, abs(_change(rest))) + _BETTER < _concentration(by_type, 0.0):
        return by_type
    return [*by_line, rest]


def _rest(everything: Sequence[Change], parts: Sequence[Change]) -> Change:
    """Return the kernels that are in none of the parts."""
    left = [
        max(0.0, sum(getattr(p, name) for p in everything) - sum(getattr(p, name) for p in parts))
        for name in ("before_ns", "after_ns", "calls_before", "calls_after")
    ]
    return Change("kernels that no line is known for", "operator", *left)


def _concentration(parts: Sequence[Change], more: float) -> float:
    sizes = sorted((abs(_change(part)) for part in parts), reverse=True)
    return sum(sizes[:_PARTS]) / ((sum(sizes) + more) or 1.0)


def _of_types(tables: CostTables) -> list[Change]:
    return [
        Change(_type_text(op, tables.shapes), "operator", op.before_ns, op.after_ns,
               op.before_calls or 0.0, op.after_calls or 0.0)
        for op in tables.operators
        if not op.communication and op.before_ns is not None and op.after_ns is not None
    ]  # fmt: skip


def _type_text(op: OperatorChange, shapes: Sequence[OperatorChange]) -> str:
    """Return the Type, and the shape that makes most of its change if it has several."""
    own = [s for s in shapes if s.type == op.type and s.before_ns is not None
           and s.after_ns is not None]  # fmt: skip
    change = (op.after_ns or 0) - (op.before_ns or 0)
    if len(own) > 1 and change:
        first = (own[0].after_ns or 0) - (own[0].before_ns or 0)
        if _MOST_OF <= first / change <= 1 / _MOST_OF:
            return f"{op.type}, most of it on {few_tensors(own[0].shapes)}"
    return op.type


def _of_shapes(shapes: Sequence[OperatorChange]) -> list[Change]:
    return [
        Change(f"{s.type} on {few_tensors(s.shapes)}", "shape", s.before_ns, s.after_ns,
               s.before_calls or 0.0, s.after_calls or 0.0)
        for s in shapes
        if s.before_ns is not None and s.after_ns is not None
    ]  # fmt: skip


def _of_hosts(operators: Sequence[HostOperatorChange]) -> list[Change]:
    return [
        Change(op.name or "kernels of no known operator", "operator", op.before_ns, op.after_ns,
               op.before_kernels or 0.0, op.after_kernels or 0.0)
        for op in operators
        if op.before_ns is not None and op.after_ns is not None
    ]  # fmt: skip


def _of_lines(tables: CostTables) -> list[Change]:
    return [
        Change(_line_text(line), "line", line.before_ns, line.after_ns, line.before_calls or 0.0,
               line.after_calls or 0.0)
        for line in tables.lines
        if line.before_ns is not None and line.after_ns is not None
    ]  # fmt: skip


def _line_text(line: LineChange) -> str:
    """Return the place, and which Types went and came there."""
    at = line.after_lines or line.before_lines
    gone = [name for name in line.before_types if name not in line.after_types]
    come = [name for name in line.after_types if name not in line.before_types]
    place = f"{line.path}:{at[0]} {line.function}".rstrip()
    if line.before_types and line.after_types and (gone or come):
        return f"{place} ({', '.join(gone) or 'more'} -> {', '.join(come) or 'fewer kernels'})"
    return f"{place} ({', '.join(line.before_types or line.after_types)})"


def in_words(part: Change) -> str:
    """Return ``-2.1 ms  norm.py:12 f (Square -> RmsNorm): 3.2 ms -> 1.1 ms, 96 -> 12 kernels``."""
    text = f"{word_difference(_change(part))}  {part.what}: {milliseconds(part.before_ns)}"
    text += f" -> {milliseconds(part.after_ns)}"
    if round(part.calls_before, 1) != round(part.calls_after, 1):
        text += f", {number(part.calls_before)} -> {number(part.calls_after)} kernels"
    return text
