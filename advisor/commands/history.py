"""``npufix history``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.console.progress_line import progress
from npufix.advisor.console.written import say_written
from npufix.reports.trend_report import TrendReport

_DEFAULT = Path("perf/history.jsonl")
_WINDOW = 200

_file = click.argument("file", type=common.PATH, default=_DEFAULT)
_window = click.option("--window", type=click.IntRange(min=1), default=_WINDOW, show_default=True,
                       help="How many runs to look at, the newest.")  # fmt: skip
_tolerance = click.option("--tolerance", metavar="PERCENT",
                          help="A level may be this much worse. Default: 3%.")  # fmt: skip


@click.group(
    epilog="""\b
Examples:
  npufix history add run1_ascend_pt --commit 1a2b3c4
  npufix history show perf/history.jsonl -o trend.html
  npufix history check perf/history.jsonl"""
)
def command() -> None:
    """Keep what every run was measured at, and find what became slower over weeks.

    npufix gate compares a few runs with a baseline; a drift of a little a week passes it every
    time. A history is a file with a line a run, in the repository or beside it.
    """


@command.command(
    epilog="""\b
Examples:
  npufix history add run1_ascend_pt
  npufix history add runs/*_ascend_pt -o perf/history.jsonl --commit 1a2b3c4
  npufix history add old_ascend_pt --time 2026-03-01T12:00:00+08:00"""
)
@click.argument("dumps", type=common.PATH, nargs=-1, required=True, metavar="DUMP...")
@click.option("-o", "--output", type=common.PATH, default=_DEFAULT, show_default=True,
              metavar="FILE", help="Where to add a line a run.")  # fmt: skip
@click.option("--source", type=common.PATH, help="Folder of the program, to keep its findings.")
@common.rank_option
@common.path_map_option
@common.environment_option
@click.option("--commit", default="", help="Of the program.")
@click.option("--time", "moment", metavar="WHEN", callback=lambda _, __, text: _moment(text),
              help="When the runs were made, ISO 8601. Default: now.")  # fmt: skip
def add(  # noqa: PLR0913, PLR0917 - one parameter an option
    dumps: tuple[Path, ...],
    output: Path,
    source: Path | None,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
    given: tuple[str, ...],
    commit: str,
    moment: dt.datetime,
) -> int:
    """Add runs to a history, each DUMP a line.

    DUMP is what npufix diagnose reads, or its report in JSON. A folder of several ranks is one
    run; its slowest rank stands for it.
    """
    from npufix.advisor.history import entries
    from npufix.rules.shared.quantities import format_count

    configuration = common.read_configuration(source or Path(), ())
    known = entries.read(output) if output.exists() else []
    runs = common.measure_runs(dumps, source, rank, path_map, given, configuration)
    made = entries.make_entries(runs, known, moment, commit)
    entries.append(output, made)
    say_written(f"{output}: {format_count(len(known) + len(made), 'run')}")
    return 0


@command.command(
    epilog="""\b
Examples:
  npufix history show
  npufix history show perf/history.jsonl --window 60 -o trend.html"""
)
@_file
@_window
@_tolerance
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many hot operators.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@output_files.output_option(TrendReport)
@click.option("-v", "--verbose", is_flag=True, help="Show hot operators that did not change, too.")
def show(  # noqa: PLR0913 - one parameter an option
    file: Path,
    window: int,
    tolerance: str | None,
    top: int,
    outputs: tuple[tuple[str, Path], ...],
    *,
    as_json: bool,
    verbose: bool,
) -> int:
    """Show each metric over the runs, and when it changed for good."""
    _examine(file, window, tolerance, top, outputs, as_json=as_json, verbose=verbose)
    return 0


@command.command(
    epilog="""\b
Examples:
  npufix history check
  npufix history check perf/history.jsonl --tolerance 5% -o markdown=trend.md
\b
Exit status: 0 no metric is worse, 1 one is, 2 wrong usage or input,
3 too few runs, or the newest ones may be slower."""
)
@_file
@_window
@_tolerance
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@output_files.output_option(TrendReport)
def check(
    file: Path,
    window: int,
    tolerance: str | None,
    outputs: tuple[tuple[str, Path], ...],
    *,
    as_json: bool,
) -> int:
    """Fail if a metric became worse for good, by a step or little by little.

    The level of now is compared with the best level since the last npufix history accept.
    """
    return _examine(file, window, tolerance, 10, outputs, as_json=as_json, verbose=False)


@command.command(
    epilog="""\b
Examples:
  npufix history accept --reason "float32 loss is meant, 1a2b3c4" """
)
@_file
@click.option("--reason", required=True, help="Why the level of now is the new normal.")
def accept(file: Path, reason: str) -> int:
    """Take the level reached now as the normal one; later runs are compared with it."""
    from npufix.advisor.history import entries
    from npufix.reports.history import make_entry

    if not reason.strip():
        raise click.BadParameter("it is empty; say why", param_hint="--reason")
    entries.read(file)
    entries.append(file, [make_entry(dt.datetime.now().astimezone(), None, reason.strip())])
    say_written(file)
    return 0


def _examine(  # noqa: PLR0913 - what both commands are asked
    file: Path,
    window: int,
    tolerance: str | None,
    top: int,
    outputs: tuple[tuple[str, Path], ...],
    *,
    as_json: bool,
    verbose: bool,
) -> int:
    outputs = output_files.with_json(outputs, as_json=as_json)
    from npufix.advisor.history import entries, trends
    from npufix.advisor.project.units import AmountError, share

    try:
        allowed = share(tolerance) if tolerance else trends.SMALLEST_CHANGE
    except AmountError as error:
        raise click.BadParameter(str(error), param_hint="--tolerance") from error
    known = entries.read(file)
    if not any(entry.run for entry in known):
        raise entries.HistoryError(f"{file}: it holds no run", "add some with npufix history add")
    asked = trends.TrendRequest(str(file), window, allowed, top)
    with progress("Looking for changes"):
        report = trends.examine_history(known, asked)
    output_files.write(outputs, output_files.Result(report, details=verbose, top=top))
    return report.exit_status


def _moment(text: str | None) -> dt.datetime:
    now = dt.datetime.now().astimezone()
    if text is None:
        return now
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is no time, as {now.isoformat('T', 'seconds')}"
        ) from error
    return moment if moment.tzinfo else moment.astimezone()
