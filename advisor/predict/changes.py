"""What a finding changes of a graph: kernels and launches that go, new ones, waits that go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.predict.graph.replay import NO_EDIT, Edit
from npufix.rules.shared.labels import Labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from npufix.advisor.evidence.change import Change, NewWork
    from npufix.advisor.predict.graph.step_graph import StepGraph

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

CORNERS = 3
"""How certain a figure is: the least that it saves, what is expected, and the most."""
_ENOUGH = 16
"""Launches that show what one usually takes."""
_LAUNCH_SPREAD = (0.5, 0.0, -0.3)
"""How far a new operator's launch is from that of a usual one: some fused ones check more arguments
and make more results."""


def edits(graph: StepGraph, change: Change) -> tuple[Edit, Edit, Edit]:
    """Return a change as edits of a graph, one a corner."""
    rows = np.flatnonzero(np.isin(graph.label, Labels(change.kernels).array))
    gone_waits = frozenset(
        number
        for number, wait in enumerate(graph.host_waits)
        if wait.operator >= 0 and wait.operator in change.waits
        # Of a pause in a call that waits, ``sooner_ns`` says how much goes.
        if wait.stream < 0 or not change.sooner_ns
    )
    made = [_edit(graph, change, rows, corner) for corner in range(CORNERS)]
    # What is certain to go leaves a copy that is slow; else it takes as long as now, whoever waits.
    is_certain = change.keeps[0] == 0
    if is_certain:
        made[0] = _join(graph, [made[0], _stay(graph, change, gone_waits, at_worst=True)])
    made[1] = _join(graph, [made[1], _stay(graph, change, gone_waits)])
    if gone_waits:
        gone = Edit(*_nothing(), waits_gone=gone_waits)
        going = [(bool(len(rows)) and not change.hides) or keeps < 1 for keeps in change.keeps]
        going[0] &= is_certain or not change.stays_ns
        # To take a batch over that is there may take as long whoever loads it.
        waits = [graph.host_waits[number] for number in gone_waits]
        going[0] &= any(wait.stream >= 0 or wait.period_ns for wait in waits)
        made = [_join(graph, [m, gone]) if goes else m for m, goes in zip(made, going, strict=True)]
    return made[0], made[1], made[2]


def _stay(
    graph: StepGraph, change: Change, gone_waits: Iterable[int], *, at_worst: bool = False
) -> Edit:
    """Let the device be busy where the host waits no more: a copy comes before a kernel."""
    longer: dict[int, float] = {}
    for number in gone_waits:
        wait = graph.host_waits[number]
        stays = change.stays_ns.get(wait.operator, (0, 0))[at_worst]
        if stays and wait.before < len(graph.duration_ns):
            now = longer.get(wait.before, float(graph.duration_ns[wait.before]))
            longer[wait.before] = now + stays
    rows = np.array(sorted(longer), np.int64)
    return replace(NO_EDIT, rows=rows, durations_ns=np.array([longer[r] for r in rows.tolist()]))


def together(parts: Iterable[tuple[Edit, Edit, Edit]], graph: StepGraph) -> tuple[Edit, Edit, Edit]:
    """Return several changes as one; where two are about the same row, the first counts.

    Of two that are about one collective, a slow link and calls that are too small, both are mended
    then: it takes as long as the one says that lets it take least.
    """
    listed = list(parts)
    low, middle, high = (
        _join(graph, [part[corner] for part in listed]) for corner in range(CORNERS)
    )
    return low, middle, high


def _nothing() -> tuple[Integers, Integers, Floats, Integers, Floats]:
    return (NO_EDIT.gone, NO_EDIT.rows, NO_EDIT.durations_ns, NO_EDIT.delta_rows, NO_EDIT.deltas_ns)


def _edit(graph: StepGraph, change: Change, rows: Integers, corner: int) -> Edit:
    keeps = change.keeps[corner]
    if change.freed_ns:
        return _free(graph, change, keeps)
    if change.sooner_ns:
        return _sooner(graph, change, 1 - keeps)
    if change.hurries:
        return _hurry(graph, change, keeps, corner)
    if not len(rows):
        return NO_EDIT
    if not change.executions:
        return _keep_part(graph, change, rows, corner)
    here = len(rows) / max(1, len(change.kernels))
    backward = graph.backward[rows]
    count = max(1, round(change.executions * here))
    halves = [
        _replace(graph, own, count, work, corner)
        for own, work in ((rows[~backward], change.forward), (rows[backward], change.backward))
        if len(own)
    ]
    return _join(graph, halves)


def _keep_part(graph: StepGraph, change: Change, rows: Integers, corner: int) -> Edit:
    keeps = change.keeps[corner]
    if change.dropped:
        return _drop(graph, rows, change, corner)
    if change.hides or (keeps and not change.goes):
        return _shorten(graph, rows, keeps)
    return thin_out(graph, rows, keeps, corner)


def _shorten(graph: StepGraph, rows: Integers, keeps: float) -> Edit:
    """Let kernels take a part of their time, launched as before."""
    if keeps == 1:
        return NO_EDIT
    return replace(NO_EDIT, rows=rows, durations_ns=graph.duration_ns[rows] * keeps)


def _drop(graph: StepGraph, rows: Integers, change: Change, corner: int) -> Edit:
    """Let some of the kernels go; the others take what is kept of the time of all."""
    goes = np.isin(graph.label[rows], Labels(change.dropped).array)
    gone, stays = rows[goes], rows[~goes]
    left = float(graph.duration_ns[stays].sum())
    if not left:
        return thin_out(graph, rows, change.keeps[corner], corner)
    longer = change.keeps[corner] * float(graph.duration_ns[rows].sum()) / left
    taken = replace(NO_EDIT, rows=stays, durations_ns=graph.duration_ns[stays] * longer)
    return _join(graph, [_replace(graph, gone, len(gone), None, corner), taken])


def thin_out(graph: StepGraph, rows: Integers, keeps: float, corner: int) -> Edit:
    """Let a part of the kernels go, every other one of half; the others take what is left."""
    if keeps == 1:
        return NO_EDIT
    passed = np.floor(np.arange(len(rows) + 1) * (1 - keeps))
    goes = np.diff(passed) > 0
    gone, stays = rows[goes], rows[~goes]
    whole, left = float(graph.duration_ns[rows].sum()), float(graph.duration_ns[stays].sum())
    part = _shorten(graph, stays, keeps * whole / left if left else 1.0)
    if not len(gone):
        return part
    return _join(graph, [_replace(graph, gone, len(gone), None, corner), part])


def _free(graph: StepGraph, change: Change, keeps: float) -> Edit:
    """Let kernels start without what was copied before them."""
    freed = np.array([change.freed_ns.get(label, 0) for label in graph.label.tolist()])
    rows = np.flatnonzero(freed * (1 - keeps))
    gaps = np.maximum(0.0, graph.gap_ns[rows] - freed[rows] * (1 - keeps))
    return replace(NO_EDIT, gap_rows=rows, gaps_ns=gaps)


def _hurry(graph: StepGraph, change: Change, keeps: float, corner: int) -> Edit:
    """Let the host need a part of its time before kernels; where launches are unknown, nothing."""
    rows = np.flatnonzero(np.isin(graph.label, Labels(change.hurries).array))
    if graph.coarse or keeps == 1 or not len(rows):
        return NO_EDIT
    if change.goes:  # small kernels become parts of others, which take as long for the device
        return replace(thin_out(graph, rows, keeps, corner), is_divided=False)
    deltas = graph.delta_ns[rows] * keeps
    return replace(NO_EDIT, delta_rows=rows, deltas_ns=deltas, is_divided=False)


def _sooner(graph: StepGraph, change: Change, share: float) -> Edit:
    """Take pauses of the host away; where launches are not known, nothing is."""
    labels, sooner = graph.label.tolist(), change.sooner_ns
    rest = sum(sooner.get(~label, 0) for label in labels)
    saved = np.array([*(sooner.get(label, 0) for label in labels), rest]) * share
    waits = enumerate(graph.host_waits)
    held = {number for number, wait in waits if wait.operator in change.waits and wait.stream >= 0}
    return replace(_spread(graph, saved, held), is_divided=change.is_divided)


def _spread(graph: StepGraph, saved_ns: Floats, held: AbstractSet[int]) -> Edit:
    """Let the host come sooner to launches, one row each and the end, or need longer.

    What is more than the host takes from the wait before a launch to that launch lies before the
    wait: 218 ms of preparing, then a copy that waits for 1 ms, then the first kernel. Where the
    call that waits is the pause (``held``), a copy of 70 ms, it takes the rest less.
    """
    saved, now = saved_ns.copy(), np.append(graph.delta_ns, graph.rest_ns)
    before: dict[int, float] = {}
    for number in range(len(graph.host_waits) - 1, -1, -1):
        wait = graph.host_waits[number]
        if saved[wait.before] > now[wait.before] and wait.delta_ns > 0:
            before[number] = min(float(saved[wait.before]), wait.delta_ns)
            saved[wait.before] -= before[number]
    for number in sorted(held, reverse=True):
        wait = graph.host_waits[number]
        more = min(float(saved[wait.before] - now[wait.before]), max(wait.own_ns, wait.behind_ns))
        if more > 0:
            before[number] = wait.delta_ns + more
            saved[wait.before] -= more
    rows = np.flatnonzero(np.minimum(saved, now))
    left = np.maximum(0.0, now[rows] - saved[rows])
    return replace(NO_EDIT, delta_rows=rows, deltas_ns=left, waits_sooner=before)


def _replace(
    graph: StepGraph, rows: Integers, executions: int, work: NewWork | None, corner: int
) -> Edit:
    """Let the last kernels of each execution be the new ones, and the others go."""
    if not len(rows):
        return NO_EDIT
    count = min(executions, len(rows))
    sizes = np.full(count, len(rows) // count)
    sizes[: len(rows) % count] += 1
    ends = sizes.cumsum()
    launches = work.launches if work else 0
    kept = np.minimum(launches, sizes)
    is_kept = np.repeat(ends, sizes) - np.arange(len(rows)) <= np.repeat(kept, sizes)
    stays, gone = rows[is_kept], rows[~is_kept]
    durations = np.zeros(len(stays))
    if work and len(stays):
        durations = work.time_ns[corner] * executions / count / np.repeat(kept, kept)
    if graph.coarse and not corner:  # what the device waits for before them may well stay
        rows, zeros = np.append(stays, gone), np.zeros(len(gone))
        return replace(NO_EDIT, rows=rows, durations_ns=np.append(durations, zeros))
    # What the host needs for one more operator, from launch to launch: as for those that stay. A
    # thousand updates in place, 6 us each, are not what a fused one takes.
    others = _find_others(graph, rows)
    usual = float(np.median(graph.delta_ns[others])) if others.any() else 0.0
    # Where most kernels are those of graphs, an operator that launches one needs 12 ms: the new one
    # needs at most what the slowest does that it takes the place of.
    operator = min(_usual_operator_ns(graph, others), float(graph.own_ns[rows].max(initial=0.0)))
    deltas, changes = _without_launches(graph, gone, rows, usual)
    each = launches * executions / count  # a list of tensors is one launch now
    firsts = rows[ends - sizes]
    more = np.maximum(0.0, each - kept) * usual + _LAUNCH_SPREAD[corner] * usual * (launches > 0)
    if launches:
        is_operator = (graph.own_ns[firsts] > 0) & ~changes[firsts]
        more += np.where(is_operator, operator - graph.own_ns[firsts], 0.0)
    least = usual if launches else 0.0
    deltas[firsts] = np.maximum(0.0, np.maximum(deltas[firsts], least) + more)
    changes[firsts] = True
    changed = np.flatnonzero(changes)
    return Edit(gone, stays, durations, changed, deltas[changed])


def _find_others(graph: StepGraph, rows: Integers) -> NDArray[np.bool_]:
    """Tell which launches are not of these rows, of the same pass; all where there are few."""
    others = np.ones(len(graph.delta_ns), np.bool_)
    others[rows] = False
    if len(rows):
        same = others & (graph.backward == graph.backward[rows[0]])
        others = same if same.sum() >= _ENOUGH else others
    return others if others.sum() >= _ENOUGH else np.ones_like(others)


def _usual_operator_ns(graph: StepGraph, others: NDArray[np.bool_]) -> float:
    """Return what an operator needs until it has launched its first kernel."""
    first = graph.own_ns[others & (graph.own_ns > 0) & (graph.own_ns < graph.delta_ns)]
    return float(np.median(first)) if len(first) else 0.0


def _without_launches(
    graph: StepGraph, gone: Integers, rows: Integers, usual: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return each ``delta_ns`` without the time that the host spent on those before that go.

    From one launch of an operator that goes to the next one the host is busy with what goes, too.
    What comes behind the last of them is the program's own: of that only a usual launch goes.
    The second array tells which are changed.
    """
    own, waits, changes = np.zeros((3, len(graph.label) + 1), np.bool_)
    own[rows] = True
    waits[[wait.before for wait in graph.host_waits]] = True
    changes[gone + 1] = True
    changes = (changes & (own | ~waits))[:-1]  # behind a wait that stays is what launches next
    left = np.where(own[:-1], 0.0, np.maximum(0.0, graph.delta_ns - usual))
    return np.where(changes, left, graph.delta_ns), changes


def _join(graph: StepGraph, parts: Sequence[Edit]) -> Edit:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_EDIT
    count = len(graph.label)
    goes, known, freed = np.zeros((3, count), np.bool_)
    durations, gaps = np.zeros(count), np.full(count, np.inf)
    for part in parts:
        freed[part.gap_rows] = True
        gaps[part.gap_rows] = np.minimum(gaps[part.gap_rows], part.gaps_ns)
        # What takes the place of others for one finding does not go with another.
        goes[part.gone[~known[part.gone]]] = True
        rows, values = part.rows, part.durations_ns
        before, now = durations[rows], graph.duration_ns[rows]
        factor = values / now if part.scales else np.ones(len(rows))
        again = np.where(graph.communication[rows], np.minimum(before, values), before * factor)
        durations[rows] = np.where(known[rows], again, values)
        known[rows] = True
    rows, gap_rows = np.flatnonzero(known), np.flatnonzero(freed)
    return replace(
        _join_host(graph, [part for part in parts if len(part.delta_rows) or part.waits_sooner]),
        gone=np.flatnonzero(goes),
        rows=rows,
        durations_ns=durations[rows],
        gap_rows=gap_rows,
        gaps_ns=gaps[gap_rows],
        waits_gone=frozenset[int]().union(*(part.waits_gone for part in parts)),
    )


def _join_host(graph: StepGraph, parts: Sequence[Edit]) -> Edit:
    """Return what the host needs less for several edits at once.

    At one launch 8 ms of logging and 5 ms of collecting garbage go both. Two that let the same
    kernel go are one saving, and what all launches cost is that of each.
    """
    if len(parts) <= 1:
        return parts[0] if parts else NO_EDIT
    added, largest = np.zeros((2, len(graph.delta_ns) + 1))
    taken = np.zeros(len(added) + 1, np.bool_)
    held: set[int] = set()
    for part in parts:
        saved = _sum_saved(graph, part)
        held |= {n for n, ns in part.waits_sooner.items() if ns > graph.host_waits[n].delta_ns}
        if not part.is_divided:
            largest = np.maximum(largest, saved)
            continue
        own = np.zeros(len(taken), np.bool_)
        own[part.gone] = own[part.rows] = True
        both = own & taken
        same = both[:-1] | np.append(False, both[:-2])  # the launch, or the one before it
        added = np.where(same, np.maximum(added, saved), added + saved)
        taken |= own
    joined = np.where(largest > 0, np.maximum(added, largest), added)
    is_divided = all(part.is_divided for part in parts)
    return replace(_spread(graph, joined, held), is_divided=is_divided)


def _sum_saved(graph: StepGraph, part: Edit) -> Floats:
    """Return how much sooner the host launches each row of an edit, and is done."""
    now = np.append(graph.delta_ns, graph.rest_ns)
    saved = np.zeros(len(now))
    saved[part.delta_rows] = now[part.delta_rows] - part.deltas_ns
    for number, ns in part.waits_sooner.items():
        saved[graph.host_waits[number].before] += ns
    return saved
