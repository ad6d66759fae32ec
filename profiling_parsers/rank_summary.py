"""What one rank of many spends its steps on, from its small files where these say it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.profiling_parsers.database.steps import read_split
from npufix.profiling_parsers.database.tables import Database
from npufix.profiling_parsers.discover import analysed_folder, find_database, output_folder
from npufix.profiling_parsers.kernels.steps import no_steps
from npufix.profiling_parsers.profile import DumpError, Problem
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.text.step_trace_time import read_step_trace_time

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

_ANALYSIS, _STEP_TRACE_TIME = "analysis.db", "step_trace_time.csv"


@dataclass(frozen=True)
class RankSummary:
    """``steps`` as in ``Profile``, empty if the dump does not say."""

    rank: int | None
    steps: pd.DataFrame
    problem: str
    """What is wrong with the files, "" if nothing is."""
    readable: bool
    """Whether the rank can be looked into; otherwise its small files are all there is."""


def read_rank_summary(dump: Path) -> RankSummary:
    """Read one dump, a path of ``find_dumps``; the whole of it only if small files say nothing."""
    problems: list[Problem] = []
    if dump.is_dir():
        environment, problems = read_environment(dump)
        steps = _read_steps(analysed_folder(dump), problems)
        if not steps.empty:
            fault = _fault(dump)
            return RankSummary(environment.rank, steps, fault or _damage(problems), not fault)
    try:
        profile = read_profile(dump)
    except DumpError as error:
        rank = environment.rank if dump.is_dir() else None
        return RankSummary(rank, no_steps(), error.message, readable=False)
    problems = [*profile.problems]
    return RankSummary(profile.environment.rank, profile.steps, _damage(problems), readable=True)


def _read_steps(output: Path, problems: list[Problem]) -> pd.DataFrame:
    try:
        if (file := output / _STEP_TRACE_TIME).exists():
            steps, broken = read_step_trace_time(file)
            problems += broken
            return steps
        if find_database(output) is not None and (file := output / _ANALYSIS).exists():
            with closing(Database(file)) as analysis:
                steps = read_split(analysis)
                problems += analysis.problems
                return steps
    except DumpError as error:
        problems.append(Problem(str(output), error.message, error.remedy, damaged=True))
    return no_steps()


def _fault(dump: Path) -> str:
    try:
        output_folder(dump)
    except DumpError as error:
        return f"{error.message}: it cannot be diagnosed"
    return ""


def _damage(problems: list[Problem]) -> str:
    return next((f"{p.where}: {p.what}" for p in problems if p.damaged), "")
