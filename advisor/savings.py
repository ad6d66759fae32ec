"""What all findings save together: nothing twice, and never more than the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.reports.report import Finding, Saving

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npufix.advisor.findings import Located
    from npufix.advisor.run_findings import Observed
    from npufix.reports.report import StepSplit

    Found = Located | Observed


@dataclass(frozen=True, slots=True)
class _Budget:
    """What there is to save per step; ``None`` where the dump does not say."""

    busy_ns: int | None
    idle_ns: int | None


def ranked(found: Iterable[Found]) -> list[Found]:
    """Return the findings, the most rewarding first."""
    return sorted(found, key=_rank)


def _rank(item: Found) -> tuple[float, float, str, int, str]:
    finding = item.finding
    return (-_expected(finding), -finding.device_ns, finding.path, finding.line, finding.rule)


def _expected(finding: Finding) -> float:
    return (finding.saving.low_ns + finding.saving.high_ns) / 2 if finding.saving else 0.0


def total_saving(found: Sequence[Found], split: StepSplit | None) -> Saving:
    """Return what all changes save together, most rewarding first.

    Kernels that two findings share count once, and so does the time in which the device waits.
    """
    budget = _Budget(None, None)
    if split is not None:
        budget = _Budget(split.computing_ns + split.exposed_communication_ns, split.free_ns)
    busy = _capped([_fresh(item, share) for item, share in _shares(found)], budget.busy_ns)
    waiting = [item.finding.saving for item in found if _is_idle(item)]
    # Waiting has many causes at once; what one of them removes another cannot remove again.
    longest = max((saving for saving in waiting if saving), key=lambda s: s.high_ns, default=None)
    idle = _capped([(longest.low_ns, longest.high_ns)] if longest else [], budget.idle_ns)
    return Saving(
        busy[0] + idle[0], busy[1] + idle[1], "sum of the findings, shared time counted once"
    )


def _shares(found: Sequence[Found]) -> Iterable[tuple[Found, float]]:
    """Yield each finding that frees kernels with the share of them that no other freed before."""
    claimed: set[int] = set()
    for item in found:
        if not _is_idle(item) and item.kernels:
            yield item, len(item.kernels - claimed) / len(item.kernels)
            claimed |= item.kernels


def _fresh(item: Found, share: float) -> tuple[float, float]:
    saving = item.finding.saving
    return (saving.low_ns * share, saving.high_ns * share) if saving else (0.0, 0.0)


def _capped(savings: Sequence[tuple[float, float]], most: int | None) -> tuple[int, int]:
    low, high = round(sum(s[0] for s in savings)), round(sum(s[1] for s in savings))
    return (low, high) if most is None else (min(low, most), min(high, most))


def _is_idle(item: Found) -> bool:
    return getattr(item, "is_idle", False)
