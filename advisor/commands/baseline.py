"""``npufix baseline``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.console.loudness import is_quiet, is_verbose
from npufix.advisor.console.speaking import say
from npufix.advisor.console.written import say_written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.baseline import Baseline
    from npufix.reports.measurement import Measurement

_DEFAULT = Path("perf/baseline.json")


@click.group(
    epilog="""\b
Examples:
  npufix baseline update run1_ascend_pt run2_ascend_pt --source src
  npufix baseline update run4_ascend_pt --append -o perf/baseline.json
  npufix baseline show perf/baseline.json"""
)
def command() -> None:
    """Keep what runs were measured at, in a small file that belongs under version control.

    npufix gate compares later runs with it.
    """


@command.command(
    epilog="""\b
Examples:
  npufix baseline update run1_ascend_pt run2_ascend_pt run3_ascend_pt
  npufix baseline update runs/*_ascend_pt --source src -o perf/baseline.json
  npufix baseline update run4_ascend_pt --append --commit 1a2b3c4"""
)
@click.argument("dumps", type=common.PATH, nargs=-1, required=True, metavar="DUMP...")
@click.option("-o", "--output", type=common.PATH, metavar="FILE",
              help=f"Default: gate.baseline of the configuration, else {_DEFAULT}.")  # fmt: skip
@click.option("--source", type=common.PATH, help="Folder of the program, to keep its findings.")
@common.rank_option
@common.path_map_option
@common.environment_option
@click.option("--append", is_flag=True, help="Keep the runs that FILE holds already.")
@click.option("--mix-environments", is_flag=True,
              help="Take runs of different chips, sizes or versions as one.")  # fmt: skip
@click.option("--allow-partial", is_flag=True, help="Take dumps that are broken in part.")
@click.option("--commit", default="", help="Of the program, written into the file.")
def update(  # noqa: PLR0913, PLR0917 - one parameter an option
    dumps: tuple[Path, ...],
    output: Path | None,
    source: Path | None,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
    given: tuple[str, ...],
    commit: str,
    *,
    append: bool,
    mix_environments: bool,
    allow_partial: bool,
) -> int:
    """Write the baseline of some runs, three or more to know the noise between them.

    DUMP is what npufix diagnose reads, or its report in JSON. A folder of several ranks is one
    run; its slowest rank stands for it. The order of the runs does not matter.
    """
    from npufix.advisor.gate import baselines
    from npufix.advisor.gate.baselines import show_baseline

    configuration = common.read_configuration(source or Path(), ())
    configured = configuration.gate.baseline if configuration.gate else None
    path = output or configured or _DEFAULT
    earlier = baselines.read(path) if append and path.exists() else None
    runs = common.measure_runs(dumps, source, rank, path_map, given, configuration)
    _check(runs, earlier, mix_environments=mix_environments, allow_partial=allow_partial)
    made = baselines.merge_baseline(runs, earlier, commit)
    baselines.write(path, made)
    say_written(f"{path}: {_summary(made)}")
    for line in show_baseline(made, None) if is_verbose() else ():
        say(line, err=False)
    if made.run_count < baselines.WANTED_RUNS:
        few = f"{made.run_count} of {baselines.WANTED_RUNS} runs"
        common.warn([f"{few}: the noise between runs is unknown; add runs with --append"])
    return 0


def _check(
    runs: Sequence[Measurement],
    earlier: Baseline | None,
    *,
    mix_environments: bool,
    allow_partial: bool,
) -> None:
    """Refuse what would make a baseline that compares nothing with nothing."""
    from npufix.advisor.gate import baselines

    for run in runs:
        if run.partial and not allow_partial:
            message = f"{run.origin} is not whole: {run.partial[0]}"
            raise baselines.BaselineError(message, "collect it again, or give --allow-partial")
        if not run.metrics:
            raise baselines.BaselineError(f"{run.origin} holds nothing to keep", "leave it out")
        if earlier and baselines.holds(earlier, run):
            message = f"{run.origin} is in the baseline already: all of its times are"
            remedy = "leave it out; a run that counts twice makes the noise look smaller"
            raise baselines.BaselineError(message, remedy)
    wanted = earlier.environment if earlier else baselines.environment_of(runs[0])
    for run in runs:
        different = baselines.differences(wanted, baselines.environment_of(run))
        if different and not mix_environments:
            message = f"{run.origin} is of another environment: {'; '.join(different)}"
            remedy = "write one baseline for each environment, or give --mix-environments"
            raise baselines.BaselineError(message, remedy)


def _summary(made: Baseline) -> str:
    from npufix.rules.shared.quantities import format_count

    parts = [format_count(made.run_count, "run"), format_count(len(made.metrics), "metric"),
             format_count(len(made.hot_ops), "hot operator"),
             format_count(len(made.findings), "finding")]  # fmt: skip
    return ", ".join(parts)


@command.command(
    epilog="""\b
Examples:
  npufix baseline show
  npufix baseline show perf/baseline.json --top 20"""
)
@click.argument("file", type=common.PATH, default=_DEFAULT)
@click.option("--json", "as_json", is_flag=True, help="Print the file as JSON.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many hot operators to show.")  # fmt: skip
def show(file: Path, top: int, *, as_json: bool) -> int:
    """Say what a baseline holds: its environment, its metrics, its hot operators."""
    from npufix.advisor.gate import baselines
    from npufix.advisor.gate.baselines import show_baseline
    from npufix.reports.baseline import to_json

    baseline = baselines.read(file)
    if as_json:
        common.print_json(to_json(baseline).rstrip("\n"))
        return 0
    say(f"{file}: {_summary(baseline)}", err=False)
    shown = () if is_quiet() else show_baseline(baseline, None if is_verbose() else top)
    for line in shown:
        say(line, err=False)
    return 0
