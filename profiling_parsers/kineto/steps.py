"""The steps of a Kineto trace: ``ProfilerStep#7`` on the host, and what each is spent on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kineto.timeline import ThreadTimeline
from npufix.profiling_parsers.tables.columns import pick

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_STEP = re.compile(r"ProfilerStep#([0-9]{1,15})")


def step_annotations(annotations: pd.DataFrame) -> pd.DataFrame:
    """Return the annotations that are steps, with the number as ``step``."""
    names = annotations["name"].cat
    found = [_STEP.fullmatch(name) for name in names.categories]
    numbers = np.array([-1 if one is None else int(one[1]) for one in found] + [-1], np.int64)
    step = numbers[names.codes]
    return annotations.assign(step=step)[step >= 0].reset_index(drop=True)


def find_steps(steps: pd.DataFrame, starts: Integers, launched: Integers) -> pd.arrays.IntegerArray:
    """Return the step of each kernel, <NA> if it lies in none.

    A kernel belongs to the step in which the host launched it; where the launch is not known,
    or in no step, to that in which it ran by the annotation on the device, else by that on the
    host.
    """
    on_device = steps["on_device"].to_numpy().astype(np.bool_)
    step = _step_at(steps[~on_device], np.where(launched >= 0, launched, _never(starts)))
    step = np.where(step >= 0, step, _step_at(steps[on_device], starts))
    step = np.where(step >= 0, step, _step_at(steps[~on_device], starts))
    return pd.arrays.IntegerArray(step.clip(min=0), step < 0)


def _never(starts: Integers) -> Integers:
    return np.full(len(starts), np.iinfo(np.int64).min, np.int64)


def _step_at(steps: pd.DataFrame, moments: Integers) -> Integers:
    timeline = ThreadTimeline(
        np.zeros(len(steps), np.int64),
        steps["start_ns"].to_numpy(),
        steps["duration_ns"].to_numpy(),
    )
    rows = timeline.at(np.zeros(len(moments), np.int64), moments)
    return pick(steps["step"].to_numpy(), rows)


def split_steps(kernels: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return ``Profile.steps``.

    On a device a step lasts until the next one starts, so that no time counts twice. The first one
    starts, and the last one ends, no later and no earlier than its annotation on the host.
    """
    split = steps_from_kernels(kernels)
    first = int(kernels["start_ns"].min())  # an epoch does not fit a float64, what follows it does
    spans = _spans(kernels, first).reindex(pd.MultiIndex.from_frame(split[["device", "step"]]))
    host = steps[steps["on_device"] == 0]
    begins = host["start_ns"] - first
    marks = host.assign(begins=begins, ends=begins + host["duration_ns"]).groupby("step")
    on_host = marks.agg({"begins": "min", "ends": "max"}).reindex(split["step"])
    begin, end, after, is_first = (spans[name].to_numpy(np.float64) for name in spans)
    begin = np.where(is_first > 0, np.fmin(begin, on_host["begins"].to_numpy(np.float64)), begin)
    end = np.where(np.isnan(after), np.fmax(end, on_host["ends"].to_numpy(np.float64)), after)
    busy = split["computing_ns"] + split["communication_exposed_ns"]
    free = np.nan_to_num(end - begin - busy.to_numpy(np.float64)).clip(min=0).astype(np.int64)
    # A trace without steps is one step, which has no mark on the host.
    return split.assign(free_ns=np.where(split["step"].isna(), split["free_ns"], free))


def _spans(kernels: pd.DataFrame, first: int) -> pd.DataFrame:
    """Return when the kernels of each (device, step) begin and end, since ``first``.

    ``after`` is when the next step begins, NaN where that was not recorded; ``is_first`` tells
    that the step before was not.
    """
    begins = kernels["start_ns"] - first
    own = kernels[["device", "step"]].assign(begins=begins, ends=begins + kernels["duration_ns"])
    spans = (
        own.dropna(subset="step").groupby(["device", "step"]).agg({"begins": "min", "ends": "max"})
    )
    steps = spans.index.get_level_values("step").to_numpy(np.float64)
    numbers = pd.Series(steps, index=spans.index)
    by_device = numbers.groupby(level="device")
    following = spans["begins"].groupby(level="device").shift(-1)
    return spans.assign(
        after=following.where(by_device.shift(-1) == numbers + 1),
        is_first=by_device.shift(1) != numbers - 1,
    )
