"""Calls in which a tensor is exactly what it is held against: ``x * 2 - 3 > 0.7`` for 1.85.

Whether a test says ``>`` or ``>=`` shows there alone, and numbers that are drawn are never there.
"""

from __future__ import annotations

import itertools
import math
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.coverage import watching
from npufix.rewriters.verification.calls.values import Tensor
from npufix.rewriters.verification.inputs.cases.boundaries import (
    Comparison,
    changed_lines,
    find_compared,
    read_sides,
)
from npufix.rewriters.verification.inputs.cases.trials import Trials, with_specs
from npufix.rewriters.verification.inputs.target import Assignment, CallCase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from npufix.rewriters.edit.job import Job

    Gaps = Callable[[float], Sequence[float]]
    """How much larger the right side is, in each place, for a number in the argument."""

_GRID = (-8.0, -2.0, -1.0, -0.25, 0.0, 0.125, 0.375, 0.625, 0.875, 1.0, 1.5, 2.5, 5.0, 10.0)
"""Numbers between which a threshold is sought."""
_MOST_ELEMENTS = 64
_MOST_ARGUMENTS = 4
_STEPS = 40
_SECANTS = 3
_DIGITS = (2, 3, 5)
"""A threshold is mostly a short number."""
_SECONDS = 1.0
_FRACTIONS = frozenset({"float", "unit", "box"})


def meet_thresholds(
    trials: Trials, assignment: Assignment, job: Job, seconds: float = _SECONDS
) -> Iterator[CallCase]:
    """Yield calls with a float, or all of an argument, with which two sides are equal.

    The sides of comparisons that the change leaves out, for each argument that moves them.
    """
    until = time.process_time() + seconds
    floats = {n: s for n, s in assignment.specs.items() if isinstance(s, Tensor)}
    floats = {
        n: s for n, s in floats.items() if s.kind in _FRACTIONS and torch.Size(s.shape).numel()
    }
    for one in find_compared(job.original, job.patched, job.qualname, *changed_lines(job)):
        for name, spec in [*floats.items()][:_MOST_ARGUMENTS]:
            for at in dict.fromkeys((0, torch.Size(spec.shape).numel() - 1)):

                def pin(number: float, name: str = name, at: int = at) -> CallCase:
                    pinned = replace(floats[name], pinned=(at, number))
                    return CallCase(
                        with_specs(assignment, **{name: pinned}), dtypes=(torch.float32,)
                    )

                if time.process_time() > until:
                    return
                found = _solve(cache(partial(_find_gaps, trials, one, pin)), spec)
                if found is not None:
                    yield pin(found)
                    break


def _find_gaps(
    trials: Trials, one: Comparison, pin: Callable[[float], CallCase], number: float
) -> Sequence[float]:
    with _watch(trials.target.loaded.filename, one) as seen:
        ran = trials.run(pin(number))
    return () if ran is None else tuple(seen)


@contextmanager
def _watch(filename: str, one: Comparison) -> Iterator[list[float]]:
    """Collect how much the right side is larger, where one of them is a tensor of floats."""
    seen: list[float] = []

    def look(frame: FrameType) -> None:
        left, right = read_sides(one, frame) if len(seen) < _MOST_ELEMENTS else (None, None)
        whole = [s for s in (left, right) if isinstance(s, torch.Tensor)]
        if whole and all(t.is_floating_point() for t in whole) and None not in {left, right}:
            with suppress(RuntimeError, TypeError):
                gaps = (right - left).detach().flatten()  # type: ignore[operator] # checked
                seen.extend(gaps[:_MOST_ELEMENTS].tolist())

    with watching(filename, one.line, look):
        yield seen


def _solve(gaps: Gaps, spec: Tensor) -> float | None:
    """Return a number for which a gap is 0, that is above it and below it for others."""
    grid = [n for n in _GRID if spec.kind != "unit" or 0 <= n <= 1]
    for low, high in itertools.pairwise(grid):
        before, after = gaps(low), gaps(high)
        if len(before) != len(after):
            continue
        for at, (left, right) in enumerate(zip(before, after, strict=True)):
            if left * right <= 0 and left != right:
                return _close_in(partial(_item, gaps, at), low, high)
    return None


def _item(gaps: Gaps, at: int, number: float) -> float:
    found = gaps(number)
    return found[at] if at < len(found) else math.nan


def _close_in(gap: Callable[[float], float], low: float, high: float) -> float | None:
    """Return where a gap is 0 between two numbers, if a number of float32 is there."""
    for number in (low, high):
        if gap(number) == 0:
            return number
    for step in range(_STEPS):
        left, right = gap(low), gap(high)
        middle = (low + high) / 2
        if step < _SECANTS and right != left:
            middle = low + (high - low) * left / (left - right)
            near = [_as_float32(round(middle, digits)) for digits in _DIGITS]
            exact = torch.tensor(middle)
            ways = (torch.nextafter(exact, torch.tensor(way)) for way in (low, high))
            for number in (*near, _as_float32(middle), *(way.item() for way in ways)):
                if gap(number) == 0:
                    return number
        middle = _as_float32(middle)
        now = gap(middle)
        if not low < middle < high or not math.isfinite(now):
            return None
        low, high = (middle, high) if now * left > 0 else (low, middle)
        if now == 0:
            return middle
    return None


def _as_float32(number: float) -> float:
    return torch.tensor(number, dtype=torch.float32).item()
