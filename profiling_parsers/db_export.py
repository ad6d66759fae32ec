"""The db export of one dump (``ascend_pytorch_profiler*.db``, ``analysis.db``) to a ``Profile``."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pandas as pd

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.attribution import attribute_launches
from npufix.profiling_parsers.db_host_ops import (
    CONNECTIONS,
    HOST,
    STACKS,
    launching_operators,
    read_host_operators,
)
from npufix.profiling_parsers.db_kernels import (
    COMMUNICATION,
    COMPUTE,
    TASK,
    DatabaseKernels,
    read_kernels,
)
from npufix.profiling_parsers.db_steps import SPLIT, kernel_steps, read_split
from npufix.profiling_parsers.db_tables import Database
from npufix.profiling_parsers.op_statistic import no_op_statistic
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.step_trace_time import no_steps

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.attribution import Attribution
    from npufix.profiling_parsers.db_host_ops import HostOperators
    from npufix.profiling_parsers.profile import Environment

_ANALYSIS = "analysis.db"


def read_db_export(dump: Path, file: Path) -> Profile:
    """Read one dump from its main database; raise ``DumpError`` if it has no kernel times."""
    environment, problems = read_environment(dump)
    with closing(Database(file)) as database:
        texts = database.texts()
        kernels = read_kernels(database, texts, _collective_core(environment))
        if kernels.frame.empty:
            raise _no_kernels(database, dump)
        operators = read_host_operators(database, texts)
        launching = launching_operators(database, operators, kernels.connection)
        found = attribute_launches(operators.frame, operators.stacks, launching)
        steps = kernel_steps(database, kernels.frame, operators.start_of(launching))
        problems += database.problems
        problems += _row_problems(database, kernels, operators, dump)
        problems += _link_problems(database, operators, found)
    return Profile(
        root=dump,
        environment=environment,
        kernels=pd.DataFrame(
            {
                "step": steps,
                **{str(name): column for name, column in kernels.frame.items()},
                "host_op": found.host_op,
                "stack": found.stack,
                "basis": found.basis,
            }
        ),
        host_ops=found.host_ops,
        steps=_read_steps(file.with_name(_ANALYSIS), problems, dump),
        op_statistic=no_op_statistic(),
        stacks=found.stacks,
        problems=tuple(problems),
    )


def _collective_core(environment: Environment) -> str:
    """Return what the text export of that version calls the core of a collective.

    It was HCCL in the versions that did not yet record which version they are.
    """
    return "HCCL" if environment.cann is None else "COMMUNICATION"


def _no_kernels(database: Database, dump: Path) -> DumpError:
    absent = [table for table in (TASK, COMPUTE, COMMUNICATION) if table not in database]
    why = f" (no table {', '.join(absent)})" if absent else ""
    broken = "".join(f"; {problem.what}" for problem in database.problems)
    return DumpError(
        f"{database.path}: no kernels{why}{broken}",
        "profile at least one step with ProfilerActivity.NPU in activities; if it was, "
        + remedies.analyse(dump),
    )


def _row_problems(
    database: Database, kernels: DatabaseKernels, operators: HostOperators, dump: Path
) -> list[Problem]:
    counts = {
        "kernels": (kernels.malformed, len(kernels.frame)),
        "host operators": (operators.malformed, len(operators.frame)),
    }
    remedy = "is the file whole? Copy it again, or " + remedies.analyse(dump)
    return [
        Problem(
            database.path.name,
            f"{malformed} of {malformed + rows} {kind} have no time and are left out",
            remedy,
            damaged=True,
        )
        for kind, (malformed, rows) in counts.items()
        if malformed
    ]


def _link_problems(
    database: Database, operators: HostOperators, found: Attribution
) -> list[Problem]:
    """Say why kernels were not led to operators, or operators not to lines."""
    name, problems = database.path.name, []
    if operators.frame.empty:
        what = f"holds no host operators ({HOST}), so no kernel is led to a line"
        return [Problem(name, what, remedies.PROFILE_HOST)]
    if not operators.stacks:
        what = f"holds no call stacks ({STACKS}), so no kernel is led to a line"
        problems.append(Problem(name, what, remedies.PROFILE_WITH_STACKS))
    if not (found.host_op >= 0).any():
        what = f"holds nothing that leads from an operator to a kernel ({CONNECTIONS})"
        problems.append(Problem(name, what, remedies.PROFILE_HOST))
    return problems


def _read_steps(file: Path, problems: list[Problem], dump: Path) -> pd.DataFrame:
    if not file.exists():
        what = (
            "missing, so the split of a step into compute, communication and idle time is unknown"
        )
        problems.append(Problem(file.name, what, remedies.analyse(dump)))
        return no_steps()
    try:
        steps, broken = read_split(file)
    except DumpError as error:
        problems.append(Problem(file.name, error.message, error.remedy, damaged=True))
        return no_steps()
    problems += broken
    if steps.empty and not broken:
        what = f"does not say how the steps split ({SPLIT})"
        problems.append(Problem(file.name, what, remedies.analyse(dump)))
    return steps
