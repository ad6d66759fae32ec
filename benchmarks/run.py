"""Times whole commands against a limit measured in the same run; prints a table.

python benchmarks/run.py [--source FOLDER] [--dump FOLDER] [--rows N] [--runs N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COUNT_BYTES = """
import mmap, pathlib, sys
for p in pathlib.Path(sys.argv[1]).rglob("*"):
    if p.is_file() and p.stat().st_size:
        with p.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
            at = m.find(b"\\n")
            while at >= 0:
                at = m.find(b"\\n", at + 1)
"""
_AST_PARSE = """
import ast, pathlib, sys
for p in pathlib.Path(sys.argv[1]).rglob("*.py"):
    ast.parse(p.read_bytes())
"""


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    cpu_s: float
    peak_mib: float


def cost(command: list[str]) -> Cost:
    """Run a command and return its own CPU time and peak memory."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 2}:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def generated_dump(folder: Path, rows: int) -> Path:
    """Write a dump of one kernel_details.csv by repeating the rows of the example's."""
    source = next((ROOT / "examples" / "dump").rglob("kernel_details.csv"))
    header, *lines = source.read_bytes().splitlines(keepends=True)
    output = folder / "bench_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    with (output / "kernel_details.csv").open("wb") as file:
        file.write(header)
        for _ in range(rows // len(lines) + 1):
            file.writelines(lines)
    return output.parent


def table(pairs: list[tuple[str, list[str], list[str]]], runs: int) -> None:
    """Print what each command costs beside its limit, interleaved run by run."""
    print(f"{'what':<34}{'CPU s':>8}{'MiB':>7}{'limit s':>9}{'ratio':>8}")
    for name, command, limit in pairs:
        ours: list[Cost] = []
        theirs: list[Cost] = []
        for _ in range(runs):
            ours.append(cost(command))
            theirs.append(cost(limit))
        cpu = statistics.median(c.cpu_s for c in ours)
        floor = statistics.median(c.cpu_s for c in theirs)
        peak = max(c.peak_mib for c in ours)
        print(f"{name:<34}{cpu:>8.2f}{peak:>7.0f}{floor:>9.2f}{cpu / floor:>8.1f}")


def main() -> None:
    """Read the options and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=ROOT / "examples" / "bert_like")
    parser.add_argument("--dump", type=Path, default=ROOT / "examples" / "dump")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    npufix = [sys.executable, "-m", "npufix.advisor"]
    python = [sys.executable, "-c"]
    with tempfile.TemporaryDirectory() as folder:
        large = generated_dump(Path(folder), options.rows)
        dump, source = str(options.dump), str(options.source)
        pairs = [
            ("--help / python -c pass", [*npufix, "--help"], [*python, "pass"]),
            ("diagnose / count lines", [*npufix, "diagnose", dump], [*python, _COUNT_BYTES, dump]),
            (
                f"diagnose {options.rows:,} rows / count",
                [*npufix, "diagnose", str(large)],
                [*python, _COUNT_BYTES, str(large)],
            ),
            ("scan / ast.parse", [*npufix, "scan", source], [*python, _AST_PARSE, source]),
        ]
        table(pairs, options.runs)


if __name__ == "__main__":
    main()
