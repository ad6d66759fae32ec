"""Operators are prepared for compilation while the steps run.

What: at least 20 calls of aclopCompileAndExecute, or calls that take 5 % of the step.

Why it is slow on the NPU: an operator that takes the old way through aclop is looked up, and
compiled if its shape is new, at each call; that is hundreds of microseconds to seconds of the host,
against some ten for an operator of aclnn.

Evidence: api_statistic.csv; the lines are those of the kernels behind the pauses of the device that
the calls fill, else of kernels that are named as aclop names them (Type and a number: ``Conv2D1``).

Use instead: ``torch_npu.npu.set_compile_mode(jit_compile=False)`` (the default on Atlas A2 and A3)
and ``torch.npu.config.allow_internal_format = False`` before the model is built, so that
convolutions and matrix products go through aclnn as well.

Safety: kernels change, so results differ by rounding. Models with many convolutions on Atlas
training series devices may profit from the internal formats: measure both.

References: solution_to_top2.md of the troubleshooting guide; op_dispatch of msprof-analyze
(threshold 20).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.kernel_groups import LEAST_SHARE
from npufix.rules.shared.recording.observing import (
    count_recorded_steps,
    find_named,
    free_ns,
    host_calls,
    measure_within_ns,
    outermost_operators,
    per_step,
    places,
    share,
)
from npufix.rules.shared.recording.pauses import COMPILES, blocking_calls, sooner_in_pauses
from npufix.rules.shared.recording.versions import chip_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rules.diagnostic import Place, Recording

DISPATCH_20 = 20
"""Calls in all steps together."""
PRIORITY = 0.05
"""Share of the step from which it matters however few calls there are."""
_PRECOMPILED = {"A2", "A3", "A5"}
"""Chips on which nothing is compiled while the program runs, unless it asks for it."""
_SETTINGS = (
    "torch_npu.npu.set_compile_mode(jit_compile=False); "
    "torch.npu.config.allow_internal_format = False (before the model is built)"
)
_MOST = 0.8
"""Share of the time of all calls from which those that are recorded one by one stand for them."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where the host spends its time on aclop."""
    calls = host_calls(recording, COMPILES)
    if not calls.count:
        return
    spent = calls.per_step_ns
    if (
        calls.per_step * count_recorded_steps(recording) < DISPATCH_20
        and share(spent, recording) < PRIORITY
    ):
        return
    cost = min(round(spent), free_ns(recording))
    if share(cost, recording) < LEAST_SHARE:  # it hides behind kernels, or is of a warm-up
        return
    least = min(recording.step_ns, _in_operators_ns(recording))
    sooner = _without_calls(spent, recording) or sooner_in_pauses(spent, recording)
    yield Observation(
        what=(
            f"aclopCompileAndExecute is called {format_count(calls.per_step, 'time')} per step and "
            f"takes {milliseconds(spent)} of the host ({percent(share(spent, recording))} of the step)"
        ),
        evidence=(
            ("average call", milliseconds(calls.total_ns / calls.count)),
            ("longest call", milliseconds(calls.longest_ns)),
            ("steps recorded", str(count_recorded_steps(recording))),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the free time of the step: the rest hides behind kernels",
        sooner_ns=sooner,
        at_least_ns=least,
        at_worst_ns=least,
        places=_pausing(recording, sooner, cost)
        or _places(recording, calls.total_ns // calls.count),
        is_idle=True,
        advice=_advice(recording),
    )


def _without_calls(spent_ns: float, recording: Recording) -> dict[int, int]:
    """Return how much sooner kernels are launched without calls of which it is known when they were.

    They hold the thread that launches, which has a queue: 12 of 2.5 ms make the device wait for
    less than 30 ms, and all that they launch comes 30 ms sooner. Nothing where most are not known.
    """
    launched = recording.kernels["launch_ns"].sort_values(kind="stable")
    launched = launched[launched >= 0]
    calls = find_named(recording.signals.long_calls, COMPILES)
    start, spent = calls["start_ns"].to_numpy(), calls["duration_ns"].to_numpy()
    behind = np.searchsorted(launched.to_numpy(), start)
    own = (behind > 0) & (behind < len(launched) - 1)
    start, spent, behind = start[own], spent[own], behind[own]
    if spent.sum() < _MOST * spent_ns * max(1, recording.step_count):
        return {}
    # What the call takes behind its own launch comes before the next one.
    before = np.minimum(launched.to_numpy()[behind] - start, spent)
    sooner: dict[int, int] = {}
    for rows, times in ((behind, before), (behind + 1, spent - before)):
        for label, ns in zip(launched.index[rows].tolist(), times.tolist(), strict=True):
            sooner[label] = sooner.get(label, 0) + ns
    return sooner


def _in_operators_ns(recording: Recording) -> int:
    """Return for how long a step asks for operators on the threads that ask, without what waits.

    Another thread compiles what they have put into its queue: without that a step of 37 ms takes
    the 9 ms in which it is asked for, and not the 5 ms that the device is busy.
    """
    ops = recording.host_ops
    outer = ops.iloc[outermost_operators(ops)]
    start = outer["start_ns"].to_numpy(np.int64)
    end = start + outer["duration_ns"].to_numpy(np.int64)
    waits = blocking_calls(recording)
    compiled = find_named(recording.signals.long_calls, COMPILES)
    waited, inside = (measure_within_ns(calls, start, end) for calls in (waits, compiled))
    # What one thread compiles while another asks is none of its time.
    own_thread = 2 * inside.max(initial=0) >= compiled["duration_ns"].to_numpy().max(initial=1)
    own = int((end - start - waited).sum()) - (int(inside.sum()) if own_thread else 0)
    return per_step(max(0, own), recording)


def _advice(recording: Recording) -> str:
    """Return what to set: on chips where that is the default, what to remove."""
    families = chip_families(recording.environment, recording.kernels["core"].cat.categories)
    if families and set(families) <= _PRECOMPILED:
        return (
            "remove jit_compile=True and allow_internal_format = True from the program (on this "
            "chip the defaults are the other way round); what is compiled without them needs a "
            "newer CANN"
        )
    return _SETTINGS


def _pausing(recording: Recording, sooner_ns: Mapping[int, int], cost: int) -> tuple[Place, ...]:
    """Return the lines whose kernels come behind the pauses, where these are most of the cost.

    Those of 6 resizes of new shapes that take 7 ms each, and not of 40 convolutions that are
    looked up in microseconds.
    """
    waited = {label: ns for label, ns in sooner_ns.items() if label >= 0}
    if 2 * per_step(sum(waited.values()), recording) < cost:
        return ()
    rows = recording.kernels.loc[list(waited)]
    return places(rows, np.array(list(waited.values())), recording)


def _places(recording: Recording, average_ns: int) -> tuple[Place, ...]:
    """Return the lines whose kernels are named by aclop; each call is taken for an average one."""
    rows = find_named(recording.kernels, r"[A-Z][A-Za-z0-9]*?[A-Za-z]\d+")
    rows = rows[~rows["communication"].to_numpy(bool)]
    return places(rows, np.full(len(rows), average_ns), recording)


RULE = Diagnostic(
    id="NPU403",
    name="compile-in-loop",
    summary="the host compiles or looks up operators through aclop in every step",
    advice=_SETTINGS,
    check=check,
)
