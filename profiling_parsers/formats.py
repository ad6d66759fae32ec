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
    MINDSPORE,
    OUTPUT,
    TRACES,
    find_analysed_folder,
    find_database,
    find_empty_database,
    is_mindspore,
)
from npufix.profiling_parsers.kineto.file import is_kineto
from npufix.profiling_parsers.msprof.files import OUTPUT as MSPROF_OUTPUT
from npufix.profiling_parsers.msprof.files import is_exported
from npufix.profiling_parsers.profile import DumpError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npufix.profiling_parsers.profile import Profile

_MINDSPORE = (
    "recorded by MindSpore: times and waits are read as they are; advice is in PyTorch's words",
    "look for the operator of the same name in mindspore.ops or mindspore.mint",
)
_PROFILED = ("_ascend_pt", MINDSPORE)
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


@dataclass(frozen=True)
class _Foreign:
    """What somebody may take for a dump: another tool wrote it, and it has no kernel times."""

    names: tuple[str, ...]
    """Patterns of its files."""
    what: str
    remedy: str

    def is_at(self, path: Path) -> bool:
        """Tell whether a file is one of these, or a folder holds some, two levels deep at most."""
        if path.is_file():
            return any(path.match(name) for name in self.names)
        places = ("", "*/", "*/*/")
        return any(any(path.glob(f"{place}{name}")) for name in self.names for place in places)


_FOREIGN = (
    _Foreign(
        ("chrome_tracing.json", "ms_service_*.db", "ascend_service_profiler_*.db", "profiler.db",
         "kvcache.csv", "request.csv", "request_summary.csv", "batch.csv", "batch_summary.csv",
         "service_summary.csv", "forward.csv", "spec_decode.csv", "pd_split_*.csv",
         "coordinator.csv"),
        "requests and batches of a service (msServiceProfiler of MindIE or vLLM), without kernels",
        'set "acl_task_time": 3 in ms_service_profiler_config.json, or profile the worker with '
        "torch_npu.profiler, and give the folder *_ascend_pt or PROF_* of it",
    ),
    _Foreign(
        ("aicore_intermediate_*.csv", "ascend_timeline_display_*.json", "framework_raw_*.csv"),
        "sums of MindSpore before 2.4, without the time of each kernel",
        "profile with mindspore.profiler.profile of MindSpore 2.4 or later and give the folder "
        "*_ascend_ms, or run `msprof --export=on --output=PROF_*` on the raw data of it",
    ),
    _Foreign(
        ("op_statistic*.csv", "api_statistic*.csv", "step_trace_time*.csv", "communication*.json",
         "dataset.csv", "minddata_pipeline_*.csv"),
        "sums and side tables of a dump, without the time of each kernel",
        "give the folder *_ascend_pt, *_ascend_ms or PROF_* that they were copied from",
    ),
    _Foreign(
        ("OpBasicInfo.csv", "*.nsys-rep", "*.qdrep", "*.xplane.pb"),
        "a recording of another profiler (msprof op, Nsight Systems or XLA), which is not read",
        PROFILE,
    ),
)  # fmt: skip


def explain_foreign(path: Path) -> DumpError | None:
    """Return what a file or folder is that another tool wrote, ``None`` if that is not known."""
    found = next((each for each in _FOREIGN if each.is_at(path)), None)
    return DumpError(f"{path}: {found.what}", found.remedy) if found else None


def explain_unreadable(dump: Path) -> DumpError:
    """Return why a dump of no other kind cannot be read, and what to do about it."""
    output = find_analysed_folder(dump)
    if any(output.glob(DATABASES)):
        what = "only the db export is there, and it is empty"
        return DumpError(f"{output}: {what}", remedies.export_text(dump))
    analyse = remedies.analyse(dump)
    if not dump.name.endswith(_PROFILED) and not (dump / "FRAMEWORK").is_dir():
        analyse = next((remedies.export(part) for part in dump.glob("PROF_*/")), analyse)
    analyse = _for_mindspore(analyse) if is_mindspore(dump) else analyse
    if _is_raw(dump) and output == dump:
        return DumpError(f"{dump}: raw data, not analysed yet", analyse)
    return DumpError(
        f"{output}: no {KERNEL_DETAILS} and no {DATABASES}, so no kernel times",
        "profile with ProfilerActivity.NPU in activities; if it was, " + analyse,
    )


def _has_kernels(output: Path) -> bool:
    return (output / KERNEL_DETAILS).exists() or find_database(output) is not None


def _find_ascend(folder: Path) -> list[Path]:
    """Find a db or a text export; of the text export, the trace alone will do."""
    output = find_analysed_folder(folder)
    readable = _has_kernels(output) or any((output / name).exists() for name in TRACES)
    return [folder] if readable else []


def _read_ascend(dump: Path) -> Profile:
    """Read a dump of PyTorch's profiler or, with its own words about what is missing, MindSpore's.

    What MindSpore does with ``import mindspore`` is done there with ``import torch_npu``.
    """
    if not is_mindspore(dump):
        return _read_export(dump)
    try:
        profile = _read_export(dump)
    except DumpError as error:
        raise DumpError(error.message, _for_mindspore(error.remedy)) from error
    own = [replace(each, remedy=_for_mindspore(each.remedy)) for each in profile.problems]
    return replace(profile, problems=(Problem(dump.name, *_MINDSPORE), *own))


def _for_mindspore(remedy: str) -> str:
    return remedy.replace("torch_npu", "mindspore")


def _read_export(dump: Path) -> Profile:
    """Read the database alone, or the text alone where the database is broken: never mixed."""
    output = find_analysed_folder(dump)
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
        or any(
            folder.name.endswith(ending) and not any(folder.glob(f"*{ending}/"))
            for ending in _PROFILED
        )
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
    is_trace = file.name.endswith((".json", ".json.gz")) and explain_foreign(file) is None
    return is_trace and not _has_kernels(find_analysed_folder(folder))


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
        names=("*.json", "*.json.gz"),  # as a script called them: rank0.json
    ),
    DumpFormat("trace", _read_trace_alone, is_file=_is_trace_alone),
    DumpFormat(
        "kernel-table", _read_table_alone, is_file=_is_table_alone, names=("*.csv", "*.CSV")
    ),
)
