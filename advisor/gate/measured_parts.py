"""The operators and lines that the time of a run is made of, per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.advisor.evidence.grouping import number_groups, rows_where
from npufix.advisor.evidence.ranking import shape_text
from npufix.reports.measurement import MeasuredLine, MeasuredOperator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.advisor.evidence.grouping import Integers
    from npufix.advisor.evidence.lines import Evidence
    from npufix.reports.report import Report

    Floats = NDArray[np.float64]

_KEPT = 500
"""Operators by Type and shapes, and lines: what is beyond takes no time that matters."""
OTHER_SHAPES = "other shapes"
_TYPES = 3
_PLACE = ("path", "line", "function")


def operators(evidence: Evidence) -> list[MeasuredOperator]:
    """Return the operators by Type, shapes and dtypes, the slowest first."""
    frame = evidence.kernels
    rows = rows_where(evidence.steady & evidence.computes)
    if not len(rows):
        return []
    numbers, firsts = number_groups(frame, rows, ("type", "core", "input_shapes", "input_dtypes"))
    spent, calls = _per_step(evidence, rows, numbers, len(firsts))
    cells = [frame[name].iloc[firsts].astype(str).tolist()
             for name in ("type", "core", "input_shapes", "input_dtypes")]  # fmt: skip
    sums: dict[tuple[str, str, str], list[float]] = {}
    order = np.argsort(-spent, kind="stable")
    for rank, at in enumerate(order.tolist()):
        kind, core, shapes, dtypes = (column[at] for column in cells)
        text = shape_text(shapes, dtypes) if rank < _KEPT else OTHER_SHAPES
        # Two spellings may read the same: a scalar argument more or less.
        total = sums.setdefault((kind, core, text), [0.0, 0.0])
        total[0] += float(spent[at])
        total[1] += float(calls[at])
    made = [
        MeasuredOperator(type=kind, shapes=text, core=core, calls=count, total_ns=total)
        for (kind, core, text), (total, count) in sums.items()
    ]
    return sorted(made, key=lambda item: (-item.total_ns, item.type, item.core, item.shapes))


def lines(evidence: Evidence) -> list[MeasuredLine]:
    """Return the lines of the user's code by the time they asked for, the slowest first."""
    frame = evidence.kernels
    paths = frame["path"].cat
    known = np.array([bool(str(name)) for name in paths.categories] + [False])
    rows = rows_where(evidence.steady & evidence.computes & known[paths.codes.to_numpy()])
    if not len(rows):
        return []
    numbers, firsts = number_groups(frame, rows, _PLACE)
    spent, calls = _per_step(evidence, rows, numbers, len(firsts))
    kept = np.argsort(-spent, kind="stable")[:_KEPT]
    types = _types(frame, rows, numbers)
    cells = [frame[name].iloc[firsts].astype(str).tolist() for name in _PLACE]
    return [
        MeasuredLine(
            path=cells[0][at],
            line=int(cells[1][at]),
            function=cells[2][at],
            total_ns=float(spent[at]),
            calls=float(calls[at]),
            types=types.get(at, []),
        )
        for at in kept.tolist()
    ]


def steady_steps(evidence: Evidence) -> tuple[Integers, int]:
    """Return for each kernel which of the steady steps it is in, and how many there are.

    Kernels outside of them have number 0 too: look at steady ones only.
    """
    steps = evidence.kernels["step"]
    steady = evidence.steady & steps.notna().to_numpy()
    number = np.zeros(len(steps), np.int64)
    if not steady.any():
        return number, 1
    codes, found = pd.factorize(steps[steady].to_numpy(np.int64), sort=True)
    number[steady] = codes
    return number, len(found)


def list_operators(made: Report, steps: int) -> list[MeasuredOperator]:
    """Return the hot shapes of a report, and what is left of its hot operators."""
    listed = [
        MeasuredOperator(
            type=item.type,
            shapes=item.shapes,
            core=item.core,
            calls=item.calls / steps,
            total_ns=item.total_ns / steps,
        )
        for item in made.hot_shapes
    ]
    for item in made.hot_operators:
        own = [o for o in listed if (o.type, o.core) == (item.type, item.core)]
        rest_ns = item.total_ns / steps - sum(o.total_ns for o in own)
        rest = item.calls / steps - sum(o.calls for o in own)
        if rest > 0:
            text = OTHER_SHAPES if own or item.other_shapes else item.shapes
            listed.append(MeasuredOperator(item.type, text, item.core, rest, max(0.0, rest_ns)))
    return sorted(listed, key=lambda item: (-item.total_ns, item.type, item.core, item.shapes))


def list_lines(made: Report, steps: int) -> list[MeasuredLine]:
    """Return the hot lines of a report."""
    return [
        MeasuredLine(
            path=item.path,
            line=item.line,
            function=item.function,
            total_ns=item.total_ns / steps,
            calls=item.calls / steps,
            types=list(item.types),
        )
        for item in made.hot_lines
    ]


def _per_step(
    evidence: Evidence, rows: Integers, numbers: Integers, groups: int
) -> tuple[Floats, Floats]:
    """Return time and calls of each group in a step."""
    step, steps = steady_steps(evidence)
    cell = numbers * steps + step[rows]
    durations = evidence.kernels["duration_ns"].to_numpy()[rows].astype(np.float64)
    shape = (groups, steps)
    spent = np.bincount(cell, durations, groups * steps).reshape(shape)
    calls = np.bincount(cell, minlength=groups * steps).reshape(shape).astype(np.float64)
    # What does not run in every step (a log, an evaluation) has no typical step.
    regular = (calls > 0).all(axis=1)
    return (
        np.where(regular, np.median(spent, axis=1), spent.mean(axis=1)),
        np.where(regular, np.median(calls, axis=1), calls.mean(axis=1)),
    )


def _types(frame: pd.DataFrame, rows: Integers, numbers: Integers) -> dict[int, list[str]]:
    """Return for each group the Types that take most of its time."""
    column = frame["type"].cat
    durations = frame["duration_ns"].to_numpy()[rows].astype(np.float64)
    pairs = numbers * len(column.categories) + column.codes.to_numpy()[rows]
    found, inverse = np.unique(pairs, return_inverse=True)
    spent = np.bincount(inverse, durations)
    of_group: dict[int, list[str]] = {}
    for at in np.argsort(-spent, kind="stable").tolist():
        group, code = divmod(int(found[at]), len(column.categories))
        names = of_group.setdefault(group, [])
        if len(names) < _TYPES:
            names.append(str(column.categories[code]))
    return of_group
