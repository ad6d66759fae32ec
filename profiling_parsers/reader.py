"""One dump folder in, one ``Profile`` out; what is missing becomes a ``Problem``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.profiling_parsers.db_export import read_db_export
from npufix.profiling_parsers.discover import KERNEL_DETAILS, find_database, output_folder
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.text_export import read_text_export

if TYPE_CHECKING:
    from pathlib import Path


def read_profile(path: Path) -> Profile:
    """Read one dump, a path that ``find_dumps`` returned.

    A dump of both exports is read from the database alone, or from the text alone where the
    database is broken: they are never mixed. Raise ``DumpError`` if the kernel times cannot be
    read: nothing can be said without them.
    """
    output = output_folder(path)
    database = find_database(output)
    if database is None:
        return read_text_export(path, output)
    try:
        return read_db_export(path, database)
    except DumpError as error:
        if not (output / KERNEL_DETAILS).exists():
            raise
        what = f"{error.message}; the text export beside it is read instead"
        problem = Problem(database.name, what, error.remedy, damaged=True)
    profile = read_text_export(path, output)
    return replace(profile, problems=(problem, *profile.problems))
