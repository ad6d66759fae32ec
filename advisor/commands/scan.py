"""``npufix scan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.console.progress_line import progress
from npufix.reports.data.sources import Sources
from npufix.reports.report import Report

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.gate.source_gate import FailOn
    from npufix.advisor.project.source_tree import SourceTree


@click.command(
    epilog="""\b
Examples:
  npufix scan src
  npufix scan src --rule NPU101 --json
  npufix scan src --write-baseline perf/findings.json
  npufix scan src --baseline perf/findings.json
  npufix scan src --fail-on safe -o sarif=npufix.sarif -o github=-

With --baseline or --fail-on the exit status is 1 if something new was found, 0 if
not, 2 if a part of the source could not be read."""
)
@click.argument("sources", type=common.PATH, nargs=-1, required=True, metavar="SOURCE...")
@common.rule_option
@common.everywhere_option
@click.option("--baseline", type=common.PATH, metavar="FILE",
              help="Fail only on what this file does not hold.")  # fmt: skip
@click.option("--write-baseline", "new_baseline", type=common.PATH, metavar="FILE",
              help="Take what is found into this file; what is not in SOURCE stays.")  # fmt: skip
@click.option("--fail-on", "failing", multiple=True, metavar="WHAT", callback=common.split,
              help="What fails: safe, conditional (and safe), advice (everything), or rules;"
              " may be repeated, or a list with commas. Default with --baseline:"
              " advice.")  # fmt: skip
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if something new was found.")
@click.option("--force-exclude", is_flag=True,
              help="Leave out what the configuration excludes even where it is named.")  # fmt: skip
@output_files.output_option(Report, recorded=False)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--no-cache", is_flag=True,
              help="Search all files again; keep nothing of them.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Show all conditions and their proofs.")
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    sources: tuple[Path, ...],
    rules: tuple[str, ...],
    baseline: Path | None,
    new_baseline: Path | None,
    failing: tuple[str, ...],
    outputs: tuple[tuple[str, Path], ...],
    *,
    everywhere: bool,
    exit_zero: bool,
    force_exclude: bool,
    as_json: bool,
    no_cache: bool,
    verbose: bool,
) -> int:
    """Find slow patterns in SOURCE, folders or files, without a dump.

    Nothing of the source is executed. --write-baseline accepts all that is found; --baseline then
    fails on new patterns only. What is known is recognised by rule, file, function and code:
    moved lines, renamed functions and renamed files are not new.
    """
    if baseline and new_baseline:
        raise click.UsageError("--baseline compares and --write-baseline writes; give one of them")
    outputs = output_files.with_json(outputs, as_json=as_json)
    wanted = _fail_on(failing)
    from npufix.advisor.commands.run_outputs import DiagnosedRun
    from npufix.advisor.diagnose.source_scan import scan
    from npufix.advisor.project.source_tree import find_shared_folder, read_source_trees

    start = sources[0] if len(sources) == 1 else find_shared_folder(sources)
    configuration = common.read_configuration(start, rules, everywhere=everywhere)
    with_changes = output_files.want_changes(outputs)
    with progress("Reading the source"):
        tree = read_source_trees(sources, configuration, exclude_named=force_exclude)
        listed = bool(baseline or new_baseline)
        result = scan(tree, with_text=with_changes, cache=not no_cache, to_compare=listed)
        result = _with_changes(result, tree, cache=not no_cache) if with_changes else result
    result = _with_groups(result, tree)
    common.warn(result.warnings)
    if new_baseline is not None:
        _write_baseline(result, tree, new_baseline)
    elif baseline is not None or failing:
        return _gate(result, tree, baseline, wanted, outputs, exit_zero=exit_zero, verbose=verbose)
    run = DiagnosedRun(result, tree)
    made = output_files.Result(result.report, Sources(tree.root), verbose, run=run)
    output_files.write(outputs, made)
    return common.exit_status(result.report)


def _fail_on(names: tuple[str, ...]) -> FailOn:
    from npufix.advisor.gate.source_gate import LEVELS, fail_on
    from npufix.advisor.project.known_names import rule_names

    for name in names:
        if name not in LEVELS and name.lower() not in rule_names():
            known = ", ".join(LEVELS)
            raise click.UsageError(f"--fail-on {name}: neither one of {known} nor a rule")
    return fail_on(names)


def _with_changes(result: Diagnosis, tree: SourceTree, *, cache: bool) -> Diagnosis:
    from dataclasses import replace

    from npufix.advisor.patch.suggestions import with_report_changes
    from npufix.advisor.project.kept.stored import Store
    from npufix.rewriters.write.user_folders import private_cache_folder

    store = Store(private_cache_folder("searches")) if cache else None
    return replace(result, report=with_report_changes(result, tree, store))


def _with_groups(result: Diagnosis, tree: SourceTree) -> Diagnosis:
    """Return the result with what to vouch for next."""
    from dataclasses import replace

    import msgspec

    from npufix.advisor.patch.grouping import commands

    made = result.report
    steps = commands(result.found, tree.configuration.allow, made)
    report = msgspec.structs.replace(made, next_steps=[*made.next_steps, *steps])
    return replace(result, report=report)


def _write_baseline(result: Diagnosis, tree: SourceTree, path: Path) -> None:
    """Take what was found into a baseline; of a file that is there, what was not searched stays."""
    from npufix.advisor.gate import known_findings
    from npufix.advisor.gate.source_gate import summarize_search
    from npufix.reports.known_findings import to_json

    before = known_findings.read(path) if path.exists() else []
    if any(entry.fingerprint for entry in before):
        raise click.UsageError(f"{path} is a baseline of runs; name another file")
    looked_at = summarize_search(tree, result.report.problems)
    entries = known_findings.merge_findings(result.report.findings, before, looked_at)
    output_files.write_file(path, to_json(entries))


def _gate(  # noqa: PLR0913 - what was found, what was known, what was asked for
    result: Diagnosis,
    tree: SourceTree,
    baseline: Path | None,
    wanted: FailOn,
    outputs: tuple[tuple[str, Path], ...],
    *,
    exit_zero: bool,
    verbose: bool,
) -> int:
    """Show what is new, and return the exit status."""
    from npufix.advisor.gate import known_findings, source_gate

    before = known_findings.read(baseline) if baseline else []
    gated = source_gate.gate(result, tree, before, wanted, baseline)
    output_files.write(outputs, output_files.Result(gated, Sources(tree.root), verbose))
    return 0 if exit_zero else gated.exit_status
