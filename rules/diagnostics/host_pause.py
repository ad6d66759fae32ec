"""The device is idle because the host does something else for a while.

What: gaps of 1 ms or more, 1 % of the step together, whose next kernel the host launched only after
the device had run dry, and which no wait for a batch, for a value or for the garbage collector
explains.

Why it is slow on the NPU: the queue of the device holds some milliseconds of work. A host that
writes a checkpoint, prepares a batch, walks the graph for unused parameters or asks the driver for
memory launches nothing meanwhile, and the device runs dry.

Evidence: the gaps between kernels, the launch of the kernel behind each, and the call of the host
that fills it: the innermost one that covers about as much of it as any other, or the Python function that ran
where no operator did. Calls that were long until the operator had been used are its first ones. Where
launches were not recorded, the gaps alone say that something made the device wait.

Use instead: ``find_unused_parameters=False`` or ``static_graph=True`` of DDP; data preparation in the
workers of the loader; logging, metrics and checkpoints every N steps, in a thread of their own.

Safety: advice.

References: deep_troubleshooting.md of the FrameworkPTAdapter guide; DistributedDataParallel of
PyTorch (find_unused_parameters costs a walk of the graph in every step).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation, Place
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.observing import (
    PYTHON,
    find_named,
    free_ns,
    host_calls,
    is_named,
    measure_covered_ns,
    outermost_operators,
    per_step,
    places,
    share,
)
from npufix.rules.shared.recording.pauses import (
    OF_SYNCHRONISATIONS,
    ONLY_ALLOCATES,
    SHORTEST_PAUSE_NS,
    SYNCHRONISES,
    Pauses,
    copies_to_device,
    ends_step,
    explained_spans,
    find_pauses,
    measure_explained_ns,
    sooner_without,
    with_copies_around,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Integers

_COVERS = 0.5
"""Share of a pause from which a call says what the host did."""
_OF_STEP = 0.8
"""Share of a step from which a call lasts as long as it."""
_AS_GOOD = 0.8
"""Share of the best cover from which an inner call says it more exactly."""
_MARK = "ProfilerStep#"
_BETWEEN = "Python between calls of torch"
_ADVICE = (
    "look at what the host does there; preparation of data into the workers of the loader; "
    "logging, metrics and checkpoints every N steps or in a thread of their own"
)
_LOADS_CODE = (
    r"launch|(aclrt|rt|cuda|cu|hip)?\w*(Launch(Cooperative)?Kernel|ModuleLoad|LibraryLoad|BinaryLoad"
    r"|BinaryRegister)\w*"
)
"""Calls that take microseconds, and milliseconds where the code of a kernel is not there yet."""
_OF_CODE = (
    "record behind a warm-up that runs every kernel once (schedule(wait=1, warmup=3, active=3)): no "
    "later step loads it"
)
_OF_UNKNOWN = (
    "record the host as well (activities: the CPU beside the device, with_stack=True): a loader, "
    "copies, logging, another rank or few requests may be behind it"
)
_MUCH_SHORTER = 0.1
"""Share of the calls in the pauses that later calls of the same operator take at most."""
_ALL = 0.95
"""Share of the pauses from which the call that is named is all that the host did."""
_AGAIN = 2
"""Times per step that a program synchronises the device: once may be for the step as a whole."""
_BY_NAME = (
    (r"DistributedDataParallel.*|search_unused.*",
     ("DistributedDataParallel(..., find_unused_parameters=False), or static_graph=True where the "
      "same parameters are unused in every step")),
    (r"(.*/)?torch/_(dynamo|inductor|functorch)/.*|TorchDynamo.*",
     ("a step compiles again: TORCH_LOGS=recompiles,graph_breaks says why; "
      "torch.compile(..., dynamic=True), or batches padded to a few sizes")),
    (ONLY_ALLOCATES,
     ("the allocator asks the driver for memory: export "
      "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, or less memory held")),
    (r"aten::(to|_to_copy|copy_|item|_local_scalar_dense)|acl_memcpy.*",
     ("copies between host and device out of the step: pin_memory=True and non_blocking=True, "
      "results kept on the device and read every N steps")),
)  # fmt: skip


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for each call of the host that keeps the device waiting."""
    pauses = find_pauses(recording)
    rows = pauses.rows
    yield from _without_launches(pauses, recording)
    if not len(rows) or share(per_step(pauses.idle_ns.sum(), recording), recording) < LEAST_SHARE:
        return
    known = explained_spans(recording, pauses.idle)
    calls, covered = _calls_in(pauses, recording.host_ops, known, recording.step_ns)
    names = recording.host_ops["name"].astype(str).to_numpy()
    named = np.array([names[call] if call >= 0 else "" for call in calls], object)
    between = np.flatnonzero(calls < 0)
    functions = recording.signals.functions
    left = Pauses(pauses.idle, _only(pauses, rows[between]))
    found, inside = _calls_in(left, functions, known)
    spelled = functions["name"].astype(str).to_numpy()
    # A function that lasts as long as all of the step says nothing, one that launches nothing does.
    alike = found >= 0
    told = functions.iloc[found[alike]]
    launches = np.sort(recording.kernels["launch_ns"].to_numpy())
    start, length = told["start_ns"].to_numpy(), told["duration_ns"].to_numpy()
    first, last = np.searchsorted(launches, (start + length // 4, start + length))
    gaps = rows[between[alike]]
    instead = (first == last) & (start + length <= pauses.idle.end_ns[gaps])
    alike[alike] = (length * _COVERS <= pauses.idle_ns[gaps]) | instead
    named[between[alike]] = spelled[found[alike]]
    covered[between[alike]] = inside[alike]
    # What waits for a batch on its way to the device is told as that (NPU407).
    copies = recording.host_ops.index.get_indexer(copies_to_device(recording).index)
    kept = ~np.isin(calls, copies)
    rows, calls, named, covered = rows[kept], calls[kept], named[kept], covered[kept]
    spent = {str(name): int(pauses.idle_ns[rows[named == name]].sum()) for name in set(named)}
    for name in sorted(spent, key=lambda name: (-spent[name], name)):
        if share(per_step(spent[name], recording), recording) >= LEAST_SHARE:
            own = np.flatnonzero(named == name)
            held = per_step(int(covered[own].sum()), recording) if name else 0
            yield _observation(name, rows[own], calls[own], held, pauses, recording)


def _without_launches(pauses: Pauses, recording: Recording) -> Iterator[Observation]:
    """Yield one observation where long gaps are not led to the host, as it was not recorded."""
    idle = pauses.idle
    gaps = idle.end_ns - idle.start_ns
    gaps = (gaps - measure_explained_ns(recording, idle)).clip(min=0)
    gaps[recording.kernels["launch_ns"].to_numpy()[idle.next_kernel] >= 0] = 0
    gaps[pauses.rows] = 0
    long = np.flatnonzero(gaps >= SHORTEST_PAUSE_NS)
    cost = min(per_step(int(gaps[long].sum()), recording), free_ns(recording))
    if share(cost, recording) < LEAST_SHARE:
        return
    count = format_count(len(long) / max(1, recording.step_count), "gap")
    yield Observation(
        what=(
            f"the device does nothing for {milliseconds(cost)} per step "
            f"({percent(share(cost, recording))} of the step): {count} of 1 ms or more; what the "
            "host did meanwhile is not recorded"
        ),
        evidence=(("longest gap", milliseconds(int(gaps.max()))),),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the idle time of these gaps",
        is_idle=True,
        is_divided=True,
        is_symptom=True,
        advice=_OF_UNKNOWN,
        gpu_advice=_OF_UNKNOWN,
    )


def _observation(  # noqa: PLR0913, PLR0917 - the pauses, and what fills them
    name: str, gaps: Integers, calls: Integers, held: int, pauses: Pauses, recording: Recording
) -> Observation:
    waited = pauses.idle_ns[gaps]
    cost = min(per_step(waited.sum(), recording), free_ns(recording))
    count = format_count(len(gaps) / max(1, recording.step_count), "pause")
    behind = recording.kernels.iloc[pauses.idle.next_kernel[gaps]]
    is_operator = bool((calls >= 0).all())
    function = PYTHON.fullmatch(name)
    said = function["function"] if function else name or _BETWEEN
    if re.fullmatch(ONLY_ALLOCATES, name):
        said = f"{name}, which asks the driver for memory,"
    advice = next((text for names, text in _BY_NAME if re.fullmatch(names, name)), "")
    synchronised = host_calls(recording, SYNCHRONISES).per_step
    drained = ""
    if synchronised >= max(_AGAIN, len(gaps) / 2 / max(1, recording.step_count)):
        drained = f", behind some of {number(synchronised)} synchronisations of the device"
        advice = advice or OF_SYNCHRONISATIONS
    if _loads_code(gaps, pauses, recording):
        drained, advice = ", in the first launch of a kernel, which loads its code", _OF_CODE
    elif is_operator and not advice:
        later = _later_calls_ns(calls, recording.host_ops)
        if later is not None:
            said = f"the first calls of {name} (later ones take {milliseconds(later)})"
            advice = _OF_CODE
    what = (
        f"the host is in {said} while the device waits for {milliseconds(cost)} "
        f"per step ({percent(share(cost, recording))} of the step): {count} of 1 ms or more{drained}"
    )
    if name and held < _ALL * cost:
        what = (
            f"the device waits for {milliseconds(cost)} per step ({percent(share(cost, recording))} "
            f"of the step) while the host does something else, {milliseconds(held)} of it in {said}: "
            f"{count} of 1 ms or more{drained}"
        )
    last = ends_step(recording, pauses.idle)[gaps]
    rows, spent = behind[~last], waited[~last]
    if not name:
        rows = _first_calls(gaps[~last], pauses, rows, recording.host_ops)
    if is_operator:
        rows = _every_call(name, gaps, pauses, recording.host_ops)
        spent = rows["duration_ns"].to_numpy()
        spent = (spent * (waited.sum() / max(1, spent.sum()))).astype(np.int64)
    return Observation(
        what=what,
        evidence=(
            ("longest pause", milliseconds(waited.max())),
            *(
                ()
                if name
                else (("the lines", "those of the first call or kernel behind each pause"),)
            ),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the idle time of these pauses",
        places=_place(function, cost, len(gaps), recording) or places(rows, spent, recording),
        host_ops=with_copies_around(rows, recording) if is_operator else frozenset(),
        sooner_ns=sooner_without(pauses, gaps, recording),
        is_idle=True,
        is_divided=True,
        is_symptom=True,
        advice=advice,
        gpu_advice=advice.replace("PYTORCH_NPU", "PYTORCH_CUDA"),
    )


def _first_calls(
    gaps: Integers, pauses: Pauses, behind: pd.DataFrame, ops: pd.DataFrame
) -> pd.DataFrame:
    """Return the operators with which the host goes on, else the kernels ``behind`` the pauses.

    An optimizer on the host takes 70 ms, then weights are copied, and then comes the first kernel
    of the next step: the lines of the copies say where.
    """
    own = outermost_operators(ops)
    starts = ops["start_ns"].to_numpy()[own]
    ends = starts + ops["duration_ns"].to_numpy()[own]
    found = []
    for begin, end in zip(pauses.idle.start_ns[gaps], pauses.idle.end_ns[gaps], strict=True):
        first, last = np.searchsorted(ends, begin), np.searchsorted(starts, end)
        free = np.append(starts[first:last], end) - np.append(begin, ends[first:last])
        at = int(free.argmax())
        found.append(int(own[first + at]) if at < last - first else -1)
    if -1 in found or (ops["path"].iloc[found] == "").any():
        return behind
    return ops.iloc[found]


def _only(pauses: Pauses, rows: Integers) -> Integers:
    """Return the idle times of these pauses alone."""
    kept = np.zeros_like(pauses.idle_ns)
    kept[rows] = pauses.idle_ns[rows]
    return kept


def _place(
    found: re.Match[str] | None, cost: int, count: int, recording: Recording
) -> tuple[Place, ...]:
    """Return the place of ``metrics.py(14): track``, nothing for an operator."""
    if found is None:
        return ()
    calls = max(1, round(count / max(1, recording.step_count)))
    return (Place(found["path"], int(found["line"]), found["function"], cost, calls),)


def _loads_code(gaps: Integers, pauses: Pauses, recording: Recording) -> bool:
    """Tell whether most of some pauses are spent in long launches of kernels that are new here.

    A launch that takes long again and again waits for something else.
    """
    behind = pauses.idle.next_kernel[gaps]
    kernels = recording.kernels.sort_values("start_ns", kind="stable")
    first = kernels.index[~kernels["name"].duplicated().to_numpy(bool)]
    if not recording.kernels.index[behind].isin(first).all():
        return False
    calls = find_named(recording.signals.long_calls, _LOADS_CODE)
    starts = np.sort(calls["start_ns"].to_numpy())
    ends = np.maximum.accumulate(np.sort((calls["start_ns"] + calls["duration_ns"]).to_numpy()))
    begin, end = pauses.idle.start_ns[gaps], pauses.idle.end_ns[gaps]
    spent = measure_covered_ns(starts, ends, begin, end)
    return bool(spent.sum() > _COVERS * pauses.idle_ns[gaps].sum())


def _later_calls_ns(calls: Integers, ops: pd.DataFrame) -> float | None:
    """Return the median of an operator's later calls, ``None`` if these calls are no first use.

    The first convolution of each shape searches for an algorithm, or compiles one: 2 s, and 90 µs
    from then on. Where no shapes are recorded, most calls up to the last such one take as long.
    """
    own = ops.index[np.unique(calls)]
    named = ops[(ops["name"] == ops["name"].loc[own[0]]).to_numpy()]
    named = named.sort_values("start_ns", kind="stable")
    here = named.index.isin(own)
    shaped = (named["input_dims"] != "").all()
    until = int(np.flatnonzero(here)[-1]) + 1
    if shaped:
        is_first = not named["input_dims"].duplicated().to_numpy(bool)[here].any()
    else:
        is_first = here[0] and 2 * len(own) >= until
    spent = named["duration_ns"].to_numpy()
    others = spent[~here] if shaped else spent[until:]
    later = float(np.median(others)) if len(others) else math.inf
    return later if is_first and later <= _MUCH_SHORTER * float(np.median(spent[here])) else None


def _calls_in(
    pauses: Pauses,
    ops: pd.DataFrame,
    known: tuple[Integers, Integers],
    step_ns: float = math.inf,
) -> tuple[Integers, Integers]:
    """Return the row of the call that fills each pause, and how much of it the calls of its name do.

    ``known`` is when what other findings tell begins and ends: a copy to the host and 20 ms of NumPy
    behind it are in ``sample``, but what fills the pause is the NumPy.

    -1 where it is Python between calls. Of calls around each other it is the innermost that covers
    about as much: the copy in a function. Of several calls of one name, eight copies to the host
    say, the longest stands for all. What lasts as long as all of the step, ``model_inference``,
    says nothing of 12 ms in it, unless it is an operator.
    """
    rows = _long_calls(ops)
    long = ops.iloc[rows]
    starts = long["start_ns"].to_numpy()
    ends = starts + long["duration_ns"].to_numpy()
    names = long["name"].cat.codes.to_numpy()
    is_range = ~is_named(long, ".*::.*", "name")  # an operator says what it does, however long
    is_whole = is_range & (ends - starts >= _OF_STEP * step_ns)
    found, covered = [], []
    for at in pauses.rows:
        begin, end = pauses.idle.start_ns[at], pauses.idle.end_ns[at]
        first, last = np.maximum(starts, begin), np.minimum(ends, end)
        cover = np.clip(last - first, 0, None)
        inside = np.flatnonzero(cover)
        cover[inside] -= measure_covered_ns(*known, first[inside], last[inside])
        least = _COVERS * pauses.idle_ns[at]
        cover[is_whole & (ends - starts > pauses.idle_ns[at] / _COVERS)] = 0
        own = _innermost(cover, ends - starts, least)
        if own < 0:
            together, taken = (
                np.bincount(names[inside], each[inside]) for each in (cover, ends - starts)
            )
            name = _innermost(together, taken, least)
            alike = inside[names[inside] == name]
            own = int(alike[cover[alike].argmax()]) if len(alike) else -1
        found.append(int(rows[own]) if own >= 0 else -1)
        same = _sum_outermost(own, cover, names, ends) if own >= 0 else 0
        covered.append(min(int(same), int(pauses.idle_ns[at])))
    return np.array(found, np.int64), np.array(covered, np.int64)


def _sum_outermost(
    own: int, cover: NDArray[np.number], names: NDArray[np.integer], ends: Integers
) -> float:
    """Return what the calls of one name cover; what one calls of its own name is a part of it."""
    alike = np.flatnonzero(names == names[own])
    latest = np.maximum.accumulate(np.append(0, ends[alike][:-1]))
    return float(cover[alike[ends[alike] > latest]].sum())


def _innermost(cover: NDArray[np.number], lengths: NDArray[np.number], least: float) -> int:
    """Return the shortest of what covers about as much as anything, -1 where that is too little."""
    best = cover.max(initial=0)
    if best < least or not best:
        return -1
    good = np.flatnonzero(cover >= _AS_GOOD * best)[::-1]  # the inner one of two as long
    return int(good[lengths[good].argmin()])


def _every_call(name: str, gaps: Integers, pauses: Pauses, ops: pd.DataFrame) -> pd.DataFrame:
    """Return the long calls of a name that begin or end in these pauses."""
    ops = ops.iloc[_long_calls(ops)]
    rows = ops[(ops["name"] == name).to_numpy()]
    start = rows["start_ns"].to_numpy()
    order = gaps[np.argsort(pauses.idle.start_ns[gaps])]
    behind = np.searchsorted(pauses.idle.start_ns[order], start + rows["duration_ns"].to_numpy())
    inside = (behind > 0) & (pauses.idle.end_ns[order[behind - 1]] > start)
    found: pd.DataFrame = rows[inside]
    return found


def _long_calls(ops: pd.DataFrame) -> Integers:
    """Return the rows of the calls that may fill a pause, without the marks around steps."""
    names = ops["name"].array
    marks = np.array([*(str(n).startswith(_MARK) for n in names.categories), False], np.bool_)
    long = (ops["duration_ns"] >= _COVERS * SHORTEST_PAUSE_NS).to_numpy(bool)
    return np.flatnonzero(long & ~marks[names.codes]).astype(np.int64)


RULE = Diagnostic(
    id="NPU411",
    name="host-pause",
    summary="the host does something else for a while, and the device is idle",
    advice=_ADVICE,
    check=check,
    gpu_advice=_ADVICE,
)
