"""What many ranks cost: ``npufix diagnose`` on a generated job, first and second look.

    python -m benchmarks.cluster --ranks 1000

Each rank has files of its own with numbers of its own. Processor time and memory are those of
all processes together; the ratio is to one process that reads the bytes of the small files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.generator.dump import write_ranks
from benchmarks.generator.parameters import Parameters
from benchmarks.measuring import NPUFIX, Cost, cost

_SMALL = (
    "step_trace_time.csv", "op_statistic.csv", "communication.json", "communication_matrix.json",
)  # fmt: skip
_READ = (
    "import pathlib,sys\n"
    "for name in sys.argv[2:]:\n"
    "    for file in pathlib.Path(sys.argv[1]).glob(f'*/ASCEND_PROFILER_OUTPUT/{name}'):\n"
    "        file.read_bytes()\n"
)


def main() -> None:
    """Write the ranks, look at them twice, print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--kernels", type=int, default=3000, help="rows of kernel_details, a rank")
    parser.add_argument("--folder", type=Path, help="where the ranks are, or are to be written")
    parser.add_argument("--executor", default="local")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (chosen.folder or Path(scratch, "ranks")).absolute()
        if not folder.exists():
            begin = time.perf_counter()
            parameters = Parameters(
                kernels=chosen.kernels, steps=4, ranks=chosen.ranks, version="newest"
            )
            write_ranks(parameters, folder, only=(*_SMALL, "kernel_details.csv"))
            print(f"wrote {chosen.ranks} ranks in {time.perf_counter() - begin:.0f} s")
        ranks = sum(1 for _ in folder.iterdir())
        size = sum(f.stat().st_size for name in _SMALL for f in folder.glob(f"*/*/{name}"))
        print(f"{ranks} ranks, {size / ranks / 1024:.0f} KiB of small files each")
        reading = (sys.executable, "-c", _READ, str(folder), *_SMALL)
        read = cost(reading, Path(scratch), samples=True)
        options = ("--executor", chosen.executor, "-o", f"{scratch}/report.json")
        look = (*NPUFIX, "diagnose", str(folder), *options)
        print("| | wall s | CPU s | CPU ms a rank | to reading | MiB, parent | MiB, all |")
        print("|---|---|---|---|---|---|---|")
        show("reading the bytes", read, read, ranks)
        for name in ("first look", "second look"):
            taken = cost(look, Path(scratch), cache=Path(scratch), samples=True)
            show(name, taken, read, ranks)


def show(name: str, taken: Cost, read: Cost, ranks: int) -> None:
    """Print one row."""
    cells = (
        f"{taken.wall_s:.1f}", f"{taken.cpu_s:.1f}", f"{1000 * taken.cpu_s / ranks:.1f}",
        f"{taken.cpu_s / read.cpu_s:.0f}", f"{taken.peak_mib:.0f}", f"{taken.all_mib:.0f}",
    )  # fmt: skip
    print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
