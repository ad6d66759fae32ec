"""``msprof_*.db``, the database that ``msprof`` exports below ``PROF_*``, to a ``Profile``.

It has the tables of the db export but for those of PyTorch, so nothing in it leads to a line.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.profiling_parsers.database.profile import read_database
from npufix.profiling_parsers.database.tables import Database
from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.profile import Environment, Problem, Profile

if TYPE_CHECKING:
    from pathlib import Path

_NO_LINES = (
    "msprof records no operators of PyTorch, so no kernel is led to a line",
    "profile with `torch_npu.profiler.profile(..., with_stack=True, record_shapes=True)` instead",
)


def read_msprof_db(dump: Path, file: Path) -> Profile:
    """Read one database of msprof; raise ``DumpError`` if it has no kernel times."""
    with closing(Database(file)) as database:
        profile = read_database(dump, database, None, Environment())
    problems = list(profile.problems)
    if profile.host_ops.empty:
        problems.append(Problem(file.name, *_NO_LINES))
    return replace(
        profile,
        steps=steps_from_kernels(profile.kernels),
        problems=tuple(problems),
        format="msprof",
    )
