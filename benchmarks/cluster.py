"""What many ranks cost: ``npufix diagnose`` on a generated job, first and second look.

    python -m benchmarks.cluster --ranks 1000

Each rank has files of its own with numbers of its own. Processor time and memory are those of
all processes together; the ratio is to one process that reads the bytes of the small files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generator.dump import write_ranks
from benchmarks.generator.parameters import Parameters

_SMALL = (
    "step_trace_time.csv", "op_statistic.csv", "communication.json", "communication_matrix.json",
)  # fmt: skip
_BETWEEN_SAMPLES_S = 0.1
_MIB = 1 << 20
_READ = (
    "import pathlib,sys\n"
    "for name in sys.argv[2:]:\n"
    "    for file in pathlib.Path(sys.argv[1]).glob(f'*/ASCEND_PROFILER_OUTPUT/{name}'):\n"
    "        file.read_bytes()\n"
)


@dataclass(frozen=True)
class Cost:
    """What a command took, with all its processes."""

    wall_s: float
    cpu_s: float
    parent_mib: float
    all_mib: float


def main() -> None:
    """Write the ranks, look at them twice, print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--kernels", type=int, default=3000, help="rows of kernel_details, a rank")
    parser.add_argument("--folder", type=Path, help="where the ranks are, or are to be written")
    parser.add_argument("--executor", default="local")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.folder or Path(scratch, "ranks")
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
        read = run([sys.executable, "-c", _READ, str(folder), *_SMALL], scratch)
        npufix = [str(Path(sys.executable).parent / "npufix"), "diagnose", str(folder)]
        npufix += ["--executor", chosen.executor, "-o", f"{scratch}/report.json"]
        print("| | wall s | CPU s | CPU ms a rank | to reading | MiB, parent | MiB, all |")
        print("|---|---|---|---|---|---|---|")
        show("reading the bytes", read, read, ranks)
        for name in ("first look", "second look"):
            show(name, run(npufix, scratch), read, ranks)


def show(name: str, cost: Cost, read: Cost, ranks: int) -> None:
    """Print one row."""
    cells = (
        f"{cost.wall_s:.1f}", f"{cost.cpu_s:.1f}", f"{1000 * cost.cpu_s / ranks:.1f}",
        f"{cost.cpu_s / read.cpu_s:.0f}", f"{cost.parent_mib:.0f}", f"{cost.all_mib:.0f}",
    )  # fmt: skip
    print(f"| {name} | {' | '.join(cells)} |")


def run(command: list[str], scratch: str) -> Cost:
    """Run a command with a cache of its own, and measure it."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": scratch}
    )
    peaks = [0.0, 0.0]
    ended = threading.Event()
    sampling = threading.Thread(target=_sample, args=(process.pid, peaks, ended))
    sampling.start()
    _, status, usage = os.wait4(process.pid, 0)
    ended.set()
    sampling.join()
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{command[0]} failed")
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(time.perf_counter() - begin, cpu, usage.ru_maxrss / 1024, max(peaks) / _MIB)


def _sample(pid: int, peaks: list[float], ended: threading.Event) -> None:
    """Note the most memory that a process and those below it hold, shared pages once."""
    while not ended.wait(_BETWEEN_SAMPLES_S):
        peaks[0] = max(peaks[0], sum(_proportional(each) for each in _family(pid)))


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):  # it has ended
            for file in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, file.read_text().split())
    return found


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main()
