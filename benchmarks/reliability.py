"""The table of docs/reliability.md: what was tried against npufix, and what came of it.

    python -m benchmarks.reliability --write docs

The tests in ``tests/faults`` inject the faults, a few of each kind with every change; here they try
all. The same seed tries the same. What was found and repaired before stands in
``reliability_found.json``: a sentence, and the test that would find it again. The folder's
``security.md`` gets what was fuzzed, between two comments.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    _Run = list[dict[str, Any]]
    """What benchmarks.fuzz has written of its targets."""
    _Found = dict[str, list[dict[str, str]]]

_ROOT = Path(__file__).parents[1]
_FOUND = Path(__file__).with_name("reliability_found.json")
_KINDS = (
    "mutated real dumps", "mutated generated dumps", "kill -9 at the lines of a write",
    "patch --write and undo, ended", "kill -9 during a report", "full disk", "full disk, a write",
    "two patch --write at once", "git apply of patches", "read-only dump and source",
    "unwritable cache and home", "damaged cache", "several npufix at once", "clock jumps",
    "Ctrl-C and kill", "encodings", "locales", "Windows line ends and paths", "symbolic links",
    "special files", "bombs and endless fields", "hostile databases",
    "hostile dumps of the tests", "attacks of verified code",
)  # fmt: skip
"""As the mark ``fault`` of their tests has them."""
_FULL = 5
_FUZZ = "fuzz: "
_BEGIN = "<!-- fuzzing: written by python -m benchmarks.reliability -->"
_END = "<!-- fuzzing ends -->"
_HEADER = """\
# Reliability: what was tried, and what came of it

"""
_FOOTER = """
`python -m benchmarks.reliability --write docs` makes this page anew in a quarter of an hour, and
what [security](security.md) says of fuzzing (`--full`: five times as many attempts; `--seed` and
`--corpus DIR`, real dumps, try others). What needs root (a small file system that is full) is left
out without. `python -m benchmarks.fuzz --minutes 30 --json fuzz.json` fuzzes the readers for
longer, and `--fuzz fuzz.json` puts its numbers here; several runs add up.

A failure is a traceback, an exit status that is not documented, a hang, half of a file, a touched
dump or source, another result than without the fault, a number that cannot be, a control character
in the output, a patch that git refuses, or an attack that gets through. *Failures found* counts
different ones since they are recorded (in `benchmarks/reliability_found.json`), and *Fixed* those
whose test is in the suite.

## What failed before it was fixed

What fuzzing has found is on the page on [security](security.md#fuzzing). The rest:

"""


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.reliability", description=__doc__)
    add = parser.add_argument
    add("--full", action="store_true", help=f"{_FULL} times as many attempts")
    add("--seed", type=int, default=0)
    add("--only", action="append", choices=["fuzz", *_KINDS], default=[], metavar="KIND",
        help=f"one of: fuzz, {', '.join(_KINDS)}")  # fmt: skip
    add("--corpus", type=Path, help="folder of real dumps, of which copies are changed")
    add("--fuzz", type=Path, action="append", default=[],
        help="what benchmarks.fuzz --json wrote of longer runs, the newest last")  # fmt: skip
    add("--write", type=Path, metavar="DOCS",
        help="folder of reliability.md and security.md; all kinds have to be tried")  # fmt: skip
    return parser


def main() -> int:
    """Try everything, print the table, and return 1 if something fails."""
    parser = _options()
    chosen = parser.parse_args()
    if chosen.write and chosen.only:
        parser.error("--write needs all kinds, so no --only")
    many = _FULL if chosen.full else 1
    found = json.loads(_FOUND.read_text())
    kinds = [kind for kind in _KINDS if not chosen.only or kind in chosen.only]
    tried = _attempts(kinds, chosen.seed, many, chosen.corpus) if kinds else {}
    rows = [_row(kind, *tried[kind], found.get(kind, [])) for kind in kinds]
    fuzzed = _run_fuzzer(chosen, many) if "fuzz" in (chosen.only or ["fuzz"]) else []
    rows += _fuzz(fuzzed, found)
    text = _table(rows)
    print(text, end="")
    if chosen.write:
        others = {kind: ones for kind, ones in found.items() if not kind.startswith(_FUZZ)}
        whole = _HEADER + text + _FOOTER + _words(others)
        (chosen.write / "reliability.md").write_text(whole)
        page = chosen.write / "security.md"
        page.write_text(_with_fuzzing(page.read_text(), _fuzzing(fuzzed, found)))
    return int(any(row[-1] != "0" for row in rows))


def _attempts(
    kinds: Sequence[str], seed: int, many: int, corpus: Path | None
) -> dict[str, tuple[int, list[str]]]:
    """Inject the faults of some kinds; return how many of each, and what failed."""
    tried: dict[str, tuple[int, list[str]]] = {kind: (0, []) for kind in kinds}
    more = {
        "NPUFIX_FAULTS": str(many),
        "NPUFIX_SEED": str(seed),
        "NPUFIX_CORPUS": str(corpus or ""),
    }
    with tempfile.TemporaryDirectory(prefix="npufix-faults-") as folder:
        result = Path(folder, "result.xml")
        marked = " or ".join(f"fault(kind={kind!r})" for kind in kinds)
        options = ["-o", "junit_family=xunit1", "-p", "no:cacheprovider"]
        options += [f"--junitxml={result}", f"--basetemp={folder}/made"]
        subprocess.run(
            [sys.executable, "-m", "pytest", "--tb=short", *options, "-m", marked, "tests/faults"],
            cwd=_ROOT, env={**os.environ, **more}, check=False, stdout=sys.stderr,
        )  # fmt: skip
        cases = [*ET.parse(result).getroot().iter("testcase")]  # noqa: S314 - our own
    for case in cases:
        told = {each.get("name"): each.get("value", "") for each in case.iter("property")}
        broken = [part for part in case if part.tag in {"failure", "error"}]
        if told.get("fault") not in tried:
            if broken:  # it could not even be collected
                raise SystemExit(f"{case.get('name')}: {broken[0].get('message')}")
        elif case.find("skipped") is None:
            number, failures = tried[str(told["fault"])]
            failures += [f"{case.get('name')}: {part.get('message')}" for part in broken]
            tried[str(told["fault"])] = number + int(told.get("attempts") or 1), failures
    return tried


def _run_fuzzer(chosen: argparse.Namespace, many: int) -> list[_Run]:
    """Return what was fuzzed, in runs before or in a short one now."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = chosen.fuzz or [Path(folder, "fuzz.json")]
        if not chosen.fuzz:
            own = ["--inputs", str(20 * many), "--seed", str(chosen.seed), "--json", numbers[0]]
            if chosen.corpus:
                own += ["--corpus", chosen.corpus]
            subprocess.run([sys.executable, "-m", "benchmarks.fuzz", *own], check=False, cwd=_ROOT)
        return [json.loads(file.read_text()) for file in numbers]


def _fuzz(runs: Sequence[_Run], found: _Found) -> list[list[str]]:
    """Return a row for each fuzzed target.

    What an earlier run has found is fixed in the last one, or found again.
    """
    inputs = Counter[str]()
    for run in runs:
        inputs.update({target["target"]: target["inputs"] for target in run})
    last = {target["target"]: list(target["crashes"]) for run in runs for target in run}
    return [
        _row(f"{_FUZZ}{name}", inputs[name], crashes, found.get(f"{_FUZZ}{name}", []))
        for name, crashes in last.items()
    ]


def _fuzzing(runs: Sequence[_Run], found: _Found) -> str:
    """Return what the page on security says of it."""
    parts = [target for run in runs for target in run]
    minutes = sum(target["seconds"] for target in parts) / 60
    inputs = sum(target["inputs"] for target in parts)
    names = {target["target"] for target in parts}
    rows = _fuzz(runs, found)
    failures, left = (sum(int(row[column]) for row in rows) for column in (2, 4))
    known = {kind: ones for kind, ones in found.items() if kind.startswith(_FUZZ)}
    said = [
        f"{len(names)} readers were fuzzed for {minutes:.0f} minutes with {inputs:,} inputs.",
        f"{failures} different failures were found since they are counted, {left} are left:",
    ]
    return "\n".join([*said, "", _words(known)])


def _words(found: _Found) -> str:
    """Return what was found as a list."""
    return "".join(
        f"- {kind.removeprefix(_FUZZ)}: {one['was']}\n"
        for kind, ones in found.items()
        for one in ones
    )


def _with_fuzzing(page: str, text: str) -> str:
    """Return the page with a new text between its two comments."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{text}{_END}{after}"


def _row(kind: str, tried: int, failures: list[str], known: list[dict[str, str]]) -> list[str]:
    """Return the cells of one line; what was found before counts as fixed if its test is there."""
    fixed = sum(_is_tested(one["test"]) for one in known)
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
