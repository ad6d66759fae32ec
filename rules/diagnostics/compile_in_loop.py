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

from itertools import pairwise
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

    import pandas as pd

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
    return _as_asked(sooner, launched, recording)


def _as_asked(
    sooner_ns: Mapping[int, int], launched: pd.Series[int], recording: Recording
) -> dict[int, int]:
    """Return the same where another thread asks for what that one launches.

    Without 32 ms of compiling a step of 37 ms takes the 9 ms in which operators are asked for, and
    not the 5 ms that the device is busy: what was queued up left the queue at once. All that is
    asked for behind a wait for the device comes as much sooner as the wait does.
    """
    ops, rows = recording.host_ops, recording.kernels.loc[launched.index]
    asked = ops["start_ns"].reindex(rows["host_op"]).to_numpy(np.float64)
    known = ~np.isnan(asked)
    if known.mean() < _MOST or _compiles_itself(recording):
        return dict(sooner_ns)
    saved = np.array([sooner_ns.get(label, 0) for label in launched.index], np.float64)
    apart = np.diff(launched, prepend=launched.iloc[0])
    usual = max(0.0, float((launched - asked)[known].min()))
    waits = blocking_calls(recording)
    ends = np.sort((waits["start_ns"] + waits["duration_ns"]).to_numpy())
    asked = np.maximum.accumulate(np.where(known, asked, -np.inf))
    borders = np.searchsorted(asked, ends)
    for first, last in pairwise(np.unique(np.concatenate([[0], borders, [len(asked)]])).tolist()):
        own = slice(first, last)
        begin = float(launched.iloc[first] - saved[first])
        needed = np.append(0.0, np.cumsum((apart - saved)[own][1:].clip(min=0)))
        earliest = np.append(begin, asked[own][1:] + usual) - needed
        left = np.maximum.accumulate(earliest) + needed
        saved[own][1:] = apart[own][1:] - np.diff(left)
    return dict(zip(launched.index.tolist(), saved.round().astype(int).tolist(), strict=True))


def _compiles_itself(recording: Recording) -> bool:
    """Tell whether the thread that asks for operators compiles them: they take as long."""
    ops = recording.host_ops
    outer = ops.iloc[outermost_operators(ops)]
    start = outer["start_ns"].to_numpy(np.int64)
    end = start + outer["duration_ns"].to_numpy(np.int64)
    compiled = find_named(recording.signals.long_calls, COMPILES)
    inside = measure_within_ns(compiled, start, end)
    inside[measure_within_ns(blocking_calls(recording), start, end) > 0] = 0
    longest = compiled["duration_ns"].to_numpy().max(initial=1)
    return bool(2 * inside.max(initial=0) >= longest)


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
    waited = {label: ns for label, ns in sooner_ns.items() if label >= 0 and ns > 0}
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
