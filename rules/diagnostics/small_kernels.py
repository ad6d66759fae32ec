"""Kernels are shorter than it takes to launch the next one.

What: the device is idle for 1 % of the step or more before kernels that are shorter than a launch
and wait for theirs longer than a fifth of their own time; these are one of ten or more.

Why it is slow on the NPU: a launch costs the host the same whatever the kernel does. Kernels that
are shorter than a launch can never fill the queue, however fast the host is: the device waits after
each of them.

Evidence: the time between two launches of this recording (its median; else the average call of
node@launch), the duration of each kernel and the gap before it.

Use instead: fused operators and the fused optimizers of ``torch_npu.optim``; ``foreach`` variants;
a larger batch; ``TORCH_NPU_LAZY_FUSION=True`` (new, Atlas A2 and A3) or a graph mode.

Safety: fused operators round differently; a larger batch changes training.

References: op_schedule of msprof-analyze (Free 20 %, gap 0.2, count 20 %: edges at which the same
program is told or not from run to run);
TORCH_NPU_LAZY_FUSION.md of torch_npu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.recording.fusable import graph_mode
from npufix.rules.shared.recording.kernel_groups import LEAST_SHARE
from npufix.rules.shared.recording.observing import (
    free_ns,
    host_calls,
    idle_time,
    is_named,
    per_step,
    places,
    share,
)
from npufix.rules.shared.recording.pauses import (
    ends_step,
    find_pauses,
    measure_explained_ns,
)
from npufix.rules.shared.recording.run_settings import Setting, advice, lines_to_set
from npufix.rules.shared.recording.versions import unmet

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Integers

SCHED_GAP = 0.2
"""Gap before a kernel, as a share of its duration."""
SCHED_COUNT = 0.10
"""Share of the kernels."""

_FUSED = "fused operators, a fused optimizer of torch_npu.optim, foreach variants, a larger batch"
_ZEROS = r"Zeros\w*|MemSet|Fill\w*|aten::(zero_|fill_)"
_UNSET = "optimizer.zero_grad(set_to_none=True) (not with NpuFused optimizers)"
_LAZY = Setting("TORCH_NPU_LAZY_FUSION", "True", lambda value: value.lower() in {"true", "1"})
_LAZY_CHIPS = "chip A2 A3"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where short kernels keep the device waiting."""
    free = share(free_ns(recording), recording)
    launch = _launch_ns(recording)
    if not launch:
        return
    compute = ~recording.kernels["communication"].to_numpy(bool)
    duration, gap = recording.kernels["duration_ns"].to_numpy(), _gaps(recording)
    small = compute & (duration < launch) & (gap > SCHED_GAP * duration)
    ratio = small.sum() / max(1, compute.sum())
    if ratio <= SCHED_COUNT:
        return
    cost = min(per_step(gap[small].sum(), recording), free_ns(recording))
    if share(cost, recording) < LEAST_SHARE:
        return
    steps = max(1, recording.step_count)
    yield Observation(
        what=(
            f"{small.sum() / steps:.0f} of {compute.sum() / steps:.0f} kernels per step "
            f"({percent(ratio)}) are shorter than a launch ({milliseconds(launch)}); the device "
            f"waits {milliseconds(cost)} before them"
        ),
        evidence=(
            ("free", percent(free)),
            ("their own time", f"{milliseconds(duration[small].sum() / steps)} per step"),
            ("median duration", milliseconds(float(np.median(duration[small])))),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the gaps before them, if they become part of longer kernels",
        places=places(recording.kernels[small], gap[small], recording),
        hurries=Labels(recording.kernels.index[small]),
        goes=True,
        is_idle=True,
        is_symptom=True,
        advice=_advice(recording, _zeros(recording.kernels, np.where(small, gap, 0))),
    )


def _zeros(kernels: pd.DataFrame, gap: Integers) -> bool:
    """Tell whether most of the waiting is for kernels that fill with zeros: 600 gradients, say."""
    return bool(2 * gap[is_named(kernels, _ZEROS, "type")].sum() > gap.sum())


def _advice(recording: Recording, zeros: bool) -> str:  # noqa: FBT001 - one more line or none
    unset = _UNSET if zeros else ""
    cores = recording.kernels["core"].cat.categories
    graph = graph_mode(recording)
    if unmet(_LAZY_CHIPS, recording.environment, cores):
        return advice(unset, graph, _FUSED)
    lazy = lines_to_set(recording, _LAZY)
    return advice(unset, graph, _FUSED, f"{lazy} (new: check the results)" if lazy else "")


def _gaps(recording: Recording) -> Integers:
    """Return the idle time before each kernel, without pauses in which the host did something else.

    What follows a pause is small by chance: the norm at the begin of each token that a scheduler
    was 9 ms late with.
    """
    idle = idle_time(recording)
    gaps = np.zeros(len(recording.kernels), np.int64)
    whole = idle.end_ns - idle.start_ns
    gaps[idle.next_kernel] = (whole - measure_explained_ns(recording, idle)).clip(min=0)
    pauses = find_pauses(recording)
    inner = pauses.rows[~ends_step(recording, pauses.idle)[pauses.rows]]
    gaps[pauses.idle.next_kernel[inner]] = 0
    return gaps


def _launch_ns(recording: Recording) -> float:
    """Return what a launch costs the host, 0 if the recording does not say."""
    launched = np.sort(recording.kernels["launch_ns"].to_numpy())
    apart = np.diff(launched[launched >= 0])
    # One launch may start several kernels at the same moment.
    apart = apart[apart > 0]
    if len(apart):
        return float(np.median(apart))
    calls = host_calls(recording, "launch")
    return calls.total_ns / calls.count if calls.count else 0.0


RULE = Diagnostic(
    id="NPU305",
    name="small-kernels",
    summary="kernels are shorter than it takes to launch the next one",
    advice=f"{_FUSED}; {_LAZY.line} (Atlas A2 and A3: check the results)",
    check=check,
)
