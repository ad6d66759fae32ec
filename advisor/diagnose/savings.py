"""What all findings save together: nothing twice, and never more than the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.advisor.evidence.item import expected_ns
from npufix.reports.report import Saving

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npufix.advisor.evidence.item import Item
    from npufix.reports.report import StepSplit


@dataclass(frozen=True, slots=True)
class _Budget:
    """What there is to save per step; ``None`` where the dump does not say."""

    busy_ns: int | None
    idle_ns: int | None


def total_saving(found: Sequence[Item], split: StepSplit | None) -> Saving:
    """Return what all changes save together, most rewarding first.

    Kernels that two findings share count once, and so does the time in which the device waits.
    """
    budget = _Budget(None, None)
    if split is not None:
        budget = _Budget(split.computing_ns + split.exposed_communication_ns, split.free_ns)
    of_job = [item for item in found if item.of_job]
    found = [item for item in found if not item.of_job]
    busy = _capped([_fresh(item, share) for item, share in _shares(found)], budget.busy_ns)
    waiting = [item.finding.saving for item in found if item.is_idle]
    # Waiting has many causes at once; what one of them removes another cannot remove again.
    longest = max((saving for saving in waiting if saving), key=lambda s: s.high_ns, default=None)
    idle = _capped([(longest.low_ns, longest.high_ns)] if longest else [], budget.idle_ns)
    low, high = _with_job((busy[0] + idle[0], busy[1] + idle[1]), of_job)
    if split is not None:
        high = min(high, max(split.total_ns, busy[1] + idle[1]))
    return Saving(min(low, high), high, "sum of the findings, shared time counted once")


def _with_job(own: tuple[int, int], of_job: Sequence[Item]) -> tuple[int, int]:
    """Add what the ranks together can gain to what the one that was looked into can.

    Several of these findings may be sides of one cause (a late rank, and who waits for it), so
    only the largest counts. What it gains may be the same time as on that rank: at least the
    larger of both, at most their sum; and never the sum where both are idle time or communication,
    which the findings of the rank count already.
    """
    gaining = (item for item in of_job if item.finding.saving)
    largest = max(gaining, key=lambda item: expected_ns(item.finding), default=None)
    if largest is None or largest.finding.saving is None:
        return own
    saving = largest.finding.saving
    shared = largest.is_idle or largest.is_communication
    high = max(own[1], saving.high_ns) if shared else own[1] + saving.high_ns
    return max(own[0], saving.low_ns), high


def _shares(found: Sequence[Item]) -> Iterable[tuple[Item, float]]:
    """Yield each finding that frees kernels with the share of them that no other freed before."""
    claimed: set[int] = set()
    for item in found:
        if not item.is_idle and item.kernels:
            yield item, len(item.kernels - claimed) / len(item.kernels)
            claimed |= item.kernels


def _fresh(item: Item, share: float) -> tuple[float, float]:
    saving = item.finding.saving
    return (saving.low_ns * share, saving.high_ns * share) if saving else (0.0, 0.0)


def _capped(savings: Sequence[tuple[float, float]], most: int | None) -> tuple[int, int]:
    low, high = round(sum(s[0] for s in savings)), round(sum(s[1] for s in savings))
    return (low, high) if most is None else (min(low, most), min(high, most))
