"""What a process costs, and the programs that no tool can be faster than."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NPUFIX = (sys.executable, "-m", "npufix.advisor")
_COUNT_BYTES = """
import pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*"):
    if path.is_file():
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(1 << 20):
                chunk.count(b"\\n")
"""
_AST_PARSE = """
import ast, pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    ast.parse(path.read_bytes())
"""


@dataclass(frozen=True)
class Cost:
    """What one command took; ``cpu_s`` is that of all its processes."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    """Resident memory of its largest process."""


def cost(command: tuple[str, ...], folder: Path) -> Cost:
    """Run a command in ``folder`` and return what it took."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 2}:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median(costs: list[Cost]) -> Cost:
    """Return the median of each time, and the highest memory."""
    return Cost(
        statistics.median(c.wall_s for c in costs),
        statistics.median(c.cpu_s for c in costs),
        max(c.peak_mib for c in costs),
    )


def count_bytes(folder: Path) -> tuple[str, ...]:
    """Return what reads every byte of a folder once and counts the line ends."""
    return (sys.executable, "-c", _COUNT_BYTES, str(folder))


def parse_all(folder: Path) -> tuple[str, ...]:
    """Return what calls ``ast.parse`` on every file of a folder once, on one core."""
    return (sys.executable, "-c", _AST_PARSE, str(folder))


def python(program: str) -> tuple[str, ...]:
    """Return what runs a few words of Python."""
    return (sys.executable, "-c", program)


def mebibytes(folder: Path) -> float:
    """Return the size of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / (1 << 20)
