"""All findings together: nothing is saved twice, and never more than the step.

What a finding saves is what it adds to those before it, so that a reader may add the figures up.
Those of the source come before those of the run: they are the more specific. ``overlap`` says where
the rest is: "the same 20.1 ms
as 1".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pandas as pd

from npufix.advisor.evidence.item import expected_ns
from npufix.reports.report import Saving
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from npufix.advisor.evidence.item import Item, T
    from npufix.reports.prediction import Forecast, Prediction
    from npufix.reports.report import Finding, StepSplit

    Mask = NDArray[np.bool_]

TOLD = 0.0005
"""Share of the step; what is less is no saving."""
_MOST = 0.5
"""Share of a finding's time that others explain, from which it says nothing of its own."""


def without_explained(found: Sequence[T], kernels: pd.DataFrame, steps: int = 1) -> list[T]:
    """Return the findings without those whose time others, which yield less, explain already.

    What is about a small part of the time of its kernels does not explain it: a clock that lets all
    of them take 3 % longer. ``kernels`` are those of ``steps`` steps.
    """
    spent = _Spent(kernels)
    explained = spent.none

    def is_explained(item: Item) -> bool:
        own = spent.of(item)
        whole = int(spent.times[own].sum())
        return int(spent.times[own & explained].sum()) >= _MOST * whole

    def explains(item: Item) -> bool:
        whole = float(spent.times[spent.of(item)].sum()) / steps
        return not item.is_idle and item.finding.device_ns >= _MOST * whole

    kept: set[int] = set()
    for level in sorted({item.yields for item in found}):
        own = [(at, item) for at, item in enumerate(found) if item.yields == level]
        stay = [(at, item) for at, item in own if not level or not is_explained(item)]
        kept.update(at for at, _ in stay)
        for _, item in stay:
            explained = explained | spent.of(item) if explains(item) else explained
    return [item for at, item in enumerate(found) if at in kept]


def settle(found: Sequence[T], split: StepSplit | None, kernels: pd.DataFrame) -> list[T]:
    """Return the findings with what each saves beside the others, and what it shares with them.

    ``found`` are all findings in the order of the report; it stays. ``kernels`` have a
    ``duration_ns``, by the labels that the findings hold.
    """
    spent = _Spent(kernels)
    claims = _Claims(split, spent)
    savings: dict[int, Saving | None] = {}
    # What the ranks gain together first, the largest of it in front; then what is in the source.
    for at in sorted(range(len(found)), key=lambda at: _precedence(found[at])):
        savings[at] = claims.enter(found[at])
    overlaps = _overlaps(found, spent, split)
    return [_change_saving(item, savings[at], overlaps[at]) for at, item in enumerate(found)]


def within_idle(found: Sequence[T], split: StepSplit | None) -> list[T]:
    """Return the findings of idle time with savings of no more than the device is idle.

    The replayed steps may be longer than the average one: some that waited more for the loader.
    """
    left = split.free_ns + split.exposed_communication_ns if split else 0
    kept = []
    for item in found:
        saving = item.finding.saving
        if split and item.is_idle and saving is not None:
            high = min(saving.high_ns, left)
            left -= high
            saving = Saving(min(saving.low_ns, high), high, saving.basis) if high else None
            item = replace(item, finding=msgspec.structs.replace(item.finding, saving=saving))  # noqa: PLW2901
        kept.append(item)
    return kept


def total_saving(
    settled: Sequence[Item], forecast: Forecast | None = None, split: StepSplit | None = None
) -> Saving:
    """Return what all changes save together: as replayed, else the sum of what is left of each.

    What is no work of the device saves no more than the device is idle.
    """
    found = _total(settled, forecast)
    if split is None:
        return found
    savings = [i.finding.saving for i in settled if not i.is_idle and i.finding.saving]
    idle = split.free_ns + split.exposed_communication_ns
    most = min(split.total_ns, idle + sum(saving.high_ns for saving in savings))
    high = min(found.high_ns, most)
    return Saving(min(found.low_ns, high), high, found.basis)


def _total(settled: Sequence[Item], forecast: Forecast | None) -> Saving:
    together, everything = (forecast.together if forecast else None), settled
    hurries = [i.finding for i in everything if together and i.change and i.change.hurries]
    if together:
        settled = [item for item in settled if not _is_replayed(item)]
        # How soon the host launches is not gained beside fewer launches: at most instead of them.
        settled = [item for item in settled if not (item.change and item.change.hurries)]
        # What a job may gain of its collectives is what hiding those of this rank gains.
        settled = [item for item in settled if not (item.of_job and item.is_communication)]
    savings = [item.finding.saving for item in settled if item.finding.saving]
    low, high = sum(s.low_ns for s in savings), sum(s.high_ns for s in savings)
    if together:  # idle time with several causes is gained once
        low, high = low - _same_idle(everything, "low_ns"), high - _same_idle(everything, "high_ns")
    of_job = [i.finding.saving for i in settled if i.of_job and i.is_idle and i.finding.saving]
    if forecast is None or together is None:
        return Saving(low, high, "sum of the findings, shared time counted once")
    # That a rank is idle for longer than others is what its own changes mend.
    least, most = _as_told(together, forecast.now_ns)
    same = min(max(least, 0), sum(s.low_ns for s in of_job))
    low += least - same
    high += most - min(max(most, 0), sum(s.high_ns for s in of_job))
    # All together save no less than one of them alone.
    told = [i for i in everything if not (i.change and i.change.hurries)]
    every = [item.finding.saving for item in told if item.finding.saving]
    low, high = max(low, *(s.low_ns for s in every), 0), max(high, *(s.high_ns for s in every), 0)
    high = max(high, *map(_most_alone, hurries), 0)
    basis = "the replay of all changes at once"
    low, high = (min(max(0, ns), forecast.now_ns) for ns in (low, high))
    low = low if low >= TOLD * forecast.now_ns else 0
    return Saving(low, high, basis)


def _most_alone(finding: Finding) -> int:
    """Return what a change saves at most: as replayed, else as told beside it."""
    if finding.predicted is not None:
        return finding.predicted.saved_high_ns
    return finding.saving.high_ns if finding.saving else 0


def _as_told(together: Prediction, now_ns: int) -> tuple[int, int]:
    """Return what is saved between the ends of the predicted step, as a reader works it out.

    Where steps vary by more than is saved, that says nothing of the changes.
    """
    least, most = now_ns - together.step_high_ns, now_ns - together.step_low_ns
    if together.verdict == "gain" and least > 0:
        return least, most
    return together.saved_low_ns, together.saved_high_ns


def _same_idle(items: Sequence[Item], end: str) -> int:
    """Return what findings of idle time save both in the replay and outside of it."""
    idle = [i for i in items if i.is_idle and not i.of_job and i.finding.saving]
    replayed = sum(getattr(i.finding.saving, end) for i in idle if _is_replayed(i))
    others = sum(getattr(i.finding.saving, end) for i in idle if not _is_replayed(i))
    return int(min(replayed, others))


def _is_replayed(item: Item) -> bool:
    """Tell whether a finding is among the changes that are replayed together."""
    return item.is_together or (item.finding.predicted is not None and item.is_own_change)


def _precedence(item: Item) -> tuple[int, bool, float, float]:
    """Return who claims first: a cause, and what is certain before what is possible at most."""
    if item.of_job:
        saving = item.finding.saving
        sure = float(saving.low_ns if saving else 0)
        return 0, item.is_symptom, -sure, -expected_ns(item.finding)
    return 1 + (item.finding.kind != "code"), False, 0.0, 0.0


class _Claims:
    """What findings have claimed of the step so far; times in ns."""

    def __init__(self, split: StepSplit | None, spent: _Spent) -> None:
        self._spent = spent
        most = float("inf")
        self._step = split.total_ns if split else most
        self._busy = split.computing_ns + split.exposed_communication_ns if split else most
        self._free = split.free_ns if split else most
        self._claimed = spent.none
        self._idle = self._job = (0.0, 0.0)
        self._of_job = (0.0, 0.0)
        """What the job gains and this rank may gain as well: surely, and of waiting at most."""

    def enter(self, item: Item) -> Saving | None:
        """Return what a finding saves beside those before it; ``None`` where nothing is left."""
        saving = item.finding.saving
        if saving is None:
            return None
        wanted = (float(saving.low_ns), float(saving.high_ns))
        if item.of_job:
            low, high = self._enter_of_job(item, wanted)
        elif item.is_idle:
            low, high = _beyond(wanted, self._idle)
            self._idle = _larger(wanted, self._idle)
            high = min(high, self._free)
            self._free -= high
        else:
            own = self._spent.of(item)
            share = self._spent.part(own & ~self._claimed, own)
            self._claimed = self._claimed | own
            low, high = wanted[0] * share, min(wanted[1] * share, self._busy)
            self._busy -= high
        if not item.of_job:
            low, high = self._beside_job(item, low, high)
        high = min(round(high), self._step)
        self._step -= high
        if not high:
            return None
        return Saving(min(round(low), int(high)), int(high), saving.basis)

    def _enter_of_job(self, item: Item, wanted: tuple[float, float]) -> tuple[float, float]:
        """Several may be sides of one cause (a late rank, and who waits for it)."""
        low, high = _beyond(wanted, self._job)
        self._job = _larger(wanted, self._job)
        shared = item.is_idle or item.is_communication
        self._of_job = (self._of_job[0] + low, self._of_job[1] + high * shared)
        return low, high

    def _beside_job(self, item: Item, low: float, high: float) -> tuple[float, float]:
        """Take away what the job gains already: what is sure, and waiting and communication."""
        sure, waiting = self._of_job
        known = min(low, sure)
        same = min(high, waiting) if item.is_idle or item.is_communication else 0.0
        self._of_job = (sure - known, waiting - same)
        return low - known, high - same


def _beyond(wanted: tuple[float, float], taken: tuple[float, float]) -> tuple[float, float]:
    """Return what a claim adds to the largest one: waiting has many causes at once.

    What one of them removes another cannot remove again: behind 20 ms, 14 ms add nothing.
    """
    return max(0.0, wanted[0] - taken[0]), max(0.0, wanted[1] - taken[1])


def _larger(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), max(one[1], other[1])


class _Spent:
    """The time of kernels; what a finding is about is a mask over them."""

    def __init__(self, kernels: pd.DataFrame) -> None:
        self._index = kernels.index
        self.times = kernels["duration_ns"].to_numpy(np.float64)
        self.none = np.zeros(len(kernels), np.bool_)

    def of(self, item: Item) -> Mask:
        """Return which kernels a finding is about."""
        at = self._index.get_indexer(pd.Index(Labels(item.kernels).array))
        mask = self.none.copy()
        mask[at[at >= 0]] = True
        return mask

    def part(self, some: Mask, kernels: Mask) -> float:
        """Return the share of the time of kernels that some of them take."""
        return float(self.times[some].sum()) / (float(self.times[kernels].sum()) or 1.0)


def _overlaps(found: Sequence[Item], spent: _Spent, split: StepSplit | None) -> list[str]:
    """Say of each finding which one before it is about the same time."""
    owners = np.zeros(len(spent.times), np.int64)
    exposed = split.exposed_communication_ns if split else 0
    first_idle = first_of_job = 0
    texts = []
    for number, item in enumerate(found, 1):
        text = ""
        if item.of_job:
            text = f"part of the same time as {first_of_job}" if first_of_job else ""
            first_of_job = first_of_job or number
        elif item.is_idle:
            same_time = first_idle and not _apart(found[first_idle - 1], item)
            text = f"part of the same idle time as {first_idle}" if same_time else ""
            first_idle = first_idle or number
        elif item.kernels:
            own = spent.of(item)
            told = np.unique(owners[own & (owners > 0)]).tolist()
            shares = {n: spent.part(own & (owners == n), own) for n in told}
            owners[own & (owners == 0)] = number
            other = max(shares, key=lambda n: (shares[n], -n), default=0)
            if other and (same := round(item.finding.device_ns * shares[other])):
                text = f"the same {milliseconds(same)} as {other}"
            elif item.is_communication and (link := _find_same_link(item, found[:number], exposed)):
                text = f"part of the same time as {link}"
        texts.append(text)
    return texts


def _find_same_link(item: Item, before: Sequence[Item], exposed_ns: int) -> int:
    """Return the finding of the job that must be about time of the same collectives, else 0.

    A slow link costs 9.5 ms, collectives stand still for 6.2 ms, and both together take 11.3.
    """
    for number, other in enumerate(before, 1):
        if other.of_job and other.is_communication:
            both = item.finding.device_ns + other.finding.device_ns
            return number if 0 < exposed_ns < both else 0
    return 0


def _apart(one: Item, other: Item) -> bool:
    """Tell whether two findings are known to be about different pauses of the host."""
    own, others = (item.change.sooner_ns if item.change else {} for item in (one, other))
    return bool(own and others) and own.keys().isdisjoint(others.keys())


def _change_saving(item: T, saving: Saving | None, overlap: str) -> T:
    finding = msgspec.structs.replace(item.finding, saving=saving, overlap=overlap)
    return replace(item, finding=finding)
