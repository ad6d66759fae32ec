"""Whether a difference between two groups of runs is more than luck.

One number a run (the steps of a run share its luck), on a log scale, because noise of times is
relative. The question has one side: is it slower? Both groups run on the same machine, so their
noise is one, estimated from all runs together. Of six or eight runs that estimate is poor: now and
then runs agree by luck, and any difference seems certain. So it is drawn towards a typical value
with the weight of four more runs (the moderated t-test of Smyth, 2004).
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
TYPICAL_NOISE = 0.0275
"""Relative standard deviation between runs of one program on one machine: what runs differ by, and
what is left of the noise of a few steps in their median. A smaller one finds more and is wrong more
often; of those that find a true +8% in three of four gates this one is wrong the least."""
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
    """Relative, the smaller one of medians and means; above 0 is worse."""
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
    freedom = len(old) + len(new) - 2
    squares = sum((x - fmean(group)) ** 2 for group in (old, new) for x in group)
    noise = math.sqrt(squares / freedom) if freedom else None
    variance = (squares + _WEIGHT * TYPICAL_NOISE**2) / (freedom + _WEIGHT)
    error = math.sqrt(variance * (1 / len(old) + 1 / len(new)))
    by_mean, by_median = fmean(new) - fmean(old), median(new) - median(old)
    tested = len(old) + len(new) >= FEWEST_RUNS
    smaller = min(by_mean, by_median, key=abs) if by_mean * by_median > 0 else 0.0
    slower = faster = None
    if tested:
        from scipy.special import stdtr

        faster = float(stdtr(freedom + _WEIGHT, by_mean / error))
        slower = float(stdtr(freedom + _WEIGHT, -by_mean / error))
    return SignificanceTest(
        before=before,
        after=after,
        change=after / before - 1 if before > 0 else None,
        effect=relative(smaller),
        noise=noise if tested and before > 0 else None,
        error=error,
        freedom=freedom + _WEIGHT,
        tested=tested,
        slower=slower,
        faster=faster,
    )


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
    return max(tolerance, math.expm1(min(50.0, (strict + sure) * compared.error)))


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
            if size > strict * own * math.sqrt(1 / old + 1 / new):
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
