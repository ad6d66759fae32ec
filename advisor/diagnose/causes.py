"""What holds up a late rank, where the rank that is looked into is that one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from npufix.reports.report import CAUSE, Fact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.evidence.item import Item, T

_EXPLAINS = 0.5
"""Share of what the rank is late by from which a finding of its own says why."""


def with_causes(found: Sequence[T], rank: int | None) -> list[T]:
    """Return the findings; one about idle time of this rank says what the rank itself was found to.

    That rank 9 is idle 18 ms longer than its peers is settled where its own dump shows that it
    waits 18 ms for the next batch: then the loader is what to mend, not the host. That the others
    wait for this rank in their collectives comes behind what it does meanwhile.
    """
    own = [item for item in found if item.is_idle and not item.of_job]
    # A pause with a place, torch/serialization.py, says more than that the rank is idle; also where
    # a cause is known of 1 of its 28 ms.
    kinds = (
        [item for item in own if not item.is_symptom],
        [item for item in own if item.finding.places],
    )
    causes = [max(kind, key=_length) for kind in kinds if kind]
    # What the others wait for is what the last rank does, also where no rule knows why it does so.
    does = max(own, key=_length, default=None)
    told: list[T] = []
    explained: list[T] = []
    for item in found:
        waits = item.is_symptom and not item.is_idle
        if not (item.of_job and rank is not None and item.finding.ranks[:1] == [rank]):
            told.append(item)
        elif waits and does is not None and _explains(does, item):
            explained.append(_with_cause(item, does))
        else:
            why = next((by for by in causes if item.is_idle and _explains(by, item)), None)
            told.append(item if why is None else _with_cause(item, why))
    if not explained or does is None or rank is None:
        return told
    at = told.index(does)
    late = does
    if not any(item.of_job for item in told[:at]):  # then it is the one about the job
        late = replace(does, finding=msgspec.structs.replace(does.finding, ranks=[rank]))
    return [*told[:at], late, *explained, *told[at + 1 :]]


def _length(item: Item) -> int:
    return item.finding.device_ns


def _explains(cause: Item, item: Item) -> bool:
    """Tell whether it is most of what a rank is late by, by its idle time and by its host.

    A host that needs 9 ms longer than others for the same launches is slow, whatever it reads
    meanwhile for 3 ms of the 5 that the device is idle longer.
    """
    late_ns = max(item.finding.device_ns, item.likely_ns or 0)
    return cause.finding.device_ns >= _EXPLAINS * late_ns


def _with_cause(item: T, by: Item) -> T:
    own, cause = item.finding, by.finding
    told = Fact(CAUSE, f"{cause.rule} {cause.name}")
    # Where it launches late what others launch in time, its host is slow and not the program.
    launches_late = by.change is not None and bool(by.change.hurries)
    advice = own.advice if launches_late else cause.advice
    more = {"advice": advice, "places": cause.places, "evidence": [told, *own.evidence]}
    return replace(item, finding=msgspec.structs.replace(own, **more))
