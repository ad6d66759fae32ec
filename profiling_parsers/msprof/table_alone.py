"""A table of kernels that somebody copied out of its dump, and perhaps renamed, to a ``Profile``.

``a003-op_summary.csv`` or ``kernels of step 5.csv``: told by its columns, since the name says
nothing any more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.profiling_parsers.attribution.launches import link_kernels
from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.profile import DumpError, Environment, Problem, Profile
from npufix.profiling_parsers.tables.csv_lines import read_header
from npufix.profiling_parsers.text.kernel_details import read_kernel_details
from npufix.profiling_parsers.text.kernel_header import COLUMNS, REQUIRED
from npufix.profiling_parsers.trace.view import no_trace

if TYPE_CHECKING:
    from pathlib import Path

_ALONE = "a table of kernels by itself: no lines, no links between ranks, no host"
_WHOLE_DUMP = "give the folder *_ascend_pt or PROF_* that it was copied from"


def is_kernel_table(file: Path) -> bool:
    """Tell a table of kernels by its first line."""
    if file.suffix.lower() != ".csv":
        return False
    header = set(read_header(file))
    return all(header & set(COLUMNS[key]) for key in REQUIRED)


def read_table_alone(path: Path) -> Profile:
    """Read a table of kernels that has no dump around it.

    Raises:
        DumpError: there is no kernel in it, or it cannot be read.

    """
    try:
        kernels = read_kernel_details(path)
    except DumpError as error:
        raise DumpError(error.message, _WHOLE_DUMP) from error
    linked = link_kernels(kernels.frame, no_trace)
    alone = Problem(path.name, _ALONE, _WHOLE_DUMP)
    return Profile(
        root=path,
        environment=Environment(),
        kernels=linked.kernels,
        host_ops=linked.attribution.host_ops,
        steps=steps_from_kernels(kernels.frame),
        op_statistic=no_op_statistic(),
        stacks=(),
        problems=(*(replace(fault, remedy=_WHOLE_DUMP) for fault in kernels.problems), alone),
        format="msprof",
    )
