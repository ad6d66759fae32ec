"""One rank of many: its small files, and the whole dump only where these say nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.cluster.cheap_files import CheapFiles, read_cheap_files, tables_there
from npufix.profiling_parsers.cluster.communicating import (
    collectives_table,
    links_table,
    transports_table,
)
from npufix.profiling_parsers.cluster.job import find_end_of_recording, host_of, read_groups
from npufix.profiling_parsers.cluster.summary import NO_STEP, Summary, code_category, table_of
from npufix.profiling_parsers.discover import recognise
from npufix.profiling_parsers.dump_folder import find_analysed_folder
from npufix.profiling_parsers.formats import MSPROF, UNREADABLE, explain_unreadable
from npufix.profiling_parsers.kernels.totals import sum_by_type
from npufix.profiling_parsers.profile import DumpError, Problem
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.special_files import refuse_special_files
from npufix.profiling_parsers.text.export import find_damaged_rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.cluster.summary import Table
    from npufix.profiling_parsers.discover import DumpLocation
    from npufix.profiling_parsers.profile import Environment, Profile

_LONGEST_PROBLEM = 400


def summarise(dump: Path) -> Summary:
    """Read one rank, a path of ``find_dumps``.

    What cannot be read is told in ``Summary.problem``; a fault of this program is raised.
    """
    environment = None
    try:
        if dump.is_dir():
            refuse_special_files(dump)  # of those below, one at a time is left out
        found = recognise(dump)
        if dump.is_dir():
            environment, problems = read_environment(dump)
            if found.kind != MSPROF:
                files = read_cheap_files(dump, environment)
                if not files.steps.empty:
                    fault = _fault(found)
                    problem = fault or damage((*problems, *files.problems))
                    return _of_files(dump, files, problem, readable=not fault)
        profile = read_profile(found)
    except DumpError as error:
        return _tell_unreadable(dump, environment, error.message)
    except UnicodeDecodeError as error:  # a name of a file, or a text, in no known encoding
        return _tell_unreadable(dump, environment, f"{dump}: {error}")
    return of_profile(dump, profile)


def of_profile(dump: Path, profile: Profile) -> Summary:
    """Return what a dump that was read as a whole says."""
    signals = profile.signals
    tables = {
        "steps": steps_table(profile.steps),
        "operators": operators_table(
            profile.op_statistic if len(profile.op_statistic) else sum_by_type(profile.kernels)
        ),
        "collectives": collectives_table(signals.collectives),
        "transports": transports_table(signals.transports),
        "links": links_table(signals.links),
    }
    if dump.is_dir():
        tables["groups"] = read_groups(dump)
    devices = {int(number) for number in profile.kernels["device"].unique()} - {-1}
    return _summary(
        dump,
        profile.environment,
        tables,
        problem=damage(profile.problems),
        device=devices.pop() if len(devices) == 1 else -1,
        form=profile.format,
    )


def find_damage(dump: Path) -> str:
    """Return the first thing that is broken in the rows of a rank's tables, "" if nothing is."""
    found = damage(find_damaged_rows(dump, find_analysed_folder(dump)))
    return found[:_LONGEST_PROBLEM]


def damage(problems: Iterable[Problem]) -> str:
    """Return the first thing that is broken, as opposed to never collected."""
    first = next((problem for problem in problems if problem.damaged), None)
    if first is None:
        return ""
    names_it = first.what.partition(": ")[0].endswith(first.where)
    return first.what if names_it else f"{first.where}: {first.what}"


def steps_table(steps: pd.DataFrame) -> Table:
    """Pack ``Profile.steps``."""
    columns = {str(name): steps[name].to_numpy() for name in steps.columns if name != "step"}
    columns["step"] = steps["step"].to_numpy(np.int64, na_value=NO_STEP)
    return table_of("steps", columns)


def operators_table(totals: pd.DataFrame) -> Table:
    """Pack ``Profile.op_statistic``."""
    return table_of(
        "operators",
        {
            "type": code_category(totals["type"]),
            "core": code_category(totals["core"]),
            "count": totals["count"].to_numpy(),
            "total_ns": totals["total_ns"].to_numpy(),
        },
    )


def _of_files(dump: Path, files: CheapFiles, problem: str, *, readable: bool) -> Summary:
    devices = {int(number) for number in files.steps["device"].unique()} - {-1}
    tables = {
        "steps": steps_table(files.steps),
        "operators": operators_table(files.operators),
        "collectives": collectives_table(files.collectives),
        "transports": transports_table(files.transports),
        "links": links_table(files.links),
        "groups": files.groups,
    }
    return _summary(
        dump,
        files.environment,
        tables,
        problem=problem,
        device=devices.pop() if len(devices) == 1 else -1,
        form=files.format,
        readable=readable,
        host=files.host,
    )


def _tell_unreadable(dump: Path, environment: Environment | None, problem: str) -> Summary:
    """Return a rank of which nothing can be read."""
    if environment is None:
        return Summary(problem=problem[:_LONGEST_PROBLEM], readable=False)
    return _summary(dump, environment, {}, problem=problem, readable=False)


def _summary(  # noqa: PLR0913 - one parameter a part
    dump: Path,
    environment: Environment,
    tables: dict[str, Table],
    *,
    problem: str,
    device: int = -1,
    form: str = "",
    readable: bool = True,
    host: str = "",
) -> Summary:
    recorded_ns, local_time = find_end_of_recording(dump, environment.rank)
    return Summary(
        rank=environment.rank,
        world_size=environment.world_size,
        host=host or host_of(dump),
        device=device,
        recorded_ns=recorded_ns,
        torch_npu=environment.torch_npu or "",
        cann=environment.cann or "",
        format=form,
        problem=problem[:_LONGEST_PROBLEM],
        readable=readable,
        tables=tables,
        local_time=local_time,
        files=tables_there(dump) if dump.is_dir() else [],
    )


def _fault(dump: DumpLocation) -> str:
    if dump.kind != UNREADABLE:
        return ""
    return f"{explain_unreadable(dump.path).message}: it cannot be diagnosed"
