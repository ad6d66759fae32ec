"""Some steps take far longer than the others.

What: steps that no average holds because they are far longer than the typical one (not those of the
warm-up), and that make the average of all steps longer by 1 % or more.

Why it is slow on the NPU: a checkpoint that is written in between, an evaluation, a batch of another
size or a compilation holds the device up for many steps at once, and each average hides it.

Evidence: the lengths of all steps, and the calls of the host that take longer in these.

Use instead: checkpoints that are written beside the steps (``async_save`` of
torch.distributed.checkpoint) and less often, evaluation less often, batches padded to a few sizes.

Safety: advice.

References: asynchronous saving in the documentation of torch.distributed.checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation, Place
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.observing import COOLING, PYTHON, clock_of
from npufix.rules.shared.recording.pauses import OF_COLLECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

_LEAST_SHARE = 0.01
_MOSTLY = 0.5
"""Share of the extra time from which a call explains it."""
_LEAST_CALL_NS = 500_000
_MOST_NAMED = 4
_MARK = "ProfilerStep#"
_WAIT = {"aten::item", "aten::_local_scalar_dense"}
"""Calls that are as long as what the device has still to do."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all longer steps together."""
    typical, outliers = recording.step_ns, recording.outliers
    extra = sum(outliers.values()) - typical * len(outliers)
    steps = recording.step_count + len(outliers)
    cost = extra // steps
    if extra <= 0 or cost < _LEAST_SHARE * (typical + cost):
        return
    found = _functions_there(recording)
    if found is None or found["duration_ns"].sum() <= _MOSTLY * extra:
        found = _longest_calls(recording)
    blamed = found if found is not None and found["duration_ns"].sum() > _MOSTLY * extra else None
    clocks = _slower_clock(recording, 1 - typical * len(outliers) / sum(outliers.values()))
    blamed = None if clocks else blamed
    names = ", ".join(f"step {n}" for n in sorted(outliers)[:_MOST_NAMED])
    mean = sum(outliers.values()) / len(outliers)
    what = (
        f"the average of all {steps} steps is {milliseconds(cost)} longer "
        f"({percent(cost / (typical + cost))}) than without {format_count(len(outliers), 'step')} of "
        f"{milliseconds(mean)} ({names})"
    )
    collected = 0 if clocks else _collected_ns(recording)
    in_collector = collected > _MOSTLY * extra
    if in_collector:
        blamed, spent, call = None, collected, "Python's garbage collector"
    elif blamed is not None:
        spent = int(blamed["duration_ns"].sum())
        call = blamed["function"].iloc[0] if "around" in blamed else blamed["name"].iloc[0]
        call = f"{call}, which waits for the device" if call in _WAIT else call
    if in_collector or blamed is not None:
        # A value that is read waits for the steps before, too.
        held = min(spent, extra) / len(outliers)
        what = (
            f"the average of all {steps} steps is {milliseconds(cost)} longer "
            f"({percent(cost / (typical + cost))}) than without {format_count(len(outliers), 'step')} "
            f"of {milliseconds(mean)} ({names}; {milliseconds(held)} of it in {call})"
        )
    if clocks:
        what = (
            f"the average of all {steps} steps is {milliseconds(cost)} longer "
            f"({percent(cost / (typical + cost))}) than without {format_count(len(outliers), 'step')} "
            f"of {milliseconds(mean)} ({names}), in which the AI cores run at {clocks[0]:.0f} instead "
            f"of {clocks[1]:.0f} MHz"
        )
    yield Observation(
        what=what,
        advice=COOLING if clocks else OF_COLLECTIONS if in_collector else "",
        evidence=tuple(
            (f"step {n}", milliseconds(ns)) for n, ns in sorted(outliers.items())[:_MOST_NAMED]
        ),
        cost_ns=cost,
        of_ns=typical + cost,
        outliers_ns=cost,
        basis="the steps that are replayed are those without the longer ones",
        places=() if blamed is None else _place(blamed, extra, steps),
        is_idle=True,
    )


def _collected_ns(recording: Recording) -> int:
    """Return how long the garbage collector ran in the longer steps."""
    runs, marks = recording.signals.gc, _marks(recording)
    if runs.empty or marks.empty:
        return 0
    begin = marks["start_ns"].to_numpy()
    order = np.argsort(begin)
    end = (begin + marks["duration_ns"].to_numpy())[order]
    start = runs["start_ns"].to_numpy()
    at = np.searchsorted(begin[order], start, side="right") - 1
    return int(runs["duration_ns"].to_numpy()[(at >= 0) & (start < end[at])].sum())


def _slower_clock(recording: Recording, longer: float) -> tuple[float, float] | None:
    """Return the clock in the longer steps and in the others, if it says most of what is longer.

    ``longer`` is the share of a longer step that it takes more than others.
    """
    clock = recording.signals.frequency
    if clock.empty:
        return None
    moments = _middles(recording).to_frame("start_ns")
    within, around = (
        float(np.median(clock_of(rows, clock))) if len(rows) else 0.0
        for rows in (moments, recording.kernels[["start_ns"]])
    )
    lower = 1 - within / around if around else 0.0
    return (within, around) if lower > 0 and lower >= _MOSTLY * longer else None


def _middles(recording: Recording) -> pd.Series[int]:
    """Return a moment of each longer step at which the device is within it.

    The host, whose marks are recorded, may be a step ahead; the device begins a step when it is done
    with the kernels of the one before.
    """
    import pandas as pd

    kernels, at, end = recording.kernels, [], 0
    ends = kernels["start_ns"] + kernels["duration_ns"]
    marks = _marks(recording)
    for number, length in sorted(recording.outliers.items()):
        before = ends[kernels["step"].lt(number).to_numpy(bool, na_value=False)]
        mark = marks[marks["name"].astype(str) == f"{_MARK}{number}"]
        known = [end, *(before.nlargest(1)), *(mark["start_ns"].nlargest(1))]
        begin = int(max(known))
        if begin:
            at.append(begin + length // 2)
            end = begin + length
    return pd.Series(at, dtype="int64")


def _marks(recording: Recording) -> pd.DataFrame:
    ops = recording.outlier_ops
    ops = recording.host_ops.iloc[:0] if ops is None else ops
    marks: pd.DataFrame = ops[ops["name"].astype(str).str.startswith(_MARK)]
    return marks


def _place(blamed: pd.DataFrame, extra: int, steps: int) -> tuple[Place, ...]:
    """Return the line of the calls, with what they take of an average step: 800 ms in one of 4."""
    first = blamed.iloc[0]
    if not str(first["path"]):
        return ()
    spent = min(int(blamed["duration_ns"].sum()), extra)
    return (
        Place(
            path=str(first["path"]),
            line=int(first["line"]),
            function=str(first["function"]),
            cost_ns=spent // steps,
            calls=max(1, round(len(blamed) / steps)),
        ),
    )


def _functions_there(recording: Recording) -> pd.DataFrame | None:
    """Return the calls of the longest Python function that only the longer steps call.

    ``save_checkpoint`` that runs in step 11 alone, and not ``main`` around all of them.
    """
    import pandas as pd

    ops, functions = recording.outlier_ops, recording.signals.functions
    if ops is None or functions.empty:
        return None
    marks = _marks(recording).sort_values("start_ns")
    begin, start = marks["start_ns"].to_numpy(), functions["start_ns"].to_numpy()
    at = np.searchsorted(begin, start, side="right") - 1
    end = (marks["start_ns"] + marks["duration_ns"]).to_numpy()
    inside = at >= 0
    inside[inside] = (start + functions["duration_ns"].to_numpy())[inside] <= end[at[inside]]
    names = functions["name"].astype(str)
    own = functions[inside & ~names.isin(names[~inside])]
    spent = own.groupby(names[own.index])["duration_ns"].sum()
    place = PYTHON.fullmatch(str(spent.idxmax())) if len(spent) else None
    if place is None:
        return None
    rows = own[own["name"] == place[0]]
    path, function = (pd.Categorical([place[name]] * len(rows)) for name in ("path", "function"))
    found: pd.DataFrame = rows.assign(
        path=path, function=function, line=int(place["line"]), around=True
    )
    return found


def _longest_calls(recording: Recording) -> pd.DataFrame | None:
    """Return the long calls of one line and name that take most of the longer steps."""
    ops = recording.outlier_ops
    if ops is None:
        return None
    names = ops["name"].astype(str)
    long = ops[(ops["duration_ns"] >= _LEAST_CALL_NS) & ~names.str.startswith(_MARK)]
    if long.empty:
        return None
    spent = long.groupby(["name", "path", "line"], observed=True)["duration_ns"].sum()
    keys = spent.index.to_frame(index=False)
    most = keys.iloc[int(spent.to_numpy().argmax())]
    own = (long[list(most.index)] == most).all(axis=1)
    found: pd.DataFrame = long[own.to_numpy(bool)]
    return found


RULE = Diagnostic(
    id="NPU412",
    name="longer-steps",
    summary="some steps take far longer than the others",
    advice=(
        "look at what these steps do beside the others: checkpoints asynchronously "
        "(torch.distributed.checkpoint.async_save) and less often, evaluation less often, batches "
        "padded to a few sizes"
    ),
    check=check,
    gpu_advice=(
        "look at what these steps do beside the others: checkpoints asynchronously "
        "(torch.distributed.checkpoint.async_save) and less often, evaluation less often, batches "
        "padded to a few sizes"
    ),
)
