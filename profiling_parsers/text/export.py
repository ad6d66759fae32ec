"""The text export of one dump (``kernel_details.csv`` and the files beside it) to a ``Profile``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.attribution.launches import link_kernels
from npufix.profiling_parsers.dump_folder import (
    DATABASES,
    KERNEL_DETAILS,
    is_mindspore,
    trace_file,
)
from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.kernels.whole_steps import bounds, host_marks, whole_steps
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.tables.columns import NONE, category
from npufix.profiling_parsers.text.kernel_checks import check_steps, check_totals
from npufix.profiling_parsers.text.kernel_details import read_kernel_details
from npufix.profiling_parsers.text.kernel_header import CHECKED
from npufix.profiling_parsers.text.op_statistic import read_op_statistic
from npufix.profiling_parsers.text.side_files import read_signals
from npufix.profiling_parsers.text.step_trace_time import read_step_trace_time
from npufix.profiling_parsers.text.trace_alone import WITHOUT_KERNEL_DETAILS, read_trace_kernels
from npufix.profiling_parsers.text.trace_file import (
    add_trace_signals,
    damage_problems,
    link_problems,
    unread_problem,
)
from npufix.profiling_parsers.trace.view import no_trace, read_trace

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.attribution.launches import LinkedKernels
    from npufix.profiling_parsers.profile import Environment

_OP_STATISTIC = "op_statistic.csv"
_STEP_TRACE_TIME = "step_trace_time.csv"


def read_text_export(path: Path, output: Path) -> Profile:
    """Read the files in ``output`` of the dump ``path``.

    Where kernel_details.csv is missing or broken, the kernels are those that the trace shows.

    Raise ``DumpError`` if there are no kernels in either.
    """
    environment, unknown = read_environment(path)
    try:
        found, faults = _read_kernels(path, output, environment)
    except DumpError as error:
        found, faults = _read_kernels_of_trace(path, output, error)
        unknown = [_without_kernel_details(path, output, error), *unknown]
    attribution = found.attribution
    statistic, disagreeing = _read_op_statistic(output, found.kernels, path)
    steps, contradicting, stated = _read_steps(output, found.kernels, path)
    signals, broken = read_signals(output, with_operator_details=not attribution.stacks)
    marks = host_marks(attribution.host_ops)
    return Profile(
        root=path,
        environment=environment,
        kernels=found.kernels,
        host_ops=attribution.host_ops,
        steps=whole_steps(steps, found.kernels, marks),
        step_bounds=bounds(marks, stated=stated),
        op_statistic=statistic,
        stacks=attribution.stacks,
        modules=attribution.modules,
        problems=(*unknown, *faults, *disagreeing, *contradicting, *broken),
        signals=add_trace_signals(signals, found),
    )


def find_damaged_rows(path: Path, output: Path) -> list[Problem]:
    """Return what is wrong with the rows of the kernels, and of what lies beside them.

    It is what ``read_text_export`` tells of these files, without the columns that are of no use
    for it, and without the trace.
    """
    try:
        kernels = read_kernel_details(output / KERNEL_DETAILS, CHECKED)
    except DumpError as error:
        return [_without_kernel_details(path, output, error)]
    return [
        *kernels.problems,
        *_read_op_statistic(output, kernels.frame, path)[1],
        *_read_steps(output, kernels.frame, path)[1],
        *read_signals(output, tables_alone=True)[1],
    ]


def _read_kernels(
    path: Path, output: Path, environment: Environment
) -> tuple[LinkedKernels, list[Problem]]:
    kernels = read_kernel_details(output / KERNEL_DETAILS)
    frame = kernels.frame
    recorded = list(frame["name"].cat.categories)
    if is_mindspore(path):
        frame = frame.assign(name=_without_scopes(frame["name"]))
    names = {name: code for code, name in enumerate(frame["name"].cat.categories)}
    names |= {name: names[_last(name)] for name in recorded if name not in names}
    remedy, file = _trace_remedy(path, output, environment), trace_file(output)
    try:
        found = link_kernels(frame, lambda: read_trace(file, names))
    except OSError as error:
        found = link_kernels(frame, no_trace)
        return found, [*kernels.problems, unread_problem(file, error, remedy)]
    faults = damage_problems(file, found.trace, remedy)
    return found, [*kernels.problems, *faults, *link_problems(file, found, path)]


def _without_scopes(names: pd.Series[str]) -> pd.Categorical[str]:
    """Return the kernels of ``Default/network/MatMul-op1/aclnnMatmul_MatMulV3``, as traced."""
    texts: dict[str, int] = {}
    codes = [texts.setdefault(_last(name), len(texts)) for name in names.cat.categories]
    return category(np.array([*codes, NONE], np.int32)[names.cat.codes], list(texts))


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _read_kernels_of_trace(
    path: Path, output: Path, error: DumpError
) -> tuple[LinkedKernels, list[Problem]]:
    """Read the kernels from the trace; raise the ``error`` of kernel_details.csv if it has none."""
    file = trace_file(output)
    if not file.exists():
        raise error
    try:
        return read_trace_kernels(file, path)
    except DumpError as second:
        raise (error if (output / KERNEL_DETAILS).exists() else second) from error


def _without_kernel_details(path: Path, output: Path, error: DumpError) -> Problem:
    is_there = (output / KERNEL_DETAILS).exists()
    what = f"{error.message if is_there else 'missing'}; {WITHOUT_KERNEL_DETAILS}"
    remedy = error.remedy if is_there else remedies.analyse(path)
    return Problem(KERNEL_DETAILS, what, remedy, damaged=is_there)


def _read_op_statistic(
    output: Path, kernels: pd.DataFrame, dump: Path
) -> tuple[pd.DataFrame, list[Problem]]:
    """Read the totals and hold them against the kernels; a dump of Level0 has none."""
    file = output / _OP_STATISTIC
    if not file.exists():
        return no_op_statistic(), []
    try:
        statistic, problems = read_op_statistic(file)
    except DumpError as error:
        return no_op_statistic(), [Problem(file.name, error.message, error.remedy, damaged=True)]
    if problems:  # totals that are not whole say nothing about the kernels
        return statistic, problems
    files = KERNEL_DETAILS, file.name
    return statistic, check_totals(kernels, statistic, files, remedies.analyse(dump))


def _read_steps(
    output: Path, kernels: pd.DataFrame, dump: Path
) -> tuple[pd.DataFrame, list[Problem], bool]:
    """Read how the steps split from their first kernel on, or compute it from the kernels.

    The last one tells whether it was read.
    """
    file = output / _STEP_TRACE_TIME
    is_there, fault, remedy = file.exists(), "missing", remedies.analyse(dump)
    problems: list[Problem] = []
    if is_there:
        try:
            steps, problems = read_step_trace_time(file)
        except DumpError as error:
            fault, remedy = error.message, error.remedy
        else:
            if is_mindspore(dump) and _is_whole_recording(steps, kernels):
                steps = steps.assign(step=steps["step"].mask(np.ones(1, np.bool_)))
            if not problems:
                files = KERNEL_DETAILS, file.name
                problems = check_steps(kernels, steps, files, remedies.analyse(dump))
            if len(steps):
                return steps, problems, True
            fault = "holds no step"
    what = f"{fault}: the split of a step is computed from its kernels, from the first one on"
    computed = Problem(file.name, what, remedy, damaged=is_there)
    return steps_from_kernels(kernels), [*problems, computed], False


def _is_whole_recording(steps: pd.DataFrame, kernels: pd.DataFrame) -> bool:
    """Tell the one step 0 that MindSpore writes where no step was marked."""
    return steps["step"].tolist() == [0] and not kernels["step"].notna().any()


def _trace_remedy(dump: Path, output: Path, environment: Environment) -> str:
    """Say how to get a trace that leads to lines; an analysis brings back no untaken stacks."""
    if environment.with_stack is False:
        return remedies.PROFILE_WITH_STACKS
    if any(output.glob(DATABASES)):
        return remedies.export_text(dump)
    return remedies.analyse(dump)
