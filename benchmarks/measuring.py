"""What a process costs, and the programs that no tool can be faster than."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NPUFIX = (sys.executable, "-m", "npufix.advisor")
_BETWEEN_SAMPLES_S = 0.1
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
    all_mib: float = 0.0
    """Memory of all its processes together, shared pages once, where samples are taken."""


def cost(
    command: tuple[str, ...], folder: Path, *, cache: Path | None = None, samples: bool = False
) -> Cost:
    """Run a command in ``folder`` and return what it took; ``cache`` replaces the user's own."""
    own = {"XDG_CACHE_HOME": str(cache)} if cache else {}
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **own},
    )  # fmt: skip
    peaks, ended = [0], threading.Event()
    sampling = threading.Thread(target=_sample, args=(process.pid, peaks, ended))
    if samples:
        sampling.start()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    if samples:
        ended.set()
        sampling.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 2}:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(wall, cpu_s, usage.ru_maxrss / 1024, peaks[0] / (1 << 20))


def _sample(pid: int, peaks: list[int], ended: threading.Event) -> None:
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
