"""What several commands share: opening a source tree, writing results."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.cli import INPUT_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console

    from npufix.advisor.configuration import Configuration
    from npufix.reports.report import Report

PATH = click.Path(path_type=Path)
_FORMATS = (".json", ".md")


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


def _split(
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
    "--rule", "--rules", "rules", multiple=True, metavar="ID", callback=_split,
    help="Only this rule; may be repeated, or list several with commas.",
)  # fmt: skip
allow_option = click.option(
    "--allow", multiple=True, metavar="CONDITION", callback=_split,
    help="Vouch for a condition that is not proven; may be repeated.",
)  # fmt: skip


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
    for text in warnings:
        click.echo(f"npufix: warning: {text}", err=True)


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, at most 120 columns; 80 in a pipe."""
    from rich.console import Console  # noqa: PLC0415 - not needed for --help

    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    made.width = min(made.width, 120)
    return made


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Say on a terminal's stderr what takes a while."""
    errors = console(stderr=True)
    if not errors.is_terminal:
        yield
        return
    with errors.status(text):
        yield


def check_report_path(path: Path | None) -> None:
    """Refuse a report file of an unknown kind before any work is done."""
    if path is not None and path.suffix not in _FORMATS:
        raise click.UsageError(f"{path}: a report ends in {' or '.join(_FORMATS)}")


def write_report(report: Report, path: Path) -> None:
    """Write a report in the format of the file's ending."""
    from npufix.reports.markdown import to_markdown  # noqa: PLC0415 - not needed for --help
    from npufix.reports.report import to_json  # noqa: PLC0415 - same

    write_text(path, to_json(report) + "\n" if path.suffix == ".json" else to_markdown(report))


def write_text(path: Path, text: str) -> None:
    """Write a file and say so.

    Raises:
        click.UsageError: it cannot be written.

    """
    try:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise click.UsageError(
            f"{path}: {error.strerror}; name a file that can be written"
        ) from error
    click.echo(f"Wrote {path}", err=True)


def finish(report: Report, output: Path | None, *, as_json: bool, verbose: bool) -> int:
    """Print a report, write it if asked to, and return the exit status."""
    if as_json:
        from npufix.reports.report import to_json  # noqa: PLC0415 - not needed for --help

        print_json(to_json(report))
    else:
        from npufix.reports.terminal import show  # noqa: PLC0415 - not needed for JSON

        show(report, console(), details=verbose)
    if output is not None:
        write_report(report, output)
    return exit_status(report)


def exit_status(report: Report) -> int:
    """Return 2 if an input was broken: what could be diagnosed was, but it is not all."""
    return INPUT_ERROR if any(p.damaged for p in report.problems) else 0


def print_json(text: str) -> None:
    """Print JSON to stdout, nothing else."""
    sys.stdout.write(text + "\n")
