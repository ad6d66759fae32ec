"""What each stage of ``npufix diagnose`` costs beside its limit, in one process, as JSON.

python -m benchmarks.stages DUMP SOURCE

The limit of a stage that reads is reading the same bytes once and counting line ends; that of the
search in the source is calling ``ast.parse`` on its files. What is imported is imported before.
"""

from __future__ import annotations

import argparse
import ast
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.diagnose import page_details
from npufix.advisor.diagnose.diagnosis import diagnose
from npufix.advisor.diagnose.findings import Measured, locate
from npufix.advisor.evidence.estimate import calibrate
from npufix.advisor.evidence.lines import gather_evidence
from npufix.advisor.evidence.ranking import Ranking, Step, step_split
from npufix.advisor.evidence.recorded_paths import map_recorded_paths
from npufix.advisor.evidence.run_findings import observe
from npufix.advisor.project.configuration import EVERYTHING
from npufix.advisor.project.source_tree import read_source_tree
from npufix.profiling_parsers.discover import find_dumps
from npufix.profiling_parsers.reader import read_profile
from npufix.reports.html.page import to_html
from npufix.reports.report import to_json
from npufix.rules.registry import all_diagnostics, all_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOP = 10


class Stage(msgspec.Struct, frozen=True):
    """Processor seconds of a stage, and of what it cannot be faster than."""

    name: str
    cpu_s: float
    limit: str
    limit_s: float


class Clock:
    """Processor time since it was last asked."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        last, self._last = self._last, time.process_time()
        return self._last - last


def count_bytes(dump: Path) -> float:
    """Read every byte of a dump and return how long it took."""
    clock = Clock()
    for path in dump.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while chunk := file.read(1 << 20):
                    chunk.count(b"\n")
    return clock.lap()


def parse_source(source: Path) -> float:
    """Parse every file of a source tree and return how long it took."""
    clock = Clock()
    for path in source.rglob("*.py"):
        ast.parse(path.read_bytes())
    return clock.lap()


def stages(dump: Path, source: Path) -> Iterator[Stage]:
    """Go through a diagnosis, a stage at a time."""
    rules, diagnostics = all_rules(), all_diagnostics()
    diagnose(dump, read_source_tree(source, EVERYTHING))  # what is loaded late is loaded now
    reading = ("reading its bytes", count_bytes(dump))
    parsing = ("ast.parse", parse_source(source))
    clock = Clock()
    profile = read_profile(find_dumps(dump)[0])
    yield Stage("read the dump", clock.lap(), *reading)
    tree = read_source_tree(source, EVERYTHING)
    clock.lap()
    stacks = (*profile.stacks, *profile.signals.operator_stacks)
    recorded = {site.path for stack in stacks for site in stack}
    mapped, _ = map_recorded_paths(recorded, tree, ())
    evidence = gather_evidence(profile, mapped)
    yield Stage("kernels to lines", clock.lap(), *reading)
    split = step_split(evidence)
    step = Step(split.total_ns if split else 0, evidence.steps)
    ranking = Ranking(evidence, step)
    ranking.hot_operators(_TOP), ranking.hot_shapes(_TOP), ranking.hot_lines(_TOP)
    yield Stage("rank operators, shapes, lines", clock.lap(), *reading)
    observe(profile, evidence, step, diagnostics)
    yield Stage(f"{len(diagnostics)} rules on the run", clock.lap(), *reading)
    measured = Measured(evidence, calibrate(evidence.kernels), step.length_ns, proves=True)
    locate(tree, rules, measured)
    yield Stage(f"{len(rules)} rules on the source", clock.lap(), *parsing)
    result = diagnose(dump, tree)
    clock.lap()
    to_json(result.report)
    yield Stage("report as JSON", clock.lap(), *reading)
    to_html(result.report, page_details.page_details(result, result.report, tree))
    yield Stage("report as HTML", clock.lap(), *reading)


def main() -> None:
    """Print the stages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dump", type=Path)
    parser.add_argument("source", type=Path)
    options = parser.parse_args()
    print(msgspec.json.encode(list(stages(options.dump, options.source))).decode())


if __name__ == "__main__":
    main()
