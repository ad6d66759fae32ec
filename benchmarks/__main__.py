"""One table of what the product costs, each line beside its limit: ``python -m benchmarks``.

The commands are timed as a user types them, start and imports included; the limit is what no tool
can be faster than. Both are run in turn, so that a ratio holds where the machine is busy. The peer
is msprof-analyze, installed beside ``--peer PYTHON``; it runs once, because it takes minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.comparisons import EXAMPLE, Sizes, comparisons, generate
from benchmarks.measuring import ROOT, Cost, cost, median

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.comparisons import Comparison

RECORDED = Path(__file__).with_name("ratios.json")
GROSS = 2.5
"""A ratio this many times the recorded one is a regression; machines differ by less."""
QUICK = Sizes(
    rows=50_000, trace_kernels=2_000, tasks=5_000, ranks=8, rank_rows=1_000, rule="NPU101"
)
_HEAD = ("what", "CPU s", "wall s", "MiB", "limit", "limit s", "ratio", "peer s", "peer / us")


@dataclass(frozen=True)
class Measured:
    """One line: medians of the runs."""

    key: str
    name: str
    ours: Cost
    limit_name: str
    limit: Cost
    peer: Cost | None

    @property
    def ratio(self) -> float:
        """Return how many times the limit ours takes, in processor time."""
        return self.ours.cpu_s / self.limit.cpu_s

    def cells(self) -> tuple[str, ...]:
        """Return the line of the table."""
        theirs = ("", "")
        if self.peer is not None:
            of_peer = f"{self.peer.cpu_s:.1f} ({self.peer.peak_mib:,.0f} MiB)"
            theirs = (of_peer, f"{self.peer.cpu_s / self.ours.cpu_s:.1f}")
        return (
            self.name, f"{self.ours.cpu_s:.2f}", f"{self.ours.wall_s:.2f}",
            f"{self.ours.peak_mib:,.0f}", self.limit_name, f"{self.limit.cpu_s:.2f}",
            f"{self.ratio:.1f}", *theirs,
        )  # fmt: skip


def measure(each: Comparison, runs: int, folder: Path) -> Measured:
    """Run ours and the limit in turn, the peer once."""
    ours: list[Cost] = []
    limits: list[Cost] = []
    for _ in range(runs):
        ours.append(cost(each.ours, folder))
        limits.append(cost(each.limit, folder))
    peer = cost(each.peer, folder) if each.peer else None
    return Measured(each.key, each.name, median(ours), each.limit_name, median(limits), peer)


def of_stages(folder: Path, kernels: int) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the stages of one diagnosis."""
    dump = generate(folder / "stages", "--steps", 5, "--kernels", kernels)
    command = [sys.executable, "-m", "benchmarks.stages", str(dump), str(EXAMPLE)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for stage in json.loads(done.stdout):
        ratio = stage["cpu_s"] / stage["limit_s"]
        limit = (stage["limit"], f"{stage['limit_s']:.3f}")
        yield (
            f"stage: {stage['name']}",
            f"{stage['cpu_s']:.3f}",
            "",
            "",
            *limit,
            f"{ratio:.2f}",
            "",
            "",
        )


def regressions(ratios: Mapping[str, float], recorded: Mapping[str, float]) -> list[str]:
    """Return a line for each ratio that is far above the recorded one."""
    return [
        f"{key}: {ratio:.1f} times its limit, recorded {recorded[key]:.1f}"
        for key, ratio in ratios.items()
        if key in recorded and ratio > GROSS * recorded[key]
    ]


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Print the table; with ``--check``, fail on a gross regression of a ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, help="of kernel_details.csv, 320 B each")
    add("--trace-kernels", type=int, help="each with 3.3 kB of trace_view.json")
    add("--tasks", type=int, help="of the databases")
    add("--ranks", type=int)
    add("--runs", type=int, default=3)
    add("--tree", type=Path, help="source to scan; default: transformers/models, if installed")
    add("--peer", type=Path, help="interpreter of a virtual environment with msprof-analyze")
    add("--only", action="append", default=[], metavar="KEY", help="only this line; repeatable")
    add("--check", action="store_true", help="small dumps, compared with the recorded ratios")
    add("--record", action="store_true", help="small dumps, and record their ratios")
    options = parser.parse_args()
    small = options.check or options.record
    given = {
        key: value
        for key in ("rows", "trace_kernels", "tasks", "ranks")
        if (value := getattr(options, key))
    }
    base = QUICK if small else Sizes()
    sizes = Sizes(**{**base.__dict__, **given})
    tree = options.tree or (ROOT / "rewriters" if small else None)
    print(_row(_HEAD))
    print(_row(("---",) * len(_HEAD)), flush=True)
    ratios = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in comparisons(sizes, folder, options.peer, tree):
            if options.only and each.key not in options.only:
                continue
            line = measure(each, options.runs, folder)
            ratios[each.key] = round(line.ratio, 2)
            print(_row(line.cells()), flush=True)
        if not small and not options.only:
            for cells in of_stages(folder, sizes.trace_kernels):
                print(_row(cells), flush=True)
    if options.record:
        RECORDED.write_text(json.dumps(ratios, indent=2) + "\n")
    if not options.check:
        return 0
    found = regressions(ratios, json.loads(RECORDED.read_text()))
    print("\n".join(found) or "no ratio is far above the recorded one")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
