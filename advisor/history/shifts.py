"""Where a series of runs changed for good: steps and drifts, told apart from noise.

A series holds one number a run in the order of time, as logarithms, so that changes are relative.
First it is cut into pieces of one level each, so that what is left over is small (``_cut``): a
piece pays a penalty, and a disturbed run counts no more than luck does, because it says nothing
about the level. A cut is kept only if the runs beside it differ by ranks as well, which no
disturbed run can make up. Jumps in one direction that a line explains as well are a drift:

    100 101 99 100 108 107 109 108   a jump of 8 % before the fifth run
    100 101 102 104 105 106 108 109  a drift of 9 %

Runs of one day share its luck. Five that are 3 % slower, all of them of Tuesday, may be Tuesday's:
how far apart days are is measured, too, and a change has to be larger than what they explain. A
level that has come and gone with a day is none.

``benchmarks/history_power.py`` shows what is found and how often nothing is.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

FEWEST_RUNS = 8
"""With fewer a level and its noise are one guess."""
SHORTEST = 3
"""Runs that make a level."""
_PENALTY = 16.0
"""Of a piece, in squares of the noise: what luck saves by a cut of its own choice is less."""
_LINE_PENALTY = 8.0
"""A line has one parameter more than a level."""
_CLIP = 2.5
_NEAR = 2
"""Neighbours on each side: three runs of a new level are the most of five."""
_QUIETEST = 0.004
"""Relative: no two runs agree better than by luck."""
_LAGS = (1, 3, 7)
_ALPHA = 5e-4
_BENEATH = 2.0
"""So many times fewer noise than a step has; else it is not seen."""
_BENEATH_DAYS = 3.5
"""The same of the noise between days: there are many, and the worst of them is looked at."""
_LEAST_DAY = 0.01
"""Relative standard deviation between days, as ``significance.SESSION`` of the gate: that fewer of
them seem more alike is luck."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of level for good."""

    kind: str
    """``jump`` or ``drift``."""
    start: int
    """A jump: the first run of the new level. A drift: its first run."""
    end: int
    """A jump: as ``start``. A drift: its last run."""
    change: float
    """Relative: above 0 is slower."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A series taken apart."""

    levels: tuple[float, ...]
    """What each run would have measured without noise, in the unit of the values."""
    shifts: tuple[Shift, ...]
    noise: float
    """Relative standard deviation between runs."""


@dataclass(frozen=True, slots=True)
class _Noise:
    """What runs differ by without a change."""

    of_runs: float
    """Relative standard deviation, that of days included."""
    of_days: float
    """The same between days; 0 where each has one run."""
    days: Integers
    """The day of each run, numbered in order."""

    def of_piece(self, start: int, end: int) -> Floats:
        """Return the share that each day has of some runs."""
        counts = np.bincount(self.days[start:end], minlength=int(self.days[-1]) + 1)
        return counts.astype(np.float64) / (end - start)

    def is_of_one_day(self, start: int, cut: int, end: int) -> bool:
        """Tell whether a day that was over again may be all that a cut is about."""
        days = self.days
        if not self.of_days or days[cut - 1] == days[cut]:
            return False
        ended = end < len(days)
        return bool(days[start] == days[cut - 1] or (ended and days[cut] == days[end - 1]))

    def least_step(self, start: int, cut: int, end: int) -> float:
        """Return what the runs before and behind a cut must differ by."""
        if self.is_of_one_day(start, cut, end):
            return math.inf
        of_runs = self.of_runs * math.sqrt(1 / (cut - start) + 1 / (end - cut))
        apart = self.of_piece(start, cut) - self.of_piece(cut, end)
        of_days = self.of_days * math.sqrt(float((apart**2).sum()))
        return max(_BENEATH * of_runs, _BENEATH_DAYS * of_days)

    def least_drift(self, start: int, end: int) -> float:
        """Return what runs must rise by from the first to the last: days may do so by luck."""
        days = int(self.days[end - 1] - self.days[start]) + 1
        if not self.of_days or days == 1:
            return 0.0
        # The variance of a line's rise: 12 times that of its points over their number.
        variance = 12 * (self.of_days**2 / days + self.of_runs**2 / (end - start))
        return _BENEATH_DAYS * math.sqrt(variance)


def find_shifts(
    values: Sequence[float], smallest: float, days: Sequence[int] | None = None
) -> Trend:
    """Return the steps and drifts of a series of positive values in the order of time.

    ``smallest``: relative; what changes by less is noise of another day. ``days``: on which day
    each ran, as any number that grows; None: each on one of its own.
    """
    x = np.log(np.asarray(values, np.float64))
    measured = _measure_noise(x)
    number = np.unique(np.arange(len(x)) if days is None else days, return_inverse=True)[1]
    noise = _Noise(max(measured, _QUIETEST), _measure_days(x, number), number)
    cuts = _keep_certain(x, _cut(x / noise.of_runs), smallest, noise)
    pieces = list(itertools.pairwise([0, *cuts, len(x)]))
    levels = np.concatenate([np.full(b - a, np.median(x[a:b])) for a, b in pieces])
    steps = levels.copy()
    shifts: list[Shift] = []
    for start, end in (*_list_climbs(pieces, steps), *pieces):
        if any(start < shift.end and shift.start < end for shift in shifts):
            continue
        line = _fit_line(x[start:end])
        inner = sum(start < cut < end for cut in cuts)
        luck = noise.of_runs
        saved = _cost((x[start:end] - steps[start:end]) / luck) + inner * _PENALTY
        saved -= _cost((x[start:end] - line) / luck) + (_LINE_PENALTY if inner else _PENALTY)
        least = max(math.log1p(smallest), noise.least_drift(start, end))
        if saved > 0 and _is_certain_drift(x[start:end], line, least):
            levels[start:end] = line
            shifts.append(Shift("drift", start, end - 1, math.expm1(line[-1] - line[0])))
    drifts = [(shift.start, shift.end) for shift in shifts]
    shifts += [
        Shift("jump", cut, cut, math.expm1(steps[cut] - steps[cut - 1]))
        for cut in cuts
        if not any(start < cut <= end for start, end in drifts)
    ]
    found = tuple(sorted(shifts, key=lambda shift: shift.start))
    return Trend(tuple(np.exp(levels).tolist()), found, measured)


def _measure_noise(x: Floats) -> float:
    """Return the noise from differences of runs: steps are few of them, a drift is their median.

    Differences over several runs see what runs of one day have in common.
    """
    found = [0.0]
    for lag in _LAGS:
        if len(x) > lag + 5:
            apart = x[lag:] - x[:-lag]
            deviation = np.median(np.abs(apart - np.median(apart)))
            found.append(float(1.4826 * deviation) / math.sqrt(2))
    return max(found)


def _measure_days(x: Floats, days: Integers) -> float:
    """Return by how much more days differ than their runs do; 0 where each has one run."""
    bounds = np.flatnonzero(np.diff(days, prepend=-1, append=int(days[-1]) + 1))
    groups = [x[start:end] for start, end in itertools.pairwise(bounds)]
    if len(groups) == len(x) or len(groups) == 1:
        return 0.0
    middles = np.array([np.median(group) for group in groups])
    within = np.concatenate([group - np.median(group) for group in groups if len(group) > 1])
    freedom = 1 - len(groups) / len(x)
    of_runs = float(1.4826 * np.median(np.abs(within))) / math.sqrt(freedom)
    apart = np.diff(middles)
    between = float(1.4826 * np.median(np.abs(apart - np.median(apart)))) / math.sqrt(2)
    # The median of n runs has about 1.5 times the variance of their mean.
    own = max(0.0, between**2 - 1.5 * of_runs**2 * len(groups) / len(x))
    return max(_LEAST_DAY, math.sqrt(own))


def _cost(residuals: Floats) -> float:
    """Return the sum of Huber's loss, squares of the noise."""
    size = np.abs(residuals)
    return float(np.where(size < _CLIP, size**2, 2 * _CLIP * size - _CLIP**2).sum())


def _clip_disturbed(z: Floats) -> Floats:
    """Return runs that are far from their neighbours as far as luck may take them."""
    wide = np.pad(z, _NEAR, mode="reflect")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(wide, 2 * _NEAR + 1), axis=1)
    clipped: Floats = np.clip(z, middle - _CLIP, middle + _CLIP)
    return clipped


def _cut(z: Floats) -> list[int]:
    """Return where levels begin, with the least squares over all ways to cut."""
    count = len(z)
    sums, squares = np.zeros(count + 1), np.zeros(count + 1)
    np.cumsum(_clip_disturbed(z), out=sums[1:])
    np.cumsum(_clip_disturbed(z) ** 2, out=squares[1:])
    best = np.full(count + 1, np.inf)
    best[0] = -_PENALTY
    before = np.zeros(count + 1, np.int64)
    for end in range(SHORTEST, count + 1):
        starts = np.arange(end - SHORTEST + 1)
        left_over = (
            squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        )
        totals = best[starts] + _PENALTY + left_over
        before[end] = np.argmin(totals)
        best[end] = totals[before[end]]
    cuts: list[int] = []
    while count > 0:
        count = int(before[count])
        cuts.append(count)
    return sorted(cuts)[1:]


def _keep_certain(x: Floats, cuts: list[int], smallest: float, noise: _Noise) -> list[int]:
    """Leave out cuts between pieces that do not differ for certain, the least certain first."""
    while cuts:
        bounds = [0, *cuts, len(x)]
        doubts = [
            _doubt(x[start:cut], x[cut:end], smallest, noise.least_step(start, cut, end))
            for start, cut, end in zip(bounds[:-2], cuts, bounds[2:], strict=True)
        ]
        worst = int(np.argmax(doubts))
        if doubts[worst] <= 1:
            break
        del cuts[worst]
    return cuts


def _doubt(old: Floats, new: Floats, smallest: float, least: float) -> float:
    """Return how little certain a step is; above 1 it is none.

    ``least``: what noise alone may well do.
    """
    from scipy.stats import mannwhitneyu

    size = abs(float(np.median(new) - np.median(old)))
    if size < math.log1p(smallest):
        return math.inf
    # Of 5 and 3 runs no order is rarer than 1 in 56: then all of one are above all of the other.
    rarest = 2 / math.comb(len(old) + len(new), len(new))
    alpha = max(_ALPHA, 1.001 * rarest)
    by_rank = float(mannwhitneyu(old, new).pvalue) / alpha
    return max(by_rank, least / size)


def _list_climbs(pieces: list[tuple[int, int]], levels: Floats) -> list[tuple[int, int]]:
    """Return pieces that follow each other in one direction; no run twice."""
    if len(pieces) == 1:
        return []
    rises = [bool(levels[start] > levels[start - 1]) for start, _ in pieces[1:]]
    found: list[tuple[int, int]] = []
    first = 0
    for last in range(1, len(pieces)):
        if last == len(rises) or rises[last] != rises[first]:
            found.append((pieces[first][0], pieces[last][1]))
            first = last
    # Where it goes up and down again both have the piece between; the second begins behind it.
    return [
        (max(start, found[number - 1][1] if number else 0), end)
        for number, (start, end) in enumerate(found)
    ]


def _fit_line(x: Floats) -> Floats:
    """Return the line of the median slope between two runs (Theil and Sen)."""
    time = np.arange(len(x))
    one, other = np.triu_indices(len(x), 1)
    slope = float(np.median((x[other] - x[one]) / (other - one)))
    line: Floats = slope * time + np.median(x - slope * time)
    return line


def _is_certain_drift(x: Floats, line: Floats, least: float) -> bool:
    """Tell whether runs rise or fall by more than luck and by enough (Mann and Kendall)."""
    if len(x) < FEWEST_RUNS or abs(line[-1] - line[0]) < least:
        return False
    from scipy.stats import kendalltau

    return float(kendalltau(np.arange(len(x)), x).pvalue) < _ALPHA
