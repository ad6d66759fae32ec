"""A moving average of the parameters behind a fused AdamW step.

What: after ``optimizer.step()`` every parameter is mixed into an average: ``ema.lerp_(p, 1 - d)`` or
``ema.mul_(d).add_(p, alpha=1 - d)``.

Why it is slow on the NPU: all parameters and averages are read and written once more, one small
kernel or two per parameter. ``npu_apply_fused_ema_adamw`` updates the average where AdamW has the
new parameter at hand.

Evidence: Lerp kernels, or Mul and Add in pairs, behind ApplyAdamW kernels, with the shapes of the
parameters that these update; at least half as many as those, and at most three times as many.

Use instead: ``npu_apply_fused_ema_adamw`` of MindSpeed.

Safety: advice. float32 parameters only.

References: npu_apply_fused_ema_adamw.md of MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.observing import find_named, per_step, places, share
from npufix.rules.shared.recording.recorded_shapes import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

_STEP = r"ApplyAdamW(V2)?"
_AVERAGE = r"Lerp\w*|Mul|Muls|Add|Axpy\w*"
_LEAST = 0.5
"""Averages per parameter from which on this is one."""
_MOST = 3
"""Kernels per parameter: ``mul_`` and ``add_``, or a copy more; a layer behind the update has more."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where parameters are averaged right behind their update."""
    updates = find_named(recording.kernels, _STEP, "type")
    if updates.empty:
        return
    rows = _averages(recording, updates)
    cost = per_step(int(rows["duration_ns"].sum()), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    if not _LEAST * len(updates) <= len(rows) <= _MOST * len(updates):
        return
    steps = max(1, recording.step_count)
    yield Observation(
        what=(
            f"{format_count(len(rows) / steps, 'kernel')} per step average parameters behind AdamW and "
            f"take {milliseconds(cost)}, {percent(share(cost, recording))} of the step"
        ),
        evidence=(
            ("kernels", ", ".join(sorted({str(name) for name in rows["type"]}))),
            ("updates by AdamW", f"{number(len(updates) / steps)} per step"),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most all kernels of the average",
        places=places(rows, rows["duration_ns"].to_numpy(), recording),
        kernels=Labels(rows.index),
    )


def _averages(recording: Recording, updates: pd.DataFrame) -> pd.DataFrame:
    """Return the element-wise kernels behind the updates of each step that read a parameter."""
    rows = find_named(recording.kernels, _AVERAGE, "type")
    end = updates.groupby(updates["step"].fillna(-1))["start_ns"].max()
    behind = rows["start_ns"] > rows["step"].fillna(-1).map(end).fillna(np.inf)
    cells = {str(cell) for cell in updates["input_shapes"].unique()}
    parameters = {shapes(cell)[0] for cell in cells if cell} - {()}
    alike = [
        category
        for category in rows["input_shapes"].cat.categories
        if category and shapes(str(category))[0] in parameters
    ]
    behind &= rows["core"] != "AI_CPU"
    found: pd.DataFrame = rows[behind & rows["input_shapes"].isin(alike)]
    return found


RULE = Diagnostic(
    id="NPU129",
    name="average-after-adamw",
    summary="parameters are averaged in kernels of their own behind AdamW",
    advice="npu_apply_fused_ema_adamw of mindspeed.ops, for parameters in float32",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
