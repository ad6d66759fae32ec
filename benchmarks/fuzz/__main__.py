"""The command: ``python -m benchmarks.fuzz --minutes 5 --target kineto``.

Each target is fuzzed in a process of its own, one after the other: a process that dies, is stuck
or runs out of memory is a crash like any other, and the next one goes on behind it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.fuzz.targets import TARGETS
from benchmarks.fuzz.worker import Crash, Fuzzer, Outcome

_STUCK, _SILENT = 90.0, 900.0
"""Seconds of the processor, and of the clock, without a new input after which a process is stuck
where no signal reaches it. On a busy machine the clock alone says little."""
_MOST_DEATHS = 20
_MANY = 10**12
_LINE = "{:<22}" + "{:>10}" * 9


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.fuzz", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="over all targets")
    add("--inputs", type=int, default=0, help="for each target, instead of a time")
    add("--target", action="append", choices=sorted(TARGETS), default=[], metavar="T",
        help=f"one of {', '.join(TARGETS)}; all if left out")  # fmt: skip
    add("--seed", type=int, default=0)
    add("--corpus", type=Path, help="folder of further first inputs: real dumps")
    add("--keep", type=Path, help="folder for inputs that reached new lines, or broke something:"
        " the next run goes on from there")  # fmt: skip
    add("--crashes", type=Path, help="folder for inputs that broke something")
    add("--json", type=Path, help="file for the numbers of the table")
    add("--worker", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """Fuzz, print the table, and return 1 if anything broke."""
    chosen = _options().parse_args()
    if chosen.worker:
        return _work(chosen)
    crashes = chosen.crashes or Path(tempfile.mkdtemp(prefix="npufix-fuzz-"))
    names = chosen.target or list(TARGETS)
    each = _MANY if chosen.inputs else chosen.minutes * 60 / len(names)
    rows = []
    header = ("target", "inputs", "refused", "lines", "new", "kept", "crashes", "slowest s", "MiB")
    print(_LINE.format(*header, "s"), flush=True)
    for name in names:
        outcome = _supervise(name, each)
        rows.append(dataclasses.asdict(outcome))
        rows[-1]["crashes"] = _write(outcome, crashes / name)
        print(_LINE.format(
            name, outcome.inputs, f"{outcome.refused / max(1, outcome.inputs):.0%}", outcome.lines,
            outcome.lines - outcome.lines_of_seeds, outcome.kept, len(outcome.crashes),
            f"{outcome.slowest:.2f}", f"{outcome.largest:.0f}", f"{outcome.seconds:.0f}",
        ), flush=True)  # fmt: skip
        for where, crash in rows[-1]["crashes"].items():
            print(f"    {where}: {crash['times']} times, {crash['file']}", flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(rows, indent=1) + "\n")
    inputs, seconds = (sum(row[key] for row in rows) for key in ("inputs", "seconds"))
    broken = sum(len(row["crashes"]) for row in rows)
    print(f"{inputs} inputs in {seconds / 60:.1f} minutes, {broken} crashes", end="")
    print(f", kept in {crashes}" if broken else "")
    return 1 if broken else 0


def _supervise(name: str, seconds: float) -> Outcome:
    """Fuzz one target, and start again behind each input that took the process along."""
    total = Outcome(name)
    start = time.monotonic()
    for again in range(_MOST_DEATHS + 1):
        with tempfile.TemporaryDirectory(prefix="npufix-fuzz-") as folder:
            state = Path(folder)
            died = _run(name, seconds - (time.monotonic() - start), state, again)
            result, current = state / "outcome.json", state / f"{name}.current"
            _add(total, json.loads(result.read_text()) if result.exists() else {})
            if died:
                data = current.read_bytes() if current.exists() else b""
                total.crashes[died] = Crash(died, died, data)
        if not died or time.monotonic() - start > seconds - 1:
            break
    return total


def _run(name: str, seconds: float, state: Path, again: int) -> str:
    """Run one process to its end; return what it died of, if it did."""
    own = [*sys.argv[1:], "--worker", str(state), "--target", name, "--minutes", str(seconds / 60)]
    if again:
        own += ["--seed", str(again * 1_000_003)]
    with (state / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fuzz", *own], stdout=errors, stderr=errors
        )
        current, last = state / f"{name}.current", 0
        since = _measure_used(process.pid), time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            now = current.stat().st_mtime_ns if current.exists() else 0
            if now != last:
                since, last = (_measure_used(process.pid), time.monotonic()), now
            if (
                _measure_used(process.pid) - since[0] > _STUCK
                or time.monotonic() - since[1] > _SILENT
            ):
                process.kill()
                process.wait()
                return "stuck"
    if process.returncode:
        said = (state / "stderr").read_text(errors="replace").strip().splitlines()
        return f"exit {process.returncode}: {said[-1] if said else ''}"[:200]
    return ""


def _measure_used(pid: int) -> float:
    """Return how long a process has had the processor; 0 off Linux, or once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def _work(chosen: argparse.Namespace) -> int:
    """Fuzz one target in this process, and write what came of it for the one that supervises."""
    folder = chosen.worker / "work"
    folder.mkdir()
    warnings.simplefilter("error")  # nobody wants to read one below a report
    target = TARGETS[chosen.target[-1]]
    fuzzer = Fuzzer(target, folder, chosen.seed, chosen.corpus, chosen.keep)
    made = dataclasses.asdict(fuzzer.run(chosen.minutes * 60, chosen.inputs or _MANY))
    for crash in made["crashes"].values():
        crash["data"] = crash["data"].hex()
    (chosen.worker / "outcome.json").write_text(json.dumps(made))
    return 0


def _add(total: Outcome, found: dict[str, Any]) -> None:
    """Add the numbers of one process of a target to those before it."""
    for key in ("inputs", "refused", "seconds"):
        setattr(total, key, getattr(total, key) + found.get(key, 0))
    for key in ("lines_of_seeds", "lines", "kept", "slowest", "largest"):
        setattr(total, key, max(getattr(total, key), found.get(key, 0)))
    for where, crash in found.get("crashes", {}).items():
        total.crashes[where] = Crash(**{**crash, "data": bytes.fromhex(crash["data"])})


def _write(outcome: Outcome, folder: Path) -> dict[str, dict[str, Any]]:
    """Write the inputs that broke something, and return how often and where they are."""
    told = {}
    for number, (where, crash) in enumerate(outcome.crashes.items()):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"crash{number}"
        file.write_bytes(crash.data)
        file.with_suffix(".txt").write_text(f"{where}\n\n{crash.text}")
        told[where] = {"times": crash.times, "file": str(file)}
    return told


if __name__ == "__main__":
    sys.exit(main())
