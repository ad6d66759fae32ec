"""``npufix scan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command(
    epilog="""\b
Examples:
  npufix scan src
  npufix scan src --rule NPU101 --json"""
)
@click.argument("source", type=common.PATH)
@common.rule_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-o", "--output", type=common.PATH, help="Write the report too: .md or .json.")
@click.option("-v", "--verbose", is_flag=True, help="Show all conditions and their proofs.")
def command(
    source: Path, rules: tuple[str, ...], output: Path | None, *, as_json: bool, verbose: bool
) -> int:
    """Find slow patterns in SOURCE, a folder or a file, without a dump.

    Nothing of the source is executed.
    """
    common.check_report_path(output)
    from npufix.advisor.source_scan import scan  # noqa: PLC0415 - the rules take a while
    from npufix.advisor.source_tree import read_source_tree  # noqa: PLC0415 - same

    configuration = common.read_configuration(source, rules)
    with common.progress("Reading the source"):
        result = scan(read_source_tree(source, configuration), with_text=False)
    common.warn(result.warnings)
    return common.finish(result.report, output, as_json=as_json, verbose=verbose)
