"""Whether a difference between two groups of runs is more than luck.

One number a run (the steps of a run share its luck), on a log scale, because noise of times is
relative. The question has one side: is it slower? Both groups run on the same machine, so their
noise is one, estimated from all runs together. Of six or eight runs that estimate is poor: now and
then runs agree by luck, and any difference seems certain. So it is drawn towards a typical value
with the weight of four more runs (the moderated t-test of Smyth, 2004).

What disturbs a run makes it slower, never faster: a neighbour, a checkpoint, a hot chip. So a group
is where the faster half of its runs is, its noise is that of all but the slowest, and it is slower
by no more than its fastest run and its median say.
``benchmarks/gate_power.py`` shows what comes of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FEWEST_RUNS = 4
"""In all; with fewer nothing tells noise from change."""
TYPICAL_NOISE = 0.0175
"""Relative standard deviation between runs of one program on one machine: what runs differ by, and
what is left of the noise of a few steps in their median."""
FEW_RUNS_NOISE = 0.0275
"""The same where a group is too small to leave out its slowest run."""
ENOUGH_RUNS = 3
"""In each group."""
SESSION = 0.01
"""Relative: that much another day makes a difference, so that much proves nothing."""
_WITHOUT_SLOWEST = 2.0
"""By what the variance of three runs without their slowest is too small."""
_WEIGHT = 4.0
"""Degrees of freedom that ``TYPICAL_NOISE`` counts for."""
_MOST_RUNS = 20
_POWER = 0.8
"""How surely the smallest detectable change is found."""


@dataclass(frozen=True, slots=True)
class SignificanceTest:
    """Two groups of runs."""

    before: float
    """The median over the runs."""
    after: float
    change: float | None
    """Relative; None from nothing."""
    effect: float
    """Relative, the smallest by the faster half, the median and the fastest run; above 0 is worse.

    0 where these do not agree on the direction."""
    noise: float | None
    """Relative standard deviation between runs, as these show it; None of fewer than four."""
    error: float
    """Standard error of the difference, on the scale of the test."""
    freedom: float
    tested: bool
    slower: float | None
    """Probability of such a difference, or a larger one, by luck; None without a test."""
    faster: float | None


def compare(baseline: Sequence[float], current: Sequence[float], floor: float) -> SignificanceTest:
    """Compare two groups, neither of them empty; ``floor`` is the scale of values near zero."""
    before, after = median(baseline), median(current)
    old, new, relative = _scale_groups(baseline, current, floor)
    count = len(old) + len(new)
    tested = count >= FEWEST_RUNS
    all_squares = _squares(old) + _squares(new)
    noise = math.sqrt(all_squares / (count - 2)) if tested else None
    squares, typical, freedom = all_squares, FEW_RUNS_NOISE, count - 2.0
    if enough_runs(baseline, current):
        quiet = [sorted(group)[:-1] for group in (old, new)]
        squares, typical = _WITHOUT_SLOWEST * sum(map(_squares, quiet)), TYPICAL_NOISE
        freedom -= 2
    freedom = max(0.0, freedom) + _WEIGHT
    variance = (squares + _WEIGHT * typical**2) / freedom
    error = math.sqrt(variance * (1 / len(old) + 1 / len(new)))
    by_half = fmean(_faster_half(new)) - fmean(_faster_half(old))
    differences = by_half, median(new) - median(old), min(new) - min(old)
    one_way = min(differences) > 0 or max(differences) < 0
    smaller = min(differences, key=abs) if one_way else 0.0
    slower = faster = None
    if tested:
        from scipy.special import stdtr

        faster = float(stdtr(freedom, (by_half + SESSION) / error))
        slower = float(stdtr(freedom, (SESSION - by_half) / error))
    return SignificanceTest(
        before=before,
        after=after,
        change=after / before - 1 if before > 0 else None,
        effect=relative(smaller),
        noise=noise if before > 0 else None,
        error=error,
        freedom=freedom,
        tested=tested,
        slower=slower,
        faster=faster,
    )


def enough_runs(baseline: Sequence[float], current: Sequence[float]) -> bool:
    """Tell whether each group has a faster half: of one or two runs both may be disturbed."""
    return min(len(baseline), len(current)) >= ENOUGH_RUNS


def _squares(group: Sequence[float]) -> float:
    middle = fmean(group)
    return sum((x - middle) ** 2 for x in group)


def _faster_half(group: Sequence[float]) -> list[float]:
    """Return the faster half of a group, the middle one included, of at least two runs."""
    return sorted(group)[: max(2, (len(group) + 1) // 2)]


def _scale_groups(
    baseline: Sequence[float], current: Sequence[float], floor: float
) -> tuple[list[float], list[float], Callable[[float], float]]:
    """Return both groups so that a difference is a relative change, and what makes it one."""
    if min(*baseline, *current) > 0:
        return [math.log(x) for x in baseline], [math.log(x) for x in current], math.expm1
    # Nothing is relative to zero: a dump without communication, say.
    scale = max(median(baseline), floor, 1.0)
    return [x / scale for x in baseline], [x / scale for x in current], float


def detectable(
    compared: SignificanceTest, alpha: float, tests: int, tolerance: float
) -> float | None:
    """Return the smallest relative change that is found four times in five; None: no test."""
    if not compared.tested:
        return None
    from scipy.special import stdtrit

    strict = -float(stdtrit(compared.freedom, alpha / max(1, tests)))
    sure = float(stdtrit(compared.freedom, _POWER))
    return max(tolerance, math.expm1(min(50.0, SESSION + (strict + sure) * compared.error)))


def runs_to_decide(
    seen: SignificanceTest, before: int, after: int, alpha: float, tests: int
) -> tuple[int, int] | None:
    """Return how many more runs before and after would prove what these show, if it is true.

    More runs now where they are enough, else as many on both sides; None: no number that is worth
    the time. ``before`` and ``after``: how many there are, ``tests``: how many are corrected for.
    """
    if seen.effect <= 0:
        return None
    from scipy.special import stdtrit

    own = seen.error / math.sqrt(1 / before + 1 / after)
    size = math.log1p(seen.effect)
    for both in (False, True):
        for more in range(1, _MOST_RUNS + 1):
            old, new = before + more * both, after + more
            freedom = seen.freedom + more * (1 + both)
            strict = -float(stdtrit(freedom, alpha / max(1, tests)))
            if size - SESSION > strict * own * math.sqrt(1 / old + 1 / new):
                return more * both, more
    return None


def holm(probabilities: Mapping[str, float]) -> dict[str, float]:
    """Return the probabilities after Holm's correction for testing several at once."""
    corrected: dict[str, float] = {}
    largest = 0.0
    ranked = sorted(probabilities, key=lambda name: (probabilities[name], name))
    for position, name in enumerate(ranked):
        largest = max(largest, min(1.0, (len(ranked) - position) * probabilities[name]))
        corrected[name] = largest
    return corrected
