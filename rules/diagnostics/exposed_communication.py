"""Communication that no computation hides.

What: collectives take 1 % of the step or more while no compute kernel runs; up to 10 % is usual.

Why it is slow on the NPU: the AI cores have nothing to do while a collective runs alone. Gradients
can be reduced while the backward pass goes on, and weights gathered ahead of their layer.

Evidence: Communication(Not Overlapped) of step_trace_time; where communication.json is there, how
much of it moves data and how much waits for other ranks.

Use instead: find out first whether it waits (waiting-for-other-ranks) or moves data. For data:
overlap (``--overlap-grad-reduce --overlap-param-gather`` of Megatron, ``bucket_cap_mb`` of DDP),
gradient accumulation, MC2 operators that reduce inside of the matrix product
(``torch_npu.npu_mm_all_reduce_base``).

Safety: overlap keeps the results; accumulation changes the batch.

References: positioning_process of the troubleshooting guide; FSDP2 page of MindSpeed-LLM (up to
10 % is fine, more than 20 % is of concern).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import milliseconds, number, percent
from npufix.rules.shared.recording.collectives import (
    BACKWARD_SHARE,
    LEAST_SHARE,
    PARTS,
    collective_times,
    hidden_behind_ns,
    kernels_of,
    longest_collectives,
    payload_bytes,
    standing_still,
    waiting,
)
from npufix.rules.shared.recording.observing import places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

FREE_LLM = 0.10
"""Share of the step."""
_CONCERN = 0.20
_EXPLAINED = 0.5


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where exposed communication is more than it should be."""
    if recording.steps.empty:
        return
    exposed = round(float(recording.steps["communication_exposed_ns"].mean()))
    exposed = min(exposed, recording.step_ns)
    if share(exposed, recording) < LEAST_SHARE:
        return
    whole = max(1.0, float(recording.steps["communication_ns"].mean()))
    told, elsewhere = _find_told_elsewhere(recording)
    cost = max(0, exposed - elsewhere)
    if elsewhere and share(cost, recording) < LEAST_SHARE:
        return
    rows = recording.kernels[recording.kernels["communication"].to_numpy(bool)]
    rows = rows.drop(index=kernels_of(told, recording).index)
    moving = _moving_ns(recording)
    level = "of concern" if share(exposed, recording) > _CONCERN else "more than 10 %"
    if share(exposed, recording) <= FREE_LLM:
        level = "not of concern"
    basis = "the dump does not tell moving data from waiting"
    if moving is not None:
        basis = "at most the time in which data moves; waiting cannot be hidden"
    yield Observation(
        what=(
            f"communication that nothing hides takes {milliseconds(exposed)} "
            f"({percent(share(exposed, recording))} of the step: {level}){_parts(recording)}"
        ),
        evidence=_evidence(rows, exposed / whole, whole, moving, recording),
        cost_ns=cost,
        saving_ns=None if moving is None else (0, min(cost, moving)),
        likely_ns=None if moving is None else _likely_ns(min(cost, moving), recording),
        basis=basis,
        places=places(rows, rows["duration_ns"].to_numpy() * min(1.0, exposed / whole), recording),
        kernels=Labels(rows.index),
        is_symptom=True,
    )


def _find_told_elsewhere(recording: Recording) -> tuple[pd.Series[str], int]:
    """Return the collectives that wait or stand still, and how long: other rules tell of them."""
    rows, steps = collective_times(recording)
    names, told = rows["name"][:0], 0
    for part, column in ((waiting(rows), "waiting_ns"), (standing_still(rows), "still_ns")):
        spent = int(part[column].sum()) // steps
        if share(spent, recording) >= LEAST_SHARE:
            names, told = rows["name"][rows.index.isin([*names.index, *part.index])], told + spent
    return names, told


def _parts(recording: Recording) -> str:
    """Return what all collectives spend their time on, and which of them the most."""
    rows, steps = collective_times(recording)
    if rows.empty:
        return ""
    spent = {column: int(rows[column].sum()) for column in PARTS}
    parts = [f"{milliseconds(spent[column] / steps)} {name}" for column, name in PARTS.items()]
    most = max(PARTS, key=lambda column: spent[column])
    longest = longest_collectives(rows[rows[most] > 0], most, steps, payload_bytes(recording))
    return f"; inside the collectives: {', '.join(parts)}; most {PARTS[most]}: {longest}"


def _evidence(
    rows: pd.DataFrame, part: float, whole: float, moving: int | None, recording: Recording
) -> tuple[tuple[str, str], ...]:
    facts = [
        ("all communication", f"{milliseconds(whole)} per step"),
        ("hidden by computation", percent(max(0.0, 1 - part))),
        ("collectives", f"{number(len(rows) / max(1, recording.step_count))} per step"),
    ]
    if moving is not None:
        facts.append(("moves data", f"{milliseconds(moving)} per step"))
    return tuple(facts)


def _likely_ns(most: int, recording: Recording) -> int:
    """Return how much of it there is computing to hide behind that hides none yet."""
    steps, kernels = recording.steps, recording.kernels
    hidden = float((steps["communication_ns"] - steps["communication_exposed_ns"]).mean())
    compute = kernels[~kernels["communication"].to_numpy(bool)]
    spent = compute["duration_ns"].to_numpy()
    backward = compute["basis"].isin(["forward", "forward-function"]).to_numpy(bool)
    part = spent[backward].sum() / max(1, spent.sum()) or BACKWARD_SHARE
    moving = collective_times(recording)[0]["moving_ns"].to_numpy(np.float64)
    count = max(1, recording.step_count)
    longest = float(moving.max() * count / max(1.0, moving.sum()))
    window = float(part) * float(steps["computing_ns"].mean())
    behind = hidden_behind_ns(float(moving.sum()) / count, window, longest)
    return min(most, max(0, round(behind - hidden)))


def _moving_ns(recording: Recording) -> int | None:
    """Return how long collectives move data per step, ``None`` if the dump does not say."""
    rows, steps = collective_times(recording)
    moving = int(rows["moving_ns"].sum())
    known = moving + int(rows["waiting_ns"].sum()) + int(rows["notify_ns"].sum())
    # HCCL calls much of some collectives neither: then the sums say little about the whole.
    if known < _EXPLAINED * int(rows["elapse_ns"].sum()):
        return None
    return moving // steps or None


RULE = Diagnostic(
    id="NPU501",
    name="exposed-communication",
    summary="collectives run while no compute kernel does",
    advice=(
        "Megatron: --overlap-grad-reduce --overlap-param-gather; DDP: bucket_cap_mb; FSDP: "
        "backward_prefetch, forward_prefetch; gradient accumulation; torch_npu.npu_mm_all_reduce_base for a reduction behind a matrix product"
    ),
    check=check,
    gpu_advice=(
        "find out whether it waits for a late rank or moves data; for data: larger buckets and "
        "overlap (bucket_cap_mb and gradient_as_bucket_view of DDP, backward_prefetch and "
        "forward_prefetch of FSDP), gradient accumulation"
    ),
)
