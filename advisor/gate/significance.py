"""Whether a difference between two groups of runs is more than luck.

One number a run (the steps of a run share its luck), on a log scale, because noise of times is
relative. The question has one side: is it slower? Both groups run on the same machine, so their
noise is one, estimated from all runs together. Of six or eight runs that estimate is poor: now and
then runs agree by luck, and any difference seems certain. So it is drawn towards a typical value
with the weight of four more runs (the moderated t-test of Smyth, 2004).

What disturbs a run makes it slower, never faster: a neighbour, a checkpoint, a hot chip. So a run
that is far slower than the median of its group is left out, and a group is slower only if its
fastest run and its median say so too. Where as many runs of the baseline as would explain it are
as slow as the runs now, all of these may have been disturbed: 100, 101, 100, 109, 110 against
109, 110, 109 proves nothing.

Runs that were taken in turn are pairs: what drifts (temperature, neighbours, the day) drifts for
both, so the differences within the pairs are tested, not the groups.
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
"""The same where a group is too small to tell which of its runs was disturbed."""
ENOUGH_RUNS = 3
"""In each group."""
SESSION = 0.01
"""Relative: that much another day makes a difference, so that much proves nothing."""
_DISTURBED = 0.05
"""Of the scale: a run that is this much slower than the median of its group."""
_AS_SLOW = 0.8
"""Standard deviations: a run of the baseline this near the runs now is like them."""
_AS_SLOW_OF_FEW = 2.2
"""The same of a disturbed run of three: every other such baseline has none, so one tells much."""
_CHANCES = 0.01, 0.007
"""That all runs now were disturbed as some of the baseline were: as slow or slower; as slow."""
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
    """Relative, over the runs that were not disturbed; above 0 is worse."""
    least: float
    """Relative: the smallest that the median and the fastest run say; 0 where they disagree."""
    noise: float | None
    """Relative standard deviation between runs, as these show it; None of fewer than four."""
    size: float
    """``effect`` on the scale of the test."""
    error: float
    """Standard error of ``size``."""
    freedom: float
    session: float
    """What proves nothing, on the same scale: 0 of pairs."""
    relative: Callable[[float], float]
    """From the scale of the test to a relative change."""
    tested: bool
    slower: float | None
    """Probability of such a difference, or a larger one, by luck; None without a test."""
    faster: float | None
    disturbed: int
    """So many runs of the baseline are as slow as those now, which may all be disturbed; else 0."""

    def doubt(self, tolerance: float) -> float:
        """Return the probability that the change is no larger than the tolerance."""
        from scipy.special import stdtr

        return float(stdtr(self.freedom, (self.scale(tolerance) - self.size) / self.error))

    def scale(self, change: float) -> float:
        """Return a relative change on the scale of the test."""
        return change if self.relative is float else math.log1p(change)


@dataclass(frozen=True, slots=True)
class _Difference:
    """How far apart two groups are, on the scale of the test."""

    size: float
    squares: float
    freedom: float
    parts: float
    """The variance of ``size`` is this times that of a run."""
    slowest_agree: tuple[float, ...]
    """What the median and the fastest run say."""


def compare(
    baseline: Sequence[float], current: Sequence[float], floor: float, *, paired: bool = False
) -> SignificanceTest:
    """Compare two groups, neither of them empty; ``floor`` is the scale of values near zero.

    ``paired``: both are of the same length, and what is at the same place ran one after the other.
    """
    before, after = median(baseline), median(current)
    old, new, relative = _scale_groups(baseline, current, floor)
    count = len(old) + len(new)
    tested = count >= FEWEST_RUNS
    seen = _difference_of_pairs(old, new) if paired else _difference_of_groups(old, new)
    typical = TYPICAL_NOISE if enough_runs(baseline, current) else FEW_RUNS_NOISE
    freedom = max(0.0, seen.freedom) + _WEIGHT
    variance = (seen.squares + _WEIGHT * typical**2) / freedom
    error = math.sqrt(variance * seen.parts)
    session = 0.0 if paired else SESSION
    says = seen.slowest_agree
    one_way = min(says) > 0 or max(says) < 0
    slower = faster = None
    if tested:
        from scipy.special import stdtr

        faster = float(stdtr(freedom, (seen.size + session) / error))
        slower = float(stdtr(freedom, (session - seen.size) / error))
    return SignificanceTest(
        before=before,
        after=after,
        change=after / before - 1 if before > 0 else None,
        effect=relative(seen.size),
        least=relative(min(says, key=abs)) if one_way else 0.0,
        noise=_noise(old, new, paired=paired) if tested and before > 0 else None,
        size=seen.size,
        error=error,
        freedom=freedom,
        session=session,
        relative=relative,
        tested=tested,
        slower=slower,
        faster=faster,
        disturbed=_as_slow(old, new, math.sqrt(variance)) if tested else 0,
    )


def _difference_of_groups(old: Sequence[float], new: Sequence[float]) -> _Difference:
    quiet_old, quiet_new = _drop_disturbed(old), _drop_disturbed(new)
    return _Difference(
        size=fmean(quiet_new) - fmean(quiet_old),
        squares=_squares(quiet_old) + _squares(quiet_new),
        freedom=len(quiet_old) + len(quiet_new) - 2,
        parts=1 / len(quiet_old) + 1 / len(quiet_new),
        slowest_agree=(median(new) - median(old), min(new) - fmean(quiet_old)),
    )


def _difference_of_pairs(old: Sequence[float], new: Sequence[float]) -> _Difference:
    """Return the same of pairs, of which either run may be disturbed."""
    differences = sorted(after - before for before, after in zip(old, new, strict=True))
    middle, far = median(differences), _DISTURBED * math.sqrt(2)
    quiet = [each for each in differences if abs(each - middle) <= far] or differences
    # One pair in four may have a disturbed run of the baseline, which makes it look faster.
    lowest = differences[(len(differences) - 1) // 4]
    return _Difference(
        size=fmean(quiet),
        squares=_squares(quiet) / 2,
        freedom=len(quiet) - 1,
        parts=2 / len(quiet),
        slowest_agree=(middle, lowest, min(new) - min(old)),
    )


def _drop_disturbed(group: Sequence[float]) -> list[float]:
    """Return the runs that are not far slower than the median of their group."""
    limit = median(group) + _DISTURBED
    return [each for each in group if each <= limit]


def _noise(old: Sequence[float], new: Sequence[float], *, paired: bool) -> float:
    """Return the standard deviation between runs, without what pairs share."""
    if paired:
        pairs = [after - before for before, after in zip(old, new, strict=True)]
        return math.sqrt(_squares(pairs) / 2 / (len(pairs) - 1))
    return math.sqrt((_squares(old) + _squares(new)) / (len(old) + len(new) - 2))


def _as_slow(old: Sequence[float], new: Sequence[float], deviation: float) -> int:
    """Return how many runs of the baseline are as slow as all runs now, if that may be luck.

    A fifth of the baseline is disturbed, so all of three runs now are with a chance of 0.008. Where
    one of these is far slower than the others, they are not all disturbed, and it is no luck.
    """
    quiet = _drop_disturbed(new)
    if len(quiet) < len(new):
        return 0
    level = fmean(quiet)
    slow = sum(each >= level - deviation / 2 for each in old)
    few, usual = len(old) <= ENOUGH_RUNS, median(old) + _DISTURBED
    near = sum(
        abs(each - level) <= deviation * (_AS_SLOW_OF_FEW if few and each > usual else _AS_SLOW)
        for each in old
    )
    for count, chance in zip((slow, near), _CHANCES, strict=True):
        if (count / len(old)) ** len(new) > chance:
            return count
    return 0


def enough_runs(baseline: Sequence[float], current: Sequence[float]) -> bool:
    """Tell whether each group shows which run was disturbed: of two either may be."""
    return min(len(baseline), len(current)) >= ENOUGH_RUNS


def _squares(group: Sequence[float]) -> float:
    middle = fmean(group)
    return sum((x - middle) ** 2 for x in group)


def _scale_groups(
    baseline: Sequence[float], current: Sequence[float], floor: float
) -> tuple[list[float], list[float], Callable[[float], float]]:
    """Return both groups so that a difference is a relative change, and what makes it one."""
    if min(*baseline, *current) > 0:
        return [math.log(x) for x in baseline], [math.log(x) for x in current], math.expm1
    # Nothing is relative to zero: a dump without communication, say.
    scale = max(median(baseline), floor, 1.0)
    return [x / scale for x in baseline], [x / scale for x in current], float


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a change must be to count."""

    tolerance: float
    alpha: float
    """How improbable by luck, after correction for the tests."""
    doubt: float
    """How improbable to be within the tolerance."""
    share: float = 1.0
    """Of ``alpha``, that is left for this one of several tests."""


def detectable(compared: SignificanceTest, wanted: Wanted) -> float | None:
    """Return the smallest relative change that is found four times in five; None: no test."""
    if not compared.tested:
        return None
    from scipy.special import stdtrit

    sure = float(stdtrit(compared.freedom, _POWER))
    least = _least_size(compared, wanted, compared.freedom, compared.error)
    return max(wanted.tolerance, compared.relative(min(50.0, least + sure * compared.error)))


def runs_to_decide(
    seen: SignificanceTest, before: int, after: int, wanted: Wanted
) -> tuple[int, int] | None:
    """Return how many more runs before and after would prove what these show, if it is true.

    More runs now where they are enough, else as many on both sides, as of pairs; None: no number
    that is worth the time. ``before`` and ``after``: how many there are.
    """
    if seen.size > _least_size(seen, wanted, seen.freedom, seen.error):
        return None  # these are enough: something else is in doubt
    own = seen.error / math.sqrt(1 / before + 1 / after)
    pairs = not seen.session
    for both in (True,) if pairs else (False, True):
        for more in range(1, _MOST_RUNS + 1):
            old, new = before + more * both, after + more
            freedom = seen.freedom + more * (1 + (both and not pairs))
            error = own * math.sqrt(1 / old + 1 / new)
            if seen.size > _least_size(seen, wanted, freedom, error):
                return more * both, more
    return None


def _least_size(seen: SignificanceTest, wanted: Wanted, freedom: float, error: float) -> float:
    """Return what a difference must be, on the scale of the test."""
    from scipy.special import stdtrit

    strict = -float(stdtrit(freedom, wanted.alpha * wanted.share))
    clear = -float(stdtrit(freedom, wanted.doubt))
    return max(seen.session + strict * error, seen.scale(wanted.tolerance) + clear * error)


def holm(probabilities: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Return the probabilities after Holm's correction for testing several at once.

    What has more weight is corrected less; all weights are above 0.
    """
    corrected: dict[str, float] = {}
    largest = 0.0
    left = sum(weights[name] for name in probabilities)
    for name in sorted(probabilities, key=lambda n: (probabilities[n] / weights[n], n)):
        largest = max(largest, min(1.0, probabilities[name] * left / weights[name]))
        corrected[name] = largest
        left -= weights[name]
    return corrected
