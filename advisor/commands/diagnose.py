"""``npufix diagnose``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command(
    epilog="""\b
Examples:
  npufix diagnose run1_ascend_pt
  npufix diagnose run1_ascend_pt --source src --top 20
  npufix diagnose run1_ascend_pt --source src --json > report.json"""
)
@click.argument("dump", type=common.PATH)
@click.option("--source", type=common.PATH, help="Folder (or file) of the profiled program.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many hot operators to show.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-o", "--output", type=common.PATH, help="Write the report too: .md or .json.")
@click.option("-v", "--verbose", is_flag=True, help="Show all conditions and their proofs.")
def command(  # noqa: PLR0913 - one parameter an option
    dump: Path, source: Path | None, top: int, output: Path | None, *, as_json: bool, verbose: bool
) -> int:
    """Say where the device time goes, and which line of code asked for it.

    DUMP is a folder *_ascend_pt of the Ascend PyTorch Profiler, a folder above it, or its
    ASCEND_PROFILER_OUTPUT.
    """
    common.check_report_path(output)
    from npufix.advisor.diagnosis import diagnose  # noqa: PLC0415 - pandas takes half a second
    from npufix.advisor.source_tree import read_source_tree  # noqa: PLC0415 - same

    with common.progress("Reading the dump"):
        result = diagnose(dump, read_source_tree(source) if source else None, top)
    return common.finish(result.report, output, as_json=as_json, verbose=verbose)
