"""What ``msprof`` exported of one run (``PROF_*/mindstudio_profiler_output``) to a ``Profile``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.attribution.launches import link_kernels
from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.msprof.files import (
    find_device,
    find_exported,
    find_missing_slices,
    find_output,
)
from npufix.profiling_parsers.msprof.task_tables import find_iterations, read_task_time
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.signals import Signals
from npufix.profiling_parsers.text.kernel_checks import check_totals
from npufix.profiling_parsers.text.kernel_details import Kernels, join_kernels, read_kernel_table
from npufix.profiling_parsers.text.op_statistic import read_op_statistic
from npufix.profiling_parsers.text.side_tables import (
    read_api_statistic,
    read_l2_cache,
    read_memory_record,
    read_operator_memory,
)
from npufix.profiling_parsers.text.trace_alone import read_trace_alone
from npufix.profiling_parsers.trace.view import no_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Reader = Callable[[Path], tuple[pd.DataFrame, list[Problem]]]

T = TypeVar("T")

_SUMMARY, _TASKS, _STATISTIC, _STEPS = "op_summary", "task_time", "op_statistic", "step_trace"
_SIGNALS: Mapping[str, tuple[Reader, tuple[str, ...]]] = {
    "apis": (read_api_statistic, ("api_statistic",)),
    "l2_cache": (read_l2_cache, ("l2_cache",)),
    "memory": (read_memory_record, ("memory_record", "ge_memory_record")),
    "allocations": (read_operator_memory, ("operator_memory", "ge_operator_memory")),
}


def read_msprof(path: Path) -> Profile:
    """Read a folder ``PROF_*``, or the folder of its exported files.

    The database is read where there is one, else the tables, else the trace: they say the same,
    the first the most.

    Raise ``DumpError`` if it has no kernels.
    """
    output, database = find_output(path), _database(path)
    broken: list[Problem] = []
    if database is not None:
        from npufix.profiling_parsers.database.export import read_msprof_db

        try:
            return read_msprof_db(path, database)
        except DumpError as error:
            broken = [Problem(database.name, error.message, remedies.export(path), damaged=True)]
    try:
        profile = _read_tables(path, output) or _read_trace(path, output)
    except DumpError as error:
        raise DumpError(error.message, remedies.export(path)) from error
    if profile is None:
        what = f"{output}: no {_SUMMARY}_*.csv, {_TASKS}_*.csv or msprof_*.db with kernels"
        raise DumpError(broken[0].what if broken else what, remedies.export(path))
    problems = (*broken, *profile.problems)
    return replace(profile, problems=tuple(_of_msprof(problem, path) for problem in problems))


def _of_msprof(problem: Problem, path: Path) -> Problem:
    """Return a problem whose remedy is not that of the PyTorch profiler, which was not there."""
    is_other = "torch_npu.profiler.profiler import analyse" in problem.remedy
    return replace(problem, remedy=remedies.export(path)) if is_other else problem


def _database(path: Path) -> Path | None:
    places = (path, find_output(path))
    files = [file for place in places for file in find_exported(place, "msprof", ".db")]
    return next((file for file in files if file.stat().st_size), None)


def _read_tables(path: Path, output: Path) -> Profile | None:
    """Read the CSV files, ``None`` if none of them has kernels."""
    summaries = find_exported(output, _SUMMARY, ".csv")
    files = summaries or find_exported(output, _TASKS, ".csv")
    if not files:
        return None
    environment, unknown = read_environment(path)
    kernels, faults = _read_kernels(files, read_kernel_table if summaries else read_task_time, path)
    kernels, stepless = _with_steps(output, kernels)
    device = kernels["device"].to_numpy()
    kernels = kernels.assign(device=np.where(device < 0, np.int32(find_device(path)), device))
    without = f"no {_SUMMARY}_*.csv: neither shapes nor collectives are known"
    incomplete = [] if summaries else [Problem(files[0].name, without, remedies.export(path))]
    totals, disagreeing = _read_totals(path, output, kernels, summaries)
    signals, broken = _read_signals(output)
    no_lines = Problem(files[0].name, *remedies.NO_LINES)
    linked = link_kernels(kernels, no_trace)
    return Profile(
        root=path,
        environment=environment,
        kernels=linked.kernels,
        host_ops=linked.attribution.host_ops,
        steps=steps_from_kernels(kernels),
        op_statistic=totals,
        stacks=(),
        signals=signals,
        problems=(*unknown, *faults, *stepless, *incomplete, *disagreeing, *broken, no_lines),
        format="msprof",
    )


def _read_kernels(
    files: list[Path], read: Callable[[Path], Kernels], path: Path
) -> tuple[pd.DataFrame, list[Problem]]:
    """Read all slices; one that cannot be read is told; raise ``DumpError`` if none can be read."""
    tables, broken = _read_slices(files, read)
    if not tables:
        raise DumpError(broken[0].what, remedies.export(path))
    kernels = join_kernels(tables, files[0])
    return kernels.frame, [
        *broken,
        *find_missing_slices(files, remedies.export(path)),
        *kernels.problems,
    ]


def _read_slices(files: list[Path], read: Callable[[Path], T]) -> tuple[list[T], list[Problem]]:
    """Return what ``read`` makes of the files, and a problem for each of which nothing is made."""
    found: list[T] = []
    broken: list[Problem] = []
    for file in files:
        try:
            found.append(read(file))
        except DumpError as error:  # noqa: PERF203 - one slice must not hide the others
            broken.append(Problem(file.name, error.message, error.remedy, damaged=True))
    return found, broken


def _read_totals(
    path: Path, output: Path, kernels: pd.DataFrame, summaries: list[Path]
) -> tuple[pd.DataFrame, list[Problem]]:
    """Read the totals per Type, and hold them against the kernels."""
    statistic, problems = _read_one(output, (_STATISTIC,), read_op_statistic)
    if statistic is None:
        return no_op_statistic(), problems
    if summaries and not problems:  # task_time has no Types, and damaged totals say nothing
        files = summaries[0].name, f"{_STATISTIC}_*.csv"
        problems = check_totals(kernels, statistic, files, remedies.export(path))
    return statistic, problems


def _read_signals(output: Path) -> tuple[Signals, list[Problem]]:
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for table, (reader, stems) in _SIGNALS.items():
        rows, faults = _read_one(output, stems, reader)
        problems += faults
        if rows is not None:
            found[table] = rows
    return Signals(**found), problems


def _with_steps(output: Path, kernels: pd.DataFrame) -> tuple[pd.DataFrame, list[Problem]]:
    """Return the kernels with the steps of op_summary, else those of step_trace."""
    files = find_exported(output, _STEPS, ".csv")
    if kernels["step"].notna().any() or not files:
        return kernels, []
    found, broken = _read_slices(files[-1:], partial(find_iterations, kernels))
    if not found:
        return kernels, broken
    steps, problems = found[0]
    return kernels.assign(step=steps), problems


def _read_one(
    output: Path, stems: tuple[str, ...], read: Reader
) -> tuple[pd.DataFrame | None, list[Problem]]:
    """Read the slices of the first of ``stems`` that was exported, ``None`` if none can be."""
    files = next((found for stem in stems if (found := find_exported(output, stem, ".csv"))), [])
    parts, problems = _read_slices(files, read)
    tables = [table for table, _ in parts]
    problems += [fault for _, faults in parts for fault in faults]
    if len(tables) < 2:  # noqa: PLR2004 - nothing to join
        return (tables[0] if tables else None), problems
    coded = tables[0].select_dtypes("category").columns
    whole = pd.concat(tables, ignore_index=True).astype(dict.fromkeys(coded, "category"))
    return whole, problems


def _read_trace(path: Path, output: Path) -> Profile | None:
    """Read the kernels of the trace, ``None`` if there is none."""
    files = find_exported(output, "msprof", ".json")
    if not files:
        return None
    profile = read_trace_alone(files[0])
    return replace(profile, root=path, format="msprof")
