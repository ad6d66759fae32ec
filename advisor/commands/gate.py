"""``npufix gate``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.console.progress_line import progress
from npufix.reports.data.sources import Sources
from npufix.reports.gate_report import GateReport

if TYPE_CHECKING:
    from npufix.advisor.project.gate_settings import GateSettings

_FAILURES = ("regression", "budget", "new-finding")


@click.command(
    epilog="""\b
Examples:
  npufix gate run1_ascend_pt run2_ascend_pt --baseline perf/baseline.json
  npufix gate runs/*_ascend_pt --baseline perf/baseline.json --source src
  npufix gate run1_ascend_pt --budget "step-time=850 ms"
  npufix gate runs/*_ascend_pt -o markdown=comment.md -o sarif=npufix.sarif
\b
Exit status: 0 pass, 1 a regression, budget or new finding, 2 wrong usage or
input, 3 inconclusive: no baseline, another environment, other work, a change
that may be noise, a broken dump."""
)
@click.argument("dumps", type=common.PATH, nargs=-1, required=True, metavar="DUMP...")
@click.option("--baseline", type=common.PATH, metavar="FILE",
              help="Of npufix baseline update. Default: gate.baseline of the configuration.",
              )  # fmt: skip
@click.option("--source", type=common.PATH, help="Folder of the program, to find what is new.")
@common.rank_option
@common.path_map_option
@common.environment_option
@click.option("--tolerance", metavar="PERCENT",
              help="Changes up to this one do not matter. Default: 5%.")  # fmt: skip
@click.option("--floor", metavar="TIME", help="Nor do smaller ones per step. Default: 50 us.")
@click.option("--budget", "budgets", multiple=True, metavar="METRIC=AMOUNT",
              help='Fail above this, "step-time=850 ms"; may be repeated.')  # fmt: skip
@click.option("--fail-on", type=click.Choice(_FAILURES), multiple=True,
              help="What fails; may be repeated. Default: all of it.")  # fmt: skip
@click.option("--on-missing-baseline", "missing", type=click.Choice(["fail", "pass"]),
              help="Whether it is inconclusive. Default: fail.")  # fmt: skip
@click.option("--on-different-environment", "different", type=click.Choice(["fail", "warn"]),
              help="Chip, number of ranks, versions. Default: fail.")  # fmt: skip
@click.option("--exit-zero", is_flag=True, help="Exit with 0 whatever the verdict is.")
@output_files.output_option(GateReport)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show metrics that did not change, too.")
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    dumps: tuple[Path, ...],
    baseline: Path | None,
    source: Path | None,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
    given: tuple[str, ...],
    tolerance: str | None,
    floor: str | None,
    budgets: tuple[str, ...],
    fail_on: tuple[str, ...],
    missing: str | None,
    different: str | None,
    outputs: tuple[tuple[str, Path], ...],
    *,
    exit_zero: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Fail if runs are slower than their baseline: beyond the tolerance and beyond noise.

    DUMP is what npufix diagnose reads, or its report in JSON, one for each run. Three runs or more
    on either side tell noise from change; with fewer than four in all only changes above 10% fail.
    """
    outputs = output_files.with_json(outputs, as_json=as_json)
    configuration = common.read_configuration(source or Path(), ())
    from npufix.advisor.project.gate_settings import GateSettings, with_command_line

    settings = with_command_line(
        configuration.gate or GateSettings(),
        {"baseline": baseline, "on_missing_baseline": missing,
         "on_different_environment": different, "fail_on": frozenset(fail_on) or None},
        tolerance, floor, budgets,
    )  # fmt: skip
    _check_anything(settings)
    from npufix.advisor.diagnose.diagnosis import Options
    from npufix.advisor.gate import baselines
    from npufix.advisor.gate.gating import Asked, gate
    from npufix.advisor.gate.reading import read_runs
    from npufix.advisor.project.source_tree import read_source_tree

    path = _from_here(settings.baseline)
    known = baselines.read(path) if path and path.exists() else None
    with progress("Reading the source") as say:
        tree = read_source_tree(source, configuration) if source else None
        options = Options(rank=rank, path_map=path_map, configuration=configuration)
        measured = read_runs(dumps, tree, options, say, given)
    common.warn(measured[0].warnings)
    made = gate(measured, Asked(settings, path, known, dt.datetime.now().astimezone().date()))
    sources = Sources(tree.root if tree else None)
    output_files.write(outputs, output_files.Result(made, sources, verbose))
    return 0 if exit_zero else made.exit_status


def _from_here(path: Path | None) -> Path | None:
    """Return a path as a user here would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path and path.is_relative_to(here) else path


def _check_anything(settings: GateSettings) -> None:
    """Refuse to be green because there was nothing to compare with."""
    budgets = [own for own in settings.metrics.values() if own.budget is not None]
    if settings.baseline is None and not budgets:
        raise click.UsageError(
            "nothing to compare with; give --baseline FILE (of npufix baseline update), or a"
            ' budget: --budget "step-time=850 ms"'
        )
