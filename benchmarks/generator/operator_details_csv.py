"""operator_details.csv: one record per operator of the host, with cells of several lines."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.host import operators
from benchmarks.generator.text import chunks, microseconds, of_variant

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
    kernels, launches = run.kernels, run.launches
    of_cores = np.array([kernel.core == "AI_CORE" for kernel in run.program.kernels])[kernels.code]
    count = len(launches.code)
    device = np.bincount(kernels.launch, kernels.duration_ns, count).astype(np.int64)
    cores = np.bincount(kernels.launch, kernels.duration_ns * of_cores, count).astype(np.int64)
    variants = range(run.parameters.variants)
    texts = [
        [[_row(run, launch, place, v) for place in range(len(launch.chain))] for v in variants]
        for launch in run.program.launches
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(_HEADER + run.parameters.line_end)
        for rows in chunks(count):
            found = operators(run, rows)
            code = launches.code[found.launch]
            launching = found.place == run.program.depth[code] - 1
            # Of an operator and the one inside it, only a little belongs to the outer one.
            own = np.where(launching, found.duration_ns, 3_000)
            total, of_core = device[found.launch], cores[found.launch]
            cells = zip(
                code.tolist(),
                run.variants(found.launch).tolist(),
                found.place.tolist(),
                microseconds(own),
                microseconds(found.duration_ns),
                microseconds(total * launching),
                microseconds(total),
                microseconds(of_core * launching),
                microseconds(of_core),
                strict=True,
            )
            file.writelines([texts[row[0]][row[1]][row[2]] % row[3:] for row in cells])


def _row(run: Run, launch: Launch, place: int, variant: int) -> str:
    """Return a record with gaps for its times."""
    own = run.parameters
    dims = of_variant(launch.dims, variant) if own.shapes and launch.has_shapes(place) else ""
    stack = ";\r\n".join(launch.stack) if own.stacks else ""
    cells = io.StringIO()
    csv.writer(cells, lineterminator="").writerow([launch.chain[place], dims, stack])
    return cells.getvalue().replace("%", "%%") + ",%s" * 6 + own.line_end
