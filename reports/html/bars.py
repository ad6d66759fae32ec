"""Bars of a page as plain geometry: a template draws them, so they print and need no script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.reports.wording import comparison as changes
from npufix.rules.shared.quantities import milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.prediction import HeadroomRow
    from npufix.reports.report import StepSplit


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar; ``kind`` is its colour."""

    kind: str
    name: str
    ns: int
    share: float
    """Of the bar, 0..1."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its name and its figure; ``left`` and ``width`` of its parts are in %."""

    name: str
    text: str
    parts: Sequence[tuple[str, float, float]]
    """Kind, left, width."""


def step_parts(split: StepSplit) -> list[Part]:
    """Return what the average step is made of; parts of no length are left out."""
    preparing = min(split.preparing_ns, split.free_ns)
    hidden = min(split.overlapped_ns, split.computing_ns)
    return parts(
        (
            ("compute", "computing", split.computing_ns - hidden),
            ("hidden", "computing, communication behind it", hidden),
            ("communication", "exposed communication", split.exposed_communication_ns),
            ("preparing", "before the first kernel", preparing),
            ("idle", "idle", split.free_ns - preparing),
        )
    )


def parts(found: Sequence[tuple[str, str, int]]) -> list[Part]:
    """Return the parts that have a length, with their shares."""
    total = sum(max(0, ns) for _, _, ns in found)
    return [Part(kind, name, ns, ns / total) for kind, name, ns in found if ns > 0]


def waterfall(steps: Sequence[tuple[str, float]], before: float, after: float) -> list[Bar]:
    """Return bars that lead from one time to another: what adds to it, and what is saved."""
    low, high, at = 0.0, max(before, after, 1.0), before
    for _, change in steps:
        at += change
        low, high = min(low, at), max(high, at)
    found = [_whole("before", before, low, high)]
    at = before
    for name, change in steps:
        kind = "more" if change > 0 else "less"
        left = min(at, at + change)
        part = (kind, *_place(left, abs(change), low, high))
        found.append(Bar(name, changes.word_difference(change), [part]))
        at += change
    return [*found, _whole("after", after, low, high)]


def pairs(rows: Sequence[tuple[str, int | None, int | None]]) -> list[Bar]:
    """Return two bars a row: before and after."""
    most = max((ns or 0 for _, *both in rows for ns in both), default=1)
    return [
        Bar(
            name,
            changes.change(one, other) if one is not None and other is not None else "",
            [("half-before", *_place(0, one or 0, 0, most)),
             ("half-after", *_place(0, other or 0, 0, most))],
        )
        for name, one, other in rows
    ]  # fmt: skip


def intervals(rows: Sequence[tuple[str, int, int, int]]) -> list[Bar]:
    """Return what was predicted as a range, and what was measured as a point in it."""
    values = [value for _, *several in rows for value in several]
    low, high = min([0, *values]), max([1, *values])
    return [
        Bar(
            name,
            milliseconds(measured),
            [("range", *_place(least, most - least, low, high)),
             ("point", _place(measured, 0, low, high)[0], 0.0)],
        )
        for name, least, most, measured in rows
    ]  # fmt: skip


def headroom(rows: Sequence[HeadroomRow]) -> list[Bar]:
    """Return what kernels take: the bound of the chip, and what is above it."""
    most = max((row.time_ns for row in rows), default=0) or 1
    return [
        Bar(
            row.name,
            f"{milliseconds(row.above_ns)}, {percent(row.reached)}",
            [("compute", *_place(0, row.bound_ns, 0, most)),
             ("idle", *_place(row.bound_ns, row.above_ns, 0, most))],
        )
        for row in rows
    ]  # fmt: skip


def _whole(name: str, ns: float, low: float, high: float) -> Bar:
    return Bar(name, milliseconds(ns), [("end", *_place(0, ns, low, high))])


def _place(start: float, length: float, low: float, high: float) -> tuple[float, float]:
    span = (high - low) or 1.0
    return round(100 * (start - low) / span, 3), round(100 * length / span, 3)
