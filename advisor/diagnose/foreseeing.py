"""The findings with what the replay of the run says that they gain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from npufix.advisor.diagnose.savings import TOLD
from npufix.reports.prediction import WORST_ERROR
from npufix.reports.report import Saving
from npufix.rules.shared.quantities import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.evidence.item import Item
    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.predict.graph.critical_path import CriticalPath
    from npufix.advisor.predict.other_ranks import OtherRanks
    from npufix.advisor.predict.what_if import Asked, Predictions
    from npufix.reports.prediction import Forecast, Prediction

_OF_HOST = "the replay: more than the kernels take, as the host has less to launch or to wait for"
_UNKNOWN = "what becomes of its kernels is not known"
_NO_LAUNCHES = "when the host launched each kernel is not recorded"
_NO_COLLECTIVES = "how long this rank waits in its collectives is not recorded"
_SHARED = "what it gains is part of what others before it do"
_NOT_REPLAYED = "the replayed steps hold nothing that it changes"
_AS_REPLAYED = "the replay, beside the findings before it"
_LIMITED = "the replay: other things limit the step beside it"
_LESS = 0.9
"""Share of what a rule says that it saves, below which the replay says something else."""
T = TypeVar("T", bound="Item")


@dataclass(frozen=True, slots=True)
class Foreseen(Generic[T]):
    """What the replay of a run says; of a run without kernels nothing."""

    items: list[T]
    forecast: Forecast | None = None
    path: CriticalPath | None = None


def foresee(  # noqa: PLR0913, PLR0917 - the run, the others of its job, and what is asked of them
    settled: Sequence[T],
    evidence: Evidence,
    step_ns: int,
    asked: Asked | None,
    chip: str | None,
    others: OtherRanks | None = None,
) -> Foreseen[T]:
    """Return the findings with their predictions, and the forecast of the run.

    What a change saves is then what the replay says, beside those before it; where changes of its
    rule were measured before, as much as those did (``own_pairs``).
    """
    from npufix.advisor.predict.own_pairs import correct
    from npufix.advisor.predict.what_if import predict

    settled = correct(settled, evidence, chip)
    found = predict(evidence, settled, step_ns, asked, others)
    if found is None:
        return Foreseen(list(settled))
    of_job = any(item.of_job and item.is_idle for item in settled)
    of_links = {item.is_symptom for item in settled if item.of_job and item.is_communication}
    items = [
        # What the job gains already of the idle time of a rank, or of links, is not gained again.
        _with(
            item, at, found,
            claimed=of_job and item.is_idle and item.finding.saving is None,
            shared=item.is_communication and {False, item.is_symptom} & of_links != set(),
        )
        for at, item in enumerate(settled)
    ]  # fmt: skip
    return Foreseen(items, found.forecast, found.path)


def _is_certain(item: Item) -> bool:
    """Tell whether something is saved in any case, and not only where it is mended as a whole."""
    own = item.finding.saving
    return item.change is None or item.change.executions > 0 or (own is not None and own.low_ns > 0)


def _say_unpredicted(item: Item, forecast: Forecast) -> str:
    """Return why the replay says nothing of a finding."""
    if forecast.error > WORST_ERROR:
        return f"the replay of this recording is {percent(forecast.error)} off"
    if item.of_job and item.finding.saving is not None:
        return _NO_COLLECTIVES
    if item.change is None:
        return item.unknown or (_SHARED if item.of_job else _UNKNOWN)
    return _NO_LAUNCHES if forecast.model == "pauses" else _NOT_REPLAYED


def _as_far_as_replayed(item: Item, predicted: Prediction) -> Saving | None:
    """Return what a finding saves; of links no more than the replay: the host may limit it then."""
    saving, most = item.finding.saving, max(0, predicted.saved_high_ns)
    of_links = item.of_job and item.is_communication
    if saving is None or not of_links or saving.high_ns <= most:
        return saving
    return Saving(min(saving.low_ns, most), most, _LIMITED) if most else None


def _with(item: T, at: int, found: Predictions, *, claimed: bool, shared: bool) -> T:
    predicted = found.alone.get(at)
    if predicted is None:
        why = _say_unpredicted(item, found.forecast)
        return replace(item, finding=msgspec.structs.replace(item.finding, unpredicted=why))
    if at not in found.added:  # what it would be if the host were never late: others say how
        told = msgspec.structs.replace(
            item.finding, predicted=predicted, saving=_as_far_as_replayed(item, predicted)
        )
        return replace(item, finding=told)
    if item.of_job:  # that the others wait for this rank: what the job gains is known of all ranks
        told = msgspec.structs.replace(item.finding, predicted=predicted)
        return replace(item, finding=told, is_together=True)
    low, high = (max(0, ns) for ns in found.added[at])
    if not _is_certain(item):
        low = 0
    basis = item.finding.saving.basis if item.finding.saving else _AS_REPLAYED
    if item.change and (work := item.change.forward or item.change.backward):
        basis = work.basis or basis
    own = item.finding.device_ns
    if item.finding.saving and not (item.change and item.change.forward):
        stated = min(item.finding.saving.high_ns, own)
        basis = _LIMITED if high < _LESS * stated else basis
    if item.change and own and high > own:
        # What waits no longer, or is not launched any more, is time of the host as well.
        frees_host = item.change.executions or item.change.waits or not item.change.keeps[2]
        low, high, basis = (low, high, _OF_HOST) if frees_host else (min(low, own), own, basis)
    if shared:  # what was left to it beside those of the job
        high = min(high, item.finding.saving.high_ns if item.finding.saving else 0)
        low = min(low, high)
    low = low if low >= TOLD * found.forecast.now_ns else 0
    saving = Saving(low, high, basis) if high >= TOLD * found.forecast.now_ns else None
    if predicted.verdict == "loss" or claimed:
        saving = None
    finding = msgspec.structs.replace(
        item.finding, predicted=predicted, saving=saving, kernel_saving=item.finding.saving
    )
    return replace(item, finding=finding)
