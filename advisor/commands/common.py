"""What several commands share: opening a source tree, writing results."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor import completion
from npufix.advisor.cli import INPUT_ERROR
from npufix.advisor.loudness import coloured, is_quiet
from npufix.advisor.progress_line import Countdown, progress
from npufix.advisor.speaking import say
from npufix.advisor.streams import print_text
from npufix.advisor.written import naming, replace_all, say_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console

    from npufix.advisor.configuration import Configuration
    from npufix.reports.report import Report
    from npufix.rewriters.verification import Settings

__all__ = ["Countdown", "progress"]

PATH = click.Path(path_type=Path)
_NARROWEST, _IN_A_PIPE, _WIDEST = 20, 80, 120


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


def settings(
    on: str, *, no_cache: bool, say: Callable[[str], None], chip: str | None = None
) -> Settings:
    """Return how to verify; ``say`` gets the progress.

    Raises:
        GroundError: this machine cannot do what ``on`` asks for.

    """
    from npufix.rewriters.verification import Settings  # noqa: PLC0415 - not needed for --help
    from npufix.rewriters.verification.cache import VerdictCache, user_folder  # noqa: PLC0415
    from npufix.rewriters.verification.grounds import (  # noqa: PLC0415 - same
        AUTO,
        Ground,
        choose,
        made_ready,
    )
    from npufix.rewriters.verification.machine import survey  # noqa: PLC0415 - same

    ground, stubs = made_ready(choose(survey(), on), on, chip or "A2")
    return Settings(
        ground=ground,
        chip=chip or "A2",
        stubs=stubs,
        fallback=Ground.REFERENCE if on == AUTO and ground is not Ground.REFERENCE else None,
        cache=None if no_cache else VerdictCache(user_folder()),
        progress=Countdown(say),
    )


def write_scripts(scripts: Sequence[str], path: Path) -> None:
    """Write each counterexample to a file of its own."""
    for number, script in enumerate(scripts, 1):
        stem = path.stem if number == 1 else f"{path.stem}-{number}"
        write_text(path.with_name(stem + (path.suffix or ".py")), script)
    if not scripts and not is_quiet():
        say(f"npufix: nothing is refuted by a program; {path} is not written")


def read_configuration(
    source: Path, rules: tuple[str, ...], allow: tuple[str, ...] = ()
) -> Configuration:
    """Return what the project asks for, and what the command line says above that.

    Raises:
        click.UsageError: there is no such rule or condition: a typing error would otherwise change
            nothing, silently.

    """
    from npufix.advisor import configuration  # noqa: PLC0415 - not needed for --help

    for name in rules:
        if name.lower() not in configuration.rule_names():
            raise click.UsageError(f"no rule {name}; see npufix rules")
    for name in allow:
        if name not in configuration.condition_names():
            known = ", ".join(sorted(configuration.condition_names()))
            raise click.UsageError(f"no condition {name}; there are {known}")
    return configuration.read_configuration(source).with_command_line(rules, allow)


def warn(warnings: Iterable[str]) -> None:
    """Say on stderr what the user should know beside the report."""
    for text in () if is_quiet() else warnings:
        say(f"npufix: warning: {text}")


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, at most 120 columns; 80 in a pipe."""
    from npufix.reports.language.terminal import Console  # noqa: PLC0415 - not needed for --help

    colours = coloured()
    made = Console(
        stderr=stderr,
        highlight=False,
        soft_wrap=False,
        force_terminal=True if colours else None,
        color_system=None if colours is False else "auto",
    )
    in_pipe = not (sys.stderr if stderr else sys.stdout).isatty()
    # The other end of a pipe is no terminal, even where this one was started from one.
    width = _IN_A_PIPE if in_pipe and "COLUMNS" not in os.environ else made.width
    made.width = max(_NARROWEST, min(width, _WIDEST))
    return made


def write_text(path: Path, text: str) -> None:
    """Write a file and say so.

    Raises:
        OutputError: it cannot be written.

    """
    with naming(path):
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
