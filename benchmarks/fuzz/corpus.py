"""The first inputs: files of a dump of a few kernels, and those that no generator writes."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from benchmarks.generator.dump import OUTPUT, write_dump
from benchmarks.generator.parameters import Parameters

_SMALL = Parameters(kernels=8, steps=2, ranks=2)
_WITH_COLLECTIVES = Parameters(kernels=40, steps=1, ranks=2)
_LONGEST_REAL = 20_000


@cache
def generate() -> dict[str, bytes]:
    """Return the files of a small dump of both exports, by name."""
    found: dict[str, bytes] = {}
    for parameters, export in ((_WITH_COLLECTIVES, "both"), (_SMALL, "text")):
        with tempfile.TemporaryDirectory() as folder:
            dump = write_dump(parameters, Path(folder), export)
            files = [*dump.iterdir(), *(dump / OUTPUT).iterdir()]
            found |= {file.name: file.read_bytes() for file in files if file.is_file()}
    found["main.db"] = found.pop("ascend_pytorch_profiler_0.db")
    return found


def file(name: str) -> bytes:
    """Return an input of that name: one that lies beside this module, or of a generated dump."""
    path = Path(__file__).with_name("inputs") / name
    return path.read_bytes() if path.exists() else generate()[name]


def read_given(folder: Path | None, names: tuple[str, ...]) -> list[bytes]:
    """Return the files of those names anywhere in a folder of the user's, cut up."""
    found = [file for name in names if folder for file in sorted(folder.rglob(name))[:20]]
    return [_cut(file.name, file.read_bytes()) for file in found if file.is_file()]


def _cut(name: str, data: bytes) -> bytes:
    """Return the first part of a real file, ended where its format lets it end."""
    part = data[:_LONGEST_REAL]
    if len(part) < len(data) and name.endswith(".csv"):
        return part[: part.rindex(b"\n") + 1]
    if len(part) < len(data) and name.startswith("trace_view"):
        return part[: part.rindex(b"}, {") + 1] + b"]"
    return data
