"""The tables that the databases of torch_npu and of msprof have in common, to a ``Profile``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.attribution.operators import attribute_launches
from npufix.profiling_parsers.attribution.python_calls import long_functions
from npufix.profiling_parsers.database.call_chains import read_call_chains
from npufix.profiling_parsers.database.cann_api import read_cann_api
from npufix.profiling_parsers.database.communication import find_lost_collectives
from npufix.profiling_parsers.database.environment import complete_environment
from npufix.profiling_parsers.database.host_ops import (
    find_launching_operators,
    modules_of,
    read_host_operators,
    read_python_calls,
)
from npufix.profiling_parsers.database.kernels import COMMUNICATION, COMPUTE, TASK, read_kernels
from npufix.profiling_parsers.database.pmu import read_bounds
from npufix.profiling_parsers.database.signals import read_signals
from npufix.profiling_parsers.database.steps import find_kernel_steps, read_split
from npufix.profiling_parsers.kernels.steps import no_steps
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.signals import Signals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from npufix.profiling_parsers.attribution.operators import Attribution
    from npufix.profiling_parsers.database.kernels import DatabaseKernels
    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts
    from npufix.profiling_parsers.profile import Environment


def read_database(
    dump: Path, database: Database, analysis: Database | None, environment: Environment
) -> Profile:
    """Read a profile, its steps from their first kernel on.

    Raise ``DumpError`` if there are no kernel times.

    ``analysis`` is the database beside it that says how steps and collectives split. Steps are
    empty where it does not; what is wrong with the two files is told in ``problems``.
    """
    texts = database.texts()
    # As the text export calls it; HCCL in versions that did not yet record which they are.
    kernels = read_kernels(database, texts, "HCCL" if environment.cann is None else "COMMUNICATION")
    if kernels.frame.empty:
        raise _no_kernels(database, dump)
    find_lost_collectives(database, analysis)
    calls = read_cann_api(database, texts, kernels.connection)
    found, malformed, long = _attribute(database, texts, kernels)
    return Profile(
        root=dump,
        environment=complete_environment(environment, database, kernels.frame["device"].to_numpy()),
        kernels=_columns(database, texts, kernels, found, calls.launch_ns),
        host_ops=found.host_ops,
        steps=no_steps() if analysis is None else read_split(analysis),
        op_statistic=no_op_statistic(),
        stacks=found.stacks,
        modules=found.modules,
        signals=replace(
            read_signals(database, texts, analysis, calls.apis, found.host_ops),
            functions=long,
            long_calls=calls.long_calls,
        ),
        problems=(
            *database.problems,
            *(() if analysis is None else analysis.problems),
            *_row_problems(
                database,
                dump,
                {
                    "kernels": (kernels.malformed, len(kernels.frame)),
                    "host operators": (malformed, len(found.host_ops)),
                },
            ),
        ),
        format="ascend-db",
    )


def _attribute(
    database: Database, texts: Texts, kernels: DatabaseKernels
) -> tuple[Attribution, int, pd.DataFrame]:
    """Lead the kernels to operators; also return how many were left out, and long functions."""
    chains = read_call_chains(database, texts)
    operators = read_host_operators(database, texts, chains)
    launching = find_launching_operators(database, operators, kernels.connection)
    calls = read_python_calls(database, texts)
    around = modules_of(calls) if chains.stacks else calls
    found = attribute_launches(operators.frame, chains.stacks, launching, around)
    long = Signals().functions if calls is None else long_functions(calls)
    return found, operators.malformed, long


def _columns(
    database: Database,
    texts: Texts,
    kernels: DatabaseKernels,
    found: Attribution,
    launch_ns: NDArray[np.int64],
) -> pd.DataFrame:
    """Return ``Profile.kernels``."""
    frame = kernels.frame
    bound, ratio = read_bounds(database, texts, kernels.task, frame["type"].array)
    # The operator is where the launch began, in the step of the program; CANN may lag behind.
    asked_ns = np.where(found.launch_ns >= 0, found.launch_ns, launch_ns)
    return pd.DataFrame(
        {
            "step": find_kernel_steps(database, frame, asked_ns),
            **{str(name): column for name, column in frame.items()},
            "bound": bound,
            "bound_ratio": ratio,
            "launch_ns": np.where(launch_ns >= 0, launch_ns, found.launch_ns),
            **found.columns(),
        },
        copy=False,
    )


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
    database: Database, dump: Path, counts: Mapping[str, tuple[int, int]]
) -> list[Problem]:
    """Say how many rows of each kind were left out; ``counts`` has those and the others."""
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
