"""The steps of a Kineto trace: ``ProfilerStep#7`` on the host, and what each is spent on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.kernels.whole_steps import steps_between
from npufix.profiling_parsers.kineto.timeline import ThreadTimeline
from npufix.profiling_parsers.tables.columns import pick

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_UPDATE, _BATCH = r"Optimizer\.step#.*", r"enumerate\(DataLoader\)#.*__next__"
_FEWEST = 3
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
    """Return ``Profile.steps``: from mark to mark, as far as the device has kept up."""
    host = steps[steps["on_device"] == 0]
    marks = host.assign(end_ns=host["start_ns"] + host["duration_ns"]).groupby("step")
    begins, ends = marks["start_ns"].min(), marks["end_ns"].max()
    known = {int(s): (int(begins[s]), int(ends[s])) for s in begins.index}
    return steps_between(kernels, known)


def inferred_steps(annotations: pd.DataFrame) -> pd.DataFrame:
    """Return the annotations of a trace without steps with those that its calls stand for.

    A loop that calls an optimizer begins anew behind each call; else it does with each wait for a
    batch. Where there are fewer than three of both nothing says what a step is.
    """
    host = annotations[annotations["on_device"] == 0]
    names = host["name"].astype(str)
    ends = host["start_ns"] + host["duration_ns"]
    begins = _most_frequent(host["start_ns"], names, _BATCH)
    borders = _most_frequent(ends, names, _UPDATE)
    if len(borders) >= _FEWEST:
        first = int(min(host["start_ns"].min(), borders[0]))
        borders = np.concatenate([[first], borders])
    elif len(begins) >= _FEWEST:
        usual = round(float(np.median(np.diff(begins))))
        borders = np.append(begins, max(int(ends.max()), int(begins[-1]) + usual))
    else:
        return annotations
    made = host.iloc[np.zeros(len(borders) - 1, np.int64)].assign(
        name=pd.Categorical([f"ProfilerStep#{n}" for n in range(len(borders) - 1)]),
        start_ns=borders[:-1],
        duration_ns=np.diff(borders),
    )
    both = [annotations, made]
    texts = [str(name) for frame in both for name in frame["name"]]
    found: pd.DataFrame = pd.concat([frame.drop(columns="name") for frame in both])
    found = found.assign(name=pd.Categorical(texts))[list(annotations)]
    return found.sort_values("start_ns", kind="stable", ignore_index=True)


def _most_frequent(moments: pd.Series[int], names: pd.Series[str], pattern: str) -> Integers:
    """Return the moments of the name that comes most often, in order.

    Of several it is the last: of two optimizers in a step the second one ends it.
    """
    own = names[names.str.fullmatch(pattern)]
    if own.empty:
        return np.zeros(0, np.int64)
    counts = own.value_counts()
    most = [name for name in own.unique() if counts[name] == counts.max()]
    return np.sort(moments[own.index[own == most[-1]]].to_numpy(np.int64))
