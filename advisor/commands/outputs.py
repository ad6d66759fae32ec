"""Where a result goes: ``--output FORMAT=FILE``, several at once, all of them or none."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.console.loudness import is_quiet
from npufix.advisor.console.progress_line import progress
from npufix.advisor.console.speaking import say
from npufix.advisor.console.streams import print_text
from npufix.advisor.console.written import (
    STDOUT,
    OutputError,
    is_summary,
    name_errors,
    replace_all,
    say_written,
)
from npufix.reports.formats import Result, formats

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from npufix.advisor.console.written import Content
    from npufix.reports.formats import Format

    Outputs = Sequence[tuple[str, Path]]
    """Names of formats, each with the file that it goes to."""

__all__ = ["STDOUT", "OutputError", "Result"]

_SUMMARY = "GITHUB_STEP_SUMMARY"


def formats_of(kind: type, *, recorded: bool = True) -> list[str]:
    """Return the formats of a type of result; not ``recorded``: without those of a run."""
    return [
        name
        for name, format_ in formats().items()
        if kind in format_.renders and (recorded or not format_.needs_recording)
    ]


def parser_of(names: Collection[str]) -> Callable[..., tuple[tuple[str, Path], ...]]:
    """Return a callback of click that reads ``FORMAT=FILE`` with one of some formats."""

    def parse(
        context: click.Context | None,  # noqa: ARG001 - click's interface
        parameter: click.Parameter | None,  # noqa: ARG001 - same
        values: tuple[str, ...],
    ) -> tuple[tuple[str, Path], ...]:
        outputs: list[tuple[str, Path]] = []
        for value in values:
            name, path = _parse(value, names)
            _check(path, [other for _, other in outputs], formats()[name])
            outputs.append((name, path))
        return tuple(outputs)

    return parse


def _parse(value: str, names: Collection[str]) -> tuple[str, Path]:
    """Split ``FORMAT=FILE``; the format may be left out where the ending of the file says it."""
    name, sign, file = value.partition("=")
    if not sign:
        endings = {f.ending: f.name for f in formats().values() if f.ending and f.name in names}
        name, file = endings.get(Path(value).suffix, ""), value
        if not name:
            raise click.BadParameter(
                f"{value!r} is not FORMAT=FILE, and its ending is not {' or '.join(endings)};"
                f" formats are {', '.join(names)}"
            )
    if name not in names:
        there = f"there are {', '.join(names)}"
        if name in formats():
            raise click.BadParameter(f"{value!r}: {name} is no format of this command; {there}")
        from npufix.advisor.project.known_names import likely

        near = likely(name, names).strip() or there
        raise click.BadParameter(f"{value!r}: there is no format {name!r}; {near}")
    if not file:
        raise click.BadParameter(f"{value!r} names no file; - is the standard output")
    return name, Path(file)


def _check(path: Path, others: Sequence[Path], made: Format | None = None) -> None:
    """Refuse what would only fail once the work is done."""
    if path == STDOUT:
        if made and (made.is_binary or made.is_folder):
            raise click.BadParameter(f"{made.name} does not go to the standard output; name a file")
        if STDOUT in others:
            raise click.BadParameter("only one output can go to the standard output (-)")
        return
    if path.resolve() in {other.resolve() for other in others if other != STDOUT}:
        raise click.BadParameter(f"two outputs go to {path}; give each its own file")
    if made and made.is_folder:
        if path.exists() and not path.is_dir():
            raise click.BadParameter(f"{path} is a file; {made.name} writes several, name a folder")
    elif path.is_dir():
        raise click.BadParameter(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}; create it first")
    if made and made.check:
        made.check()


def _complete(names: Collection[str]) -> Callable[..., list[Any]]:
    """Return what completes ``FORMAT=FILE`` in a shell."""

    def complete(context: object, parameter: object, incomplete: str) -> list[Any]:  # noqa: ARG001 - click's interface
        from click.shell_completion import CompletionItem

        if "=" in incomplete:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(f"{name}=") for name in names if name.startswith(incomplete)]

    return complete


def output_option(kind: type, *, recorded: bool = True) -> Callable[..., Any]:
    """Return the option ``-o FORMAT=FILE`` of a command whose result is of a type."""
    names = formats_of(kind, recorded=recorded)
    folders = " or ".join(name for name in names if formats()[name].is_folder)
    return click.option(
        "-o", "--output", "outputs", multiple=True, metavar="FORMAT=FILE",
        callback=parser_of(names), shell_complete=_complete(names),
        help=f"Write the report too; may be repeated. FORMAT: {', '.join(names)}."
             f" FILE may be -{f', and is a folder for {folders}' if folders else ''}.",
    )  # fmt: skip


def with_json(
    outputs: tuple[tuple[str, Path], ...], *, as_json: bool
) -> tuple[tuple[str, Path], ...]:
    """Return the outputs with what ``--json`` stands for.

    Raises:
        click.UsageError: something else goes to the standard output already.

    """
    if as_json and any(path == STDOUT for _, path in outputs):
        raise click.UsageError("--json and an output to - both write to the standard output")
    return (*outputs, ("json", STDOUT)) if as_json else outputs


def with_page(outputs: tuple[tuple[str, Path], ...], html: Path) -> tuple[tuple[str, Path], ...]:
    """Return the outputs with what ``--html`` stands for.

    Raises:
        click.BadParameter: it cannot be written.

    """
    _check(html, [other for _, other in outputs], formats()["html"])
    return (*outputs, ("html", html))


def rows_wanted(outputs: Outputs, top: int) -> int:
    """Return how many hot operators (and so on) the outputs hold together; ``top`` are shown."""
    return max([top, *(formats()[name].rows for name, _ in outputs)])


def want_changes(outputs: Outputs) -> bool:
    """Tell whether an output shows the change of each finding (see ``suggestions``)."""
    return any(formats()[name].shows_changes for name, _ in outputs)


def want_headroom(outputs: Outputs) -> bool:
    """Tell whether an output shows how far kernels are from what the chip allows."""
    return any(formats()[name].shows_headroom for name, _ in outputs)


def write(outputs: Outputs, result: Result[Any]) -> None:
    """Print a result and write it in every format asked for.

    The terminal gets it as text unless an output goes there (``-``).

    Raises:
        OutputError: a file cannot be written; then none was.

    """
    contents = _save(outputs, result)
    to_stdout = [name for name, path in outputs if path == STDOUT]
    if to_stdout and to_stdout != ["terminal"]:
        print_text("".join(str(text) for path, text in contents if path == STDOUT))
        return
    from npufix.advisor.console.screen import make_console
    from npufix.reports.formats.terminal import headline, show

    if is_quiet():
        say(headline(result), err=False)
    else:
        show(result, make_console())


def save(outputs: Outputs, result: Result[Any]) -> None:
    """Write a result in every format asked for; the standard output is for something else.

    Raises:
        OutputError: a file cannot be written; then none was.

    """
    if any(path == STDOUT for _, path in outputs):
        raise OutputError("a report cannot go to - here", "name a file")
    _save(outputs, result)


def _save(outputs: Outputs, result: Result[Any]) -> list[tuple[Path, Content]]:
    """Write the files, and return the contents of all outputs."""
    # All are made before any is written, but for those that are written piece by piece.
    contents: list[tuple[Path, Content]] = []
    with progress("Writing the report"):
        for name, path in outputs:
            contents += _render(name, path, result)
        summary = _summary(outputs)
        if summary:
            contents += _render("markdown", summary, result)
        replace_all([(path, content) for path, content in contents if path != STDOUT])
    for path in [path for _, path in outputs if path != STDOUT] + ([summary] if summary else []):
        say_written(path)
    return contents


def _render(name: str, path: Path, result: Result[Any]) -> list[tuple[Path, Content]]:
    """Return what one output holds: one file, or those of a folder."""
    made = formats()[name]
    if not made.takes(result):
        raise OutputError(f"there is no {name} of this", f"leave {name}=... out")
    content = made.render(replace(result, path=path, room=_room(path)))
    if isinstance(content, str) or callable(content):
        return [(path, content)]
    return [(path / file, text) for file, text in content.items()]


def _room(path: Path) -> int | None:
    """Return how much still fits into a summary: GitHub throws one that is too long away."""
    from npufix.reports.formats.github import LARGEST_SUMMARY

    if not is_summary(path):
        return None
    return LARGEST_SUMMARY - 1 - (path.stat().st_size if path.exists() else 0)


def _summary(outputs: Outputs) -> Path | None:
    """Return the summary of the step that GitHub shows beside annotations, where there is one."""
    name = os.environ.get(_SUMMARY)
    if not name or not any(kind == "github" for kind, _ in outputs):
        return None
    return None if any(is_summary(path) for _, path in outputs) else Path(name)


def write_file(path: Path, text: str) -> None:
    """Write one file as a whole, its folder too if need be.

    Raises:
        OutputError: it cannot be written.

    """
    with name_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    _check(path, [])
    replace_all([(path, text)])
    say_written(path)
