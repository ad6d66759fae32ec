"""A gradient norm that is computed parameter by parameter.

What: ``torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`` in front of the step of an
optimizer of torch.

Why it is slow on the NPU: one LpNorm kernel per parameter, a few more for the total, and one product
per parameter for the clipping. The optimizers of torch_npu hold all gradients of a dtype in one
tensor: ``clip_grad_norm_fused_`` needs one of each.

Evidence: LpNorm kernels of runs with ``Optimizer.step#...`` calls of a class that torch_npu has a
fused one of, without ApplyAdamW kernels, which work on single gradients.

Use instead: ``total = optimizer.clip_grad_norm_fused_(max_norm, norm_type=2)`` with
``torch_npu.optim.NpuFusedAdamW`` or another class of torch_npu (rule fused-optimizer); with a
GradScaler after ``scaler.unscale_(optimizer)``.

Safety: advice. It clips all gradients of this optimizer: the same only if that has the parameters
that ``clip_grad_norm_`` was given, and a total over several optimizers is something else. Not for
norms of sharded gradients (FSDP, ZeRO); ``error_if_nonfinite`` has no counterpart.

References: affinity API page of the migration guide (clip_grad_norm_fused_).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.observing import computing, find_named, per_step, places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording

_NORM = r"LpNorm\w*|ForeachNorm"
_STEP = (
    r"Optimizer\.step#(NpuFused\w+|SGD|Adam|AdamW|Adadelta|RMSprop|RMSpropTF|Lamb|AdamP|BertAdam)"
    r"\.step"
)
_MANY = 4
"""Norms per step: fewer are not one per parameter."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where the norms of single gradients take a share worth telling."""
    rows = computing(recording, _NORM)
    steps = find_named(recording.host_ops, _STEP)
    sharded = find_named(recording.kernels, r"ApplyAdam\w*", "type")
    if len(rows) < _MANY * max(1, recording.step_count) or steps.empty or not sharded.empty:
        return
    cost = per_step(int(rows["duration_ns"].sum()), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    classes = sorted({found[1] for n in steps["name"].unique() if (found := _match(str(n)))})
    count = format_count(len(rows) / max(1, recording.step_count), "norm")
    yield Observation(
        what=(
            f"{count} of single gradients per step take {milliseconds(cost)}, "
            f"{percent(share(cost, recording))} of the step"
        ),
        evidence=(
            ("optimizers", ", ".join(classes)),
            ("kernels", ", ".join(sorted({str(name) for name in rows["type"]}))),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most all norms of single gradients",
        places=places(rows, rows["duration_ns"].to_numpy(), recording),
        kernels=Labels(rows.index),
    )


def _match(name: str) -> re.Match[str] | None:
    return re.fullmatch(_STEP, name)


RULE = Diagnostic(
    id="NPU113",
    name="clip-grad-norm",
    summary="the norm of all gradients is computed parameter by parameter",
    advice=(
        "optimizer.clip_grad_norm_fused_(max_norm) of a torch_npu.optim.NpuFused... optimizer, "
        "after scaler.unscale_(optimizer)"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1",
)
