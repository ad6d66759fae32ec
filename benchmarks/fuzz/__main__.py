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

from benchmarks.fuzz.targets import TARGETS

_STUCK, _SILENT = 90.0, 900.0
"""Seconds of the processor, and of the clock, without a new input after which a process is stuck
where no signal reaches it. On a busy machine the clock alone says little."""
_HEADER = (
    "target", "inputs", "refused", "lines", "new", "kept", "crashes", "slowest s", "MiB", "s",
)  # fmt: skip
_MANY = 10**12


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.fuzz", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="over all targets")
    add("--inputs", type=int, default=0, help="for each target, instead of a time")
    add("--target", action="append", choices=sorted(TARGETS), default=[], metavar="T",
        help=f"one of {', '.join(TARGETS)}; all if left out")  # fmt: skip
    add("--seed", type=int, default=0)
    add("--corpus", type=Path, help="folder of further first inputs: real dumps, or one of --keep")
    add("--keep", type=Path, help="folder for inputs that reached new lines")
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
    print(_line(_HEADER), flush=True)
    for name in names:
        row = _supervise(name, each, crashes)
        rows.append(row)
        print(_line(_cells(row)), flush=True)
        for where, crash in row["crashes"].items():
            print(f"    {where}: {crash['times']} times, {crash['file']}", flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(rows, indent=1) + "\n")
    total = {key: sum(row[key] for row in rows) for key in ("inputs", "refused", "seconds")}
    broken = sum(len(row["crashes"]) for row in rows)
    minutes = total["seconds"] / 60
    print(f"{total['inputs']} inputs in {minutes:.1f} minutes, {broken} crashes", end="")
    print(f", kept in {crashes}" if broken else "")
    return 1 if broken else 0


def _supervise(name: str, seconds: float, crashes: Path) -> dict:  # type: ignore[type-arg]
    """Fuzz one target, and start again behind each input that took the process along."""
    total: dict = {}  # type: ignore[type-arg]
    start, again = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="npufix-fuzz-") as folder:
        while True:
            left = seconds - (time.monotonic() - start)
            state = Path(folder, f"state{again}")
            state.mkdir()
            died = _run(name, left, state, again)
            result = state / "outcome.json"
            found = json.loads(result.read_text()) if result.exists() else _nothing(name)
            if died:
                current = state / f"{name}.current"
                data = current.read_bytes() if current.exists() else b""
                found["crashes"][died] = {"times": 1, "text": died, "data": data.hex()}
            total = _added(total, found)
            again += 1
            if not died or time.monotonic() - start > seconds - 1 or again > 20:  # noqa: PLR2004
                break
    for number, (where, crash) in enumerate(total["crashes"].items()):
        file = crashes / name / f"crash{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes.fromhex(crash.pop("data")))
        file.with_suffix(".txt").write_text(f"{where}\n\n{crash.pop('text')}")
        crash["file"] = str(file)
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
        since = _used(process.pid), time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            now = current.stat().st_mtime_ns if current.exists() else 0
            if now != last:
                since, last = (_used(process.pid), time.monotonic()), now
            if _used(process.pid) - since[0] > _STUCK or time.monotonic() - since[1] > _SILENT:
                process.kill()
                process.wait()
                return "stuck"
    if process.returncode:
        said = (state / "stderr").read_text(errors="replace").strip().splitlines()
        return f"exit {process.returncode}: {said[-1] if said else ''}"[:200]
    return ""


def _used(pid: int) -> float:
    """Return how long a process has had the processor; 0 off Linux, or once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def _work(chosen: argparse.Namespace) -> int:
    from benchmarks.fuzz.worker import Fuzzer, limit_memory  # noqa: PLC0415 - in the process that fuzzes

    name = chosen.target[-1]
    folder = chosen.worker / "work"
    folder.mkdir()
    warnings.simplefilter("error")  # nobody wants to read one below a report
    fuzzer = Fuzzer(TARGETS[name], folder, chosen.seed, chosen.corpus)
    limit_memory()
    kept = chosen.keep / name if chosen.keep else None
    seconds = chosen.minutes * 60
    outcome = fuzzer.run(seconds, chosen.inputs or _MANY, kept)
    made = dataclasses.asdict(outcome)
    for crash in made["crashes"].values():
        crash["data"] = crash["data"].hex()
        del crash["where"]
    (chosen.worker / "outcome.json").write_text(json.dumps(made))
    return 0


def _nothing(name: str) -> dict:  # type: ignore[type-arg]
    from benchmarks.fuzz.worker import Outcome  # noqa: PLC0415 - same

    return dataclasses.asdict(Outcome(name))


def _added(total: dict, found: dict) -> dict:  # type: ignore[type-arg]
    """Put the numbers of two processes of one target together."""
    if not total:
        return found
    most = ("lines_of_seeds", "lines", "kept", "slowest", "largest")
    added = {key: total[key] + found[key] for key in ("inputs", "refused", "seconds")}
    return {
        **total, **added, **{key: max(total[key], found[key]) for key in most},
        "crashes": {**total["crashes"], **found["crashes"]},
    }  # fmt: skip


def _cells(row: dict) -> tuple[str, ...]:  # type: ignore[type-arg]
    return (
        row["target"], str(row["inputs"]), f"{row['refused'] / max(1, row['inputs']):.0%}",
        str(row["lines"]), str(row["lines"] - row["lines_of_seeds"]), str(row["kept"]),
        str(len(row["crashes"])), f"{row['slowest']:.2f}", f"{row['largest']:.0f}",
        f"{row['seconds']:.0f}",
    )  # fmt: skip


def _line(cells: tuple[str, ...]) -> str:
    first, *rest = cells
    return f"{first:<22}" + "".join(f"{cell:>10}" for cell in rest)


if __name__ == "__main__":
    sys.exit(main())
