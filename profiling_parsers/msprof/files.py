"""The files that msprof exported of one run, without those of an earlier export of the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.profiling_parsers.profile import Problem

if TYPE_CHECKING:
    from pathlib import Path

OUTPUT = "mindstudio_profiler_output"

_KERNELS = (("op_summary", ".csv"), ("task_time", ".csv"), ("msprof", ".db"))
_TIMESTAMP = re.compile(r"_(\d{14,20})(?=\.|_|$)")
_SLICE = re.compile(r"_slice_(\d+)")
_DEVICE_FOLDER = re.compile(r"device_(\d{1,9})")


def is_exported(folder: Path) -> bool:
    """Tell whether a folder, or that of the exported files in it, holds kernels of msprof."""
    places = (folder, folder / OUTPUT)
    return any(find_exported(place, *kind) for place in places for kind in _KERNELS)


def find_output(path: Path) -> Path:
    """Return the folder with the exported files."""
    return path / OUTPUT if (path / OUTPUT).is_dir() else path


def find_exported(output: Path, stem: str, suffix: str) -> list[Path]:
    """Return ``<stem>_*<suffix>`` of the latest export, all its slices in order.

    Each export has its time in the names of its files, and says the same once more.
    """
    name = re.compile(re.escape(stem) + r"(_slice)?(_\d+)+" + re.escape(suffix))
    latest: dict[str, Path] = {}
    for file in sorted(output.glob(f"{stem}_*{suffix}"), key=_read_export_time):
        if name.fullmatch(file.name):
            latest[_TIMESTAMP.sub("", file.name)] = file
    sliced = [file for file in latest.values() if _SLICE.search(file.name)]
    whole = [file for file in latest.values() if not _SLICE.search(file.name)]
    newest = max(latest.values(), key=_read_export_time, default=None)
    return sorted(sliced, key=_slice_number) if newest in sliced else sorted(whole)


def find_missing_slices(files: list[Path], remedy: str) -> list[Problem]:
    """Return a problem if a slice is missing between the others."""
    numbers = [_slice_number(file) for file in files if _SLICE.search(file.name)]
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
    if not missing:
        return []
    what = f"slice {', '.join(map(str, missing))} is missing beside it, and the kernels in it"
    return [Problem(files[0].name, what, remedy, damaged=True)]


def find_device(path: Path) -> int:
    """Return the device whose raw data lies beside the export, -1 if there is not exactly one."""
    root = path.parent if path.name == OUTPUT else path
    found = [_DEVICE_FOLDER.fullmatch(folder.name) for folder in root.glob("device_*/")]
    numbers = [int(match[1]) for match in found if match]
    return numbers[0] if len(numbers) == 1 else -1


def _read_export_time(file: Path) -> str:
    found = _TIMESTAMP.search(file.name)
    return found[1].ljust(20, "0") if found else ""


def _slice_number(file: Path) -> int:
    found = _SLICE.search(file.name)
    return int(found[1]) if found else -1
