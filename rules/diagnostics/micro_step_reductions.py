"""Gradients are reduced in every micro step, and used after the last one only.

What: between two steps of the optimizer forward and backward run several times (gradient
accumulation), and each backward pass reduces all gradients over the ranks, whatever wraps the model:
``DistributedDataParallel``, ``FullyShardedDataParallel``, an engine or a loop over parameters.

Why it is slow on the NPU: the sum over micro steps and ranks is the same in any order. Of four
micro steps, three reduce for nothing; what of it no computation hides makes the step longer, and
the rest takes memory bandwidth from the products beside it.

Evidence: the backward passes between the calls of ``Optimizer.step`` (each begins with the operator
that was called last, by its sequence number; without these the calls of a wrapper's ``forward``),
and the all-reduces and reduce-scatters that are asked for behind each: as many behind the first as behind
the last. Those of a group that communicates in the forward pass, too (tensor parallel), are none.

Use instead: ``with (model.no_sync() if (step + 1) % accumulation else contextlib.nullcontext()):``
around forward and backward. ``accelerator.accumulate(model)`` of Accelerate, the Trainer of
Transformers and ``gradient_accumulation_steps`` of DeepSpeed (stages 0 and 1; stages 2 and 3 reduce
in each micro step, as they keep no whole gradients) do it by themselves.

Safety: sums are added up in another order, so they are rounded differently. FSDP keeps the whole
gradients meanwhile, which takes memory.

References: no_sync of torch.nn.parallel.DistributedDataParallel and of
FullyShardedDataParallel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.observing import find_named, is_named, per_step, places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

    Integers = NDArray[np.int64]

_FORWARD = r"(DistributedDataParallel|FullyShardedDataParallel)\.forward"
_BACKWARD = r"autograd::engine::evaluate_function: .*|\w+Backward\d*"
_UPDATE = r"Optimizer\.step#.*"
_REDUCES = r"(?i).*(all_?reduce|reduce_?scatter).*"
_ALIKE = 0.8
"""Share of the reductions of the last micro step from which another one makes the same."""
_GROUP = r"_{2,}(\d+)_"
"""``hcom_allReduce__954_0_1`` is of the group 954."""
_ADVICE = (
    "with (model.no_sync() if (step + 1) % accumulation else contextlib.nullcontext()): around "
    "forward and backward; or accelerator.accumulate(model); ZeRO stage 0 or 1 of DeepSpeed"
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where micro steps reduce what a later one reduces again."""
    updates = find_named(recording.host_ops, _UPDATE).sort_values("start_ns", kind="stable")
    forward = _forward_passes(recording.host_ops, updates)
    if len(forward) <= 1 or not len(updates):
        return
    reductions = _reductions(recording, forward)
    needless, most = _find_needless(forward, updates["start_ns"].to_numpy(), reductions)
    rows = reductions[needless]
    spent = int(rows["duration_ns"].sum())
    exposed = _exposed_share(recording)
    cost = per_step(spent * exposed, recording)
    if share(per_step(spent, recording), recording) < LEAST_SHARE:
        return
    steps = max(1, recording.step_count)
    yield Observation(
        what=(
            f"gradients are reduced in each of {most} micro steps before the optimizer's step: "
            f"{number(len(rows) / steps)} of {format_count(len(reductions) / steps, 'reduction')} "
            f"per step are for nothing, {milliseconds(spent / steps)}, of which nothing hides "
            f"{milliseconds(cost)} ({percent(share(cost, recording))} of the step)"
        ),
        evidence=(
            ("forward passes", f"{number(len(forward) / steps)} per step"),
            ("steps of the optimizer", f"{number(len(updates) / steps)} per step"),
        ),
        cost_ns=cost,
        saving_ns=(round(_ALIKE * cost), cost),
        likely_ns=cost,
        basis="what nothing hides of these reductions",
        places=places(rows, rows["duration_ns"].to_numpy() * exposed, recording),
        kernels=Labels(rows.index),
        hidden=Labels(rows.index),
    )


def _forward_passes(host_ops: pd.DataFrame, updates: pd.DataFrame) -> pd.DataFrame:
    """Return the forward pass before each backward pass, else those of a wrapper, in order.

    The first operator that a backward pass undoes is the last one of its forward pass, whose
    number is higher than any before; it ends where that backward pass begins.
    """
    start, end, number = _nodes(find_named(host_ops, _BACKWARD))
    is_first = number > np.maximum.accumulate(np.append(-1, number))[:-1]
    if is_first.sum() <= 1:
        calls = find_named(host_ops, _FORWARD).sort_values("start_ns", kind="stable")
        return calls[_is_outer(calls["start_ns"].to_numpy(), _ends(calls))]
    # What comes behind a backward pass up to the update (clipping, say) is of no forward pass.
    ends = start[is_first]
    before = np.append(0, end[np.flatnonzero(is_first)[1:] - 1])
    updated = np.append(0, _ends(updates))
    before = np.maximum(before, updated[np.searchsorted(updates["start_ns"].to_numpy(), ends)])
    made = np.sort(
        host_ops["start_ns"].to_numpy()[
            (host_ops["sequence"] >= 0).to_numpy() & ~is_named(host_ops, _BACKWARD, "name")
        ]
    )
    at = np.searchsorted(made, before)
    known = np.flatnonzero((at < len(made)) & (np.append(made, 0)[at] < ends))
    starts = np.append(made, 0)[at[known]]
    rows = host_ops.iloc[: len(known)]
    return rows.assign(start_ns=starts, duration_ns=ends[known] - starts)


def _nodes(calls: pd.DataFrame) -> tuple[Integers, Integers, Integers]:
    """Return start, end and number of what a backward pass runs: of calls in each other the outer."""
    calls = calls.sort_values("start_ns", kind="stable")
    start, end = calls["start_ns"].to_numpy(), _ends(calls)
    outer = np.flatnonzero(_is_outer(start, end))
    if not len(outer):
        return start, end, start
    number = calls["sequence"].to_numpy(np.int64)
    # The clock is coarse: one may begin before the one before it has ended.
    return start[outer], np.maximum.reduceat(end, outer), np.maximum.reduceat(number, outer)


def _is_outer(start: Integers, end: Integers) -> NDArray[np.bool_]:
    """Tell which of calls in order lie in no other one."""
    outer: NDArray[np.bool_] = start >= np.maximum.accumulate(np.append(0, end))[:-1]
    return outer


def _ends(calls: pd.DataFrame) -> Integers:
    return (calls["start_ns"] + calls["duration_ns"]).to_numpy()


def _reductions(recording: Recording, forward: pd.DataFrame) -> pd.DataFrame:
    """Return the reductions with ``asked``, the moment at which the host asked for each."""
    kernels = recording.kernels
    chosen = is_named(kernels, _REDUCES, "type") | is_named(kernels, _REDUCES, "name")
    rows = kernels[chosen & kernels["communication"].to_numpy(bool)]
    began = recording.host_ops["start_ns"].reindex(rows["host_op"]).to_numpy(np.float64)
    launched = rows["launch_ns"].to_numpy(np.float64)
    launched = np.where(launched >= 0, launched, rows["start_ns"].to_numpy(np.float64))
    asked = np.where(np.isnan(began), launched, began).astype(np.int64)
    group = rows["name"].astype(str).str.extract(_GROUP, expand=False).fillna("")
    rows = rows.assign(asked=asked, group=group.to_numpy())
    at = np.searchsorted(forward["start_ns"].to_numpy(), asked, side="right") - 1
    ends = _ends(forward)
    known = ~np.isnan(began) | (rows["launch_ns"] >= 0).to_numpy()
    ahead = known & (at >= 0) & (asked < ends[at.clip(min=0)])
    of_forward = set(rows["group"][ahead]) - {""}
    found: pd.DataFrame = rows[~rows["group"].isin(of_forward).to_numpy() & ~ahead]
    return found


def _find_needless(
    forward: pd.DataFrame, updates: Integers, reductions: pd.DataFrame
) -> tuple[NDArray[np.bool_], int]:
    """Return which reductions come before the last micro step, and how many micro steps there are."""
    starts = forward["start_ns"].to_numpy()
    of_update = np.searchsorted(updates, _ends(forward))
    at = np.searchsorted(starts, reductions["asked"].to_numpy(), side="right") - 1
    counts = np.bincount(at[at >= 0], minlength=len(starts))
    needless = np.zeros(len(starts), np.bool_)
    most = 0
    for update in range(len(updates)):
        own = np.flatnonzero(of_update == update)
        if len(own) <= 1 or not counts[own[-1]]:
            continue
        if (counts[own] >= _ALIKE * counts[own[-1]]).all():
            needless[own[:-1]] = True
            most = max(most, len(own))
    return (at >= 0) & needless[at.clip(min=0)], most


def _exposed_share(recording: Recording) -> float:
    if recording.steps.empty:
        return 1.0
    whole = float(recording.steps["communication_ns"].sum())
    exposed = float(recording.steps["communication_exposed_ns"].sum())
    return min(1.0, exposed / whole) if whole > 0 else 1.0


RULE = Diagnostic(
    id="NPU509",
    name="micro-step-reductions",
    summary="gradients are reduced in every micro step of an accumulation",
    advice=_ADVICE,
    check=check,
    gpu_advice=_ADVICE,
)
