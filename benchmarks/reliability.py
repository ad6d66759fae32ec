"""The table of docs/reliability.md: what was tried against npufix, and what came of it.

    python -m benchmarks.reliability --write docs/reliability.md

The same seed tries the same. What was found and repaired before stands in
``reliability_found.json``, with the test that would find it again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from benchmarks import reliability_running
from benchmarks.reliability_faults import FAULTS
from benchmarks.reliability_inputs import Place

_ROOT = Path(__file__).parents[1]
_FOUND = Path(__file__).with_name("reliability_found.json")
_FULL = 5
_HEADER = """\
# Reliability: what was tried, and what came of it

"""
_FOOTER = """
`python -m benchmarks.reliability --write docs/reliability.md` makes this page anew in some minutes
(`--full`: five times as many attempts; `--seed` and `--corpus DIR`, real dumps, try others).
`python -m benchmarks.fuzz --minutes 30 --json fuzz.json` fuzzes the readers for longer, and
`--fuzz fuzz.json` puts its numbers here.

A failure is a traceback, an exit status that is not documented, a hang, half of a file, a touched
dump or source, another result than without the fault, a number that cannot be, or a control
character in the output. *Failures found* counts different ones since they are recorded (in
`benchmarks/reliability_found.json`), and *Fixed* those whose test is in the suite.
"""


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.reliability", description=__doc__)
    add = parser.add_argument
    add("--full", action="store_true", help=f"{_FULL} times as many attempts")
    add("--seed", type=int, default=0)
    add("--only", action="append", choices=["fuzz", *FAULTS], default=[], metavar="KIND",
        help=f"one of: fuzz, {', '.join(FAULTS)}")  # fmt: skip
    add("--corpus", type=Path, help="folder of real dumps, of which copies are changed")
    add("--fuzz", type=Path, action="append", default=[],
        help="what benchmarks.fuzz --json wrote of longer runs, the newest last")  # fmt: skip
    add("--write", type=Path, help="file for the table; all kinds have to be tried")
    return parser


def main() -> int:
    """Try everything, print the table, and return 1 if something fails."""
    parser = _options()
    chosen = parser.parse_args()
    if chosen.write and chosen.only:
        parser.error("--write needs all kinds, so no --only")
    many = _FULL if chosen.full else 1
    found = json.loads(_FOUND.read_text())
    kinds = chosen.only or [*FAULTS, "fuzz"]
    rows = []
    for kind in FAULTS:
        if kind in kinds:
            tried, failures = _attempts(kind, chosen.seed, many, chosen.corpus)
            rows.append(_row(kind, tried, failures, found.get(kind, [])))
    if "fuzz" in kinds:
        rows += _fuzz(chosen, many, found)
    text = _table(rows)
    print(text, end="")
    if chosen.write:
        chosen.write.write_text(_HEADER + text + _FOOTER)
    return int(any(row[-1] != "0" for row in rows))


def _attempts(kind: str, seed: int, many: int, corpus: Path | None) -> tuple[int, list[str]]:
    """Inject the faults of one kind; return how many, and what failed."""
    reliability_running.load()
    start, tried, failures = time.monotonic(), 0, []
    with tempfile.TemporaryDirectory(prefix="npufix-faults-") as folder:
        random = Random(f"{seed} {kind}")  # noqa: S311 - no secret
        place = Place(Path(folder), random, many, corpus)
        for name in ("cache", "home", "state"):
            (place.root / name).mkdir()
        for fault in FAULTS[kind](place):
            tried += 1
            if fault:
                failures.append(fault)
                print(f"  {kind}, attempt {tried}: {fault}", file=sys.stderr, flush=True)
    told = f"{kind}: {tried} in {time.monotonic() - start:.0f} s, {len(failures)} failed"
    print(told, file=sys.stderr, flush=True)
    return tried, failures


def _fuzz(chosen: argparse.Namespace, many: int, found: dict[str, list[str]]) -> list[list[str]]:
    """Return a row for each fuzzed target, of runs before or of a short one now.

    What an earlier run has found is fixed in the last one, or found again.
    """
    with tempfile.TemporaryDirectory() as folder:
        numbers = chosen.fuzz or [Path(folder, "fuzz.json")]
        if not chosen.fuzz:
            own = ["--inputs", str(20 * many), "--seed", str(chosen.seed), "--json", numbers[0]]
            if chosen.corpus:
                own += ["--corpus", chosen.corpus]
            subprocess.run([sys.executable, "-m", "benchmarks.fuzz", *own], check=False, cwd=_ROOT)
        runs = [json.loads(file.read_text()) for file in numbers]
    inputs = Counter[str]()
    for run in runs:
        inputs.update({target["target"]: target["inputs"] for target in run})
    last = {target["target"]: list(target["crashes"]) for run in runs for target in run}
    return [
        _row(f"fuzz: {name}", inputs[name], crashes, found.get(f"fuzz: {name}", []))
        for name, crashes in last.items()
    ]


def _row(kind: str, tried: int, failures: list[str], known: list[str]) -> list[str]:
    """Return the cells of one line; what was found before counts as fixed if its test is there."""
    fixed = sum(_is_tested(test) for test in known)
    left = len(failures) + len(known) - fixed
    return [kind, str(tried), str(len(known) + len(failures)), str(fixed), str(left)]


def _is_tested(test: str) -> bool:
    """Tell whether a test, as pytest names it, is in the suite."""
    file, _, name = test.partition("::")
    path = _ROOT / file
    return path.is_file() and f"def {name.partition('[')[0]}(" in path.read_text(encoding="utf-8")


def _table(rows: list[list[str]]) -> str:
    sums = [str(sum(int(row[column]) for row in rows)) for column in range(1, 5)]
    lines = [["What", "Tried", "Failures found", "Fixed", "Left"], ["---", *["---:"] * 4]]
    lines += [*rows, ["**all**", *sums]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
