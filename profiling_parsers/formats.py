"""The kinds of dump that can be read: what tells each from the others, and what reads it.

This is the one place that knows them all: a format is added as a package and one ``DumpFormat``.
Each of them answers for itself; where two could claim a folder, the first in ``FORMATS`` has it.
A reader is loaded when a dump of its kind is met, because each brings libraries of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.dump_folder import (
    DATABASES,
    KERNEL_DETAILS,
    OUTPUT,
    TRACES,
    analysed_folder,
    find_database,
    find_empty_database,
)
from npufix.profiling_parsers.kineto.file import is_kineto
from npufix.profiling_parsers.msprof.files import OUTPUT as MSPROF_OUTPUT
from npufix.profiling_parsers.msprof.files import is_exported
from npufix.profiling_parsers.profile import DumpError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npufix.profiling_parsers.profile import Profile

OUTPUT_FOLDERS = frozenset({OUTPUT, MSPROF_OUTPUT})
"""Folders inside a dump: who names one means the dump."""
PART_SUFFIXES = frozenset({".csv", ".db", ".json", ".gz"})
"""Files inside a dump: the same."""
MSPROF, UNREADABLE = "msprof", "unreadable"
PROFILE = (
    "profile with torch_npu.profiler.profile(..., on_trace_ready="
    "torch_npu.profiler.tensorboard_trace_handler(PATH)) and give the folder *_ascend_pt"
)


@dataclass(frozen=True)
class DumpFormat:
    """One kind of dump."""

    kind: str
    read: Callable[[Path], Profile]
    """Reads one dump; raises ``DumpError`` if there are no kernel times in it."""
    find: Callable[[Path], list[Path]] = lambda _folder: []
    """Returns the dumps of this kind that a folder is, or holds directly."""
    is_file: Callable[[Path], bool] = lambda _file: False
    """Tells whether a file is a dump of this kind by itself."""
    names: tuple[str, ...] = ()
    """Patterns of files that are looked at with ``is_file`` in each folder that is no dump."""


def explain_unreadable(dump: Path) -> DumpError:
    """Return why a dump of no other kind cannot be read, and what to do about it."""
    output = analysed_folder(dump)
    if any(output.glob(DATABASES)):
        what = "only the db export is there, and it is empty"
        return DumpError(f"{output}: {what}", remedies.export_text(dump))
    if _is_raw(dump) and output == dump:
        return DumpError(f"{dump}: raw data, not analysed yet", remedies.analyse(dump))
    return DumpError(
        f"{output}: no {KERNEL_DETAILS} and no {DATABASES}, so no kernel times",
        "profile with ProfilerActivity.NPU in activities; if it was, " + remedies.analyse(dump),
    )


def _has_kernels(output: Path) -> bool:
    return (output / KERNEL_DETAILS).exists() or find_database(output) is not None


def _find_ascend(folder: Path) -> list[Path]:
    """Find a db or a text export; of the text export, the trace alone will do."""
    output = analysed_folder(folder)
    readable = _has_kernels(output) or any((output / name).exists() for name in TRACES)
    return [folder] if readable else []


def _read_ascend(dump: Path) -> Profile:
    """Read the database alone, or the text alone where the database is broken: never mixed."""
    output = analysed_folder(dump)
    faults: tuple[Problem, ...] = ()
    database = find_database(output)
    if database is not None:
        from npufix.profiling_parsers.database.export import read_db_export

        try:
            return read_db_export(dump, database)
        except DumpError as error:
            if not (output / KERNEL_DETAILS).exists():
                raise
            what = f"{error.message}; the text export beside it is read instead"
            faults = (Problem(database.name, what, error.remedy, damaged=True),)
    elif (nothing := find_empty_database(output)) is not None:
        what = "holds nothing; the text export beside it is read instead"
        faults = (Problem(nothing.name, what, remedies.analyse(dump), damaged=True),)
    from npufix.profiling_parsers.text.export import read_text_export

    profile = read_text_export(dump, output)
    return replace(profile, problems=(*faults, *profile.problems))


def _find_msprof(folder: Path) -> list[Path]:
    exported = [part for part in sorted(folder.glob("PROF_*/")) if is_exported(part)]
    return exported or [folder] * is_exported(folder)


def _read_msprof(path: Path) -> Profile:
    from npufix.profiling_parsers.msprof.reader import read_msprof

    return read_msprof(path)


def _read_msprof_db(path: Path) -> Profile:
    from npufix.profiling_parsers.database.export import read_msprof_db

    return read_msprof_db(path.parent, path)


def _is_raw(folder: Path) -> bool:
    return (folder / "FRAMEWORK").is_dir() or any(folder.glob("PROF_*/"))


def _find_unreadable(folder: Path) -> list[Path]:
    """Find a dump that was not analysed or has lost its files: it is told, not passed over."""
    is_dump = (
        _is_raw(folder)
        or (folder / OUTPUT).is_dir()
        or any(folder.glob(DATABASES))
        or (folder.name.endswith("_ascend_pt") and not any(folder.glob("*_ascend_pt/")))
    )
    return [folder] if is_dump else []


def _refuse(dump: Path) -> Profile:
    raise explain_unreadable(dump)


def _read_kineto(path: Path) -> Profile:
    from npufix.profiling_parsers.kineto.reader import read_kineto

    return read_kineto(path)


def _is_trace_alone(file: Path) -> bool:
    """Tell a trace that was copied out of its dump, so that nothing beside it has kernels."""
    folder = file.parent.parent if file.resolve().parent.name == OUTPUT else file.parent
    return file.name.endswith((".json", ".json.gz")) and not _has_kernels(analysed_folder(folder))


def _read_trace_alone(path: Path) -> Profile:
    from npufix.profiling_parsers.text.trace_alone import read_trace_alone

    return read_trace_alone(path)


def _is_table_alone(file: Path) -> bool:
    """Tell a table of kernels that was copied out of its dump."""
    from npufix.profiling_parsers.msprof.table_alone import is_kernel_table

    folder = file.parent.parent if file.resolve().parent.name in OUTPUT_FOLDERS else file.parent
    inside = any(each.find(folder) for each in FORMATS)
    return not inside and is_kernel_table(file)


def _read_table_alone(path: Path) -> Profile:
    from npufix.profiling_parsers.msprof.table_alone import read_table_alone

    return read_table_alone(path)


FORMATS = (
    DumpFormat("ascend", _read_ascend, find=_find_ascend),
    DumpFormat(MSPROF, _read_msprof, find=_find_msprof),
    DumpFormat("msprof-db", _read_msprof_db, is_file=lambda file: file.match("msprof_*.db")),
    DumpFormat(UNREADABLE, _refuse, find=_find_unreadable),
    DumpFormat(
        "kineto",
        _read_kineto,
        is_file=is_kineto,
        names=("*.pt.trace.json", "*.json.gz", "*trace*.json"),
    ),
    DumpFormat("trace", _read_trace_alone, is_file=_is_trace_alone),
    DumpFormat("kernel-table", _read_table_alone, is_file=_is_table_alone, names=("*.csv",)),
)
