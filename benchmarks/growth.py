"""How cost grows with size: ``npufix diagnose`` on dumps each ten times as large as the last.

    python -m benchmarks.growth
    python -m benchmarks.growth --rows 10000 100000 --traces

Between two sizes stands the exponent: processor time without the start, of which a dump of ten
rows tells, goes with the size to that power: 1 is linear, 2 quadratic. The ratio is to a process
that reads the same bytes and counts their line ends. Sizes count kernels; one of a trace with its
tables takes 3.3 kB, one of the table alone 0.3.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

from benchmarks.comparisons import generate
from benchmarks.measuring import NPUFIX, Cost, cost, count_bytes, mebibytes

_ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
_TRACES = (30_000, 300_000, 1_500_000)
"""About 100 MB, 1 GB and 5 GB."""
_LEAST_S = 0.2
"""What is less beside the start is noise, and no exponent begins there."""
_TABLE = ("--only", "kernel_details.csv", "--only", "step_trace_time.csv")


def main() -> None:
    """Write the dumps one after the other, diagnose them and print the tables."""
    parser = argparse.ArgumentParser("python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=_ROWS, help="kernels of a table")
    parser.add_argument("--traces", type=int, nargs="*", default=_TRACES, help="of a trace as well")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        start = _diagnose(Path(scratch), 10, _TABLE)[0]
        print(f"start, with a dump of ten kernels: {start.cpu_s:.2f} CPU s")
        for what, sizes, only in (("table", chosen.rows, _TABLE), ("trace", chosen.traces, ())):
            if sizes:
                _print(what, sizes, only, Path(scratch), start)


def _print(what: str, sizes: list[int], only: tuple[str, ...], scratch: Path, start: Cost) -> None:
    print(f"\n| {what}, kernels | MiB | CPU s | wall s | MiB at most | to reading | exponent |")
    print("|---|---|---|---|---|---|---|")
    before: tuple[int, float] | None = None
    for size in sizes:
        taken, read, size_mib = _diagnose(scratch, size, only)
        own, power = taken.cpu_s - start.cpu_s, ""
        if before is not None:
            power = f"{math.log(own / before[1]) / math.log(size / before[0]):.2f}"
        before = (size, own) if own >= _LEAST_S else None
        cells = (
            f"{size:,}", f"{size_mib:,.0f}", f"{taken.cpu_s:.2f}", f"{taken.wall_s:.2f}",
            f"{taken.peak_mib:,.0f}", f"{taken.cpu_s / read.cpu_s:.1f}", power,
        )  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


def _diagnose(scratch: Path, size: int, only: tuple[str, ...]) -> tuple[Cost, Cost, float]:
    """Return what it costs to diagnose and to read a dump of a size, and its MiB."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        steps = min(size, 10)
        dump = generate(Path(folder), "--kernels", size, "--steps", steps, *only)
        taken = cost((*NPUFIX, "diagnose", str(dump), "--json"), scratch, cache=scratch)
        return taken, cost(count_bytes(dump), scratch), mebibytes(dump)


if __name__ == "__main__":
    main()
