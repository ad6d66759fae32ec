"""Matrix products beside a collective that nothing hides: what one MC2 operator overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Observation
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.fusable import chain, parts_of, shapes_of, trains
from npufix.rules.shared.recording.observing import per_step, share
from npufix.rules.shared.recording.recorded_shapes import reads
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.recorded_shapes import Relation
    from npufix.rules.shared.recording.sequences import Integers, Mask, Occurrences

ALL_REDUCE = "hcom_allReduce_"
ALL_GATHER = "hcom_allGather_"
REDUCE_SCATTER = "hcom_reduceScatter_"
ALL_TO_ALL = "hcom_alltoallv?_|hcom_alltoAllV?_|hcom_allToAllV?_"


def neighbours(found: Occurrences, number: int, *, after: bool) -> Integers:
    """Return the compute kernel next to each collective on its device, -1 where there is none.

    ``after``: the first one that starts when the collective has ended; otherwise the last one that
    has ended when it starts. A kernel that runs beside the collective makes it -1: the collective
    is hidden already.
    """
    result = np.full(found.count, -1, np.int64)
    if not found.count:
        return result
    kernels = found.recording.kernels
    part = found.part(number)
    own_start = part["start_ns"].to_numpy()
    own_end = own_start + part["duration_ns"].to_numpy()
    for device in part["device"].unique():
        on_device = (kernels["device"] == device).to_numpy(bool)
        rows = np.flatnonzero(on_device & ~kernels["communication"].to_numpy(bool))
        start = kernels["start_ns"].to_numpy()[rows]
        order = np.argsort(start, kind="stable")
        rows, start = rows[order], start[order]
        last_end = np.maximum.accumulate(start + kernels["duration_ns"].to_numpy()[rows])
        mine = np.flatnonzero((part["device"] == device).to_numpy(bool))
        first_later = np.searchsorted(start, own_start[mine])
        first_after = np.searchsorted(start, own_end[mine])
        alone = first_later == first_after
        before = first_later - 1
        ended = (before < 0) | (last_end[before.clip(min=0)] <= own_start[mine])
        wanted = first_after if after else before
        known = alone & ended & (wanted >= 0) & (wanted < len(rows))
        result[mine[known]] = rows[wanted[known]]
    return result


def find_linked(
    found: Occurrences,
    neighbour: Integers,
    *,
    relation: Relation,
    written: int | None = None,
    read: int | None = None,
) -> Mask:
    """Tell where, by the shapes, a neighbour reads what a part wrote, or the other way round."""
    known = neighbour >= 0
    result = np.zeros(found.count, np.bool_)
    if not known.any():
        return result
    chosen = found.where(known)
    rows = found.recording.kernels.iloc[neighbour[known]]
    if written is not None:
        result[known] = reads(chosen.part(written), rows, relation)
    if read is not None:
        result[known] = reads(rows, chosen.part(read), relation)
    return result


def group_size(found: Occurrences, number: int) -> int | None:
    """Return how many ranks take part in a collective, ``None`` if the dump does not say."""
    links = found.recording.signals.links
    bare = links["name"].astype(str).str.split("@").str[0]
    own = links[bare.isin(set(found.part(number)["name"].astype(str)))]
    ranks = set(own["source"]) | set(own["destination"])
    ranks.discard(-1)
    return len(ranks) or None


def overlappable(
    found: Occurrences, compute: int, collective: int, operator: str
) -> Iterator[Observation]:
    """Yield one observation where products and collectives could run at the same time."""
    recording = found.recording
    if not found.count or share(found.cost_ns, recording) < LEAST_SHARE:
        return
    shorter = np.minimum(found.durations[:, compute], found.durations[:, collective])
    ranks = group_size(found, collective)
    yield Observation(
        what=(
            f"{format_count(found.per_step, chain(found))} per step take "
            f"{milliseconds(found.cost_ns)}, {percent(share(found.cost_ns, recording))} of the "
            f"step, one after the other; {operator} overlaps them"
        ),
        evidence=(
            *parts_of(found),
            *shapes_of(found, compute),
            ("ranks in the group", "not recorded" if ranks is None else str(ranks)),
            ("run", mode(recording)),
        ),
        cost_ns=found.cost_ns,
        saving_ns=(0, per_step(int(shorter.sum()), recording)),
        basis="at most the shorter one of each pair, if the operator overlaps them completely",
        places=found.places(collective),
        kernels=found.labels,
    )


def overlappable_results(
    recording: Recording, product: str, collective: str, relation: Relation, operator: str
) -> Iterator[Observation]:
    """Return one observation for products that a collective passes on, as a reader behind shows."""
    found = find(recording, (product, collective))
    reader = neighbours(found, 1, after=True)
    found = found.where(find_linked(found, reader, written=0, relation=relation))
    return overlappable(found, 0, 1, operator)


def mode(recording: Recording) -> str:
    """Return whether a run is training or inference, as the kernels say."""
    if trains(recording):
        return "training: the operator has no gradient, MindSpeed's wrapper has one"
    return "inference: no kernel of a backward pass"
