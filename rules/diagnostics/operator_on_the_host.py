"""An operator has no kernel for the NPU and runs on the processor of the host.

What: operators that torch_npu hands to the CPU: "The operator ... will fall back to run on the
CPU". Among them are ``logdet``, ``slogdet`` and other linear algebra.

Why it is slow on the NPU: the inputs are copied to the host, which waits for the device to get that
far; one core computes the result; it is copied back. The device has nothing to do meanwhile.

Evidence: ``aten::_to_cpu``, the operator with which PyTorch moves the inputs of a fallback, inside
of the operator that falls back; how long the device is idle while that lasts.

Use instead: an operator that has a kernel (``torch_npu`` lists them), a newer torch_npu, or the same
result from other operators: ``torch.linalg.svdvals(c).log().sum(-1)`` is ``log|det c|`` of each
matrix. Where the tensor is small and needed on the host anyway, compute it there from the start.

Safety: advice. The logarithm of the singular values says nothing about the sign of the determinant.

References: other_common_opt_ops.md of the FrameworkPTAdapter guide (its sample multiplies the
singular values of the whole batch, which is wrong for more than one matrix).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.observing import find_named, idle_time, per_step, places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Integers

LEAST_SHARE = 0.001
"""Share of the step: a fallback is a mistake even where it costs little, but not for nothing."""
_DEEPEST = 8
"""Operators that may begin between an operator and the copy of its inputs."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation per operator that runs on the host."""
    calls = _find_fallen_back(recording)
    if calls.empty or recording.kernels.empty:
        return
    start, duration = calls["start_ns"].to_numpy(), calls["duration_ns"].to_numpy()
    waited = idle_time(recording, to_marks=True).covered(start, start + duration)
    calls = calls.assign(waited=waited)
    for name in calls["name"].unique():
        own = calls[calls["name"] == name]
        if share(per_step(own["waited"].sum(), recording), recording) >= LEAST_SHARE:
            yield _observation(str(name), own, recording)


def _find_fallen_back(recording: Recording) -> pd.DataFrame:
    """Return the operators directly around the copies of inputs to the host."""
    ops = recording.host_ops
    copies = np.flatnonzero(ops.index.isin(find_named(ops, "aten::_to_cpu").index))
    around = _around(
        ops["start_ns"].to_numpy(), ops["duration_ns"].to_numpy(), copies.astype(np.int64)
    )
    found: pd.DataFrame = ops.iloc[np.unique(around[around >= 0])]
    return found


def _around(start: Integers, duration: Integers, inner: Integers) -> Integers:
    """Return the row of the innermost operator around each row, -1 if none is near."""
    found = np.full(len(inner), -1, np.int64)
    end = start + duration
    for back in range(1, _DEEPEST + 1):
        outer = (inner - back).clip(min=0)
        holds = (inner >= back) & (end[outer] >= end[inner]) & (found < 0)
        found[holds] = outer[holds]
    return found


def _observation(name: str, calls: pd.DataFrame, recording: Recording) -> Observation:
    steps = max(1, recording.step_count)
    cost = per_step(calls["waited"].sum(), recording)
    held = calls["duration_ns"].to_numpy()
    return Observation(
        what=(
            f"{name} runs on the host: {format_count(len(calls) / steps, 'call')} per step, in which "
            f"the device is idle for {milliseconds(cost)} ({percent(share(cost, recording))} of "
            "the step)"
        ),
        evidence=(
            ("host held", f"{milliseconds(held.sum() / steps)} per step"),
            ("longest call", milliseconds(held.max())),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the idle time during the calls",
        places=places(calls, calls["waited"].to_numpy(), recording),
        is_idle=True,
    )


RULE = Diagnostic(
    id="NPU230",
    name="operator-on-the-host",
    summary="an operator without a kernel for the NPU runs on the host",
    advice=(
        "write it with operators that have a kernel (log|det| of a matrix: "
        "torch.linalg.svdvals(c).log().sum(-1)), or try a newer torch_npu"
    ),
    check=check,
    table="affinity",
)
