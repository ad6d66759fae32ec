"""``npufix diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.console.progress_line import progress
from npufix.reports.data.sources import Sources
from npufix.reports.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_SECTIONS = {
    "findings": "Show each finding whole: what, where, what to write instead.",
    "operators": "Show the operators that take most time.",
    "shapes": "Show the shapes that take most time.",
    "lines": "Show the lines of code that ask for most time.",
    "modules": "Show the nn.Modules that take most time.",
    "collectives": "Show the collectives that take most time.",
    "headroom": "Show how far kernels are from what the chip allows.",
    "ranks": "Show where each rank spends its time.",
}


def _section_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, text in reversed(_SECTIONS.items()):
        command = click.option(f"--{name}", is_flag=True, help=text)(command)
    return command


@click.command(
    epilog="""\b
Examples:
  npufix diagnose run1_ascend_pt
  npufix diagnose run1_ascend_pt --source src --operators --top 20
  npufix diagnose cluster_dumps --rank 3
  npufix diagnose cluster_dumps --executor dask:tcp://10.0.0.1:8786
  npufix diagnose gpu.pt.trace.json.gz
  npufix diagnose run1_ascend_pt --source src --what-if NPU101,NPU103
  npufix diagnose run1_ascend_pt --source src --json > report.json
  npufix diagnose run1_ascend_pt --source src --html report.html
  npufix diagnose run1_ascend_pt -o xlsx=tables.xlsx -o csv=tables
  npufix diagnose run1_ascend_pt --source src -o perfetto=findings.json.gz
  npufix diagnose run1_ascend_pt --source src -o report.md -o sarif=src.sarif"""
)
@click.argument("dump", type=common.PATH)
@click.option("--source", type=common.PATH, help="Folder (or file) of the profiled program.")
@common.rank_option
@common.path_map_option
@common.rule_option
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many rows of each table to show.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@output_files.output_option(Report)
@click.option("--html", "html", type=common.PATH, metavar="FILE",
              help="Write the report as one HTML page; the same as -o html=FILE.")  # fmt: skip
@click.option("--executor", default="local", show_default=True, metavar="WHERE",
              help="Where to read ranks: local, local:N or dask:tcp://HOST:PORT.")  # fmt: skip
@click.option("--all", "every", is_flag=True,
              help="Read all ranks as a whole, not only those that stand out.")  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Read all ranks again; keep nothing of them.")
@_section_options
@click.option("--what-if", "what_if", multiple=True, metavar="ID", callback=common.split,
              help="Predict the step with only the changes of these rules.")  # fmt: skip
@click.option("--without", multiple=True, metavar="ID", callback=common.split,
              help="Predict the step with all changes but those of these rules.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Show everything, with all figures.")
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    dump: Path,
    source: Path | None,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
    rules: tuple[str, ...],
    top: int,
    outputs: tuple[tuple[str, Path], ...],
    html: Path | None,
    executor: str,
    what_if: tuple[str, ...],
    without: tuple[str, ...],
    *,
    every: bool,
    no_cache: bool,
    as_json: bool,
    verbose: bool,
    **sections: bool,
) -> int:
    """Say where the device time goes, and which line of code asked for it.

    DUMP is a folder *_ascend_pt of the Ascend PyTorch Profiler (text or db export), a folder
    PROF_* of msprof, a folder above them, or a trace of torch.profiler (*.pt.trace.json.gz). Of
    several ranks the slowest is diagnosed.
    """
    outputs = output_files.with_json(outputs, as_json=as_json)
    if html is not None:
        outputs = output_files.with_page(outputs, html)
    from npufix.advisor.cluster.looking import Ways
    from npufix.advisor.commands.run_outputs import DiagnosedRun
    from npufix.advisor.diagnose.diagnosis import Options, diagnose
    from npufix.advisor.predict.what_if import Asked
    from npufix.advisor.project.source_tree import read_source_tree

    if what_if and without:
        raise click.UsageError("--what-if and --without ask different questions; give one of them")
    for name in (*what_if, *without):
        common.check_rule(name)
    asked = Asked(what_if or without, bool(without)) if what_if or without else None
    configuration = common.read_configuration(source or Path(), rules)
    with progress("Reading the dump"):
        tree = read_source_tree(source, configuration) if source else None
        shown = output_files.rows_wanted(outputs, top)
        ways = Ways(executor, cache=not no_cache, every=every)
        bounds = verbose or sections["headroom"] or output_files.want_headroom(outputs)
        changes = output_files.want_changes(outputs)
        options = Options(shown, rank, path_map, configuration, ways, asked, bounds, changes)
        result = diagnose(dump, tree, options)
    common.warn(result.warnings)
    report = result.report
    if tree is not None and changes:
        from npufix.advisor.patch.suggestions import with_report_changes

        report = with_report_changes(result, tree)
    run = DiagnosedRun(result, tree)
    sources = Sources(tree.root if tree else None)
    wanted = tuple(name for name, is_wanted in sections.items() if is_wanted)
    made = output_files.Result(report, sources, verbose, wanted, top, run)
    output_files.write(outputs, made)
    return common.exit_status(report)
