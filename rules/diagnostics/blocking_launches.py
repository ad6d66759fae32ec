"""Every launch waits for its kernel: a debug setting left on.

What: ``ASCEND_LAUNCH_BLOCKING=1`` in the recorded environment, or more than one synchronisation of
a stream for every two launches.

Why it is slow on the NPU: the host waits for each kernel before it launches the next, so that the
time of the host adds to that of the device instead of hiding behind it. The task queue is off.

Evidence: the environment variables of profiler_metadata.json; aclrtSynchronizeStream against
node@launch in api_statistic.csv.

Use instead: ``unset ASCEND_LAUNCH_BLOCKING``. If it is not set, the program synchronises by itself:
see synchronising-operator.

Safety: results stay the same; errors of a kernel are reported later, at another line.

References: synchronize.yaml of msprof-analyze (threshold 0.5); ASCEND_LAUNCH_BLOCKING in the
environment variable reference of torch_npu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import milliseconds, number
from npufix.rules.shared.recording.observing import count_recorded_steps, free_ns, host_calls
from npufix.rules.shared.recording.pauses import SYNCHRONISE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording

SYNC_05 = 0.5
"""Synchronisations per launch."""

_OTHER_WAITS = (
    "take torch.npu.synchronize(), .item() and prints of tensors out of the loop; unset "
    "ASCEND_LAUNCH_BLOCKING (unless the dump shows that it was not set)"
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where launches block."""
    setting = recording.environment.variables.get("ASCEND_LAUNCH_BLOCKING", "")
    waits, launches = host_calls(recording, SYNCHRONISE), host_calls(recording, "launch")
    ratio = waits.count / launches.count if launches.count else 0.0
    if setting != "1" and ratio <= SYNC_05:
        return
    blocked = waits.total_ns / count_recorded_steps(recording)
    cost = min(free_ns(recording), round(blocked)) if waits.count else free_ns(recording)
    steps = count_recorded_steps(recording)
    counted, set_to = "", f"ASCEND_LAUNCH_BLOCKING={setting}"
    if launches.count:
        counted = (
            f"{number(waits.count / steps)} synchronisations for "
            f"{number(launches.count / steps)} launches per step"
        )
    both = counted and setting == "1"
    yield Observation(
        what=f"ASCEND_LAUNCH_BLOCKING={setting} and {counted}" if both else counted or set_to,
        evidence=(
            ("synchronisations per launch", f"{ratio:.2f}"),
            ("host blocked", f"{milliseconds(blocked)} per step"),
            ("ASCEND_LAUNCH_BLOCKING", setting or "not recorded or not set"),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the free time: launches ahead of the device would fill it",
        sooner_ns=_sooner(recording, blocked, queued=setting == "1"),
        is_idle=True,
        is_symptom=setting != "1",
        advice="unset ASCEND_LAUNCH_BLOCKING" if setting == "1" else _OTHER_WAITS,
    )


def _sooner(recording: Recording, blocked_ns: float, *, queued: bool) -> dict[int, int]:
    """Return how long each launch waited for the kernel of the one before it.

    All of them wait as long as the host was blocked, if that is recorded: it comes back some time
    behind the end of a kernel. Where they are ``queued`` then, another thread launches as well.
    """
    rows = recording.kernels.sort_values("launch_ns", kind="stable")
    launch = rows["launch_ns"].to_numpy()
    end = rows["start_ns"].to_numpy() + rows["duration_ns"].to_numpy()
    waited = np.flatnonzero((launch[1:] >= end[:-1]) & (launch[:-1] >= 0))
    labels = rows.index.to_numpy()[waited + 1].tolist()
    sooner = (end - launch)[waited].astype(np.float64)
    known = blocked_ns * max(1, recording.step_count)
    if queued:
        known += host_calls(recording, "launch").per_step_ns * max(1, recording.step_count)
    if sooner.sum() and known > sooner.sum():
        sooner *= known / sooner.sum()
    return dict(zip(labels, sooner.round().astype(np.int64).tolist(), strict=True))


RULE = Diagnostic(
    id="NPU402",
    name="blocking-launches",
    summary="the host waits for the device after every launch",
    advice="unset ASCEND_LAUNCH_BLOCKING",
    check=check,
)
