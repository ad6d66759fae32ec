"""What holds up a late rank, where the rank that is looked into is that one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from npufix.reports.report import Fact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.evidence.item import T

_EXPLAINS = 0.5
"""Share of what the rank is late by from which a finding of its own says why."""


def with_causes(found: Sequence[T], rank: int | None) -> list[T]:
    """Return the findings; one about idle time of this rank says what the rank itself was found to.

    That rank 9 is idle 18 ms longer than its peers is settled where its own dump shows that it
    waits 18 ms for the next batch: then the loader is what to mend, not the host.
    """
    causes = [i for i in found if i.is_idle and not (i.of_job or i.is_symptom)]
    longest = max(causes, key=lambda item: item.finding.device_ns, default=None)
    if longest is None or rank is None:
        return list(found)
    cause = longest.finding

    def named(item: T) -> T:
        own = item.finding
        explains = cause.device_ns >= _EXPLAINS * own.device_ns
        if not (item.of_job and item.is_idle and own.ranks[:1] == [rank] and explains):
            return item
        told = Fact("cause", f"{cause.rule} {cause.name}")
        more = {"advice": cause.advice, "places": cause.places, "evidence": [told, *own.evidence]}
        return replace(item, finding=msgspec.structs.replace(own, **more))

    return [named(item) for item in found]
