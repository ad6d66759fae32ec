"""``npufix diagnose``."""

from __future__ import annotations

from pathlib import Path

import click

from npufix.advisor.commands import common


@click.command(
    epilog="""\b
Examples:
  npufix diagnose run1_ascend_pt
  npufix diagnose run1_ascend_pt --source src --top 20
  npufix diagnose cluster_dumps --rank 3
  npufix diagnose gpu.pt.trace.json.gz
  npufix diagnose run1_ascend_pt --source src --json > report.json"""
)
@click.argument("dump", type=common.PATH)
@click.option("--source", type=common.PATH, help="Folder (or file) of the profiled program.")
@common.rank_option
@common.path_map_option
@common.rule_option
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many hot operators to show.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-o", "--output", type=common.PATH, help="Write the report too: .md or .json.")
@click.option("-v", "--verbose", is_flag=True, help="Show all conditions and their proofs.")
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    dump: Path,
    source: Path | None,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
    rules: tuple[str, ...],
    top: int,
    output: Path | None,
    *,
    as_json: bool,
    verbose: bool,
) -> int:
    """Say where the device time goes, and which line of code asked for it.

    DUMP is a folder *_ascend_pt of the Ascend PyTorch Profiler (text or db export), a folder
    PROF_* of msprof, a folder above them, or a trace of torch.profiler (*.pt.trace.json.gz). Of
    several ranks the slowest is diagnosed.
    """
    common.check_report_path(output)
    from npufix.advisor.diagnosis import Options, diagnose  # noqa: PLC0415 - pandas is slow to load
    from npufix.advisor.source_tree import read_source_tree  # noqa: PLC0415 - same

    configuration = common.read_configuration(source or Path(), rules)
    with common.progress("Reading the dump"):
        tree = read_source_tree(source, configuration) if source else None
        result = diagnose(dump, tree, Options(top, rank, path_map, configuration))
    common.warn(result.warnings)
    return common.finish(result.report, output, as_json=as_json, verbose=verbose)
