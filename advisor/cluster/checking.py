"""Whose rows are looked through for damage: those of all ranks where they are few, else of some.

The ends of files, which are looked at in every rank, do not show rows that are there twice, of
steps that there are not, or with times that cannot be.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from npufix.profiling_parsers.dump_folder import KERNEL_DETAILS, find_analysed_folder
from npufix.profiling_parsers.text.side_files import OPERATOR_DETAILS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from npufix.profiling_parsers.cluster.summary import Summary

_TEXT = "ascend-text"
_MOST_BYTES = 64 << 20
"""About a second and a half of a processor."""
_LEAST = 8
"""Ranks, however large they are: a few of them are read as a whole, which takes far longer."""


def find_unchecked(paths: Sequence[Path], summaries: Sequence[Summary], chosen: int) -> list[int]:
    """Return the places of ranks whose rows nobody has read: not of what is known to be broken."""
    return [
        place
        for place, summary in enumerate(summaries)
        if place != chosen
        and summary.format == _TEXT
        and not summary.problem
        and KERNEL_DETAILS in summary.files
        and paths[place].is_dir()
    ]


def choose_checked(paths: Sequence[Path], places: Sequence[int]) -> list[int]:
    """Return those of ``places`` that are looked through: all, or some at equal distances."""
    if len(places) <= _LEAST:
        return [*places]
    mean = max(sum(size_of_tables(paths[place]) for place in places) // len(places), 1)
    count = max(_LEAST, _MOST_BYTES // mean)
    if count >= len(places):
        return [*places]
    return [places[number * len(places) // count] for number in range(count)]


def size_of_tables(dump: Path) -> int:
    """Return the bytes of the tables whose rows are looked through."""
    try:
        with os.scandir(find_analysed_folder(dump)) as entries:
            return sum(
                entry.stat().st_size
                for entry in entries
                if entry.name.endswith(".csv") and entry.name != OPERATOR_DETAILS
            )
    except OSError:
        return 0


def tell_damage(summaries: list[Summary], damage: Mapping[int, str]) -> None:
    """Note what is broken in ranks, by place, of which nothing was known to be."""
    for place, what in damage.items():
        if what and not summaries[place].problem:
            summaries[place] = msgspec.structs.replace(summaries[place], problem=what)


def remark_unchecked(checked: int, places: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """Say that not all rows were looked through, if so; as ``ClusterJob.remarks``."""
    if checked >= len(places):
        return ()
    what = (
        f"the rows of {checked} of {len(places)} ranks were looked through for damage, of the "
        "others the ends of the files"
    )
    return ((what, "--all reads all ranks as a whole"),)
