"""The files of a dump that are small whatever it recorded: steps, totals, collectives."""

from __future__ import annotations

import csv
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from npufix.profiling_parsers.cluster.job import groups_in, read_groups
from npufix.profiling_parsers.dump_folder import (
    KERNEL_DETAILS,
    TRACES,
    find_analysed_folder,
    find_database,
    trace_file,
)
from npufix.profiling_parsers.kernels.steps import no_steps
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.kernels.whole_steps import whole_steps
from npufix.profiling_parsers.profile import DumpError, Problem
from npufix.profiling_parsers.signals import empty
from npufix.profiling_parsers.special_files import kind_of
from npufix.profiling_parsers.tables.file_damage import damage_problem
from npufix.profiling_parsers.text.communication_json import (
    read_communication,
    read_communication_matrix,
)
from npufix.profiling_parsers.text.kernel_header import COLUMNS
from npufix.profiling_parsers.text.op_statistic import read_op_statistic
from npufix.profiling_parsers.text.step_trace_time import read_step_trace_time
from npufix.profiling_parsers.text.trace_file import find_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.cluster.summary import Table
    from npufix.profiling_parsers.profile import Environment

ANALYSIS, STEPS = "analysis.db", "step_trace_time.csv"
STATISTIC, COMMUNICATION, MATRIX = (
    "op_statistic.csv", "communication.json", "communication_matrix.json",
)  # fmt: skip
_TEXT_FILES: Mapping[str, tuple[Callable[[Path], tuple[Any, ...]], tuple[str, ...]]] = {
    STATISTIC: (read_op_statistic, ("operators",)),
    COMMUNICATION: (read_communication, ("collectives", "transports")),
    MATRIX: (read_communication_matrix, ("links",)),
}
"""The reader of each file, and the fields of ``CheapFiles`` that it returns before the problems."""
_TABLES = (KERNEL_DETAILS, STEPS, *_TEXT_FILES, ANALYSIS)
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class CheapFiles:
    """What they say, in the tables of ``Profile`` and ``Signals``; empty where one is missing."""

    environment: Environment
    groups: Table
    problems: tuple[Problem, ...]
    steps: pd.DataFrame = field(default_factory=no_steps)
    operators: pd.DataFrame = field(default_factory=no_op_statistic)
    collectives: pd.DataFrame = field(default_factory=partial(empty, "collectives"))
    transports: pd.DataFrame = field(default_factory=partial(empty, "transports"))
    links: pd.DataFrame = field(default_factory=partial(empty, "links"))
    host: str = ""
    format: str = "ascend-text"


def read_cheap_files(dump: Path, environment: Environment) -> CheapFiles:
    """Read them: those of the text export where it says how the steps split, else the databases."""
    output, problems = find_analysed_folder(dump), list[Problem]()
    if len(steps := _read(output / STEPS, read_step_trace_time, problems)) and len(steps[0]):
        found: dict[str, Any] = {}
        for name, (read, fields) in _TEXT_FILES.items():
            found |= zip(fields, _read(output / name, read, problems), strict=False)
        found["steps"] = whole_steps(steps[0], collectives=found.get("collectives"))
        problems += _check_kernels(output / KERNEL_DETAILS)
        problems += find_cut(trace_file(output))
        return CheapFiles(environment, read_groups(dump), tuple(problems), **found)
    database = find_database(output)
    if database is not None and (output / ANALYSIS).is_file():
        try:
            return _databases(dump, database, environment, problems)
        except DumpError as error:
            problems.append(Problem(ANALYSIS, error.message, error.remedy, damaged=True))
    return CheapFiles(environment, read_groups(dump), tuple(problems))


def tables_there(dump: Path) -> list[str]:
    """Return which of the files that ranks are compared by a dump has, packed or not."""
    output = find_analysed_folder(dump)
    found = [name for name in _TABLES if (output / name).is_file()]
    return [*found, *TRACES[:1]] if trace_file(output).is_file() else found


def _databases(
    dump: Path, file: Path, environment: Environment, problems: list[Problem]
) -> CheapFiles:
    """Read analysis.db, and of the main database the settings of the run."""
    from npufix.profiling_parsers.database.communication import (
        find_lost_collectives,
        read_analysed,
    )
    from npufix.profiling_parsers.database.environment import complete_environment, read_metadata
    from npufix.profiling_parsers.database.kernels import read_totals
    from npufix.profiling_parsers.database.steps import read_split
    from npufix.profiling_parsers.database.tables import Database

    with ExitStack() as opened:
        analysis = opened.enter_context(closing(Database(file.with_name(ANALYSIS))))
        collectives, transports, links = read_analysed(analysis)
        steps = whole_steps(read_split(analysis), collectives=collectives)
        main = opened.enter_context(closing(Database(file)))
        stated = complete_environment(environment, main, np.empty(0, np.int32))
        info = read_metadata(main).get("parallel_group_info")
        groups = groups_in(info) if info is not None else None
        operators = read_totals(main, main.texts())
        hosts = main.values("HOST_INFO", {"name": ("hostName",)}, "TEXT")
        # What else the main file lacks is told when the rank is looked into.
        problems += analysis.problems
        before = len(main.problems)
        find_lost_collectives(main, analysis)
        problems += main.problems[before:]
    return CheapFiles(
        replace(stated, variables={}),
        groups or read_groups(dump),
        tuple(problems),
        steps,
        operators,
        collectives,
        transports,
        links,
        host=str(hosts[0][0] or "") if len(hosts) == 1 else "",
        format="ascend-db",
    )


def _check_kernels(file: Path) -> list[Problem]:
    """Tell of a table of kernels whose begin or end shows that it is cut or overwritten.

    It may have gigabytes; its first and last line are all that is read here.
    """
    if kind_of(file) or not file.is_file():
        return []
    try:
        with file.open("rb") as opened:
            first = opened.readline(_LONGEST_LINE)
            opened.seek(max(0, file.stat().st_size - _LONGEST_LINE))
            last = opened.read(_LONGEST_LINE).rstrip(b"\r\n").rpartition(b"\n")[2]
    except OSError as error:
        return [damage_problem(file, str(error.strerror))]
    header, row = _cells(first), _cells(last)
    if not {name.strip() for name in header}.intersection(COLUMNS["duration"]):
        return [damage_problem(file, "does not begin as a table of kernels")]
    if len(row) != len(header):
        return [damage_problem(file, "is cut off in its last row")]
    return []


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8-sig", "replace").rstrip("\r\n")]), [])
    except csv.Error:
        return []


def _read(
    file: Path, read: Callable[[Path], tuple[Any, ...]], problems: list[Problem]
) -> tuple[Any, ...]:
    """Return what a reader finds, nothing if the file is missing or none of its kind."""
    if kind_of(file) or not file.is_file():
        return ()
    try:
        *found, faults = read(file)
    except DumpError as error:
        problems.append(Problem(file.name, error.message, error.remedy, damaged=True))
        return ()
    problems += faults
    return (*found,)
