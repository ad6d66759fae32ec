"""What is timed: commands as a user types them, beside a limit, and the peer where it has one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measuring import NPUFIX, ROOT, count_bytes, mebibytes, parse_all, python

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = ROOT / "examples" / "bert_like"
EXAMPLE_DUMP = ROOT / "examples" / "dump"
_TABLES = ("kernel_details.csv", "op_statistic.csv", "step_trace_time.csv")
_STEPS = ("--steps", 5)


@dataclass(frozen=True)
class Sizes:
    """How large the dumps are that are written."""

    rows: int = 200_000
    trace_kernels: int = 10_000
    tasks: int = 50_000
    ranks: int = 16
    rank_rows: int = 3_000
    rule: str = ""
    """The only rule whose changes are verified, "" for all."""


@dataclass(frozen=True)
class Comparison:
    """Commands that do the same work; ``peer`` is empty where it has none for it."""

    key: str
    name: str
    ours: tuple[str, ...]
    limit_name: str
    limit: tuple[str, ...]
    peer: tuple[str, ...] = ()


def generate(folder: Path, *options: object) -> Path:
    """Write a dump with ``python -m benchmarks.generator`` and return its path."""
    command = [sys.executable, "-m", "benchmarks.generator", str(folder), *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Path(done.stdout.splitlines()[0].strip())


def comparisons(
    sizes: Sizes, folder: Path, peer: Path | None, tree: Path | None
) -> Iterator[Comparison]:
    """Write a dump when it is its turn, and yield what is to be timed on it."""
    yield Comparison("cold-start", "--help", (*NPUFIX, "--help"), "python -c pass", python("pass"))
    only = [word for name in _TABLES for word in ("--only", name)]
    rows = (*_STEPS, "--kernels")
    dump = generate(folder / "rows", *rows, sizes.rows, *only)
    yield _of_dump(
        "csv", f"diagnose {sizes.rows:,} kernel rows", dump, peer, "advisor", "computation"
    )
    dump = generate(folder / "trace", *rows, sizes.trace_kernels)
    what = f"diagnose csv and trace, {sizes.trace_kernels:,} kernels"
    yield _of_dump("trace", what, dump, peer, "advisor", "all")
    without = ("--format", "db", "--no-stacks", "--no-pmu")
    dump = generate(folder / "db", *rows, sizes.tasks, *without)
    yield _of_dump("db", f"diagnose db, {sizes.tasks:,} tasks, no stacks", dump, None)
    dump = generate(folder / "full", *rows, sizes.tasks, "--format", "db")
    yield _of_dump("db-full", f"diagnose db, {sizes.tasks:,} tasks, all tables", dump, None)
    only += ["--only", "communication.json", "--only", "communication_matrix.json"]
    first = generate(folder / "ranks", *rows, sizes.rank_rows, "--ranks", sizes.ranks, *only)
    what = f"diagnose {sizes.ranks} ranks"
    yield _of_dump("cluster", what, first.parent, peer, "cluster", "-m", "all")
    source = tree or find_installed_models() or ROOT / "rewriters"
    name, limit = f"scan {source.parent.name}/{source.name}", parse_all(source)
    scan = (*NPUFIX, "scan", str(source), "--json")
    yield Comparison("scan", name, scan, "ast.parse of every file", limit)
    example = (str(EXAMPLE_DUMP), "--source", str(EXAMPLE))
    changes = ("patch", *example, "--no-cache", "--on", "reference")
    changes += ("--rule", sizes.rule) if sizes.rule else ()
    name = f"patch the example, {sizes.rule or 'all sites'} verified"
    limit = python("import torch")
    yield Comparison("verify", name, (*NPUFIX, *changes), "import torch", limit)
    page = ("diagnose", *example, "--html", str(folder / "page.html"))
    limit = python("import pandas")
    name = "diagnose the example, HTML"
    yield Comparison("report", name, (*NPUFIX, *page), "import pandas", limit)


def find_installed_models() -> Path | None:
    """Return where the models of transformers are, if they are."""
    found = importlib.util.find_spec("transformers")
    return Path(found.origin).parent / "models" if found and found.origin else None


def _of_dump(key: str, what: str, dump: Path, peer: Path | None, *words: str) -> Comparison:
    theirs: tuple[str, ...] = ()
    if peer is not None:
        command = str(peer.with_name("msprof-analyze"))
        theirs = (command, *words, "-d", str(dump), "-o", str(dump.parent), "--force")
    name = f"{what}, {mebibytes(dump):,.0f} MiB"
    ours = (*NPUFIX, "diagnose", str(dump))
    return Comparison(key, name, ours, "reading the bytes", count_bytes(dump), theirs)
