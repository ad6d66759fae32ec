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

import math
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.recording.observing import (
    SYNCHRONISE,
    copies_to_device,
    host_calls,
    idle_time,
    named,
    per_step,
    places,
    recorded_steps,
    share,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Idle, Integers

_SPELLINGS = {
    "aten::_local_scalar_dense": ".item(), float(), bool() or print() of a tensor",
    "aten::copy_": ".cpu() or another copy to the host",
    "acl_memcpy_device_to_host": ".cpu() or another copy to the host",
    "aten::nonzero": "nonzero or a boolean index",
    "aten::masked_select": "masked_select",
    "aten::equal": "torch.equal",
    "aten::is_nonzero": "bool() of a tensor",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique_consecutive",
}
_WAITING_TYPES = r"NonZero(V\d)?|MaskedSelect(V\d)?|Unique\w*"
SHORTEST_NS = 15_000
"""No copy from a device returns sooner: the fastest of both real dumps takes 19 us."""
LEAST_SHARE = 0.01
"""Share of the step from which it is told, as for fusible windows (FUSIBLE)."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation per operator that makes the device wait."""
    if not len(recording.kernels):
        return
    idle = idle_time(recording)
    if not len(idle.start_ns):
        return
    waits = (
        _host_waits(recording, idle) if len(recording.host_ops) else _kernel_waits(recording, idle)
    )
    total = waits.groupby("name", observed=True)["high"].sum().sort_values(ascending=False)
    for name in total.index:
        rows = waits[waits["name"] == name]
        if share(per_step(rows["high"].sum(), recording), recording) >= LEAST_SHARE:
            yield _observation(str(name), rows, recording)


def _host_waits(recording: Recording, idle: Idle) -> pd.DataFrame:
    """Return the calls during which the device ran dry, with what they cost."""
    ops = _candidates(recording)
    start = ops["start_ns"].to_numpy()
    end = start + ops["duration_ns"].to_numpy()
    gap = np.searchsorted(idle.start_ns, end, side="right") - 1
    at = gap.clip(min=0)
    waited = (gap >= 0) & (idle.start_ns[at] >= start) & (idle.end_ns[at] >= end)
    ops, at = ops[waited], at[waited]
    blocked = ops["duration_ns"].to_numpy()
    cost = _beyond_typical(idle)[at]
    rows = ops.assign(gap=at, blocked=blocked, low=np.minimum(cost, blocked), high=cost)
    # Of calls around each other, the innermost is the one that waited.
    innermost: pd.DataFrame = rows.sort_values("start_ns").drop_duplicates("gap", keep="last")
    return innermost


def _candidates(recording: Recording) -> pd.DataFrame:
    """Return the calls that may have waited: the longest, as many as CANN says that the host did.

    ``.item()`` of a tensor of the host has the same name, but it is shorter.
    """
    ops, copies = recording.host_ops, copies_to_device(recording)
    ops = ops[ops["name"].isin(list(_SPELLINGS)) & (ops["duration_ns"] >= SHORTEST_NS)]
    # A copy that launches a kernel stays on the device.
    launches = np.zeros(int(ops.index.max()) + 1 if len(ops) else 0, np.bool_)
    asked = recording.kernels["host_op"].to_numpy()
    launches[asked[(asked >= 0) & (asked < len(launches))]] = True
    ops = ops[~((ops["name"] == "aten::copy_").to_numpy() & launches[ops.index.to_numpy()])]
    calls = host_calls(recording, SYNCHRONISE).count
    if calls:
        most = math.ceil(calls * recording.step_count / recorded_steps(recording))
        ops = ops.nlargest(max(most, 1), "duration_ns")
    found: pd.DataFrame = ops[~ops.index.isin(copies.index)]
    return found


def _kernel_waits(recording: Recording, idle: Idle) -> pd.DataFrame:
    """Return the kernels whose result the host waits for, with the gap behind them."""
    order = recording.kernels["start_ns"].argsort(kind="stable").to_numpy()
    before = np.empty(len(order), np.int64)
    before[order[1:]] = order[:-1]
    before[order[:1]] = order[:1]
    rows = recording.kernels.iloc[before[idle.next_kernel]]
    rows = rows.assign(name=rows["type"], blocked=-1, low=0, high=_beyond_typical(idle))
    return named(rows, _WAITING_TYPES)


def _beyond_typical(idle: Idle) -> Integers:
    gaps = idle.end_ns - idle.start_ns
    beyond: Integers = np.maximum(gaps - round(float(np.median(gaps))), 0)
    return beyond


def _observation(name: str, rows: pd.DataFrame, recording: Recording) -> Observation:
    calls = len(rows) / max(1, recording.step_count)
    low, high = (per_step(rows[column].sum(), recording) for column in ("low", "high"))
    spelled = f" ({_SPELLINGS[name]})" if name in _SPELLINGS else ""
    extra = milliseconds(float(rows["high"].median()))
    facts = [("device waits after a call", f"median {extra} more than between other kernels")]
    if (rows["blocked"] >= 0).all():
        blocked = per_step(rows["blocked"].sum(), recording)
        facts.append(("host held", f"{milliseconds(blocked)} per step"))
    return Observation(
        what=(
            f"{name}{spelled} makes the device run dry {calls:.3g} times per step; it then waits "
            f"{milliseconds(high)} ({percent(share(high, recording))} of the step)"
        ),
        evidence=tuple(facts),
        cost_ns=high,
        saving_ns=(low, high),
        basis=_basis(rows),
        places=places(rows, rows["high"].to_numpy(), recording),
        is_idle=True,
    )


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
    advice=(
        "keep values on the device and read them every N steps (running += loss.detach()); "
        "torch.where or a product instead of boolean indices and nonzero"
    ),
    check=check,
)
