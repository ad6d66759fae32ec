"""Times whole commands against a limit and against the peer, all measured in the same run.

python benchmarks/run.py [--rows N] [--trace-kernels N] [--tasks N] [--runs N] [--peer PYTHON]

The limit is a process that reads every byte of the same files once and counts the line ends. The
peer is msprof-analyze, installed beside PYTHON; it runs once, because it takes minutes. Processor
time and peak memory are those of the whole process, start and imports included.
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
_NPUFIX = (sys.executable, "-m", "npufix.advisor")
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
_TABLES = ("kernel_details.csv", "op_statistic.csv", "step_trace_time.csv")
_MIB = 1 << 20


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    cpu_s: float
    peak_mib: float


@dataclass(frozen=True)
class Comparison:
    """Commands that do the same work; ``peer`` is empty where it has none for it."""

    name: str
    ours: tuple[str, ...]
    limit: tuple[str, ...]
    peer: tuple[str, ...] = ()


def cost(command: tuple[str, ...], folder: Path) -> Cost:
    """Run a command in ``folder`` and return its own processor time and peak memory."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 2}:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def generated(folder: Path, *options: object) -> Path:
    """Write a dump with ``python -m benchmarks.generator`` and return its path."""
    command = [sys.executable, "-m", "benchmarks.generator", str(folder), *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def of_dump(what: str, dump: Path, peer: Path | None, *advisor: str) -> Comparison:
    """Compare ``npufix diagnose DUMP`` with reading its bytes and with the peer's command."""
    size = sum(path.stat().st_size for path in dump.rglob("*") if path.is_file()) / _MIB
    theirs: tuple[str, ...] = ()
    if peer is not None and advisor:
        command = str(peer.with_name("msprof-analyze"))
        theirs = (command, "advisor", *advisor, "-d", str(dump), "-o", str(dump.parent), "--force")
    return Comparison(
        f"diagnose {what}, {size:,.0f} MiB",
        (*_NPUFIX, "diagnose", str(dump)),
        (sys.executable, "-c", _COUNT_BYTES, str(dump)),
        theirs,
    )


def comparisons(options: argparse.Namespace, folder: Path) -> list[Comparison]:
    """Write the dumps and return what is to be timed."""
    python, peer = sys.executable, options.peer
    only = [word for name in _TABLES for word in ("--only", name)]
    rows = ("--steps", 5, "--kernels")
    source = str(ROOT / "examples" / "bert_like")
    return [
        Comparison("--help / python -c pass", (*_NPUFIX, "--help"), (python, "-c", "pass")),
        Comparison(
            "scan the example / ast.parse",
            (*_NPUFIX, "scan", source),
            (python, "-c", _AST_PARSE, source),
        ),
        of_dump(
            f"{options.rows:,} kernel rows",
            generated(folder / "rows", *rows, options.rows, *only),
            peer,
            "computation",
        ),
        of_dump(
            f"text with trace of {options.trace_kernels:,} kernels",
            generated(folder / "trace", *rows, options.trace_kernels),
            peer,
            "all",
        ),
        of_dump(
            f"db, {options.tasks:,} tasks, no stacks",
            generated(
                folder / "db", *rows, options.tasks, "--format", "db", "--no-stacks", "--no-pmu"
            ),
            None,
        ),
        of_dump(
            f"db, {options.tasks:,} tasks, all tables",
            generated(folder / "full", *rows, options.tasks, "--format", "db"),
            None,
        ),
    ]


def report(compared: list[Comparison], runs: int, folder: Path) -> None:
    """Print what each command costs beside its limit, interleaved run by run."""
    print(
        f"{'what':<54}{'CPU s':>8}{'MiB':>7}{'limit s':>9}{'ratio':>8}{'peer s':>9}{'peer/us':>9}"
    )
    for each in compared:
        ours: list[Cost] = []
        limits: list[Cost] = []
        for _ in range(runs):
            ours.append(cost(each.ours, folder))
            limits.append(cost(each.limit, folder))
        cpu = statistics.median(c.cpu_s for c in ours)
        floor = statistics.median(c.cpu_s for c in limits)
        peak = max(c.peak_mib for c in ours)
        line = f"{each.name:<54}{cpu:>8.2f}{peak:>7.0f}{floor:>9.2f}{cpu / floor:>8.1f}"
        if each.peer:
            theirs = cost(each.peer, folder)
            line += f"{theirs.cpu_s:>9.1f}{theirs.cpu_s / cpu:>9.0f}  ({theirs.peak_mib:,.0f} MiB)"
        print(line, flush=True)


def main() -> None:
    """Read the options and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=int, default=200_000, help="of kernel_details.csv, 320 B each")
    add("--trace-kernels", type=int, default=10_000, help="each with 3.3 kB of trace_view.json")
    add("--tasks", type=int, default=50_000, help="of the databases")
    add("--runs", type=int, default=3)
    add("--peer", type=Path, help="interpreter of a virtual environment with msprof-analyze")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report(comparisons(options, folder), options.runs, folder)


if __name__ == "__main__":
    main()
