"""The host waits for a value of the device, so the device runs dry.

What: ``.item()``, ``float(x)``, ``bool(x)``, ``print(x)``, ``.cpu()``, ``nonzero`` or a boolean
index: operators whose result, or whose shape, the host must know before it goes on.

Why it is slow on the NPU: the host normally runs ahead and keeps the queue full. To hand over a
value it waits until everything before has run; the device then has nothing to do until the host
has woken up, gone on and launched the next kernel.

Evidence: an operator counts where the device was busy during the call and idle when it returned, so
it did wait. ``.item()`` of a tensor of the host has the same name but waits for nothing: only as
many calls count, the longest, as api_statistic.csv says that the host waited for a stream. The time
that the device then waits for its next kernel, less the median gap of the recording, is the cost.
A dump without operators of the host shows only kernels of NonZero and its like, and the wait behind
them.

Use instead: keep the value on the device and read it every N steps
(``running += loss.detach()``); replace boolean indices by ``torch.where`` or a multiplication;
build masks by ``torch.arange(n, device=x.device) < lengths[:, None]`` instead of a loop.

Safety: advice; where control flow depends on the value it cannot simply go.

References: overall_optimization_strategy.md and solution_to_top3.md of the troubleshooting guide.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.observing import (
    find_named,
    free_ns,
    host_calls,
    idle_time,
    is_named,
    per_step,
    places,
    share,
)
from npufix.rules.shared.recording.pauses import (
    ALLOCATES,
    OF_SYNCHRONISATIONS,
    SHORTEST_PAUSE_NS,
    SPELLINGS,
    SYNCHRONISES,
    beyond_typical,
    blocking_calls,
    host_waits,
)
from npufix.rules.shared.recording.run_settings import advice

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Idle, Integers

_WAITING_TYPES = r"NonZero(V\d)?|MaskedSelect(V\d)?|Unique\w*"
_PLACE = ["path", "line"]
_AGAIN = 2
"""Times per step that a program synchronises the device: once may be for the step as a whole."""
_ADVICE = (
    "keep values on the device and read them every N steps (running += loss.detach()); "
    "torch.where or a product instead of boolean indices and nonzero"
)
LEAST_SHARE = 0.01
"""Share of the step from which it is told, as for fusible windows (FUSIBLE)."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation per operator that makes the device wait."""
    if not len(recording.kernels):
        return
    # With a wait that ends the last step: no kernel comes behind it.
    idle = idle_time(recording, to_marks=True)
    if not len(idle.start_ns):
        return
    waits = (
        host_waits(recording, idle) if len(recording.host_ops) else _kernel_waits(recording, idle)
    )
    total = (
        waits.groupby("name", observed=True)["high"]
        .sum()
        .sort_values(ascending=False, kind="stable")
    )
    told: set[tuple[object, ...]] = set()
    explained = 0
    found: dict[str, Observation] = {}
    for name in total.index:
        rows = waits[waits["name"] == name]
        if share(per_step(rows["high"].sum(), recording), recording) >= LEAST_SHARE:
            told |= set(_places_of(rows))
            waited = rows["high"]
            waited = waited[waited < SHORTEST_PAUSE_NS]  # the others are no late launches
            explained += per_step(int(waited.sum()), recording)
            found[str(name)] = _observation(str(name), rows, recording)
    if len(recording.host_ops):
        for name, lost in _lost_leads(recording, idle, told, explained):
            found[name] = _join(found[name], lost, recording) if name in found else lost
    count = host_calls(recording, SYNCHRONISES).per_step
    if count >= _AGAIN and not host_calls(recording, ALLOCATES).count:
        found = {name: _beside_synchronisations(seen, count) for name, seen in found.items()}
    yield from sorted(found.values(), key=lambda seen: -seen.cost_ns)


def _beside_synchronisations(seen: Observation, count: float) -> Observation:
    """Return a finding without what a replay would say: without a read the host still waits.

    ``torch.npu.synchronize()`` behind ``.item()`` has nothing to wait for, until that has gone.
    """
    return replace(
        seen,
        evidence=(
            *seen.evidence,
            ("device synchronised", f"{format_count(count, 'time')} per step"),
        ),
        host_ops=frozenset(),
        saving_ns=None,
        advice=advice(OF_SYNCHRONISATIONS, _ADVICE),
    )


def _join(seen: Observation, lost: Observation, recording: Recording) -> Observation:
    """Return one finding of what one operator costs at all of its lines."""
    cost = min(seen.cost_ns + lost.cost_ns, free_ns(recording))
    low = seen.saving_ns[0] if seen.saving_ns else 0
    at = sorted((*seen.places, *lost.places), key=lambda place: -place.cost_ns)
    return replace(
        seen,
        what=f"{seen.what}; {lost.what}",
        cost_ns=cost,
        saving_ns=(low, cost),
        places=tuple(at),
        host_ops=seen.host_ops | lost.host_ops,
    )


def _lost_leads(
    recording: Recording, idle: Idle, told: set[tuple[object, ...]], explained_ns: int
) -> Iterator[tuple[str, Observation]]:
    """Yield the name and an observation per operator, at lines that are not ``told``, behind which launches come too late for a while.

    The host waits 3 ms for the optimizer of the step before, and has no lead any more: the small
    kernels that follow are launched one by one to a device that waits for each. No longer than the
    host was held could it have been ahead.
    """
    gaps = idle.end_ns - idle.start_ns
    launched = recording.kernels["launch_ns"].to_numpy()[idle.next_kernel]
    late = np.where((launched >= 0) & (gaps < SHORTEST_PAUSE_NS), launched - idle.start_ns, 0)
    # Behind 40 boolean indices, 0.3 ms each, launches are late for their sake.
    late = np.clip(late, 0, gaps)
    waited = max(0, per_step(int(late.sum()), recording) - explained_ns)
    # ``.item()`` is a copy within a read: what is around it tells, and both go.
    calls = blocking_calls(recording).sort_values("duration_ns", ascending=False, kind="stable")
    for name in calls["name"].astype(str).unique().tolist():
        rows = calls[(calls["name"] == name).to_numpy(bool)]
        # A line copies to the host once and 200 times on the device: these hold nobody.
        rows = rows[[place not in told for place in _places_of(rows)]].sort_index()
        told |= set(_places_of(rows))
        held = per_step(int(rows["duration_ns"].sum()), recording)
        # The copy within a read goes with it.
        gone = set(_places_of(rows))
        others = calls[[place not in gone for place in _places_of(calls)]]
        cost = min(per_step(_lost_ns(rows, others, idle, late), recording), waited)
        if share(cost, recording) < LEAST_SHARE:
            continue
        count = format_count(len(rows) / max(1, recording.step_count), "time")
        seen = Observation(
            what=(
                f"{name} ({SPELLINGS[name]}) holds the host {count} per step, "
                f"{milliseconds(held)} in all, and launches come too late behind it: the device "
                f"waits up to {milliseconds(cost)} ({percent(share(cost, recording))} of the step)"
            ),
            cost_ns=cost,
            saving_ns=(0, cost),
            basis="at most as long as the host was held, which is the lead that it could have",
            places=places(rows, rows["duration_ns"].to_numpy(), recording),
            host_ops=_calls_there("|".join(SPELLINGS), rows, recording),
            is_idle=True,
            is_divided=True,
        )
        yield name, seen


def _lost_ns(rows: pd.DataFrame, others: pd.DataFrame, idle: Idle, late_ns: Integers) -> int:
    """Return how long launches are late behind some calls, up to the next one of the others.

    What is late before the first call is behind the last one of the step before.
    """
    starts = np.concatenate([rows["start_ns"].to_numpy(), others["start_ns"].to_numpy()])
    if not len(rows):
        return 0
    held = np.append(rows["duration_ns"].to_numpy(), np.zeros(len(others), np.int64))
    order = np.argsort(starts, kind="stable")
    is_own = order < len(rows)
    part = np.cumsum(~is_own)
    before = np.searchsorted(starts[order], idle.end_ns, side="right") - 1
    behind = is_own[before]
    late = np.bincount(part[before[behind]], late_ns[behind], len(others) + 1)
    return int(np.minimum(np.bincount(part, held[order], len(others) + 1), late).sum())


def _places_of(calls: pd.DataFrame) -> list[tuple[object, ...]]:
    return list(calls[_PLACE].itertuples(index=False, name=None))


def _kernel_waits(recording: Recording, idle: Idle) -> pd.DataFrame:
    """Return the kernels whose result the host waits for, with the gap behind them."""
    kernels = recording.kernels
    order = kernels["start_ns"].argsort(kind="stable").to_numpy()
    waiting = np.flatnonzero(is_named(kernels, _WAITING_TYPES, "type")[order[:-1]])
    before = np.full(len(order), -1, np.int32)  # a million rows: no more memory than that
    before[order[waiting + 1]] = order[waiting]
    own = np.flatnonzero(before[idle.next_kernel] >= 0)
    waits = kernels.iloc[before[idle.next_kernel[own]]].reset_index(drop=True)
    return waits.assign(name=waits["type"], blocked=-1, low=0, high=beyond_typical(idle, own)[own])


def _observation(name: str, rows: pd.DataFrame, recording: Recording) -> Observation:
    calls = len(rows) / max(1, recording.step_count)
    free = free_ns(recording)
    low, high = (min(per_step(rows[c].sum(), recording), free) for c in ("low", "high"))
    spelled = f" ({SPELLINGS[name]})" if name in SPELLINGS else ""
    extra = milliseconds(float(rows["high"].median()))
    facts = [("device waits after a call", f"median {extra} more than between other kernels")]
    if (rows["blocked"] >= 0).all():
        blocked = per_step(rows["blocked"].sum(), recording)
        facts.append(("host held", f"{milliseconds(blocked)} per step"))
    return Observation(
        what=(
            f"{name}{spelled} makes the device run dry {format_count(calls, 'time')} per step; it then waits "
            f"{milliseconds(high)} ({percent(share(high, recording))} of the step)"
        ),
        evidence=tuple(facts),
        cost_ns=high,
        saving_ns=(low, high),
        basis=_basis(rows),
        places=places(rows, rows["high"].to_numpy(), recording),
        host_ops=_calls_there(re.escape(name), rows, recording)
        if (rows["blocked"] >= 0).all()
        else frozenset(),
        is_idle=True,
        is_divided=True,
    )


def _calls_there(name: str, rows: pd.DataFrame, recording: Recording) -> frozenset[int]:
    """Return all calls of these lines: with them go those that the device had nothing left for.

    With ``.item()`` goes the copy within it.
    """
    calls = find_named(recording.host_ops, name)
    calls = calls[calls.set_index(_PLACE).index.isin(rows.set_index(_PLACE).index.unique())]
    calls = calls.sort_values("start_ns")
    begins = calls["start_ns"].to_numpy()
    ends = np.append(0, begins + calls["duration_ns"].to_numpy())
    inner = find_named(recording.host_ops, "|".join(SPELLINGS))
    until = (inner["start_ns"] + inner["duration_ns"]).to_numpy()
    around = np.searchsorted(begins, inner["start_ns"].to_numpy(), side="right")
    return frozenset(map(int, calls.index.append(inner.index[until <= ends[around]])))


def _basis(rows: pd.DataFrame) -> str:
    if (rows["blocked"] >= 0).all():
        return (
            "if the value is not needed at once: at least the part of each wait that the host lost "
            "in the call, at most all of it"
        )
    return "at most the wait behind each kernel, beyond the median gap of the recording"


RULE = Diagnostic(
    id="NPU406",
    name="synchronising-operator",
    summary="the host waits for a value of the device, which then runs dry",
    advice=_ADVICE,
    check=check,
    gpu_advice=_ADVICE,
)
