"""Times ``npufix scan`` of a source tree against parsing it, both measured in the same run.

python benchmarks/scan.py FOLDER [--runs N] [--rule ID]

The limit is one core that calls ``ast.parse`` on every file once. The ratio of the wall times is
what a user waits for; that of the processor times is what it costs, all processes together.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PARSE = """
import ast, pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    ast.parse(path.read_bytes())
"""


@dataclass(frozen=True)
class Cost:
    """What one command took, its children included."""

    wall_s: float
    cpu_s: float


def cost(command: list[str]) -> Cost:
    """Run a command and return what it took."""
    before = os.times()
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: PLW1510 - a partial result is one
    wall = time.perf_counter() - began
    after = os.times()
    spent = after.children_user + after.children_system
    return Cost(wall, spent - before.children_user - before.children_system)


def main() -> None:
    """Time both, in turn."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rule", action="append", default=[])
    options = parser.parse_args()
    folder = str(options.folder.resolve())
    rules = [word for rule in options.rule for word in ("--rule", rule)]
    scan, parse = [], []
    for _ in range(options.runs):
        parse.append(cost([sys.executable, "-c", _PARSE, folder]))
        scan.append(
            cost([sys.executable, "-m", "npufix.advisor", "scan", folder, "--json", *rules])
        )
    for name, value in (("wall", "wall_s"), ("CPU", "cpu_s")):
        ours, limit = (
            statistics.median(getattr(c, value) for c in costs) for costs in (scan, parse)
        )
        print(f"{name:<5} scan {ours:7.1f} s   ast.parse {limit:6.1f} s   ratio {ours / limit:.2f}")


if __name__ == "__main__":
    main()
