"""The databases of one dump to a ``Profile``.

The db export is ``ascend_pytorch_profiler*.db`` with analysis.db. ``msprof_*.db``, which ``msprof``
exports below ``PROF_*``, lacks the tables of PyTorch, so nothing in it leads to a line.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.database.call_chains import STACKS
from npufix.profiling_parsers.database.host_ops import CONNECTIONS, HOST
from npufix.profiling_parsers.database.profile import read_database
from npufix.profiling_parsers.database.steps import SPLIT, read_marks
from npufix.profiling_parsers.database.tables import Database
from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.whole_steps import bounds, host_marks, whole_steps
from npufix.profiling_parsers.profile import DumpError, Environment, Problem, Profile
from npufix.profiling_parsers.profiler_info import read_environment

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.kernels.whole_steps import Marks

_ANALYSIS = "analysis.db"
_MOST_TIMES = 20
"""Kernels that run at a time are summed up, and some are outside of all steps."""


def read_db_export(dump: Path, file: Path) -> Profile:
    """Read one dump from its main database; raise ``DumpError`` if it has no kernel times."""
    environment, problems = read_environment(dump)
    beside = file.with_name(_ANALYSIS)
    with ExitStack() as opened:
        database = opened.enter_context(closing(Database(file)))
        analysis = _open_analysis(beside, problems)
        if analysis is not None:
            opened.enter_context(closing(analysis))
        profile = read_database(dump, database, analysis, environment)
        marks = read_marks(database) or host_marks(profile.host_ops)
    problems += profile.problems
    problems += _link_problems(profile, file.name)
    if contradicts := _contradiction(profile, marks):
        problems.append(Problem(_ANALYSIS, contradicts, remedies.analyse(dump), damaged=True))
    stated = not contradicts and not profile.steps.empty
    if not stated:
        steps = _derive_steps(profile, problems, dump, exists=beside.exists())
    else:
        steps = _of_device(profile)
    steps = whole_steps(steps, profile.kernels, marks)
    return replace(
        profile,
        steps=steps,
        problems=tuple(problems),
        step_bounds=bounds(marks, stated=stated),
    )


def read_msprof_db(dump: Path, file: Path) -> Profile:
    """Read one database of msprof; raise ``DumpError`` if it has no kernel times."""
    with closing(Database(file)) as database:
        profile = read_database(dump, database, None, Environment())
    problems = list(profile.problems)
    if profile.host_ops.empty:
        problems.append(Problem(file.name, *remedies.NO_LINES))
    return replace(
        profile,
        steps=steps_from_kernels(profile.kernels),
        problems=tuple(problems),
        format="msprof",
    )


def _contradiction(profile: Profile, marks: Marks) -> str:
    """Say how the steps contradict the marks of the host or the kernels, "" if they do not.

    The unit of StepTraceTime is stated nowhere.
    """
    named = {int(step) for step in profile.steps["step"].dropna()}
    if marks and len(profile.steps) and not named:
        return f"{SPLIT} names no step, though the host marks step {min(marks)}"
    if marks and (foreign := sorted(named - marks.keys())):
        return f"{SPLIT} names step {foreign[0]}, which the host does not mark"
    compute = profile.kernels.loc[~profile.kernels["communication"], "duration_ns"]
    stated, summed = int(profile.steps["computing_ns"].sum()), int(compute.sum())
    if profile.steps.empty or (summed <= _MOST_TIMES * stated and stated <= _MOST_TIMES * summed):
        return ""
    return (
        f"{SPLIT} states {stated / 1e3:.3f} µs of computing, and the kernels {summed / 1e3:.3f} µs"
    )


def _derive_steps(
    profile: Profile, problems: list[Problem], dump: Path, *, exists: bool
) -> pd.DataFrame:
    """Return the steps as the kernels show them, and tell why."""
    computed = "the split of the steps is computed from the kernels"
    why = f"does not say how the steps split ({SPLIT})" if exists else "missing"
    broken = [problem for problem in problems if problem.where == _ANALYSIS]
    for problem in broken:
        told = replace(problem, what=f"{problem.what}; {computed}")
        problems[problems.index(problem)] = told
    if not broken:
        problems.append(Problem(_ANALYSIS, f"{why}; {computed}", remedies.analyse(dump)))
    return steps_from_kernels(profile.kernels)


def _of_device(profile: Profile) -> pd.DataFrame:
    """Return the steps with the device of the kernels, which not every version repeats there."""
    devices = [each for each in profile.kernels["device"].unique() if each >= 0]
    unknown = profile.steps["device"] < 0
    if len(devices) != 1 or not unknown.any():
        return profile.steps
    return profile.steps.assign(device=profile.steps["device"].where(~unknown, devices[0]))


def _open_analysis(file: Path, problems: list[Problem]) -> Database | None:
    try:
        return Database(file) if file.exists() else None
    except DumpError as error:
        problems.append(Problem(file.name, error.message, error.remedy, damaged=True))
        return None


def _link_problems(profile: Profile, name: str) -> list[Problem]:
    """Say why kernels were not led to operators, or operators not to lines."""
    if profile.host_ops.empty:
        what = f"holds no host operators ({HOST}), so no kernel is led to a line"
        return [Problem(name, what, remedies.PROFILE_HOST)]
    if not (profile.kernels["host_op"] >= 0).any():
        what = f"holds nothing that leads from an operator to a kernel ({CONNECTIONS})"
        return [Problem(name, what, remedies.PROFILE_HOST)]
    if profile.kernels["basis"].isin(("call-stack", "forward")).any():
        return []
    led = "only to a function" if (profile.kernels["stack"] >= 0).any() else "to no line"
    what = f"holds no call stacks ({STACKS}), so each kernel is led {led}"
    return [Problem(name, what, remedies.PROFILE_WITH_STACKS)]
