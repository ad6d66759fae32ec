"""Where the files of a dump of the PyTorch profiler lie, whichever it exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

OUTPUT = "ASCEND_PROFILER_OUTPUT"
KERNEL_DETAILS = "kernel_details.csv"
DATABASES = "ascend_*_profiler*.db"
"""Of PyTorch, and of MindSpore."""
MINDSPORE = "_ascend_ms"
TRACES = ("trace_view.json", "trace_view.json.gz")


def find_analysed_folder(dump: Path) -> Path:
    """Return where the analysed files of a dump are, if any; whether there are is not checked."""
    # Files copied out of ASCEND_PROFILER_OUTPUT lie in the folder itself.
    return dump / OUTPUT if (dump / OUTPUT).is_dir() else dump


def is_mindspore(dump: Path) -> bool:
    """Tell a dump of MindSpore's profiler, which writes what PyTorch's does, with other names."""
    return dump.name.endswith(MINDSPORE) or any(
        "mindspore" in file.name for file in find_analysed_folder(dump).glob(DATABASES)
    )


def dump_of_file(file: Path) -> Path:
    """Return the folder of the dump that an analysed file is part of."""
    return file.parent.parent if file.parent.name == OUTPUT else file.parent


def find_database(output: Path) -> Path | None:
    """Return the main file of a db export; one of no bytes was never written, and is none."""
    files = (file for file in sorted(output.glob(DATABASES)) if file.is_file())
    return next((file for file in files if file.stat().st_size), None)


def find_empty_database(output: Path) -> Path | None:
    """Return what should be the main file of a db export, but holds nothing."""
    found = sorted(output.glob(DATABASES))
    return found[0] if found and find_database(output) is None else None


def trace_file(output: Path) -> Path:
    """Return the trace of a dump; the path where it should be if there is none."""
    plain, packed = (output / name for name in TRACES)
    return packed if packed.exists() and not plain.exists() else plain
