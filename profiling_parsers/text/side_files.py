"""The files beside the kernels that a text export may have, to ``Signals``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.profiling_parsers.profile import DumpError, Problem
from npufix.profiling_parsers.signals import Signals
from npufix.profiling_parsers.text.communication_json import (
    read_communication,
    read_communication_matrix,
)
from npufix.profiling_parsers.text.operator_details import read_operator_details
from npufix.profiling_parsers.text.side_tables import (
    read_api_statistic,
    read_l2_cache,
    read_memory_record,
    read_operator_memory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

OPERATOR_DETAILS = "operator_details.csv"

# file -> its reader, and the fields of Signals that this returns before the problems
_READERS: Mapping[str, tuple[Callable[[Path], tuple[Any, ...]], tuple[str, ...]]] = {
    "api_statistic.csv": (read_api_statistic, ("apis",)),
    "memory_record.csv": (read_memory_record, ("memory",)),
    "operator_memory.csv": (read_operator_memory, ("allocations",)),
    "l2_cache.csv": (read_l2_cache, ("l2_cache",)),
    "communication.json": (read_communication, ("collectives", "transports")),
    "communication_matrix.json": (read_communication_matrix, ("links",)),
    OPERATOR_DETAILS: (read_operator_details, ("operator_totals", "operator_stacks")),
}


def read_signals(
    output: Path, *, with_operator_details: bool = False, tables_alone: bool = False
) -> tuple[Signals, list[Problem]]:
    """Read what is there. Of a file that is broken, the whole rows are used and the rest is told.

    operator_details.csv is read only where asked for: it is large, and says nothing that a trace
    with call stacks does not say better. ``tables_alone`` leaves out what is no CSV.
    """
    fields: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, (read, tables) in _READERS.items():
        path = output / name
        if not _exists(path) or (name == OPERATOR_DETAILS and not with_operator_details):
            continue
        if tables_alone and path.suffix != ".csv":
            continue
        try:
            *read_tables, found = read(path)
        except DumpError as error:
            problems.append(Problem(name, error.message, error.remedy, damaged=True))
            continue
        fields |= dict(zip(tables, read_tables, strict=True))
        problems += found
    return Signals(**fields), problems


def _exists(path: Path) -> bool:
    """Return whether there is a file; one that may not be looked at is told when it is read."""
    try:
        return path.exists()
    except OSError:
        return True
