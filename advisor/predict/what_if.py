"""From findings to what the step would be: each alone, one after the other, and those asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from npufix.advisor.predict.changes import CORNERS, edits, together
from npufix.advisor.predict.graph.critical_path import critical_path
from npufix.advisor.predict.graph.replay import NO_EDIT, replay
from npufix.advisor.predict.intervals import View
from npufix.advisor.predict.of_job import cause_of, edits_of_job, is_late, least_of_job
from npufix.advisor.predict.other_ranks import alone as alone_graph
from npufix.advisor.predict.other_ranks import without_waits
from npufix.advisor.predict.recorded import step_graph
from npufix.advisor.predict.waits import has_workers
from npufix.reports.prediction import WORST_ERROR, Bar, Forecast, Prediction, Question
from npufix.rules.shared.labels import Labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from npufix.advisor.evidence.change import Change
    from npufix.advisor.evidence.item import Item
    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.predict.graph.critical_path import CriticalPath
    from npufix.advisor.predict.graph.replay import Edit
    from npufix.advisor.predict.graph.step_graph import StepGraph
    from npufix.advisor.predict.other_ranks import OtherRanks

    Floats = NDArray[np.float64]
    Three = tuple[Edit, Edit, Edit]

_NONE = np.zeros(0, np.int64)
_MOST_CELLS = 40_000_000
"""Kernels times variants."""
_ALIKE = 0.02
"""How far the recorded steps are from those that would follow."""
_KEEPS_UP = 0.75
"""Share of the step of today in which a batch is made, nine times of ten, where no step waits for
one: workers are mostly given some time to spare."""
_MADE, _COPIED = 0.01, 30.0
"""Bytes a nanosecond of a batch that processes make at least, nine times of ten: 1 M token numbers
a second, or 15 images; and that are copied to the device at most."""
_OUTLIERS = (1.0, 0.5, 1.5)
"""Share of what longer steps cost a few recorded ones that they cost in the long run."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants to know: these rules changed, or all ``without`` these."""

    rules: tuple[str, ...] = ()
    without: bool = False


@dataclass(frozen=True)
class Predictions:
    """``alone`` and ``added`` are by the position of the finding."""

    forecast: Forecast
    alone: dict[int, Prediction]
    added: dict[int, tuple[int, int]]
    """What it saves beside those before it: the least and the most."""
    path: CriticalPath | None
    """``None`` where the replay is too far off."""


def predict(
    evidence: Evidence,
    items: Sequence[Item],
    step_ns: int,
    asked: Asked | None = None,
    others: OtherRanks | None = None,
) -> Predictions | None:
    """Replay the run with what the findings would change of it.

    Return ``None`` without a kernel. ``items`` are in the order of the report,
    ``step_ns`` is the length of the recording where it has no steps. ``others`` are the other ranks
    of the job, where it has some.
    """
    graph = step_graph(evidence, step_ns)
    if graph is None:
        return None
    now, error, goes_on = _replay_as_recorded(graph)
    loads = any(wait.period_ns > 0 for wait in graph.host_waits)
    waited, ahead = _sum_waits(graph, evidence, others) if others is not None else (0.0, 0.0)
    made = _made_within_ns(evidence, now) if has_workers(evidence.loads) and not loads else 0.0
    view = View(graph, now, error, waited, others.slower if others else 1.0, made)
    # What is not understood without a change is not with one.
    is_known = error <= WORST_ERROR
    path = critical_path(graph) if is_known else None
    changes = _changes(graph, items, evidence, others) if is_known else {}
    order = _order(items, changes, others)
    chosen, missing = _find_asked(items, changes, order, asked)
    alone = [*order, *(at for at in changes if at not in order)]
    several = [own[: n + 1] for own in (order, chosen) for n in range(len(own))]
    about = [*([at] for at in alone), *several, chosen]
    sets = [
        together([changes[at] for at in _most_specific_first(own, items)], graph) for own in about
    ]
    after = replay(graph, [e for three in sets for e in three])[goes_on].reshape(-1, CORNERS)
    floors, worst = _least_ns(items, [] if made else about, len(about))
    least = np.maximum(floors, least_of_job(items, about, now, others, ahead))
    after[:, :2] = np.maximum(after[:, :2], np.minimum([worst, least], now).T)
    lean = _compute_saved_ahead(graph, evidence, sets, others if waited else None)[goes_on]
    # What the ranks gain together is what each of them waits less already.
    of_rank = View(graph, now, error, made_ns=made)
    views = [of_rank if own and all(items[at].of_job for at in own) else view for own in about]
    staged = _staged_ns(graph, items, about, evidence, others)
    results = [
        own.prediction(row, three, *map(float, more))
        for own, row, three, *more in zip(views, after, sets, lean, floors, staged, strict=True)
    ]
    results = [_beside_outliers(one, items, own) for one, own in zip(results, about, strict=True)]
    replayed = len(alone) + len(order)
    told = _choose_told(
        [*results[:replayed], results[-1]], [*([at] for at in alone), order, chosen], items, path
    )
    gained, behind = _gain_in_turn(after[len(alone) : replayed], now)
    asked_in_turn = _waterfall(items, chosen, *_gain_in_turn(after[replayed:-1], now))
    forecast = replace(
        view.forecast(),
        together=told[-2] if order else None,
        waterfall=_waterfall(items, order, gained, behind),
        question=_answer(asked, chosen, missing, told[-1], asked_in_turn),
        critical_path=path.parts if path else {},
    )
    added = {
        # The most is that of the best case of all: what those before leave then.
        at: (round(min(*gain, view.certain_ns)), round(gain[-1]))
        for at, gain in zip(order, gained, strict=True)
    }
    left = _savings_alone(graph, evidence, changes, items, others)
    by_place = {
        at: replace(one, alone_ns=left.get(at)) for at, one in zip(alone, told, strict=False)
    }
    return Predictions(forecast, by_place, added, path)


def _most_specific_first(own: Sequence[int], items: Sequence[Item]) -> list[int]:
    """Return findings in the order in which they count where two are about the same kernels.

    A rank tells what becomes of its kernels, a job what others do; a line that is to be changed
    says more than that its kernels are some of a storm.
    """
    # What of its collectives hides behind the backward pass, a rank knows better than its job.
    exposed = [at for at in own if items[at].is_symptom and items[at].is_communication]
    known = any(items[at].is_own_change for at in exposed)
    counted = [at for at in own if not (known and at in exposed and items[at].of_job)]
    return sorted(
        counted, key=lambda at: (not items[at].is_own_change, items[at].finding.kind != "code")
    )


def _made_within_ns(evidence: Evidence, now: float) -> float:
    """Return in which time a batch that nobody waited for is made, nine times of ten.

    How much of it is copied to the device says how much there is to make: 90 KB of token numbers
    are no 200 images. Where not each batch is seen to be copied, nothing says it.
    """
    copies = evidence.copies
    if not 0 < len(evidence.loads) <= len(copies):
        return _KEEPS_UP * now
    size = _COPIED * float(copies["duration_ns"].sum()) / evidence.steps
    return min(_KEEPS_UP * now, size / _MADE)


def _replay_as_recorded(graph: StepGraph) -> tuple[float, float, int]:
    """Return the step without a change, how far off it is, and whether steps go on as they end.

    A device that was behind when the steps began, and is not as they end: they do not go on so.
    Where batches come too late, each fourth step waits for four: few steps are not the average.
    """
    rounds = replay(graph, [NO_EDIT])
    own, now = float(rounds[0][0]), float(rounds[1][0])
    loads = any(wait.period_ns > 0 for wait in graph.host_waits)
    goes_on = loads or not graph.lead_ns or abs(now / own - 1) <= _ALIKE
    return now if goes_on else own, abs(own / graph.measured_ns - 1), int(goes_on)


def _least_ns(items: Sequence[Item], sets: Sequence[Sequence[int]], count: int) -> Floats:
    """Return below what no step comes with each set of changes, as expected and at worst.

    Nothing without ``sets``: of processes that are ahead of the steps no call says how often
    batches come.
    """
    least = np.zeros((2, count))
    for at, own in enumerate(sets):
        changes = [change for item in own if (change := items[item].change)]
        least[0, at] = max((change.at_least_ns for change in changes), default=0)
        least[1, at] = max((change.at_worst_ns for change in changes), default=0)
    return least


def _savings_alone(
    graph: StepGraph,
    evidence: Evidence,
    changes: dict[int, Three],
    items: Sequence[Item],
    others: OtherRanks | None,
) -> dict[int, int]:
    """Return what changes save on this rank alone, but for those of collectives."""
    changes = {at: three for at, three in changes.items() if not items[at].of_job}
    if others is None or not changes:
        return {}
    names = evidence.kernels.loc[graph.label, "name"].astype(str)
    middle = {
        at: three[1]
        for at, three in changes.items()
        if not graph.communication[np.append(three[1].rows, three[1].gone)].any()
    }
    steps = replay(alone_graph(graph, names, others), [NO_EDIT, *middle.values()])[1]
    return {at: round(steps[0] - step) for at, step in zip(middle, steps[1:], strict=True)}


def _compute_saved_ahead(
    graph: StepGraph, evidence: Evidence, sets: Sequence[Three], others: OtherRanks | None
) -> Floats:
    """Return what each saves on a rank that waits for none, as ``replay`` does its two answers."""
    if others is None:
        return np.zeros((2, len(sets)))
    names = evidence.kernels.loc[graph.label, "name"].astype(str)
    steps = replay(without_waits(graph, names, others), [NO_EDIT, *(three[1] for three in sets)])
    return np.stack([ahead[0] - ahead[1:] for ahead in steps])


def _sum_waits(graph: StepGraph, evidence: Evidence, others: OtherRanks) -> tuple[float, float]:
    """Return how long a step of the rank waits in its collectives for others, and they for it."""
    names = evidence.kernels.loc[graph.label[graph.communication], "name"].astype(str)
    waited, ahead = (
        float(names.map(each).fillna(0.0).to_numpy(np.float64).sum()) / graph.steps
        for each in (others.waited, others.ahead)
    )
    return waited, ahead


def _staged_ns(
    graph: StepGraph,
    items: Sequence[Item],
    sets: Sequence[Sequence[int]],
    evidence: Evidence,
    others: OtherRanks | None,
) -> list[float]:
    """Return how long the rank waits in a step for other stages that each set changes alike.

    A bubble is the work of the stages behind and before: it shrinks as they do.
    """
    if others is None or not others.alike:
        return [0.0] * len(sets)
    rows = evidence.kernels.loc[graph.label]
    names = rows["name"].astype(str)
    of_stages = graph.communication & names.isin(list(others.stages)).to_numpy(bool)
    waited = np.nan_to_num(names.map(others.waited).to_numpy(np.float64))
    staged = float(waited[of_stages].sum()) / graph.steps
    shares = []
    for own in sets:
        labels = [Labels(c.kernels).array for at in own if (c := items[at].change)]
        chosen = np.isin(graph.label, np.concatenate([_NONE, *labels]))
        shares.append(staged * others.share_alike(rows[chosen & ~graph.communication]))
    return shares


def _beside_outliers(one: Prediction, items: Sequence[Item], own: Sequence[int]) -> Prediction:
    """Return a prediction with what the average step gains where there are no longer ones."""
    gained = max((items[at].outliers_ns for at in own), default=0)
    if not gained:
        return one
    saved, low, high = (
        round(ns + share * gained)
        for ns, share in zip(
            (one.saved_ns, one.saved_low_ns, one.saved_high_ns), _OUTLIERS, strict=True
        )
    )
    verdict = "gain" if low > 0 else "unclear"
    return replace(one, saved_ns=saved, saved_low_ns=low, saved_high_ns=high, verdict=verdict)


def _choose_told(
    results: Sequence[Prediction],
    sets: Sequence[Sequence[int]],
    items: Sequence[Item],
    path: CriticalPath | None,
) -> list[Prediction]:
    """Return those of each alone, all and the last, with how much of it the step waits for."""
    count = len(sets) - 2
    chosen = [*results[:count], results[-2 if len(results) > 1 else -1], results[-1]]
    if path is None:
        return chosen
    labels = [
        np.concatenate([_NONE, *(Labels(c.kernels).array for at in own if (c := items[at].change))])
        for own in sets
    ]
    return [
        replace(one, critical=path.of(np.flatnonzero(np.isin(path.label, own))))
        for one, own in zip(chosen, labels, strict=True)
    ]


def _changes(
    graph: StepGraph, items: Sequence[Item], evidence: Evidence, others: OtherRanks | None
) -> dict[int, Three]:
    """Return what the findings change, by their position; as many as there is time for."""
    most = max(1, _MOST_CELLS // max(1, len(graph.label)) // (2 * CORNERS))
    found: dict[int, Three] = {}
    names = evidence.kernels.loc[graph.label, "name"].astype(str)
    for at, item in enumerate(items):
        if len(found) >= most:
            break
        if item.outliers_ns:  # the steps that are replayed are those without the longer ones
            found[at] = (NO_EDIT, NO_EDIT, NO_EDIT)
            continue
        change = item.change or _change_of_cause(item, items, others)
        if change is not None:
            made = edits(graph, change)
        elif item.of_job and others is not None:
            made = edits_of_job(graph, item, names, others)
        else:
            continue
        if not all(edit.is_empty for edit in made):
            found[at] = made
    return found


def _change_of_cause(item: Item, items: Sequence[Item], others: OtherRanks | None) -> Change | None:
    """Return what the cause of its idle time changes of a late rank, where it is known here.

    That it collects garbage for 40 ms says more than how much earlier the others are.
    """
    rule = cause_of(item)
    if not (rule and item.is_idle and is_late(item, others)):
        return None
    same = (other.change for other in items if other.finding.rule == rule and other.change)
    return next((change for change in same if not change.hurries), None)


def _gain_in_turn(behind: Floats, now: float) -> tuple[Floats, Floats]:
    """Return what each of some changes saves beside those before it, and the steps behind them."""
    before = np.concatenate([np.full((1, CORNERS), now), behind[:-1]])[: len(behind)]
    return before - behind, behind


def _waterfall(
    items: Sequence[Item], order: Sequence[int], gained: Floats, behind: Floats
) -> list[Bar]:
    return [
        Bar(at + 1, items[at].finding.rule, round(gain[1]), round(left[1]))
        for at, gain, left in zip(order, gained, behind, strict=True)
    ]


def _answer(
    asked: Asked | None,
    chosen: Sequence[int],
    missing: list[str],
    told: Prediction,
    bars: list[Bar],
) -> Question | None:
    if asked is None:
        return None
    numbers = [at + 1 for at in chosen]
    answer = told if chosen else None
    return Question(list(asked.rules), asked.without, numbers, missing, answer, bars)


def _order(
    items: Sequence[Item], changes: dict[int, Three], others: OtherRanks | None
) -> list[int]:
    """Return the findings whose changes are made one behind the other.

    That the host launches in no time says what late launches cost, and not what to change; what a
    job gains with other ranks lies there. Neither is a part of what all changes of this rank come
    to. That it is the one for which the others wait, is.
    """
    late = [at for at in changes if is_late(items[at], others)]
    return [at for at in changes if items[at].is_own_change] + late


def _find_asked(
    items: Sequence[Item], changes: dict[int, Three], order: Sequence[int], asked: Asked | None
) -> tuple[list[int], list[str]]:
    """Return the findings to change, and the rules of which there is none."""
    if asked is None:
        return [], []
    wanted = {rule.upper() for rule in asked.rules}
    named = [at for at in changes if wanted & _names(items[at])]
    known = {name for at in named for name in _names(items[at])}
    missing = [rule for rule in asked.rules if rule.upper() not in known]
    rest = [at for at in order if at not in named]
    return rest if asked.without else named, missing


def _names(item: Item) -> set[str]:
    return {item.finding.rule.upper(), item.finding.name.upper()}
