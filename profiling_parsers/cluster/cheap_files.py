"""The files of a dump that are small whatever it recorded: steps, totals, collectives."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from npufix.profiling_parsers.cluster.job import groups_in, read_groups
from npufix.profiling_parsers.discover import analysed_folder, find_database, is_msprof_folder
from npufix.profiling_parsers.kernels.steps import no_steps
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.profile import DumpError, Problem
from npufix.profiling_parsers.signals import empty
from npufix.profiling_parsers.special_files import kind_of
from npufix.profiling_parsers.text.communication_json import (
    read_communication,
    read_communication_matrix,
)
from npufix.profiling_parsers.text.op_statistic import read_op_statistic
from npufix.profiling_parsers.text.step_trace_time import read_step_trace_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.cluster.summary import Table
    from npufix.profiling_parsers.profile import Environment

ANALYSIS, STEPS = "analysis.db", "step_trace_time.csv"
STATISTIC, COMMUNICATION, MATRIX = (
    "op_statistic.csv", "communication.json", "communication_matrix.json",
)  # fmt: skip


@dataclass(frozen=True)
class CheapFiles:
    """What they say, in the tables of ``Profile`` and ``Signals``; empty where one is missing."""

    environment: Environment
    steps: pd.DataFrame
    operators: pd.DataFrame
    collectives: pd.DataFrame
    transports: pd.DataFrame
    links: pd.DataFrame
    groups: Table
    problems: tuple[Problem, ...]
    host: str = ""
    format: str = "ascend-text"


def read_cheap_files(dump: Path, environment: Environment) -> CheapFiles:
    """Read them: those of the text export where it says how the steps split, else the databases."""
    output, problems = analysed_folder(dump), list[Problem]()
    if is_msprof_folder(dump):
        return _nothing(dump, environment, problems)
    steps = _read(output / STEPS, read_step_trace_time, problems)
    if steps is not None and len(steps[0]):
        return _text(dump, output, environment, steps[0], problems)
    database = find_database(output)
    if database is not None and (output / ANALYSIS).is_file():
        try:
            return _databases(dump, database, environment, problems)
        except DumpError as error:
            problems.append(Problem(ANALYSIS, error.message, error.remedy, damaged=True))
    return _nothing(dump, environment, problems)


def _nothing(dump: Path, environment: Environment, problems: list[Problem]) -> CheapFiles:
    return CheapFiles(
        environment,
        no_steps(),
        no_op_statistic(),
        empty("collectives"),
        empty("transports"),
        empty("links"),
        read_groups(dump),
        tuple(problems),
    )


def _text(
    dump: Path,
    output: Path,
    environment: Environment,
    steps: pd.DataFrame,
    problems: list[Problem],
) -> CheapFiles:
    operators = _read(output / STATISTIC, read_op_statistic, problems)
    communication = _read(output / COMMUNICATION, read_communication, problems)
    links = _read(output / MATRIX, read_communication_matrix, problems)
    return CheapFiles(
        environment,
        steps,
        operators[0] if operators else no_op_statistic(),
        communication[0] if communication else empty("collectives"),
        communication[1] if communication else empty("transports"),
        links[0] if links else empty("links"),
        read_groups(dump),
        tuple(problems),
    )


def _databases(
    dump: Path, file: Path, environment: Environment, problems: list[Problem]
) -> CheapFiles:
    """Read analysis.db, and of the main database the settings of the run."""
    from npufix.profiling_parsers.database.communication import read_analysed
    from npufix.profiling_parsers.database.environment import completed, metadata
    from npufix.profiling_parsers.database.kernels import read_totals
    from npufix.profiling_parsers.database.steps import read_split
    from npufix.profiling_parsers.database.tables import Database

    with ExitStack() as opened:
        analysis = opened.enter_context(closing(Database(file.with_name(ANALYSIS))))
        steps = read_split(analysis)
        collectives, transports, links = read_analysed(analysis)
        main = opened.enter_context(closing(Database(file)))
        stated = completed(environment, main, np.empty(0, np.int32))
        info = metadata(main).get("parallel_group_info")
        groups = groups_in(info) if info is not None else None
        operators = read_totals(main, main.texts())
        hosts = main.values("HOST_INFO", {"name": ("hostName",)}, "TEXT")
        # What else the main file lacks is told when the rank is looked into.
        problems += analysis.problems
    variables = replace(stated, variables={})
    return CheapFiles(
        variables,
        steps,
        operators,
        collectives,
        transports,
        links,
        groups or read_groups(dump),
        tuple(problems),
        host=str(hosts[0][0] or "") if len(hosts) == 1 else "",
        format="ascend-db",
    )


def _read(
    file: Path, read: Callable[[Path], tuple[Any, ...]], problems: list[Problem]
) -> tuple[Any, ...] | None:
    """Return what a reader finds, ``None`` if the file is missing or none of its kind."""
    if kind_of(file) or not file.is_file():
        return None
    try:
        *found, faults = read(file)
    except DumpError as error:
        problems.append(Problem(file.name, error.message, error.remedy, damaged=True))
        return None
    problems += faults
    return (*found,)
