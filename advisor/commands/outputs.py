"""Where a report goes: ``--output FORMAT=FILE``, several at once, all of them or none."""

from __future__ import annotations

import io
import os
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from rich.console import Console

    from npufix.advisor.console.written import Content
    from npufix.reports.gate_report import GateReport
    from npufix.reports.report import Report

    OfRun = Mapping[str, Callable[[Path], Sequence[tuple[Path, Content]]]]
    """What makes the files of a format from all that is known of a run, by format."""

__all__ = ["STDOUT", "OutputError"]

FORMATS = ("terminal", "markdown", "github", "gitlab", "junit", "sarif", "json")
"""Formats of any report."""
TABLES = ("html", "csv", "xlsx")
"""Formats of a report of findings, with or without a run."""
TRACKS = ("perfetto", "perfetto-findings")
"""Formats that need a run."""
EVERY = (*FORMATS, *TABLES, *TRACKS)
_FOLDERS = frozenset({"csv"})
_NOT_TEXT = frozenset({"csv", "xlsx", *TRACKS})
_ENDINGS = {".html": "html", ".md": "markdown", ".json": "json", ".sarif": "sarif",
            ".xlsx": "xlsx"}  # fmt: skip
_SUMMARY = "GITHUB_STEP_SUMMARY"
_WITH_CHANGES = frozenset({"html", "sarif"})
PAGE_TOP = 1000
"""How many operators, shapes, lines and modules an HTML page holds."""
_ALL = 10**9


def parser_of(formats: Sequence[str]) -> Callable[..., tuple[tuple[str, Path], ...]]:
    """Return a callback of click that reads ``FORMAT=FILE`` with one of some formats."""

    def parse(
        context: click.Context | None,  # noqa: ARG001 - click's interface
        parameter: click.Parameter | None,  # noqa: ARG001 - same
        values: tuple[str, ...],
    ) -> tuple[tuple[str, Path], ...]:
        outputs: list[tuple[str, Path]] = []
        for value in values:
            kind, path = _parsed(value, formats)
            _check(path, [other for _, other in outputs], kind)
            outputs.append((kind, path))
        return tuple(outputs)

    return parse


parse = parser_of(EVERY)


def _parsed(value: str, formats: Sequence[str]) -> tuple[str, Path]:
    """Split ``FORMAT=FILE``; the format may be left out where the ending of the file says it."""
    kind, sign, name = value.partition("=")
    if not sign:
        kind, name = _ENDINGS.get(Path(value).suffix, ""), value
        if kind not in formats:
            known = " or ".join(ending for ending, kind in _ENDINGS.items() if kind in formats)
            raise click.BadParameter(
                f"{value!r} is not FORMAT=FILE, and its ending is not {known};"
                f" formats are {', '.join(formats)}"
            )
    if kind not in formats:
        there = f"there are {', '.join(formats)}"
        if kind in EVERY:
            raise click.BadParameter(f"{value!r}: {kind} is no format of this command; {there}")
        raise click.BadParameter(f"{value!r}: there is no format {kind!r}; {there}")
    if not name:
        raise click.BadParameter(f"{value!r} names no file; - is the standard output")
    return kind, Path(name)


def _check(path: Path, others: Sequence[Path], kind: str = "") -> None:
    """Refuse what would only fail once the work is done."""
    if path == STDOUT:
        if kind in _NOT_TEXT:
            raise click.BadParameter(f"{kind} does not go to the standard output; name a file")
        if STDOUT in others:
            raise click.BadParameter("only one output can go to the standard output (-)")
        return
    if path.resolve() in {other.resolve() for other in others if other != STDOUT}:
        raise click.BadParameter(f"two outputs go to {path}; give each its own file")
    if kind in _FOLDERS and path.exists() and not path.is_dir():
        raise click.BadParameter(f"{path} is a file; {kind} writes several, name a folder")
    if kind not in _FOLDERS and path.is_dir():
        raise click.BadParameter(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}; create it first")
    if kind == "xlsx":
        from npufix.reports.spreadsheet import check_workbook

        check_workbook()


def _complete(formats: Sequence[str]) -> Callable[..., list[Any]]:
    """Return what completes ``FORMAT=FILE`` in a shell."""

    def complete(context: object, parameter: object, incomplete: str) -> list[Any]:  # noqa: ARG001 - click's interface
        from click.shell_completion import CompletionItem

        if "=" in incomplete:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(f"{kind}=") for kind in formats if kind.startswith(incomplete)]

    return complete


def output_option(formats: Sequence[str] = EVERY) -> Callable[..., Any]:
    """Return the option ``-o FORMAT=FILE`` with some formats."""
    return click.option(
        "-o", "--output", "outputs", multiple=True, metavar="FORMAT=FILE",
        callback=parser_of(formats), shell_complete=_complete(formats),
        help=f"Write the report too; may be repeated. FORMAT: {', '.join(formats)}."
             f" FILE may be -{', and is a folder for csv' if 'csv' in formats else ''}.",
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
    _check(html, [other for _, other in outputs], "html")
    return (*outputs, ("html", html))


def rows_wanted(outputs: Sequence[tuple[str, Path]], top: int) -> int:
    """Return how many hot operators (and so on) the outputs hold together; ``top`` are shown."""
    kinds = {kind for kind, _ in outputs}
    if kinds & {"csv", "xlsx"}:
        return _ALL
    return max(top, PAGE_TOP) if "html" in kinds else top


def want_changes(outputs: Sequence[tuple[str, Path]]) -> bool:
    """Tell whether an output shows the change of each finding (see ``suggestions``)."""
    return any(kind in _WITH_CHANGES for kind, _ in outputs)


def write(
    outputs: Sequence[tuple[str, Path]],
    made: GateReport | Report,
    root: Path | None = None,
    *,
    details: bool = False,
    of_run: OfRun | None = None,
) -> None:
    """Print a report and write it in every format asked for.

    The terminal gets it as text unless an output goes there (``-``). ``root`` is the folder that
    the paths of findings are relative to; ``of_run`` makes the formats that need more than the
    report.

    Raises:
        OutputError: a file cannot be written; then none was.

    """
    from npufix.advisor.console.screen import make_console

    texts = _saved(outputs, made, root, details=details, of_run=of_run)
    to_stdout = [kind for kind, path in outputs if path == STDOUT]
    if not to_stdout or to_stdout == ["terminal"]:
        if is_quiet():
            say(_headline(made), err=False)
        else:
            _show(made, make_console(), details=details)
        return
    print_text("".join(str(text) for path, text in texts if path == STDOUT))


def save(
    outputs: Sequence[tuple[str, Path]],
    made: Report,
    root: Path | None,
    *,
    of_run: OfRun | None = None,
) -> None:
    """Write a report in every format asked for; the standard output is for something else.

    Raises:
        OutputError: a file cannot be written; then none was.

    """
    if any(path == STDOUT for _, path in outputs):
        raise OutputError("a report cannot go to - here", "name a file")
    _saved(outputs, made, root, details=False, of_run=of_run)


def _saved(
    outputs: Sequence[tuple[str, Path]],
    made: GateReport | Report,
    root: Path | None,
    *,
    details: bool,
    of_run: OfRun | None,
) -> list[tuple[Path, Content]]:
    """Write the files, and return the contents of all outputs."""
    # All are made before any is written, but for those that are written piece by piece.
    contents: list[tuple[Path, Content]] = []
    with progress("Writing the report"):
        for kind, path in outputs:
            if of_run is not None and kind in of_run:
                contents += of_run[kind](path)
            elif kind in FORMATS:
                contents.append((path, _render(kind, path, made, root, details=details)))
            else:
                raise OutputError(f"there is no {kind} of this", f"leave {kind}=... out")
        if summary := _summary(outputs, made):
            contents.append(summary)
        replace_all([(path, content) for path, content in contents if path != STDOUT])
    for path in [path for _, path in outputs if path != STDOUT] + ([summary[0]] if summary else []):
        say_written(path)
    return contents


def write_files(contents: Sequence[tuple[Path, Content]]) -> None:
    """Write all of these that do not go to the standard output, or none, and say so."""
    files = [(path, content) for path, content in contents if path != STDOUT]
    replace_all(files)
    for path, _ in files:
        say_written(path)


def write_file(path: Path, text: str) -> None:
    """Write one file as a whole, its folder too if need be, or raise ``OutputError``."""
    with name_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    _check(path, [])
    replace_all([(path, text)])
    say_written(path)


def _headline(made: GateReport | Report) -> str:
    """Return the line of a report that matters, for those who want no more."""
    from npufix.reports.gate_report import GateReport
    from npufix.reports.gate_wording import verdict_line
    from npufix.reports.wording import plain

    return plain(verdict_line(made) if isinstance(made, GateReport) else made.headline)


def _render(
    kind: str, path: Path, made: GateReport | Report, root: Path | None, *, details: bool
) -> str:
    from npufix.reports.sources import Sources

    if kind == "terminal":
        return "" if path == STDOUT else _as_text(made, details=details)
    if kind == "json":
        return _json(made)
    if kind == "markdown":
        return _markdown(made, path)
    return _of_server(kind)(made, Sources(root)).rstrip("\n") + "\n"


def _of_server(kind: str) -> Callable[..., str]:
    import importlib

    module: Any = importlib.import_module(f"npufix.reports.{kind}")
    render: Callable[..., str] = getattr(module, f"to_{kind}")
    return render


def _is_gate(made: GateReport | Report) -> bool:
    return hasattr(made, "verdict")


def _json(made: Any) -> str:  # noqa: ANN401 - either report
    from npufix.reports import gate_report, report

    text: str = (gate_report if _is_gate(made) else report).to_json(made)
    return text + "\n"


def _show(made: Any, console: Console, *, details: bool) -> None:  # noqa: ANN401 - either report
    from npufix.reports.terminal import show
    from npufix.reports.terminal_gate import show_gate

    (show_gate if _is_gate(made) else show)(made, console, details=details)


def _as_text(made: GateReport | Report, *, details: bool) -> str:
    from npufix.reports.language.terminal import Console

    out = io.StringIO()
    _show(made, Console(file=out, width=80, highlight=False, color_system=None), details=details)
    return out.getvalue()


def _markdown(made: Any, path: Path) -> str:  # noqa: ANN401 - either report
    from npufix.reports.github import LARGEST_SUMMARY
    from npufix.reports.markdown import to_markdown
    from npufix.reports.markdown_gate import fitting, to_comment

    if not is_summary(path):
        return to_comment(made) if _is_gate(made) else to_markdown(made)
    # GitHub throws a summary that is too long away as a whole.
    room = LARGEST_SUMMARY - 1 - (path.stat().st_size if path.exists() else 0)
    if _is_gate(made):
        return to_comment(made, room)
    first, *rest = to_markdown(made).split("\n## ")
    return fitting([first, *(f"## {part}" for part in rest)], room, "diagnose")


def _summary(
    outputs: Sequence[tuple[str, Path]], made: GateReport | Report
) -> tuple[Path, str] | None:
    """Return what goes into the summary of the step beside annotations, where there is one."""
    name = os.environ.get(_SUMMARY)
    if not name or not any(kind == "github" for kind, _ in outputs):
        return None
    if any(is_summary(path) for _, path in outputs):
        return None
    return Path(name), _markdown(made, Path(name))
