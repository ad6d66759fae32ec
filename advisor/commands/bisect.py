"""``npufix bisect``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.console.progress_line import progress
from npufix.reports.bisect_report import BisectReport


@click.command(
    epilog="""\b
Examples:
  npufix bisect v1.2 main --run "python train.py --steps 20 --profile {output}"
  npufix bisect 1a2b3c4 HEAD --metric compute
    --run "pip install -e . && python train.py --profile {output}"
\b
Exit status: 0 the commit is found, 2 wrong usage or input, 3 nothing is slower,
or several commits may be it."""
)
@click.argument("good")
@click.argument("bad")
@click.option("--run", "run_command", required=True, metavar="COMMAND",
              help="Makes a dump in {output} (also $NPUFIX_OUTPUT) of the files around it.",
              )  # fmt: skip
@click.option("--metric", type=click.Choice(["step-time", "compute", "exposed-communication"]),
              default="step-time", show_default=True, help="What became slower.")  # fmt: skip
@click.option("--runs", "pairs", type=click.IntRange(min=2), default=3, show_default=True,
              help="Of each commit, and of the good one in turn.")  # fmt: skip
@click.option("--most-runs", type=click.IntRange(min=2), default=9, show_default=True,
              help="Where that does not decide; then it is skipped.")  # fmt: skip
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), default=3600.0,
              show_default=True, metavar="SECONDS", help="For one run.")  # fmt: skip
@click.option("--tolerance", metavar="PERCENT",
              help="Changes up to this one do not matter. Default: 5%.")  # fmt: skip
@common.rank_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@output_files.output_option(BisectReport)
@click.option("-v", "--verbose", is_flag=True, help="Show the lines that the commit changed, too.")
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    good: str,
    bad: str,
    run_command: str,
    metric: str,
    pairs: int,
    most_runs: int,
    time_limit: float,
    tolerance: str | None,
    rank: int | None,
    outputs: tuple[tuple[str, Path], ...],
    *,
    as_json: bool,
    verbose: bool,
) -> int:
    """Find the commit after GOOD, up to BAD, that made a program slower.

    Each commit is checked out in a folder beside the repository, which itself is only read. The
    command runs there, in turn with one of GOOD, and npufix gate decides; a commit that cannot be
    built, or that nobody can tell from GOOD after --most-runs, is skipped.
    """
    outputs = output_files.with_json(outputs, as_json=as_json)
    import tempfile

    from npufix.advisor.bisect.checkouts import find_repository
    from npufix.advisor.bisect.searching import BisectRequest, Search
    from npufix.advisor.diagnose.diagnosis import Options
    from npufix.advisor.gate.taking_turns import Reading
    from npufix.advisor.project.gate_settings import GateSettings, with_command_line

    configuration = common.read_configuration(Path(), ())
    settings = with_command_line(configuration.gate or GateSettings(), {}, tolerance, None, ())
    here = Path.cwd().resolve()
    repository = find_repository(here)
    asked = BisectRequest(
        repository, repository.commit(good), repository.candidates(good, bad), run_command,
        here.relative_to(repository.top.resolve()), metric, pairs, max(pairs, most_runs),
        time_limit, settings, dt.datetime.now().astimezone().date(),
    )  # fmt: skip
    with (
        tempfile.TemporaryDirectory("", "npufix-bisect-", ignore_cleanup_errors=True) as work,
        progress("Preparing the commits") as say,
    ):
        reading = Reading(Options(rank=rank, configuration=configuration), say=say)
        made = Search(asked, reading, Path(work)).run()
    output_files.write(outputs, output_files.Result(made, details=verbose))
    return made.exit_status
