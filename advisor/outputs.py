"""Where a report goes: ``--output FORMAT=FILE``, several at once, all of them or none."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from rich.console import Console

    from npufix.reports.gate_report import GateReport
    from npufix.reports.report import Report

FORMATS = ("terminal", "html", "markdown", "github", "gitlab", "junit", "sarif", "json")
STDOUT = Path("-")
_ENDINGS = {".html": "html", ".md": "markdown", ".json": "json", ".sarif": "sarif"}
_SUMMARY = "GITHUB_STEP_SUMMARY"
_WITH_CHANGES = frozenset({"html", "sarif"})
PAGE_TOP = 1000
"""How many operators, shapes, lines and modules an HTML page holds."""


class OutputError(Exception):
    """A file that cannot be written; nothing was: ``message`` and ``remedy``."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def parse(
    context: click.Context,  # noqa: ARG001 - click's interface
    parameter: click.Parameter,  # noqa: ARG001 - same
    values: tuple[str, ...],
) -> tuple[tuple[str, Path], ...]:
    """Read ``FORMAT=FILE``; the format may be left out where the ending of the file says it."""
    outputs: list[tuple[str, Path]] = []
    for value in values:
        kind, sign, name = value.partition("=")
        if not sign:
            kind, name = _ENDINGS.get(Path(value).suffix, ""), value
            if not kind:
                known = " or ".join(_ENDINGS)
                raise click.BadParameter(
                    f"{value!r} is not FORMAT=FILE, and its ending is not {known};"
                    f" formats are {', '.join(FORMATS)}"
                )
        if kind not in FORMATS:
            raise click.BadParameter(
                f"{value!r}: there is no format {kind!r}; there are {', '.join(FORMATS)}"
            )
        if not name:
            raise click.BadParameter(f"{value!r} names no file; - is the standard output")
        path = Path(name)
        _check(path, [other for _, other in outputs])
        outputs.append((kind, path))
    return tuple(outputs)


def _check(path: Path, others: Sequence[Path]) -> None:
    """Refuse what would only fail once the work is done."""
    if path == STDOUT:
        if STDOUT in others:
            raise click.BadParameter("only one output can go to the standard output (-)")
        return
    if path.resolve() in {other.resolve() for other in others if other != STDOUT}:
        raise click.BadParameter(f"two outputs go to {path}; give each its own file")
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}; create it first")


output_option = click.option(
    "-o", "--output", "outputs", multiple=True, metavar="FORMAT=FILE", callback=parse,
    help=f"Write the report too; may be repeated. FORMAT: {', '.join(FORMATS)}. FILE may be -.",
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
    _check(html, [other for _, other in outputs])
    return (*outputs, ("html", html))


def want_page(outputs: Sequence[tuple[str, Path]]) -> bool:
    """Tell whether an output is an HTML page."""
    return any(kind == "html" for kind, _ in outputs)


def want_changes(outputs: Sequence[tuple[str, Path]]) -> bool:
    """Tell whether an output shows the change of each finding (see ``suggestions``)."""
    return any(kind in _WITH_CHANGES for kind, _ in outputs)


def write(
    outputs: Sequence[tuple[str, Path]],
    made: GateReport | Report,
    root: Path | None = None,
    *,
    details: bool = False,
    page: str = "",
) -> None:
    """Print a report and write it in every format asked for.

    The terminal gets it as text unless an output goes there (``-``). ``root`` is the folder that
    the paths of findings are relative to; ``page`` is the report as HTML, where it is wanted.

    Raises:
        OutputError: a file cannot be written; then none was.

    """
    texts = _saved(outputs, made, root, details=details, page=page)
    to_stdout = [kind for kind, path in outputs if path == STDOUT]
    if not to_stdout or to_stdout == ["terminal"]:
        from npufix.advisor.commands.common import console  # noqa: PLC0415 - which imports rich

        _show(made, console(), details=details)
        return
    sys.stdout.write("".join(text for path, text in texts if path == STDOUT))


def save(
    outputs: Sequence[tuple[str, Path]], made: Report, root: Path | None, *, page: str = ""
) -> None:
    """Write a report in every format asked for; the standard output is for something else.

    Raises:
        OutputError: a file cannot be written; then none was.

    """
    if any(path == STDOUT for _, path in outputs):
        raise OutputError("a report cannot go to - here", "name a file")
    _saved(outputs, made, root, details=False, page=page)


def _saved(
    outputs: Sequence[tuple[str, Path]],
    made: GateReport | Report,
    root: Path | None,
    *,
    details: bool,
    page: str,
) -> list[tuple[Path, str]]:
    """Write the files, and return the texts of all outputs."""
    if want_page(outputs) and not page:
        raise OutputError("there is no HTML page of this", "leave the output html=... out")
    # All are made before any is written.
    texts = [
        (path, page if kind == "html" else _render(kind, path, made, root, details=details))
        for kind, path in outputs
    ]
    if summary := _summary(outputs, made):
        texts.append(summary)
    _replace([(path, text) for path, text in texts if path != STDOUT])
    return texts


def write_file(path: Path, text: str) -> None:
    """Write one file as a whole, its folder too if need be, or raise ``OutputError``."""
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    _check(path, [])
    _replace([(path, text)])


def _render(
    kind: str, path: Path, made: GateReport | Report, root: Path | None, *, details: bool
) -> str:
    from npufix.reports.sources import Sources  # noqa: PLC0415 - formats load when they are wanted

    if kind == "terminal":
        return "" if path == STDOUT else _as_text(made, details=details)
    if kind == "json":
        return _json(made)
    if kind == "markdown":
        return _markdown(made, path)
    return _of_server(kind)(made, Sources(root)).rstrip("\n") + "\n"


def _of_server(kind: str) -> Callable[..., str]:
    import importlib  # noqa: PLC0415 - one use

    module: Any = importlib.import_module(f"npufix.reports.{kind}")
    render: Callable[..., str] = getattr(module, f"to_{kind}")
    return render


def _is_gate(made: GateReport | Report) -> bool:
    return hasattr(made, "verdict")


def _json(made: Any) -> str:  # noqa: ANN401 - either report
    from npufix.reports import gate_report, report  # noqa: PLC0415 - msgspec is slow to load

    text: str = (gate_report if _is_gate(made) else report).to_json(made)
    return text + "\n"


def _show(made: Any, console: Console, *, details: bool) -> None:  # noqa: ANN401 - either report
    from npufix.reports.terminal import show  # noqa: PLC0415 - rich is slow to load
    from npufix.reports.terminal_gate import show_gate  # noqa: PLC0415 - same

    (show_gate if _is_gate(made) else show)(made, console, details=details)


def _as_text(made: GateReport | Report, *, details: bool) -> str:
    from rich.console import Console  # noqa: PLC0415 - slow to load

    out = io.StringIO()
    _show(made, Console(file=out, width=80, highlight=False, color_system=None), details=details)
    return out.getvalue()


def _markdown(made: Any, path: Path) -> str:  # noqa: ANN401 - either report
    from npufix.reports.github import LARGEST_SUMMARY  # noqa: PLC0415 - only for this format
    from npufix.reports.markdown import to_markdown  # noqa: PLC0415 - same
    from npufix.reports.markdown_gate import fitting, to_comment  # noqa: PLC0415 - same

    if not _is_summary(path):
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
    if any(_is_summary(path) for _, path in outputs):
        return None
    return Path(name), _markdown(made, Path(name))


def _is_summary(path: Path) -> bool:
    name = os.environ.get(_SUMMARY)
    return bool(name) and path != STDOUT and path.resolve() == Path(str(name)).resolve()


def _replace(texts: Sequence[tuple[Path, str]]) -> None:
    """Write all files or none: beside their places first, then all at once."""
    staged: list[tuple[Path, Path]] = []
    appended = [(path, text) for path, text in texts if _is_summary(path) or _is_special(path)]
    try:
        for path, text in texts:
            if (path, text) not in appended:
                target = path.resolve()
                beside = target.with_name(f".{target.name}.{os.getpid()}.npufix")
                staged.append((beside, target))
                with _naming(path):
                    beside.write_bytes(text.encode("utf-8", "surrogateescape"))
        for path, text in appended:
            with _naming(path), path.open("ab") as file:
                file.write(text.encode("utf-8", "surrogateescape"))
        for beside, target in staged:
            with _naming(target):
                if target.exists():
                    beside.chmod(target.stat().st_mode & 0o777)
                beside.replace(target)
    finally:
        for beside, _ in staged:
            with contextlib.suppress(OSError):
                beside.unlink()
    for path, _ in texts:
        click.echo(f"Wrote {path}", err=True)


def _is_special(path: Path) -> bool:
    """Tell whether nothing can be put in the place of a file: a pipe, ``/dev/stderr``."""
    return path.exists() and not path.is_file()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{path}: {error.strerror}; no report was written"
        raise OutputError(message, "name a file that can be written") from error
