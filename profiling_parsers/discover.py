"""Dumps below a path that a user typed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.profile import DumpError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUTPUT = "ASCEND_PROFILER_OUTPUT"
KERNEL_DETAILS = "kernel_details.csv"
_MSPROF_OUTPUT = "mindstudio_profiler_output"
_DATABASES = "ascend_pytorch_profiler*.db"
_TRACES = ("trace_view.json", "trace_view.json.gz")
_MSPROF = ("op_summary*.csv", "task_time*.csv", "msprof_*.db")
_KINETO = ("*.pt.trace.json", "*.json.gz", "*trace*.json")
_DEEPEST = 8
_PROFILE = (
    "profile with torch_npu.profiler.profile(..., on_trace_ready="
    "torch_npu.profiler.tensorboard_trace_handler(PATH)) and give the folder *_ascend_pt"
)


def find_dumps(path: Path) -> list[Path]:
    """Return the dumps at or below ``path``, by rank: each is a path for ``read_profile``.

    A dump is a folder, but for traces of torch.profiler, of which each is a file.

    Raise ``DumpError`` if there is none that can be read. Where some can, those that cannot are
    in the list too: ``read_profile`` says why, so that no rank goes missing unnoticed.
    """
    try:
        return _find(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def output_folder(dump: Path) -> Path:
    """Return the folder of a dump that holds the analysed files; raise ``DumpError`` if none."""
    try:
        fault, output = _fault(dump), _output(dump)
    except OSError as error:
        raise _unreadable(dump, error) from error
    if fault is not None:
        raise fault
    return output


def analysed_folder(dump: Path) -> Path:
    """Return where the analysed files of a dump are, if any; whether there are is not checked."""
    return _output(dump)


def find_database(output: Path) -> Path | None:
    """Return the main file of a db export; one of no bytes was never written, and is none."""
    files = (file for file in sorted(output.glob(_DATABASES)) if file.is_file())
    return next((file for file in files if file.stat().st_size), None)


def empty_database(output: Path) -> Path | None:
    """Return what should be the main file of a db export, but holds nothing."""
    found = sorted(output.glob(_DATABASES))
    return found[0] if found and find_database(output) is None else None


def is_msprof_folder(folder: Path) -> bool:
    """Tell whether a folder holds what ``msprof`` exported, as opposed to the PyTorch profiler."""
    return not _is_ascend(folder) and _msprof_files(folder)


def _find(path: Path) -> list[Path]:
    if not path.exists():
        raise DumpError(f"{path}: no such file or folder", "check the path; " + _PROFILE)
    if path.is_file():
        return [_dump_of_file(path)]
    start = path.parent if path.resolve().name in {OUTPUT, _MSPROF_OUTPUT} else path
    dumps = sorted(_walk(start, depth=0, seen=set()), key=_by_rank)
    if not dumps:
        raise DumpError(f"{path}: no profiling dump in this folder", _PROFILE)
    faults = [None if dump.is_file() else _fault(dump) for dump in dumps]
    if all(faults) and faults[0] is not None:
        raise faults[0]
    return dumps


def _dump_of_file(path: Path) -> Path:
    """Return the dump that a file is: itself, or the folder whose part it is."""
    folder = path.parent.parent if path.resolve().parent.name == OUTPUT else path.parent
    if path.name.endswith((".json", ".json.gz")):
        if _has_kernels(_output(folder)) and not _is_kineto(path):
            return folder
        return path
    if path.match("msprof_*.db"):
        return path
    if path.suffix in {".csv", ".db"} and _is_dump(folder):
        return folder
    raise DumpError(
        f"{path}: no file of a profiling dump",
        "give a folder *_ascend_pt, a folder PROF_*, or a trace *.pt.trace.json",
    )


def _unreadable(path: Path, error: OSError) -> DumpError:
    return DumpError(f"{error.filename or path}: {error.strerror}", "make the folder readable")


def _output(dump: Path) -> Path:
    # Files copied out of ASCEND_PROFILER_OUTPUT lie in the folder itself.
    return dump / OUTPUT if (dump / OUTPUT).is_dir() else dump


def _has_kernels(output: Path) -> bool:
    return (output / KERNEL_DETAILS).exists() or find_database(output) is not None


def _fault(dump: Path) -> DumpError | None:
    output = _output(dump)
    if _has_kernels(output) or is_msprof_folder(dump):
        return None
    if any((output / name).exists() for name in _TRACES):
        return None
    if any(output.glob(_DATABASES)):
        what = "only the db export is there, and it is empty"
        return DumpError(f"{output}: {what}", remedies.export_text(dump))
    if _is_raw(dump) and output == dump:
        return DumpError(f"{dump}: raw data, not analysed yet", remedies.analyse(dump))
    return DumpError(
        f"{output}: no {KERNEL_DETAILS} and no {_DATABASES}, so no kernel times",
        "profile with ProfilerActivity.NPU in activities; if it was, " + remedies.analyse(dump),
    )


def _walk(folder: Path, depth: int, seen: set[Path]) -> Iterator[Path]:
    real = folder.resolve()
    if real in seen:  # links may lead in circles
        return
    seen.add(real)
    if _is_ascend(folder) and _fault(folder) is None:
        yield folder
        return
    if exported := [part for part in sorted(folder.glob("PROF_*/")) if _msprof_files(part)]:
        yield from exported
        return
    if _is_dump(folder):
        yield folder
        return
    yield from _kineto_files(folder)
    if depth < _DEEPEST:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.name.startswith("."):
                yield from _walk(child, depth + 1, seen)


def _is_dump(folder: Path) -> bool:
    return (
        _is_ascend(folder)
        or _msprof_files(folder)
        or _is_raw(folder)
        or folder.name.endswith("_ascend_pt")
    )


def _is_ascend(folder: Path) -> bool:
    return (
        (folder / OUTPUT).is_dir()
        or any((folder / name).exists() for name in (KERNEL_DETAILS, *_TRACES))
        or any(folder.glob(_DATABASES))
    )


def _msprof_files(folder: Path) -> bool:
    places = (folder, folder / _MSPROF_OUTPUT)
    return any(any(place.glob(pattern)) for place in places for pattern in _MSPROF)


def _is_raw(folder: Path) -> bool:
    return (folder / "FRAMEWORK").is_dir() or any(folder.glob("PROF_*/"))


def _kineto_files(folder: Path) -> list[Path]:
    found = {file for pattern in _KINETO for file in folder.glob(pattern) if file.is_file()}
    return sorted(file for file in found if _is_kineto(file))


def _is_kineto(file: Path) -> bool:
    from npufix.profiling_parsers.kineto.reader import is_kineto

    return is_kineto(file)


def _by_rank(dump: Path) -> tuple[float, list[tuple[int, str]]]:
    """Sort by the rank that the profiler put into a file name, else by the numbers in the path."""
    ranks = [
        int(found[1])
        for file in dump.glob("profiler_info_*.json")
        if (found := re.fullmatch(r"profiler_info_(\d+)\.json", file.name))
    ]
    parts = re.findall(r"(\d+)|(\D+)", str(dump))
    return min(ranks, default=float("inf")), [(int(n) if n else -1, text) for n, text in parts]
