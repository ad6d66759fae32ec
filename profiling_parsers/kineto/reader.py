"""Traces of torch.profiler (Kineto, for CUDA, ROCm, MTIA and the CPU) to a ``Profile``.

So that the run on a GPU can stand beside the one on the NPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.profiling_parsers.attribution.call_stack import intern_stacks
from npufix.profiling_parsers.attribution.operators import attribute_launches
from npufix.profiling_parsers.attribution.python_calls import long_functions
from npufix.profiling_parsers.kernels.launch_order import launches_in_order
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.kineto.events import KinetoTrace, read_events
from npufix.profiling_parsers.kineto.header import (
    base_ns,
    has_devices,
    read_environment,
    read_header,
)
from npufix.profiling_parsers.kineto.kernels import device_kernels, operator_kernels
from npufix.profiling_parsers.kineto.launches import find_launches
from npufix.profiling_parsers.kineto.names import is_host_copy, operator_dims, operator_types
from npufix.profiling_parsers.kineto.steps import (
    find_steps,
    inferred_steps,
    split_steps,
    step_annotations,
)
from npufix.profiling_parsers.profile import DumpError, Environment, Problem, Profile
from npufix.profiling_parsers.signals import LONG_CALL_NS, Signals
from npufix.profiling_parsers.tables.columns import category, find_rows_with
from npufix.profiling_parsers.trace.rows import Codes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from npufix.profiling_parsers.attribution.operators import Attribution
    from npufix.profiling_parsers.kineto.header import Header

    Integers = NDArray[np.int64]
    Rows = NDArray[np.int32]

_PROFILE = (
    "profile again with `torch.profiler.profile(activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA], record_shapes=True, with_stack=True)` and `export_chrome_trace`"
)
_COPY = "copy the file again, or " + _PROFILE
_INFERRED = (
    "holds no steps (ProfilerStep#): they are told by the calls of the optimizer, or of the loader"
)
_EARLY_NS, _EARLY_SHARE = 1_000_000, 0.1
"""From which time before the first kernel, and share of the rest, it is told."""
_FIRST_TASKS = 4
"""Behind so many of them at most may the device run what was launched before the recording."""
_WITH_TIMES = ("operators", "annotations", "calls", "runtime", "device", "flow_starts", "flow_ends")


def read_kineto(path: Path) -> Profile:
    """Read a ``.json`` or ``.json.gz`` of torch.profiler.

    Raise ``DumpError`` if it has no kernels.
    """
    try:
        trace = read_events(path)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}", "make the file readable") from error
    header = read_header(trace)
    _check(path, trace, header)
    trace = _in_order(trace, base_ns(header))
    steps, marked = step_annotations(trace.annotations), True
    if steps.empty and len(trace.device):
        trace, marked = replace(trace, annotations=inferred_steps(trace.annotations)), False
        steps = step_annotations(trace.annotations)
    recorded = len(trace.device)
    if steps.empty:
        trace = _without_what_ran_before(trace)
    kernels, launching = _kernels(trace)
    starts = kernels["start_ns"].to_numpy()
    launched = launches_in_order(kernels) if len(trace.device) else starts
    kernels["step"] = find_steps(steps, starts, launched)
    found = _with_annotations(_attribution(trace, launching), trace)
    environment = _environment(read_environment(header, _busiest(kernels)), trace)
    return Profile(
        root=path,
        environment=environment,
        kernels=kernels.assign(**found.columns()),
        host_ops=found.host_ops,
        steps=split_steps(_without_copies(_with_whole_operators(kernels, trace)), steps),
        step_bounds="marks" if len(steps) else "kernels",
        op_statistic=no_op_statistic(),
        stacks=found.stacks,
        problems=(
            *_problems(path.name, trace, found, steps, marked=marked),
            *_tell_left_out(path.name, recorded - len(trace.device)),
        ),
        modules=found.modules,
        signals=Signals(
            functions=long_functions(trace.calls), long_calls=_long_calls(trace.runtime)
        ),
        format="kineto",
    )


def _long_calls(runtime: pd.DataFrame) -> pd.DataFrame:
    """Return ``Signals.long_calls``: those into the runtime that a device may wait for."""
    long = runtime[(runtime["duration_ns"] >= LONG_CALL_NS).to_numpy(bool)]
    level = category(np.zeros(len(long), np.int64), ["runtime"])
    found = long.assign(level=level)[["level", "name", "start_ns", "duration_ns"]]
    return found.sort_values("start_ns", kind="stable", ignore_index=True)


def _check(path: Path, trace: KinetoTrace, header: Header) -> None:
    """Raise ``DumpError`` if the trace says nothing of what ran, or hides that it does not."""
    if len(trace.device):
        return
    if trace.cut is not None and (len(trace.runtime) or has_devices(header)):
        what = f"{_describe_damage(trace)}, before the first kernel"
    elif len(trace.operators):
        return
    elif trace.cut is not None:
        what = f"no kernels and no operators: {_describe_damage(trace)}"
    elif trace.malformed:
        what = f"no kernels and no operators, and {trace.malformed} malformed events"
    else:
        what = "no kernels and no operators"
    raise DumpError(f"{path}: {what}", _PROFILE if trace.cut is None else _COPY)


def _describe_damage(trace: KinetoTrace) -> str:
    place = "unpacked byte" if trace.packed else "byte"
    reason = f" ({trace.damage})" if trace.damage else ""
    return f"breaks off or is malformed at {place} {trace.cut}{reason}"


def _in_order(trace: KinetoTrace, base: int) -> KinetoTrace:
    """Return the trace with times since the epoch; operators and device tasks in start order."""
    frames: dict[str, pd.DataFrame] = {name: getattr(trace, name) for name in _WITH_TIMES}
    latest = max(int(frame["start_ns"].max()) for frame in frames.values() if len(frame))
    if latest < base:  # the versions that name a base count from it
        for frame in frames.values():
            frame["start_ns"] += base
    operators = frames["operators"]
    order = np.lexsort((-operators["duration_ns"], operators["start_ns"]))
    operators = operators.iloc[order].reset_index(drop=True)
    frames["operators"] = operators.assign(sequence=_sequence(operators, frames))
    frames["device"] = frames["device"].sort_values("start_ns", kind="stable", ignore_index=True)
    return replace(trace, **frames)  # type: ignore[arg-type]  # the frames alone


def _sequence(operators: pd.DataFrame, frames: dict[str, pd.DataFrame]) -> Integers:
    """Return the sequence numbers; without any, the flows from forward to backward number them."""
    recorded = operators["sequence"].to_numpy().clip(min=-1)
    if (recorded >= 0).any():
        return np.asarray(recorded, np.int64)
    place = ["pid", "tid", "start_ns"]
    rows = operators[place].assign(row=np.arange(len(operators)))
    sequence = np.full(len(operators), -1, np.int64)
    for end in ("flow_starts", "flow_ends"):
        joined = rows.merge(frames[end].drop_duplicates(place), on=place)
        sequence[joined["row"]] = joined["flow"].clip(lower=-1)
    return sequence


def _kernels(trace: KinetoTrace) -> tuple[pd.DataFrame, Rows]:
    """Return the kernels and the row of the operator that launched each."""
    if len(trace.device):
        launches = find_launches(trace)
        return device_kernels(trace, launches), launches.operator.astype(np.int32)
    return operator_kernels(trace), np.arange(len(trace.operators), dtype=np.int32)


def _without_what_ran_before(trace: KinetoTrace) -> KinetoTrace:
    """Return a trace without its first tasks where the device then ran what is not recorded.

    A copy that waits 493 ms for its stream, in which nothing ran, and a kernel that was launched
    before it and began behind it: the server was profiled while the step before still ran.
    """
    starts = trace.device["start_ns"].to_numpy()
    ends = np.maximum.accumulate(starts + trace.device["duration_ns"].to_numpy())
    gaps = starts[1 : _FIRST_TASKS + 1] - ends[: min(_FIRST_TASKS, len(ends) - 1)]
    if not len(gaps) or gaps.max() < _EARLY_SHARE * (ends[-1] - starts[0]):
        return trace
    at = int(gaps.argmax())
    launched = find_launches(trace).launch_ns[at + 1]
    if not 0 <= launched < ends[at] + _EARLY_SHARE * gaps[at]:
        return trace
    return replace(trace, device=trace.device.iloc[at + 1 :].reset_index(drop=True))


def _busiest(kernels: pd.DataFrame) -> int:
    time = kernels["duration_ns"].groupby(kernels["device"]).sum()
    return int(time.index.to_numpy()[time.to_numpy().argmax()])


def _with_whole_operators(kernels: pd.DataFrame, trace: KinetoTrace) -> pd.DataFrame:
    """Return kernels whose union is the time in which something ran.

    The time of an operator without those in it is no interval; with them it is.
    """
    if len(trace.device):
        return kernels
    return kernels.assign(duration_ns=trace.operators["duration_ns"].to_numpy())


def _without_copies(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the tasks that are work of the device; a copy from or to the host is none.

    Of a trace that holds nothing else they are what it can tell of.
    """
    works = ~find_rows_with(kernels["type"], is_host_copy)
    return kernels[works] if works.any() else kernels


def _attribution(trace: KinetoTrace, launching: Rows) -> Attribution:
    # Until torch 1.12 the frames stand on one line.
    texts = [text if "\n" in text else text.replace(";", ";\n") for text in trace.stacks]
    stacks, numbers = intern_stacks(texts)
    operators = trace.operators.assign(
        stack=numbers[trace.operators["stack"]],
        input_dims=trace.dims.category(trace.operators["input_dims"], operator_dims),
        input_types=trace.types.category(trace.operators["input_types"], operator_types),
    )
    calls = trace.calls if len(trace.calls) else None
    return attribute_launches(operators, stacks, launching, calls)


def _with_annotations(found: Attribution, trace: KinetoTrace) -> Attribution:
    """Add the annotations of the host to its operators, as in dumps of an NPU.

    They say when a step began and when a loader was waited for, and have launched nothing.
    """
    notes = trace.annotations[trace.annotations["on_device"] == 0]
    if notes.empty:
        return found
    ops = found.host_ops
    columns: dict[str, Any] = {}
    for name in map(str, ops):
        column = ops[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            columns[name] = _append(column, notes.get(name), len(notes))
        else:
            said = notes[name].to_numpy() if name in notes else np.full(len(notes), -1)
            columns[name] = np.append(column.to_numpy(), said.astype(column.to_numpy().dtype))
    host_ops = pd.DataFrame(columns)
    order = np.lexsort((-host_ops["duration_ns"].to_numpy(), host_ops["start_ns"].to_numpy()))
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    host_op = np.where(found.host_op >= 0, place[found.host_op], np.int32(-1))
    return replace(found, host_ops=host_ops.iloc[order].reset_index(drop=True), host_op=host_op)


def _append(texts: pd.Series[str], more: pd.Series[str] | None, count: int) -> Any:  # noqa: ANN401 - a column
    """Return a column of texts with ``count`` more below it, "" where they are not said."""
    codes = Codes[str]()
    added = [""] if more is None else [str(name) for name in more.cat.categories]
    own = np.array([codes[str(name)] for name in texts.cat.categories], np.int64)
    of_added = np.array([codes[name] for name in added], np.int64)
    rows = np.zeros(count, np.int64) if more is None else more.cat.codes.to_numpy()
    return category(np.append(own[texts.cat.codes], of_added[rows]), list(codes))


def _environment(stated: Environment, trace: KinetoTrace) -> Environment:
    """Add what the events show where the settings are not recorded, as before torch 1.11."""
    stacks = True if len(trace.calls) or any(trace.stacks) else stated.with_stack
    shapes = True if any(b"[" in text for text in trace.dims) else stated.record_shapes
    return replace(stated, with_stack=stacks, record_shapes=shapes)


def _tell_no_steps(trace: KinetoTrace) -> str:
    """Say so, and for how long the host loads or compiles before the first task."""
    plain = "holds no steps (ProfilerStep#), so the whole run is taken as one"
    if trace.device.empty or trace.operators.empty:
        return plain
    first, last = trace.device["start_ns"].iloc[0], trace.device["start_ns"].iloc[-1]
    before = int(first - trace.operators["start_ns"].min())
    if before < max(_EARLY_NS, _EARLY_SHARE * (last - first)):
        return plain
    return (
        "holds no steps (ProfilerStep#), so the whole run is taken as one, from its first kernel "
        f"on: the {before / 1e6:.3g} ms before are left out"
    )


def _tell_left_out(file: str, count: int) -> Iterator[Problem]:
    if count:
        what = f"its first tasks ({count}) are left out: they ran before what it records"
        yield Problem(file, what, "wait for the device before the profiler begins")


def _problems(
    file: str, trace: KinetoTrace, found: Attribution, steps: pd.DataFrame, *, marked: bool
) -> Iterator[Problem]:
    if trace.cut is not None:
        what = f"{_describe_damage(trace)}; the events before are used"
        if not len(trace.device):
            what += ", among them no device task: the time is that of the host"
        yield Problem(file, what, _COPY, damaged=True)
    elif trace.damage is not None:
        what = f"{trace.damage} after the last event: a number in it may be wrong"
        yield Problem(file, what, _COPY, damaged=True)
    if trace.malformed:
        what = f"{trace.malformed} events are malformed and left out"
        yield Problem(file, what, _COPY, damaged=True)
    if not len(trace.device) and trace.cut is None:
        what = "holds no kernels of a device: the time is that of the host"
        yield Problem(file, what, _PROFILE)
    if trace.operators.empty:
        what = "holds no host operators (cpu_op), so no kernel is led to a line"
        yield Problem(file, what, _PROFILE)
    elif not (found.host_op >= 0).any():
        what = "none of its kernels is led to the operator that launched it"
        yield Problem(file, what, _PROFILE)
    elif not (found.stack >= 0).any():
        what = "holds no call stacks of the operators, so no kernel is led to a line"
        yield Problem(file, what, _PROFILE)
    if steps.empty or not marked:
        what = _INFERRED if len(steps) else _tell_no_steps(trace)
        yield Problem(file, what, "call `prof.step()` after each step of the training loop")
