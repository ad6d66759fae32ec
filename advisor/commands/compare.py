"""``npufix compare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.commands.cli import INPUT_ERROR
from npufix.advisor.console.progress_line import progress
from npufix.reports.comparison import Comparison

if TYPE_CHECKING:
    from npufix.advisor.compare.side import ComparedRun
    from npufix.advisor.project.configuration import Configuration
    from npufix.advisor.project.source_tree import SourceTree


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What the user asked for of both runs."""

    rank: int | None
    path_map: tuple[tuple[str, str], ...]
    rules: tuple[str, ...]
    top: int


@click.command(
    epilog="""\b
Examples:
  npufix compare run1_ascend_pt run2_ascend_pt
  npufix compare run1_ascend_pt run2_ascend_pt \\
      --source-before old/src --source-after src -o comparison.md
  npufix compare run1_ascend_pt run2_ascend_pt --html comparison.html
  npufix compare gpu.pt.trace.json.gz run1_ascend_pt
  npufix compare perf/baseline.json run2_ascend_pt"""
)
@click.argument("before", type=common.PATH)
@click.argument("after", type=common.PATH)
@click.option("--source", type=common.PATH, help="Folder (or file) of the program, of both runs.")
@click.option("--source-before", type=common.PATH, help="The program as BEFORE ran it.")
@click.option("--source-after", type=common.PATH, help="The program as AFTER ran it.")
@click.option("--steps-before", type=click.IntRange(min=1),
              help="How many steps BEFORE holds, where it has none marked.")  # fmt: skip
@click.option("--steps-after", type=click.IntRange(min=1),
              help="How many steps AFTER holds, where it has none marked.")  # fmt: skip
@common.rank_option
@common.path_map_option
@common.rule_option
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many rows of each table.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@output_files.output_option(Comparison)
@click.option("--html", "html", type=common.PATH, metavar="FILE",
              help="Write the comparison as one HTML page; the same as -o html=FILE.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Show more rows, and all host operators.")
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    before: Path,
    after: Path,
    source: Path | None,
    source_before: Path | None,
    source_after: Path | None,
    steps_before: int | None,
    steps_after: int | None,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
    rules: tuple[str, ...],
    top: int,
    outputs: tuple[tuple[str, Path], ...],
    html: Path | None,
    *,
    as_json: bool,
    verbose: bool,
) -> int:
    """Say what makes two runs differ: by step, operator, shape, line and rule.

    BEFORE and AFTER are dumps (whatever diagnose reads), JSON reports of diagnose, or baselines.
    Where AFTER is the run with changes that npufix proposed for BEFORE, what they were to save is
    held against what they saved. A GPU's trace and an NPU's dump are compared by the operators of
    PyTorch. However much slower AFTER is, this does not fail: that is what npufix gate is for. The
    exit status is 2 only where a run cannot be read, or not all of it.
    """
    outputs = output_files.with_json(outputs, as_json=as_json)
    if html is not None:
        outputs = output_files.with_page(outputs, html)
    from npufix.advisor.compare.comparison import compare
    from npufix.advisor.compare.predictions import pairs_of

    sources = source_before or source, source_after or source
    wanted = CompareRequest(rank, path_map, rules, top)
    runs = _read((before, after), sources, (steps_before, steps_after), wanted)
    result = compare(*runs)
    common.warn(dict.fromkeys(text for run in runs for text in run.warnings))
    output_files.write(outputs, output_files.Result(result, details=verbose, top=top))
    common.keep_calibration(pairs_of(result))
    broken = any(side.partial for side in (result.before, result.after))
    return INPUT_ERROR if broken else 0


def _read(
    paths: tuple[Path, Path],
    sources: tuple[Path | None, Path | None],
    steps: tuple[int | None, int | None],
    wanted: CompareRequest,
) -> tuple[ComparedRun, ComparedRun]:
    """Read one run, reduce it, and only then the other: one of them is in memory at a time."""
    from npufix.advisor.compare.side import read_run
    from npufix.advisor.compare.unmarked import with_steps
    from npufix.advisor.diagnose.diagnosis import Options

    runs: list[ComparedRun] = []
    trees: dict[Path, SourceTree] = {}
    for number, (path, source, count) in enumerate(zip(paths, sources, steps, strict=True), 1):
        configuration = common.read_configuration(source or Path(), wanted.rules)
        options = Options(wanted.top, wanted.rank, wanted.path_map, configuration)
        with progress(f"Reading run {number} of 2"):
            tree = _tree(source, configuration, trees) if source else None
            run = read_run(path, tree, options)
            runs.append(with_steps(run, count) if count else run)
    return runs[0], runs[1]


def _tree(source: Path, configuration: Configuration, trees: dict[Path, SourceTree]) -> SourceTree:
    from npufix.advisor.project.source_tree import read_source_tree

    if source not in trees:
        trees[source] = read_source_tree(source, configuration)
    return trees[source]
