"""The text export of one dump (``kernel_details.csv`` and the files beside it) to a ``Profile``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.attribution import Attribution, attribute
from npufix.profiling_parsers.discover import KERNEL_DETAILS
from npufix.profiling_parsers.kernel_details import read_kernel_details
from npufix.profiling_parsers.op_statistic import (
    disagreements,
    no_op_statistic,
    read_op_statistic,
)
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.side_files import read_signals
from npufix.profiling_parsers.step_trace_time import no_steps, read_step_trace_time
from npufix.profiling_parsers.trace_view import Trace, no_trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.profile import Environment

_OP_STATISTIC = "op_statistic.csv"
_STEP_TRACE_TIME = "step_trace_time.csv"
_TRACE = "trace_view.json"


def read_text_export(path: Path, output: Path) -> Profile:
    """Read the files in ``output`` of the dump ``path``; raise ``DumpError`` without kernels."""
    kernels = read_kernel_details(output / KERNEL_DETAILS)
    environment, problems = read_environment(path)
    problems += _row_problems(kernels.malformed, len(kernels.frame), path)
    statistic = _read_op_statistic(output, kernels.frame, problems, path)
    steps = _read_steps(output, problems, path)
    trace = _read_trace(
        output, kernels.frame["name"], problems, _trace_remedy(path, output, environment)
    )
    signals, broken = read_signals(output)
    problems += broken
    attribution = attribute(kernels.frame, no_trace() if trace is None else trace)
    if trace is not None:
        problems += _link_problems(trace, attribution, path)
    return Profile(
        root=path,
        environment=environment,
        kernels=kernels.frame.assign(
            host_op=attribution.host_op, stack=attribution.stack, basis=attribution.basis
        ),
        host_ops=attribution.host_ops,
        steps=steps,
        op_statistic=statistic,
        stacks=attribution.stacks,
        problems=tuple(problems),
        signals=signals,
    )


def _row_problems(malformed: int, rows: int, dump: Path) -> list[Problem]:
    if not malformed:
        return []
    what = f"{malformed} of {malformed + rows} rows are malformed and left out"
    remedy = "is the file cut off? Copy it again, or " + remedies.analyse(dump)
    return [Problem(KERNEL_DETAILS, what, remedy, damaged=True)]


def _read_optional(
    file: Path, read: Callable[[Path], pd.DataFrame], problems: list[Problem]
) -> pd.DataFrame | None:
    try:
        return read(file)
    except DumpError as error:
        problems.append(Problem(file.name, error.message, error.remedy, damaged=True))
        return None


def _read_op_statistic(
    output: Path, kernels: pd.DataFrame, problems: list[Problem], dump: Path
) -> pd.DataFrame:
    """Read the totals and hold them against the kernels; a dump of Level0 has none."""
    file = output / _OP_STATISTIC
    statistic = _read_optional(file, read_op_statistic, problems) if file.exists() else None
    if statistic is None:
        return no_op_statistic()
    differ = disagreements(kernels, statistic)
    if len(differ):
        worst = "; ".join(
            f"{name}: {row['count_kernels']} kernels, {row['total_ns_kernels'] / 1e3:.3f} us "
            f"against {row['count_stated']}, {row['total_ns_stated'] / 1e3:.3f} us"
            for name, row in differ.head(3).iterrows()
        )
        what = f"{len(differ)} Types disagree with the totals of {file.name} ({worst})"
        remedy = "do both files come from one export? If not, " + remedies.analyse(dump)
        problems.append(Problem(KERNEL_DETAILS, what, remedy, damaged=True))
    return statistic


def _read_steps(output: Path, problems: list[Problem], dump: Path) -> pd.DataFrame:
    file = output / _STEP_TRACE_TIME
    if file.exists():
        steps = _read_optional(file, read_step_trace_time, problems)
        return no_steps() if steps is None else steps
    what = "missing, so the split of a step into compute, communication and idle time is unknown"
    problems.append(Problem(file.name, what, remedies.analyse(dump)))
    return no_steps()


def _trace_remedy(dump: Path, output: Path, environment: Environment) -> str:
    """Say how to get a trace that leads to lines; an analysis brings back no untaken stacks."""
    if environment.with_stack is False:
        return remedies.PROFILE_WITH_STACKS
    if any(output.glob("ascend_pytorch_profiler*.db")):
        return remedies.export_text(dump)
    return remedies.analyse(dump)


def _read_trace(
    output: Path, names: pd.Series[str], problems: list[Problem], remedy: str
) -> Trace | None:
    file = output / _TRACE
    try:
        trace = read_trace(file, {name: code for code, name in enumerate(names.cat.categories)})
    except FileNotFoundError:
        problems.append(Problem(file.name, "missing, so no kernel is led to a line", remedy))
        return None
    except OSError as error:
        what = f"cannot be read ({error.strerror}), so no kernel is led to a line"
        problems.append(Problem(file.name, what, "make the file readable", damaged=True))
        return None
    if trace.cut is not None:
        what = f"breaks off or is malformed at byte {trace.cut}; the events before are used"
        problems.append(Problem(file.name, what, remedy, damaged=True))
    if trace.malformed:
        what = f"{trace.malformed} events are malformed and left out"
        problems.append(Problem(file.name, what, remedy, damaged=True))
    return trace


def _link_problems(trace: Trace, attribution: Attribution, dump: Path) -> list[Problem]:
    """Say why kernels were not led to operators, or operators not to lines."""
    problems = []
    if trace.operators.empty:
        what = "holds no host operators (cpu_op), so no kernel is led to a line"
        problems.append(Problem(_TRACE, what, remedies.PROFILE_HOST))
    elif not any(trace.stacks):
        what = "holds no call stacks, so no kernel is led to a line"
        problems.append(Problem(_TRACE, what, remedies.PROFILE_WITH_STACKS))
    if trace.flow_ends.empty:
        what = "holds no flows from operators to kernels (async_npu)"
        problems.append(Problem(_TRACE, what, remedies.PROFILE_HOST))
    elif not attribution.shared_clock:
        what = (
            f"has relative timestamps or is of another run than {KERNEL_DETAILS}: no start agrees"
        )
        problems.append(Problem(_TRACE, what, remedies.analyse(dump)))
    elif not (attribution.host_op >= 0).any():
        what = "none of its flows leads from an operator to a kernel"
        problems.append(Problem(_TRACE, what, remedies.analyse(dump)))
    return problems
