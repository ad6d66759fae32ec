"""Gradients are reduced in every micro step, and used after the last one only.

What: between two steps of the optimizer ``DistributedDataParallel`` or
``FullyShardedDataParallel`` runs forward and backward several times (gradient accumulation), and
each backward pass reduces all gradients over the ranks.

Why it is slow on the NPU: the sum over micro steps and ranks is the same in any order. Of four
micro steps, three reduce for nothing; what of it no computation hides makes the step longer, and
the rest takes memory bandwidth from the products beside it.

Evidence: the calls of the wrapper's ``forward`` between the calls of ``Optimizer.step``, and the
all-reduces and reduce-scatters that are asked for behind each: as many behind the first as behind
the last. Those of a group that communicates in the forward pass, too (tensor parallel), are none.

Use instead: ``with (model.no_sync() if (step + 1) % accumulation else contextlib.nullcontext()):``
around forward and backward. ``accelerator.accumulate(model)`` of Accelerate, the Trainer of
Transformers and ``gradient_accumulation_steps`` of DeepSpeed (stages 0 and 1) do it by themselves.

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
_UPDATE = r"Optimizer\.step#.*"
_REDUCES = r"(?i).*(all_?reduce|reduce_?scatter).*"
_ALIKE = 0.8
"""Share of the reductions of the last micro step from which another one makes the same."""
_GROUP = r"_{2,}(\d+)_"
"""``hcom_allReduce__954_0_1`` is of the group 954."""
_ADVICE = (
    "with (model.no_sync() if (step + 1) % accumulation else contextlib.nullcontext()): around "
    "forward and backward; or accelerator.accumulate(model)"
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where micro steps reduce what a later one reduces again."""
    forward = find_named(recording.host_ops, _FORWARD).sort_values("start_ns", kind="stable")
    updates = np.sort(find_named(recording.host_ops, _UPDATE)["start_ns"].to_numpy())
    if len(forward) <= 1 or not len(updates):
        return
    reductions = _reductions(recording, forward)
    needless, most = _find_needless(forward, updates, reductions)
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
    ends = (forward["start_ns"] + forward["duration_ns"]).to_numpy()
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
    of_update = np.searchsorted(updates, starts)
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
