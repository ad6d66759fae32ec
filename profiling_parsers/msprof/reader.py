"""What ``msprof`` exported of one run (``PROF_*/mindstudio_profiler_output``) to a ``Profile``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from npufix.profiling_parsers.attribution.launches import attribute, find_links
from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.msprof.files import (
    device_of,
    find_exported,
    output_of,
    slice_problems,
)
from npufix.profiling_parsers.msprof.steps import iterations_of
from npufix.profiling_parsers.msprof.task_time import read_task_time
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.signals import Signals
from npufix.profiling_parsers.text.api_statistic import read_api_statistic
from npufix.profiling_parsers.text.data_preprocess import read_data_preprocess
from npufix.profiling_parsers.text.kernel_checks import total_problems
from npufix.profiling_parsers.text.kernel_details import Kernels, join_kernels, read_kernel_table
from npufix.profiling_parsers.text.l2_cache import read_l2_cache
from npufix.profiling_parsers.text.memory_files import read_memory_record, read_operator_memory
from npufix.profiling_parsers.text.op_statistic import read_op_statistic
from npufix.profiling_parsers.trace.alone import attributed, read_trace_alone
from npufix.profiling_parsers.trace.view import no_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Reader = Callable[[Path], tuple[pd.DataFrame, list[Problem]]]

T = TypeVar("T")

_SUMMARY, _TASKS, _STATISTIC, _STEPS = "op_summary", "task_time", "op_statistic", "step_trace"
_SIGNALS: Mapping[str, tuple[Reader, tuple[str, ...]]] = {
    "apis": (read_api_statistic, ("api_statistic",)),
    "aicpu": (read_data_preprocess, ("aicpu",)),
    "l2_cache": (read_l2_cache, ("l2_cache",)),
    "memory": (read_memory_record, ("memory_record", "ge_memory_record")),
    "allocations": (read_operator_memory, ("operator_memory", "ge_operator_memory")),
}
_NO_LINES = (
    "msprof records no operators of PyTorch, so no kernel is led to a line",
    "profile with `torch_npu.profiler.profile(..., with_stack=True, record_shapes=True)` instead",
)


def read_msprof(path: Path) -> Profile:
    """Read a folder ``PROF_*``, or the folder of its exported files.

    The database is read where there is one, else the tables, else the trace: they say the same,
    the first the most. Raise ``DumpError`` without kernels.
    """
    output, database = output_of(path), _database(path)
    broken: list[Problem] = []
    if database is not None:
        from npufix.profiling_parsers.database.msprof import read_msprof_db

        try:
            return read_msprof_db(path, database)
        except DumpError as error:
            broken = [Problem(database.name, error.message, export(path), damaged=True)]
    try:
        profile = _read_tables(path, output) or _read_trace(path, output)
    except DumpError as error:
        raise DumpError(error.message, export(path)) from error
    if profile is None:
        what = f"{output}: no {_SUMMARY}_*.csv, {_TASKS}_*.csv or msprof_*.db with kernels"
        raise DumpError(broken[0].what if broken else what, export(path))
    problems = (*broken, *profile.problems)
    return replace(profile, problems=tuple(_of_msprof(problem, path) for problem in problems))


def export(path: Path) -> str:
    """Say how the raw data of msprof is turned into files that can be read."""
    return f"run `msprof --export=on --output={path}` where CANN is installed"


def _of_msprof(problem: Problem, path: Path) -> Problem:
    """Return a problem whose remedy is not that of the PyTorch profiler, which was not there."""
    is_other = "torch_npu.profiler.profiler import analyse" in problem.remedy
    return replace(problem, remedy=export(path)) if is_other else problem


def _database(path: Path) -> Path | None:
    places = (path, output_of(path))
    files = [file for place in places for file in find_exported(place, "msprof", ".db")]
    return next((file for file in files if file.stat().st_size), None)


def _read_tables(path: Path, output: Path) -> Profile | None:
    """Read the CSV files, ``None`` if none of them has kernels."""
    summaries = find_exported(output, _SUMMARY, ".csv")
    files = summaries or find_exported(output, _TASKS, ".csv")
    if not files:
        return None
    environment, problems = read_environment(path)
    read = _read_summary if summaries else read_task_time
    frame = _read_kernels(files, read, problems, path).frame
    frame = _with_steps(output, frame, problems)
    device = frame["device"].to_numpy()
    frame = frame.assign(device=np.where(device < 0, np.int32(device_of(path)), device))
    if not summaries:
        what = f"no {_SUMMARY}_*.csv: neither shapes nor collectives are known"
        problems.append(Problem(files[0].name, what, export(path)))
    trace = no_trace()
    attribution = attribute(find_links(frame, trace), trace)
    return Profile(
        root=path,
        environment=environment,
        kernels=attributed(frame, attribution),
        host_ops=attribution.host_ops,
        steps=steps_from_kernels(frame),
        op_statistic=_read_totals(path, output, frame, summaries, problems),
        stacks=(),
        signals=_read_signals(output, problems),
        problems=(*problems, Problem(files[0].name, *_NO_LINES)),
        format="msprof",
    )


def _read_summary(file: Path) -> Kernels:
    return read_kernel_table(file)


def _read_kernels(
    files: list[Path], read: Callable[[Path], Kernels], problems: list[Problem], path: Path
) -> Kernels:
    """Read all slices; one that cannot be read is told, unless none can."""
    broken: list[Problem] = []
    tables = [table for file in files if (table := _attempt(read, file, broken)) is not None]
    if not tables:
        raise DumpError(broken[0].what, export(path))
    kernels = join_kernels(tables, files[0])
    found = [*broken, *slice_problems(files, export(path)), *kernels.problems]
    problems += found
    return kernels


def _attempt(read: Callable[[Path], T], file: Path, problems: list[Problem]) -> T | None:
    """Return what ``read`` makes of a file, ``None`` and a problem if nothing."""
    try:
        return read(file)
    except DumpError as error:
        problems.append(Problem(file.name, error.message, error.remedy, damaged=True))
        return None


def _read_totals(
    path: Path, output: Path, kernels: pd.DataFrame, summaries: list[Path], problems: list[Problem]
) -> pd.DataFrame:
    """Read the totals per Type, and hold them against the kernels."""
    faults: list[Problem] = []
    statistic = _read_one(output, (_STATISTIC,), read_op_statistic, faults)
    problems += faults
    if statistic is None:
        return no_op_statistic()
    if summaries and not faults:  # task_time has no Types, and damaged totals say nothing
        files = summaries[0].name, f"{_STATISTIC}_*.csv"
        problems += total_problems(kernels, statistic, files, export(path))
    return statistic


def _read_signals(output: Path, problems: list[Problem]) -> Signals:
    found: dict[str, Any] = {}
    for table, (reader, stems) in _SIGNALS.items():
        rows = _read_one(output, stems, reader, problems)
        if rows is not None:
            found[table] = rows
    return Signals(**found)


def _with_steps(output: Path, frame: pd.DataFrame, problems: list[Problem]) -> pd.DataFrame:
    """Return the kernels with the steps of op_summary, else those of step_trace."""
    files = find_exported(output, _STEPS, ".csv")
    if frame["step"].notna().any() or not files:
        return frame
    steps = _attempt(partial(iterations_of, frame), files[-1], problems)
    if steps is None:
        return frame
    problems += steps[1]
    return frame.assign(step=steps[0])


def _read_one(
    output: Path, stems: tuple[str, ...], read: Reader, problems: list[Problem]
) -> pd.DataFrame | None:
    """Read the slices of the first of ``stems`` that was exported, ``None`` if none can be."""
    files = next((found for stem in stems if (found := find_exported(output, stem, ".csv"))), [])
    parts = [part for file in files if (part := _attempt(read, file, problems)) is not None]
    for _, faults in parts:
        problems += faults
    if len(parts) < 2:  # noqa: PLR2004 - nothing to join
        return parts[0][0] if parts else None
    tables = [table for table, _ in parts]
    coded = tables[0].select_dtypes("category").columns
    return pd.concat(tables, ignore_index=True).astype(dict.fromkeys(coded, "category"))


def _read_trace(path: Path, output: Path) -> Profile | None:
    """Read the kernels of the trace, ``None`` if there is none."""
    files = find_exported(output, "msprof", ".json")
    if not files:
        return None
    profile = read_trace_alone(files[0])
    return replace(profile, root=path, format="msprof")
