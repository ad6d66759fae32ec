"""A trace_view.json with nothing beside it that lists the kernels, to a ``Profile``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.attribution.launches import link_kernels
from npufix.profiling_parsers.dump_folder import dump_of_file
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.kernels.whole_steps import bounds, host_marks, steps_between
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.signals import Signals
from npufix.profiling_parsers.text.trace_file import (
    add_trace_signals,
    damage_problems,
    link_problems,
    unread_problem,
)
from npufix.profiling_parsers.text.trace_kernels import find_kernels, find_steps
from npufix.profiling_parsers.trace.view import read_trace

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.attribution.launches import LinkedKernels

_PROFILE_DEVICE = (
    "profile at least one step with torch_npu.profiler.ProfilerActivity.NPU in activities"
)
WITHOUT_KERNEL_DETAILS = (
    "the kernels are taken from the trace: without shapes, dtypes and PMU counters, and with the "
    "Type that their names say"
)


def read_trace_alone(path: Path) -> Profile:
    """Read a trace_view.json, packed or not.

    Raise ``DumpError`` if it shows no kernel, or cannot be read.
    """
    dump = dump_of_file(path)
    environment, problems = read_environment(dump)
    found, faults = read_trace_kernels(path, dump)
    partial = Problem(path.name, WITHOUT_KERNEL_DETAILS, remedies.analyse(dump))
    marks = host_marks(found.attribution.host_ops)
    return Profile(
        root=path,
        environment=environment,
        kernels=found.kernels,
        host_ops=found.attribution.host_ops,
        steps=steps_between(found.kernels, marks),
        step_bounds=bounds(marks, stated=False),
        op_statistic=no_op_statistic(),
        stacks=found.attribution.stacks,
        modules=found.attribution.modules,
        problems=(*problems, *faults, partial),
        signals=add_trace_signals(Signals(), found),
        format="trace",
    )


def read_trace_kernels(file: Path, dump: Path) -> tuple[LinkedKernels, list[Problem]]:
    """Read the kernels of a trace, and say what is wrong with it.

    Raise ``DumpError`` if it shows no kernel, or cannot be read.
    """
    remedy = remedies.analyse(dump)
    try:
        whole = read_trace(file, None)
    except OSError as error:
        problem = unread_problem(file, error, remedy)
        raise DumpError(f"{file}: {problem.what}", problem.remedy) from error
    problems = damage_problems(file, whole, remedy)
    kernels, trace = find_kernels(whole)
    if malformed := trace.malformed - whole.malformed:
        what = f"{malformed} events are malformed and left out"
        problems.append(Problem(file.name, what, remedy, damaged=True))
    if kernels.empty:
        cut = f" before byte {trace.cut}, where it breaks off" if trace.cut is not None else ""
        raise DumpError(f"{file}: no kernels{cut}", _PROFILE_DEVICE)
    found = link_kernels(kernels, lambda: trace)
    found.kernels["step"] = find_steps(found.kernels, found.attribution.host_ops)
    return found, [*problems, *link_problems(file, found, dump)]
