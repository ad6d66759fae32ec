"""operator_details.csv: one record per operator of the host, with cells of several lines."""

from __future__ import annotations

import csv
import io
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.host import of_each_kind, operators
from benchmarks.generator.text import fill, microseconds, of_variant, write_lines

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.generator.program import Launch
    from benchmarks.generator.run import Run

_HEADER = (
    "Name,Input Shapes,Call Stack,Host Self Duration(us),Host Total Duration(us),"
    "Device Self Duration(us),Device Total Duration(us),Device Self Duration With AICore(us),"
    "Device Total Duration With AICore(us)"
)


def write(run: Run, path: Path) -> None:
    """Write the file."""
    kernels, found = run.kernels, operators(run)
    of_cores = np.array([kernel.core == "AI_CORE" for kernel in run.program.kernels])[kernels.code]
    count = len(run.launches.code)
    device = np.bincount(kernels.launch, kernels.duration_ns, count).astype(np.int64)
    cores = np.bincount(kernels.launch, kernels.duration_ns * of_cores, count).astype(np.int64)
    total, of_core = device[found.launch], cores[found.launch]
    launching = found.place == run.program.depth[run.launches.code[found.launch]] - 1
    # Of an operator and the one inside it, only a little belongs to the outer one.
    own = np.where(launching, found.duration_ns, 3_000)
    times = (own, found.duration_ns, total * launching, total, of_core * launching, of_core)
    lines = fill(of_each_kind(run, _row), found.kind, *((microseconds, each) for each in times))
    write_lines(path, chain([_HEADER], lines), run.parameters.line_end)


def _row(run: Run, launch: Launch, place: int, variant: int) -> str:
    """Return a record with gaps for its times."""
    own = run.parameters
    dims = of_variant(launch.dims, variant) if own.shapes and launch.has_shapes(place) else ""
    stack = ";\r\n".join(launch.stack) if own.stacks else ""
    cells = io.StringIO()
    csv.writer(cells).writerow([launch.chain[place], dims, stack])  # quotes what ends its lines
    return cells.getvalue().removesuffix("\r\n").replace("%", "%%") + ",%s" * 6
