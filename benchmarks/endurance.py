"""Diagnose one dump again and again in one process, and say whether its memory grows.

    python -m benchmarks.endurance examples/dump --runs 1000

prints the resident memory after each tenth of the runs, and its growth per run over the second
half, where caches are full and every module is loaded.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

import numpy as np

import npufix

_PAGE = 4096


def resident_kib() -> float:
    """Return the resident memory of this process in KiB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE / 1024


def measure(dump: Path, runs: int) -> list[float]:
    """Return the resident memory in KiB after each diagnosis."""
    found = []
    for number in range(runs):
        run = npufix.load(dump)
        assert len(run.operators)  # noqa: S101 - what is measured must have been done
        del run
        gc.collect()
        found.append(resident_kib())
        if (number + 1) % max(1, runs // 10) == 0:
            print(f"{number + 1:6,} runs: {found[-1] / 1024:7.1f} MiB", flush=True)
    return found


def main() -> None:
    """Print what many diagnoses in one process cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dump", type=Path)
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args()
    start = time.process_time()
    memory = np.array(measure(options.dump, options.runs))
    spent = time.process_time() - start
    half = memory[len(memory) // 2 :]
    slope = np.polyfit(np.arange(len(half)), half, 1)[0] if len(half) > 1 else 0.0
    print(f"{slope:+.2f} KiB a run over the second half, {spent / options.runs:.2f} CPU s a run")


if __name__ == "__main__":
    main()
