"""``npufix explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.console.loudness import is_quiet, is_verbose
from npufix.advisor.console.speaking import say

if TYPE_CHECKING:
    from npufix.advisor.project.source_tree import SourceFile


def _place(
    context: click.Context,  # noqa: ARG001 - click's interface
    parameter: click.Parameter,  # noqa: ARG001 - same
    value: str,
) -> tuple[Path, int]:
    """Split ``FILE:LINE`` at its last colon."""
    path, _, line = value.rpartition(":")
    if not path or not line.isdecimal():
        raise click.BadParameter(f"{value!r} is not FILE:LINE, as in model.py:75")
    return Path(path), int(line)


@click.command(
    epilog="""\b
Examples:
  npufix explain src/norm.py:22
  npufix explain src/norm.py:22 --rule NPU101 --json"""
)
@click.argument("place", callback=_place, metavar="FILE:LINE")
@common.rule_option
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
def command(place: tuple[Path, int], rules: tuple[str, ...], *, as_json: bool) -> None:
    """Say why a line is found, or why not: what FILE:LINE lacks to match a rule.

    Rules that match are shown with their conditions, those that nearly match with the operation
    at which their pattern and the code part. Nothing of the source is executed.
    """
    from npufix.advisor.console.screen import make_console

    path, line = place
    from npufix.advisor.diagnose.explaining import explain
    from npufix.rules.registry import all_rules

    file = _file(path)
    configuration = common.read_configuration(path, rules)
    wanted = [rule for rule in all_rules() if configuration.wants(rule)]
    found = explain(file, line, wanted, configuration)
    if as_json:
        import msgspec

        common.print_json(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    from npufix.reports.terminal.explanation import outline, show

    if is_quiet():
        for text in outline(found):
            say(text, err=False)
        return
    show(found, make_console(), details=is_verbose())


def _file(path: Path) -> SourceFile:
    from npufix.advisor.project.source_tree import read_source_tree

    if path.is_dir():
        raise click.UsageError(f"{path} is a folder; name a file and a line: FILE:LINE")
    if not path.exists():
        from npufix.profiling_parsers.discover import nearest

        remedy = nearest(path) or "name a file and a line: FILE:LINE"
        raise click.UsageError(f"no file {path}; {remedy}")
    tree = read_source_tree(path)
    for problem in tree.problems:
        raise click.UsageError(f"{path}: {problem.what}; {problem.remedy}")
    return next(iter(tree.files.values()))
