"""What several commands share: opening a source tree, writing results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import completing as completion
from npufix.advisor.commands.cli import INPUT_ERROR
from npufix.advisor.console.loudness import is_quiet
from npufix.advisor.console.progress_line import progress
from npufix.advisor.console.speaking import say
from npufix.advisor.console.streams import print_text
from npufix.advisor.console.written import name_errors, replace_all, say_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npufix.advisor.predict.own_pairs import Pair
    from npufix.advisor.project.configuration import Configuration
    from npufix.reports.measurement import Measurement
    from npufix.reports.report import Report, Verdict

PATH = click.Path(path_type=Path)


def _moves(
    context: click.Context,  # noqa: ARG001 - click's interface
    parameter: click.Parameter,  # noqa: ARG001 - same
    values: tuple[str, ...],
) -> tuple[tuple[str, str], ...]:
    """Split ``OLD=NEW``; a path that holds a sign of equality is split at the last one."""
    moves = []
    for value in values:
        old, sign, new = value.rpartition("=")
        if not (sign and old and new):
            raise click.BadParameter(f"{value!r} is not OLD=NEW")
        moves.append((old, new))
    return tuple(moves)


def split(
    context: click.Context,  # noqa: ARG001 - click's interface
    parameter: click.Parameter,  # noqa: ARG001 - same
    values: tuple[str, ...],
) -> tuple[str, ...]:
    """Return ``a,b`` and a repeated option as one list of names."""
    return tuple(name for value in values for part in value.split(",") if (name := part.strip()))


rank_option = click.option(
    "--rank", type=click.IntRange(min=0), help="Which of several ranks. Default: the slowest."
)
path_map_option = click.option(
    "--path-map",
    multiple=True,
    metavar="OLD=NEW",
    callback=_moves,
    help="Where a folder of the profiled machine is here; may be repeated.",
)

environment_option = click.option(
    "--environment", "given", multiple=True, metavar="NAME=VALUE",
    help="What the dumps do not record, as chip=Ascend910B2; may be repeated.",
)  # fmt: skip

rule_option = click.option(
    "--rule", "--rules", "rules", multiple=True, metavar="ID", callback=split,
    shell_complete=completion.rule_ids,
    help="Only this rule; may be repeated, or list several with commas.",
)  # fmt: skip
allow_option = click.option(
    "--allow", multiple=True, metavar="CONDITION", callback=split,
    shell_complete=completion.conditions,
    help="Vouch for a condition that is not proven; may be repeated.",
)  # fmt: skip

assume_option = click.option(
    "--assume", multiple=True, metavar="SET", callback=split,
    help="Vouch for the conditions that hold in a family of programs: transformers-decoder,"
    " dense-detection, plain-training.",
)  # fmt: skip
everywhere_option = click.option(
    "--everywhere", is_flag=True,
    help="Also what no step runs: tests, documentation, examples, export and data code.",
)  # fmt: skip


on_option = click.option(
    "--on",
    type=click.Choice(["auto", "npu", "virtual-npu", "reference"]),
    default="auto",
    show_default=True,
    help="What to run on; npufix doctor shows what this machine has.",
)
cache_option = click.option(
    "--no-cache", is_flag=True, help="Run everything again; keep no verdicts for the next time."
)
counterexample_option = click.option(
    "--counterexample", type=PATH, metavar="FILE",
    help="Write what refutes a change as a Python program; of several, FILE-2 and so on.",
)  # fmt: skip


chip_option = click.option(
    "--chip",
    type=click.Choice(["A2", "A3", "A5", "910A", "310P", "310B"], case_sensitive=False),
    help="What a virtual NPU pretends to be. Default: the chip of the dump, else A2.",
)


def measure_runs(  # noqa: PLR0913, PLR0917 - what both commands are given
    dumps: tuple[Path, ...],
    source: Path | None,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
    given: tuple[str, ...],
    configuration: Configuration,
) -> list[Measurement]:
    """Read runs as ``read_runs`` does, with the program that they ran; warn of what is odd."""
    from npufix.advisor.diagnose.diagnosis import Options
    from npufix.advisor.gate.reading import read_runs
    from npufix.advisor.project.source_tree import read_source_tree

    with progress("Reading the source") as tell:
        tree = read_source_tree(source, configuration) if source else None
        options = Options(rank=rank, path_map=path_map, configuration=configuration)
        read = read_runs(dumps, tree, options, tell, given)
    for each in read[:1]:
        warn(each.warnings)
    return [each.measurement for each in read]


def write_scripts(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write each counterexample to a file of its own; say which refutations have none, and why."""
    scripts = [verdict.script for verdict in verdicts if verdict.script]
    for number, script in enumerate(scripts, 1):
        stem = path.stem if number == 1 else f"{path.stem}-{number}"
        write_text(path.with_name(stem + (path.suffix or ".py")), script)
    if is_quiet():
        return
    for verdict in verdicts:
        if verdict.status == "refuted" and not verdict.script:
            why = next(
                (n for n in verdict.notes if n.startswith("no program ")), "no program shows it"
            )
            say(f"npufix: {verdict.scope} is refuted, but {why}")
    if not scripts:
        say(f"npufix: nothing is refuted by a program; {path} is not written")


def read_configuration(
    source: Path,
    rules: tuple[str, ...],
    allow: tuple[str, ...] = (),
    *,
    assume: tuple[str, ...] = (),
    everywhere: bool = False,
) -> Configuration:
    """Return what the project asks for, and what the command line says above that.

    Raises:
        click.UsageError: there is no such rule or condition: a typing error would otherwise change
            nothing, silently.

    """
    from npufix.advisor.project import configuration, known_names
    from npufix.advisor.project.assumed import SETS, conditions_of

    for name in rules:
        check_rule(name)
    for name in allow:
        if name not in (known := known_names.condition_names()):
            near = known_names.likely(name, known) or f" There are {', '.join(sorted(known))}"
            raise click.UsageError(f"no condition {name}.{near}")
    for name in assume:
        if name not in SETS:
            raise click.UsageError(f"no set of conditions {name}; there are {', '.join(SETS)}")
    found = configuration.read_configuration(source)
    granted = (*allow, *conditions_of(assume))
    return found.with_command_line(rules, granted, everywhere=everywhere)


def check_rule(name: str) -> None:
    """Raise ``click.UsageError`` if no rule is called so."""
    from npufix.advisor.project import known_names

    if name.lower() not in known_names.rule_names():
        hint = known_names.likely_rule(name)
        raise click.UsageError(f"no rule {name}; see npufix rules.{hint}")


def warn(warnings: Iterable[str]) -> None:
    """Say on stderr what the user should know beside the report."""
    for text in () if is_quiet() else warnings:
        say(f"npufix: warning: {text}")


def write_text(path: Path, text: str) -> None:
    """Write a file and say so.

    Raises:
        OutputError: it cannot be written.

    """
    with name_errors(path):
        path.parent.stat()  # a folder that is not there is a slip of the pen, not to be made
    replace_all([(path, text)])
    say_written(path)


def exit_status(report: Report) -> int:
    """Return 2 if an input was broken: what could be diagnosed was, but it is not all."""
    damaged = [problem for problem in report.problems if problem.damaged]
    for problem in damaged if is_quiet() else ():  # nothing else says why the status is not 0
        say(f"npufix: {problem.where}: {problem.what} -- {problem.remedy}")
    return INPUT_ERROR if damaged else 0


def print_json(text: str) -> None:
    """Print JSON to stdout, nothing else."""
    print_text(text + "\n")


def keep_calibration(pairs: Sequence[Pair]) -> None:
    """Keep what was predicted and what came of it for later predictions, and say where."""
    from npufix.advisor.predict.own_pairs import keep_pairs

    path = keep_pairs(pairs)
    if path is not None and not is_quiet():
        say(f"Kept what was predicted and measured in {path}; NPUFIX_CALIBRATION=off keeps nothing")
