"""What several diagnostics measure alike: idle time, time per step, the lines that take part."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.signals import LONG_CALL_NS
from npufix.rules.diagnostic import Place, keep_result

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

_MOST_PLACES = 10
_HOST = "CPU"
"""What the operators of a recording without any device run on."""
_STEP_MARK = r"ProfilerStep#\d+"


def runs_on_gpu(recording: Recording) -> bool:
    """Tell whether kernels ran on a GPU: what a Kineto trace may name is no sign of one."""
    return bool((recording.kernels["core"] == "GPU").any())


def per_step(ns: float, recording: Recording) -> int:
    """Return the part of one step, never more than the step; ``ns`` is over the steady steps."""
    return min(round(ns / max(1, recording.step_count)), recording.step_ns)


def share(ns: float, recording: Recording) -> float:
    """Return the share of the step; ``ns`` is per step."""
    return ns / recording.step_ns if recording.step_ns else 0.0


def compute_ns(recording: Recording) -> int:
    """Return the time of the kernels, neither collectives nor copies to and from the host.

    It is over the steady steps.
    """
    kernels = recording.kernels
    others = kernels["communication"].to_numpy(bool) | is_named(kernels, COPIES, "type")
    return int(kernels["duration_ns"].to_numpy()[~others].sum())


def computing(recording: Recording, pattern: str) -> pd.DataFrame:
    """Return the kernels whose Type matches a regular expression from start to end."""
    kernels = recording.kernels
    matches = is_named(kernels, pattern, "type")
    return rows_where(kernels, matches & ~kernels["communication"].to_numpy(bool))


def free_ns(recording: Recording) -> int:
    """Return the idle time per step: what the dump states, else what the kernels leave."""
    if len(recording.steps):
        # One row per device and step: devices are alike, so the mean row is the step.
        return min(round(float(recording.steps["free_ns"].mean())), recording.step_ns)
    return per_step(idle_time(recording).total_ns, recording)


def places(
    rows: pd.DataFrame, cost_ns: Integers | Floats, recording: Recording
) -> tuple[Place, ...]:
    """Return the lines of the user, the most expensive first; ``cost_ns`` is one per row."""
    path, function = rows["path"].array, rows["function"].array
    line = rows["line"].to_numpy()
    named_paths = np.array([*(name != "" for name in path.categories.tolist()), False], np.bool_)
    known = np.flatnonzero(named_paths[path.codes] & (function.codes >= 0))
    keys = [path.codes[known], line[known], function.codes[known]]
    order = np.lexsort(keys[::-1])
    keys = [key[order] for key in keys]
    begins = np.flatnonzero(_changes(keys))
    if not len(begins):
        return ()
    sums = np.add.reduceat(np.asarray(cost_ns, np.float64)[known][order], begins)
    counts = np.diff(begins, append=len(order))
    most = np.argsort(-sums, kind="stable")[:_MOST_PLACES]
    return tuple(
        Place(
            path=str(path.categories[keys[0][begins[at]]]),
            line=int(keys[1][begins[at]]),
            function=str(function.categories[keys[2][begins[at]]]),
            cost_ns=per_step(float(sums[at]), recording),
            calls=max(1, round(int(counts[at]) / max(1, recording.step_count))),
        )
        for at in most
    )


def _changes(keys: list[Integers]) -> NDArray[np.bool_]:
    """Tell which of sorted rows begin a group: a key is not that of the row before."""
    changed = np.ones(len(keys[0]), np.bool_)
    changed[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return changed


@dataclass(frozen=True, eq=False)
class Idle:
    """Times in which a device does nothing, in order; ``next_kernel`` is a row of the kernels.

    Where the last step ends with one, it is the row of the last kernel, which ran before. Two are
    equal where they are the same one, so that what is asked about it can be kept.
    """

    start_ns: Integers
    end_ns: Integers
    next_kernel: Integers

    @property
    def total_ns(self) -> int:
        """Return the sum of all of them."""
        return int((self.end_ns - self.start_ns).sum())

    def covered(self, start_ns: Integers, end_ns: Integers) -> Integers:
        """Return how much of each interval is idle; an interval may cross several idle times."""
        return measure_covered_ns(self.start_ns, self.end_ns, start_ns, end_ns)


def measure_covered_ns(
    begins: Integers, ends: Integers, start_ns: Integers, end_ns: Integers
) -> Integers:
    """Return how much of each interval lies within periods that follow each other."""
    if not len(begins):
        return np.zeros(len(start_ns), np.int64)
    sums = np.concatenate([[0], np.cumsum(ends - begins)])

    def before(moments: Integers) -> Integers:
        at = np.searchsorted(begins, moments, side="right")
        inside = np.zeros(len(moments), np.int64)
        last = at > 0
        end = np.minimum(ends[at[last] - 1], moments[last])
        inside[last] = end - begins[at[last] - 1]
        found: Integers = sums[np.maximum(at - 1, 0)] + np.where(last, inside, 0)
        return found

    return before(end_ns) - before(start_ns)


def measure_within_ns(calls: pd.DataFrame, start_ns: Integers, end_ns: Integers) -> Integers:
    """Return how much of each interval lies in some calls, of which some may lie in others."""
    rows = calls.sort_values("start_ns", kind="stable")
    begins = rows["start_ns"].to_numpy(np.int64, copy=True)
    ends = np.maximum.accumulate(begins + rows["duration_ns"].to_numpy(np.int64))
    begins[1:] = np.maximum(begins[1:], ends[:-1])
    return measure_covered_ns(begins, np.maximum(begins, ends), start_ns, end_ns)


@keep_result
def idle_time(recording: Recording, *, to_marks: bool = False) -> Idle:
    """Return when the busiest device of the recording waits between its kernels.

    Between steps that do not follow each other nothing is known, so nothing is idle there; and no
    device waits where the operators of the host are all that was recorded. With ``to_marks`` a step
    that follows none is idle from its mark on the host to its first kernel, and one that none
    follows from its last kernel to the end of its mark.
    """
    kernels = recording.kernels
    rows = _busiest_device(kernels)
    if (kernels["core"] == _HOST).all():
        rows = rows[:0]
    start = kernels["start_ns"].to_numpy()[rows]
    order = np.argsort(start, kind="stable")
    rows, start = rows[order], start[order]
    if not len(rows):
        return Idle(start, start, rows)
    ends = np.maximum.accumulate(start + kernels["duration_ns"].to_numpy()[rows])
    step = kernels["step"].to_numpy(np.int64, na_value=-1)[rows]
    step = np.maximum.accumulate(step)  # collectives of the next step may begin in one
    jumps = np.flatnonzero(np.diff(step) > 1) + 1
    before = np.concatenate([start[:1], ends[:-1]])
    before[jumps] = start[jumps]
    if to_marks:
        heads = np.concatenate([[0], jumps])
        before[heads] = np.maximum(
            step_marks(recording, start[heads]),
            start[heads] - _measure_preparation(recording, step[heads]),
        )
    if to_marks:
        tails = np.append(jumps, len(rows)) - 1
        before, behind = np.append(before, ends[tails]), _mark_ends(recording, step[tails])
        start, rows = np.append(start, behind), np.append(rows, rows[tails])
    idle = np.flatnonzero(start > before)
    idle = idle[np.argsort(before[idle], kind="stable")]
    return Idle(before[idle], start[idle], rows[idle])


def _busiest_device(kernels: pd.DataFrame) -> Integers:
    device = kernels["device"].to_numpy()
    if not len(device) or (device == device[0]).all():
        return np.arange(len(device), dtype=np.int64)
    busiest = kernels.groupby("device")["duration_ns"].sum().idxmax()
    return np.flatnonzero(device == busiest).astype(np.int64)


def _measure_preparation(recording: Recording, steps: Integers) -> Integers:
    """Return for how long nothing ran before each step's first kernel, also of steps left out."""
    known = recording.steps.dropna(subset="step")
    heads = known.groupby(known["step"].astype("int64"))["preparing_ns"].max()
    found = heads.reindex(steps).to_numpy(np.float64, na_value=-1.0)
    return np.where(found > 0, found, _UNKNOWN_NS).astype(np.int64)


def step_marks(recording: Recording, first_kernels: Integers) -> Integers:
    """Return the start of the step around each kernel, the kernel's own where it is not marked."""
    own = find_named(recording.host_ops, _STEP_MARK)
    starts = np.sort(own["start_ns"].to_numpy())
    ends = np.sort((own["start_ns"] + own["duration_ns"]).to_numpy())
    if not len(starts):
        return first_kernels
    at = np.searchsorted(starts, first_kernels, side="right") - 1
    inside = (at >= 0) & (first_kernels < ends[at.clip(min=0)])
    return np.where(inside, starts[at.clip(min=0)], first_kernels)


def _mark_ends(recording: Recording, steps: Integers) -> Integers:
    """Return when the mark of each step ends, 0 where it has none."""
    own = find_named(recording.host_ops, _STEP_MARK)
    names = own["name"].astype(str)
    ends = dict(zip(names, (own["start_ns"] + own["duration_ns"]).tolist(), strict=True))
    return np.array([ends.get(f"ProfilerStep#{step}", 0) for step in steps.tolist()], np.int64)


def find_named(rows: pd.DataFrame, pattern: str, column: str = "name") -> pd.DataFrame:
    """Return the rows whose category matches a regular expression from start to end."""
    return rows_where(rows, is_named(rows, pattern, column))


def is_named(rows: pd.DataFrame, pattern: str, column: str) -> NDArray[np.bool_]:
    """Tell of which rows the category matches a regular expression from start to end."""
    if rows.empty:
        return np.zeros(0, np.bool_)
    texts = rows[column].array
    fullmatch = re.compile(pattern).fullmatch
    matches = [fullmatch(str(name)) is not None for name in texts.categories.tolist()]
    found: NDArray[np.bool_] = np.array([*matches, False], np.bool_)[texts.codes]
    return found


def rows_where(rows: pd.DataFrame, chosen: NDArray[np.bool_]) -> pd.DataFrame:
    """Return the chosen rows; those that follow each other, or none, are no copy."""
    count = int(np.count_nonzero(chosen))
    first = int(chosen.argmax()) if count else 0
    if chosen[first : first + count].all():
        return rows.iloc[first : first + count]
    return rows.iloc[np.flatnonzero(chosen)]


def outermost_operators(host_ops: pd.DataFrame) -> Integers:
    """Return the rows of the operators that lie within no other, in the order of their start.

    What has a ``#`` stands around whole steps (``Optimizer.step#AdamW.step``), and is none.
    """
    start = host_ops["start_ns"].to_numpy()
    end = start + host_ops["duration_ns"].to_numpy()
    order = np.flatnonzero(is_named(host_ops, "[^#]*", "name"))
    order = order[np.argsort(start[order], kind="stable")]
    before = np.maximum.accumulate(np.append(0, end[order]))[:-1]
    return order[start[order] >= before]


@dataclass(frozen=True, slots=True)
class HostCalls:
    """Calls of the host into CANN: all of the recording, and those of an average steady step."""

    count: int
    total_ns: int
    longest_ns: int
    per_step: float = 0.0
    per_step_ns: float = 0.0


@keep_result
def host_calls(recording: Recording, pattern: str) -> HostCalls:
    """Sum up the APIs whose name matches; one level counts, as levels contain each other.

    Only sums are recorded of all of them, over all steps: each step gets an equal part. Of long
    ones the dump may say when they were: 30 that compile in a first step are of no later one.
    """
    rows = find_named(recording.signals.apis, pattern)
    if rows.empty:
        return HostCalls(0, 0, 0)
    levels = rows.groupby("level", observed=True).agg(
        count=("count", "sum"), total=("total_ns", "sum"), longest=("max_ns", "max")
    )
    level = levels.iloc[int(levels["total"].to_numpy().argmax())]
    count, total, longest = (int(level[name]) for name in ("count", "total", "longest"))
    long = find_named(recording.signals.long_calls, pattern)
    long = long[(long["level"] == level.name).to_numpy(bool)]
    steps, steady = count_recorded_steps(recording), max(1, recording.step_count)
    found = long if long.empty or steps == steady else _launches_of_steps(recording)
    if found.empty or steps == steady:
        return HostCalls(count, total, longest, count / steps, total / steps)
    # A queue launches long after the mark of the host: behind the last kernel of the step before.
    first, last = (found[name].to_numpy(np.int64) for name in ("min", "max"))
    follows = np.append(False, np.diff(found.index.to_numpy(np.int64)) == 1)
    begin = np.where(follows, np.roll(last, 1), first)
    begun = np.searchsorted(np.sort(begin), long["start_ns"].to_numpy(), side="right")
    inside = begun > np.searchsorted(np.sort(last), long["start_ns"].to_numpy())
    spent = long["duration_ns"].to_numpy()
    own = spent[inside]
    return HostCalls(
        count, total, int(own.max(initial=min(longest, LONG_CALL_NS))),
        max(0, count - len(long)) / steps + len(own) / steady,
        max(0, total - int(spent.sum())) / steps + int(own.sum()) / steady,
    )  # fmt: skip


@keep_result
def _launches_of_steps(recording: Recording) -> pd.DataFrame:
    """Return when the first and the last kernel of each step was launched."""
    launched = recording.kernels[["step", "launch_ns"]][recording.kernels["launch_ns"] >= 0]
    return launched.groupby("step")["launch_ns"].agg(["min", "max"])


def count_recorded_steps(recording: Recording) -> int:
    """Return how many steps the calls of the host are summed over: the steady and the others."""
    return max(1, recording.recorded_steps, recording.step_count)


COPIES = r"Memcpy\s(HtoD|DtoH)|Copy(HostToDevice|DeviceToHost)"
"""Between host and device, in a trace of a GPU."""
NEXT_BATCH = r"enumerate\(DataLoader\)#.*__next__|Dataset::Pipeline::AsyncWait"
"""The operator around a wait for the next batch, of PyTorch and of MindSpore."""
BATCH_QUEUE = r"(Dynamic)?GetNext\w*"
"""The kernel that waits for the next batch where the device takes it from a queue itself."""
WORKERS = r".*MultiProcessing.*|Dataset::.*"
"""Where other processes or threads make it."""
PYTHON = re.compile(r"(?P<path>.+)\((?P<line>\d+)\): (?P<function>.+)")
"""A Python function of ``Signals.functions``: ``metrics.py(14): track``."""
AS_LONG = 0.8
"""Share of a gap that a call covers, and of the call that the gap does, where both are one."""
_UNKNOWN_NS = 1 << 60


COOLING = "npu-smi info -t temp -i 0; npu-smi info -t power -i 0: check cooling and power limit"
"""What to do about AI cores that run below their highest clock."""


def clock_of(kernels: pd.DataFrame, readings: pd.DataFrame) -> NDArray[np.float64]:
    """Return the clock when each kernel started; before the first reading, that of the first."""
    readings = readings.sort_values("start_ns", kind="stable")
    at = np.searchsorted(readings["start_ns"], kernels["start_ns"], side="right") - 1
    clock: NDArray[np.float64] = readings["mhz"].to_numpy(np.float64)[at.clip(min=0)]
    return clock
