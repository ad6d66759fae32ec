"""``npufix gate``."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.console.progress_line import progress
from npufix.reports.data.sources import Sources
from npufix.reports.gate_report import GateReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.gate.gating import Asked
    from npufix.advisor.gate.measuring import MeasuredRun
    from npufix.advisor.gate.taking_turns import Reading
    from npufix.advisor.project.configuration import Configuration
    from npufix.advisor.project.gate_settings import GateSettings
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.baseline import Baseline

_PAIRS = 5
_LIMIT_S = 3600.0
_FAILURES = ("regression", "budget", "new-finding")


@click.command(
    epilog="""\b
Examples:
  npufix gate run1_ascend_pt run2_ascend_pt --baseline perf/baseline.json
  npufix gate runs/*_ascend_pt --baseline perf/baseline.json --source src
  npufix gate run1_ascend_pt --budget "step-time=850 ms"
  npufix gate runs/*_ascend_pt -o markdown=comment.md -o sarif=npufix.sarif
  npufix gate --base "cd ../main && python train.py --profile {output}"
    --head "python train.py --profile {output}" --runs 5
  npufix gate --base runs/base --head runs/head
\b
Exit status: 0 pass, 1 a regression, budget or new finding, 2 wrong usage or
input, 3 inconclusive: no baseline, another environment, other work, a change
that may be noise, a broken dump."""
)
@click.argument("dumps", type=common.PATH, nargs=-1, metavar="[DUMP]...")
@click.option("--baseline", type=common.PATH, metavar="FILE",
              help="Of npufix baseline update. Default: gate.baseline of the configuration.",
              )  # fmt: skip
@click.option("--base", metavar="COMMAND|FOLDER",
              help="What to compare with, run in turn with --head: a command that puts a dump into"
              " {output}, or a folder of dumps taken in turn.")  # fmt: skip
@click.option("--head", metavar="COMMAND|FOLDER", help="The same of the changed program.")
@click.option("--runs", "pairs", type=click.IntRange(min=1), metavar="NUMBER",
              help="How often to run each command. Default: 5.")  # fmt: skip
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="For one run of a command. Default: 3600.")  # fmt: skip
@click.option("--keep", type=common.PATH, metavar="FOLDER",
              help="Keep the dumps of the commands here. Default: they are deleted.")  # fmt: skip
@click.option("--history", type=common.PATH, metavar="FILE",
              help="Of npufix history add: show the runs of the last weeks beside these.",
              )  # fmt: skip
@click.option("--source", type=common.PATH, help="Folder of the program, to find what is new.")
@click.option("--base-source", type=common.PATH, metavar="FOLDER",
              help="The same of --base: what is gone, and what it was to save.")  # fmt: skip
@common.rank_option
@common.path_map_option
@common.environment_option
@click.option("--tolerance", metavar="PERCENT",
              help="Changes up to this one do not matter. Default: 5%.")  # fmt: skip
@click.option("--floor", metavar="TIME", help="Nor do smaller ones per step. Default: 50 µs.")
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
    base: str | None,
    head: str | None,
    pairs: int | None,
    time_limit: float | None,
    keep: Path | None,
    history: Path | None,
    source: Path | None,
    base_source: Path | None,
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

    Best are runs in turn on one machine: --base and --head. Commands run in your shell, each with
    an empty folder in the place of {output} (and in $NPUFIX_OUTPUT); what drifts while they run is
    the same for both.
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
    turns = _Turns(base or "", head or "", pairs, time_limit, keep, base_source)
    if not turns.check(dumps, baseline, has_source=source is not None):
        _check_anything(settings)
    from npufix.advisor.diagnose.diagnosis import Options
    from npufix.advisor.gate.gating import gate
    from npufix.advisor.gate.taking_turns import Reading
    from npufix.advisor.history import beside, entries
    from npufix.advisor.project.source_tree import read_source_tree

    past = entries.read(history) if history else ()
    with progress("Reading the source") as say:
        tree = read_source_tree(source, configuration) if source else None
        options = Options(rank=rank, path_map=path_map, configuration=configuration)
        reading = Reading(options, tree, turns.tree(configuration), given, say)
        measured, asked = (
            turns.read(reading, settings) if turns.base else _read(dumps, reading, settings)
        )
    common.warn(measured[0].warnings)
    made = gate(measured, asked)
    made = beside.with_history(made, past, measured) if past else made
    sources = Sources(tree.root if tree else None)
    output_files.write(outputs, output_files.Result(made, sources, verbose))
    _keep(made, asked.baseline, measured)
    return 0 if exit_zero else made.exit_status


def _keep(made: GateReport, baseline: Baseline | None, measured: Sequence[MeasuredRun]) -> None:
    """Keep what was predicted of changes and what came of it for later predictions."""
    from npufix.advisor.gate.new_findings import pair_of

    if baseline is not None:
        pair = pair_of(made, baseline, [each.measurement for each in measured])
        common.keep_calibration([pair] if pair else [])


@dataclass(frozen=True, slots=True)
class _Turns:
    """What is asked of base and head in turn; ``base`` is empty where dumps are given instead."""

    base: str
    head: str
    pairs: int | None
    limit_s: float | None
    keep: Path | None
    source: Path | None
    """Of base."""

    @property
    def are_commands(self) -> bool:
        return bool(self.base) and not Path(self.base).is_dir()

    def tree(self, configuration: Configuration) -> SourceTree | None:
        """Return the source of base, if it is given."""
        from npufix.advisor.project.source_tree import read_source_tree

        return read_source_tree(self.source, configuration) if self.source else None

    def check(self, dumps: tuple[Path, ...], baseline: Path | None, *, has_source: bool) -> bool:
        """Return whether base and head are compared; refuse what is neither that nor dumps."""
        if self.source and not (self.base and has_source):
            raise click.UsageError("--base-source is of --base, and belongs together with --source")
        if not self.base and not self.head and not dumps:
            raise click.UsageError("Missing argument 'DUMP...', or --base and --head.")
        if bool(self.base) != bool(self.head):
            raise click.UsageError("--base and --head belong together; give both")
        if self.base and (dumps or baseline):
            other = "DUMP" if dumps else "--baseline"
            raise click.UsageError(f"--base and --head are all that is compared; leave out {other}")
        if self.base and Path(self.base).is_dir() != Path(self.head).is_dir():
            raise click.UsageError(
                "one of --base and --head is a folder; give two, or two commands"
            )
        if self.base and self.base == self.head:
            raise click.UsageError("--base and --head are the same: nothing would be compared")
        given = {"--runs": self.pairs, "--time-limit": self.limit_s, "--keep": self.keep}
        for name, value in given.items():
            if value is not None and not self.are_commands:
                raise click.UsageError(f"{name} is for commands, as --base and --head run them")
        keep = self.keep
        if keep and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise click.UsageError(
                f"--keep {keep} is not empty: old dumps must not be taken for new"
            )
        return bool(self.base)

    def read(self, reading: Reading, settings: GateSettings) -> tuple[list[MeasuredRun], Asked]:
        """Read both, or run both and read what they make."""
        import tempfile

        from npufix.advisor.gate.recording import Recorder
        from npufix.advisor.gate.taking_turns import read_sides, record_sides

        if not self.are_commands:
            sides = read_sides(Path(self.base), Path(self.head), reading)
            return sides.head, sides.asked(settings, Path(self.base), _today())
        limit_s, pairs = self.limit_s or _LIMIT_S, range(self.pairs or _PAIRS)
        base, head = (
            Recorder(name, command, Path.cwd(), limit_s)
            for name, command in (("base", self.base), ("head", self.head))
        )
        with tempfile.TemporaryDirectory("", "npufix-gate-", ignore_cleanup_errors=True) as folder:
            into = self.keep.absolute() if self.keep else Path(folder)
            sides = record_sides((base, head), into, pairs, reading, kept=self.keep is not None)
        return sides.head, sides.asked(settings, Path("base"), _today())


def _read(
    dumps: tuple[Path, ...], reading: Reading, settings: GateSettings
) -> tuple[list[MeasuredRun], Asked]:
    """Read runs, and the baseline that they are compared with."""
    from npufix.advisor.gate import baselines
    from npufix.advisor.gate.gating import Asked
    from npufix.advisor.gate.reading import read_runs

    path = _from_here(settings.baseline)
    known = baselines.read(path) if path and path.exists() else None
    measured = read_runs(dumps, reading.tree, reading.options, reading.say, reading.given)
    return measured, Asked(settings, path, known, _today())


def _today() -> dt.date:
    return dt.datetime.now().astimezone().date()


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
