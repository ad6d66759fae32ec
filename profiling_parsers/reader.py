"""One dump in, one ``Profile`` out, whatever its format; what is missing becomes a ``Problem``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.discover import (
    KERNEL_DETAILS,
    empty_database,
    find_database,
    is_msprof_folder,
    output_folder,
)
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.special_files import refuse_special_files

if TYPE_CHECKING:
    from pathlib import Path


def read_profile(path: Path) -> Profile:
    """Read one dump, a path that ``find_dumps`` returned.

    A dump of both exports is read from the database alone, or from the text alone where the
    database is broken: they are never mixed. Raise ``DumpError`` if the kernel times cannot be
    read: nothing can be said without them.
    """
    # A reader is loaded when its format is met: each brings libraries of its own.
    if path.is_file():
        return _read_file(path)
    output = output_folder(path)
    refuse_special_files(path, output)
    if is_msprof_folder(path):
        from npufix.profiling_parsers.msprof.reader import read_msprof

        return read_msprof(path)
    return _read_ascend(path, output)


def _read_file(path: Path) -> Profile:
    from npufix.profiling_parsers.kineto.reader import is_kineto, read_kineto

    if path.suffix == ".db":
        from npufix.profiling_parsers.database.msprof import read_msprof_db

        return read_msprof_db(path.parent, path)
    if is_kineto(path):
        return read_kineto(path)
    from npufix.profiling_parsers.trace.alone import read_trace_alone

    return read_trace_alone(path)


def _read_ascend(path: Path, output: Path) -> Profile:
    faults: tuple[Problem, ...] = ()
    database = find_database(output)
    if database is not None:
        from npufix.profiling_parsers.database.export import read_db_export

        try:
            return read_db_export(path, database)
        except DumpError as error:
            if not (output / KERNEL_DETAILS).exists():
                raise
            what = f"{error.message}; the text export beside it is read instead"
            faults = (Problem(database.name, what, error.remedy, damaged=True),)
    elif (nothing := empty_database(output)) is not None:
        what = "holds nothing; the text export beside it is read instead"
        faults = (Problem(nothing.name, what, remedies.analyse(path), damaged=True),)
    from npufix.profiling_parsers.text.export import read_text_export

    profile = read_text_export(path, output)
    return replace(profile, problems=(*faults, *profile.problems))
