"""The text export of one dump (``kernel_details.csv`` and the files beside it) to a ``Profile``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.attribution.launches import attribute, find_links
from npufix.profiling_parsers.discover import KERNEL_DETAILS
from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.text.kernel_checks import step_problems, total_problems
from npufix.profiling_parsers.text.kernel_details import read_kernel_details
from npufix.profiling_parsers.text.op_statistic import read_op_statistic
from npufix.profiling_parsers.text.side_files import read_signals
from npufix.profiling_parsers.text.step_trace_time import read_step_trace_time
from npufix.profiling_parsers.trace.alone import (
    WITHOUT_KERNEL_DETAILS,
    TraceKernels,
    attributed,
    read_trace_kernels,
)
from npufix.profiling_parsers.trace.problems import link_problems, read_dump_trace, trace_file
from npufix.profiling_parsers.trace.signals import trace_signals
from npufix.profiling_parsers.trace.view import no_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.profile import Environment

_OP_STATISTIC = "op_statistic.csv"
_STEP_TRACE_TIME = "step_trace_time.csv"


def read_text_export(path: Path, output: Path) -> Profile:
    """Read the files in ``output`` of the dump ``path``; raise ``DumpError`` without kernels.

    Where kernel_details.csv is missing or broken, the kernels are those that the trace shows.
    """
    environment, problems = read_environment(path)
    try:
        source = _read_kernels(path, output, environment, problems)
    except DumpError as error:
        source = _read_kernels_of_trace(path, output, error, problems)
    kernels, attribution = source.kernels, source.attribution
    statistic = _read_op_statistic(output, kernels, problems, path)
    signals, broken = read_signals(output, with_operator_details=not attribution.stacks)
    return Profile(
        root=path,
        environment=environment,
        kernels=kernels,
        host_ops=attribution.host_ops,
        steps=_read_steps(output, kernels, problems, path),
        op_statistic=statistic,
        stacks=attribution.stacks,
        modules=attribution.modules,
        problems=(*problems, *broken),
        signals=trace_signals(source.trace, signals, attribution.offset_ns),
    )


def _read_kernels(
    path: Path, output: Path, environment: Environment, problems: list[Problem]
) -> TraceKernels:
    kernels = read_kernel_details(output / KERNEL_DETAILS)
    problems += kernels.problems
    names = {name: code for code, name in enumerate(kernels.frame["name"].cat.categories)}
    remedy = _trace_remedy(path, output, environment)
    file = trace_file(output)
    trace = read_dump_trace(file, names, problems, remedy)
    is_read = trace is not None
    trace = trace or no_trace()
    links = find_links(kernels.frame, trace)
    trace = trace.without_links()
    attribution = attribute(links, trace)
    if is_read:
        problems += link_problems(file, trace, attribution, path)
    return TraceKernels(attributed(kernels.frame, attribution), trace, attribution)


def _read_kernels_of_trace(
    path: Path, output: Path, error: DumpError, problems: list[Problem]
) -> TraceKernels:
    """Read the kernels from the trace; raise the ``error`` of kernel_details.csv if it has none."""
    file = trace_file(output)
    if not file.exists():
        raise error
    is_there = (output / KERNEL_DETAILS).exists()
    try:
        source = read_trace_kernels(file, path, problems)
    except DumpError as second:
        raise (error if is_there else second) from error
    what = f"{error.message if is_there else 'missing'}; {WITHOUT_KERNEL_DETAILS}"
    remedy = error.remedy if is_there else remedies.analyse(path)
    problems.insert(0, Problem(KERNEL_DETAILS, what, remedy, damaged=is_there))
    return source


def _read_optional(
    file: Path,
    read: Callable[[Path], tuple[pd.DataFrame, list[Problem]]],
    problems: list[Problem],
) -> pd.DataFrame | None:
    try:
        frame, faults = read(file)
    except DumpError as error:
        problems.append(Problem(file.name, error.message, error.remedy, damaged=True))
        return None
    problems += faults
    return frame


def _read_op_statistic(
    output: Path, kernels: pd.DataFrame, problems: list[Problem], dump: Path
) -> pd.DataFrame:
    """Read the totals and hold them against the kernels; a dump of Level0 has none."""
    file = output / _OP_STATISTIC
    known = len(problems)
    statistic = _read_optional(file, read_op_statistic, problems) if file.exists() else None
    if statistic is None:
        return no_op_statistic()
    if len(problems) > known:  # totals that are not whole say nothing about the kernels
        return statistic
    files = KERNEL_DETAILS, file.name
    problems += total_problems(kernels, statistic, files, remedies.analyse(dump))
    return statistic


def _read_steps(
    output: Path, kernels: pd.DataFrame, problems: list[Problem], dump: Path
) -> pd.DataFrame:
    """Read how the steps split; where that cannot be read, compute it from the kernels."""
    file = output / _STEP_TRACE_TIME
    is_there, fault, remedy = file.exists(), "missing", remedies.analyse(dump)
    if is_there:
        try:
            steps, faults = read_step_trace_time(file)
        except DumpError as error:
            fault, remedy = error.message, error.remedy
        else:
            problems += faults
            if not faults:
                files = KERNEL_DETAILS, file.name
                problems += step_problems(kernels, steps, files, remedies.analyse(dump))
            if len(steps):
                return steps
            fault = "holds no step"
    what = f"{fault}: the split of a step is computed from its kernels, from the first one on"
    problems.append(Problem(file.name, what, remedy, damaged=is_there))
    return steps_from_kernels(kernels)


def _trace_remedy(dump: Path, output: Path, environment: Environment) -> str:
    """Say how to get a trace that leads to lines; an analysis brings back no untaken stacks."""
    if environment.with_stack is False:
        return remedies.PROFILE_WITH_STACKS
    if any(output.glob("ascend_pytorch_profiler*.db")):
        return remedies.export_text(dump)
    return remedies.analyse(dump)
