"""What a finding about the ranks of a job changes of the rank that is replayed.

It says how much sooner a step of the job ends. On the rank that all wait for, that is what it
computes, or what its host takes; on the others they wait less in their collectives; of a link the
collectives themselves are shorter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.evidence.run_findings import LEAST_OF_LIKELY
from npufix.advisor.predict.changes import thin_out
from npufix.advisor.predict.graph.replay import NO_EDIT
from npufix.reports.report import CAUSE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.advisor.evidence.item import Item
    from npufix.advisor.predict.graph.replay import Edit
    from npufix.advisor.predict.graph.step_graph import StepGraph
    from npufix.advisor.predict.other_ranks import OtherRanks

    Floats = NDArray[np.float64]


def edits_of_job(
    graph: StepGraph, item: Item, names: pd.Series[str], others: OtherRanks
) -> tuple[Edit, Edit, Edit]:
    """Return it as edits of a graph, the least first; ``names``: those of its rows."""
    saving = item.finding.saving
    if saving is None:
        return NO_EDIT, NO_EDIT, NO_EDIT
    if item.goes:
        rows = np.flatnonzero(graph.communication)
        likely, most = (thin_out(graph, rows, 1 - item.goes, corner) for corner in (1, 2))
        return NO_EDIT, likely, most
    # "At most" is what is gained when it is mended; between two bounds it is their middle.
    middle = (saving.low_ns + saving.high_ns) / 2 if saving.low_ns else saving.high_ns
    least = float(saving.low_ns)
    if item.likely_ns is not None:
        middle = min(max(item.likely_ns, saving.low_ns), saving.high_ns)
        least = max(least, LEAST_OF_LIKELY * middle)
    sooner = [ns * graph.steps for ns in (least, middle, saving.high_ns)]
    late = is_late(item, others)
    if late and item.is_idle:
        return _as_three([_take(graph.delta_ns, ns) for ns in sooner], of_host=True)
    if late:
        # Its kernels are as short as those of the others then; how much sooner the job ends is less
        # where something hides it, see least_of_job.
        sooner = [max(ns, float(item.finding.device_ns) * graph.steps) for ns in sooner]
        own: Floats = np.where(graph.communication, 0.0, graph.duration_ns)
        times = [graph.duration_ns - own + _take(own, ns) for ns in sooner]
        low, likely, high = _as_three(times)
        return replace(low, scales=True), replace(likely, scales=True), replace(high, scales=True)
    if item.lost_ns:  # the replay says how much of it is hidden
        sooner = [ns and max(ns, float(item.lost_ns) * graph.steps) for ns in sooner]
    waited = np.nan_to_num(names.map(others.waited).to_numpy(np.float64))
    taken = np.where(graph.communication, graph.duration_ns, 0.0)
    waited = np.minimum(waited, taken)
    of_links = item.is_communication or not waited.any()
    weights = np.asarray(taken if of_links else waited, np.float64)
    return _as_three([graph.duration_ns - weights + _take(weights, ns) for ns in sooner])


def is_late(item: Item, others: OtherRanks | None) -> bool:
    """Tell whether a finding is that all others wait for the rank that is replayed."""
    is_cause = item.of_job and not (item.is_communication or item.is_symptom)
    return is_cause and others is not None and others.rank in item.finding.ranks


def least_of_job(
    items: Sequence[Item],
    sets: Sequence[Sequence[int]],
    now: float,
    others: OtherRanks | None,
    waited_for_ns: float,
) -> Floats:
    """Return below what no step of each set comes, as expected: when the next rank is there.

    That is when the others no longer wait for this one (``waited_for_ns``), where it is known what
    it does meanwhile.
    """
    least = []
    for own in sets:
        alone = items[own[0]] if len(own) == 1 else None
        saving = alone.finding.saving if alone is not None and is_late(alone, others) else None
        if alone is None or saving is None:
            least.append(0.0)
            continue
        most = max(saving.high_ns, waited_for_ns) if cause_of(alone) else saving.high_ns
        least.append(now - most)
    return np.array(least)


def cause_of(item: Item) -> str:
    """Return the rule that says why a rank is late, "" where none does."""
    told = (fact.value for fact in item.finding.evidence if fact.name == CAUSE)
    return next(told, "").partition(" ")[0]


def _take(times: Floats, ns: float) -> Floats:
    """Return times from which so much is gone, of each in proportion."""
    whole = float(times.sum())
    left: Floats = times * (1 - min(1.0, ns / whole)) if whole else times
    return left


def _as_three(times: Sequence[Floats], *, of_host: bool = False) -> tuple[Edit, Edit, Edit]:
    rows = np.arange(len(times[0]))
    if of_host:
        made = [
            replace(NO_EDIT, delta_rows=rows, deltas_ns=each, is_divided=False) for each in times
        ]
    else:
        made = [replace(NO_EDIT, rows=rows, durations_ns=each) for each in times]
    return made[0], made[1], made[2]
