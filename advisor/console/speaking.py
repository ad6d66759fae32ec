"""The language of the command line: ``--lang``, help, errors, and what is said on stderr."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from npufix.reports import language
from npufix.reports.language import layout, tr

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAME = "--lang"


def begin(arguments: Sequence[str]) -> None:
    """Choose the language before anything is said: by ``--lang``, NPUFIX_LANG or the locale."""
    asked = [
        value
        for one, following in zip(arguments, [*arguments[1:], ""], strict=False)
        for value in (following if one == _NAME else one.partition("=")[2],)
        if one.partition("=")[0] == _NAME and value in language.LANGUAGES
    ]
    language.use(asked[-1] if asked else language.from_environment(os.environ))
    if language.current() == "en":
        return
    for stream in (sys.stdout, sys.stderr):
        # Asked for in Chinese, a terminal of the locale C gets it rather than question marks.
        if isinstance(stream, io.TextIOWrapper) and not _can_write(stream.encoding):
            stream.reconfigure(encoding="utf-8")


def _can_write(encoding: str) -> bool:
    try:
        "\u4e2d".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def make_plain(text: str) -> str:
    """Return a text that steers no terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def say(text: str, *, err: bool = True) -> None:
    """Print a line in the current language; nothing in it steers the terminal."""
    click.echo(make_plain(tr(text)), err=err)


def option() -> click.Option:
    """Return ``--lang`` for a command."""
    return click.Option(
        [_NAME],
        type=click.Choice(language.LANGUAGES),
        expose_value=False,
        is_eager=True,
        callback=_choose,
        help="Language of what is said. Default: NPUFIX_LANG, else the locale.",
    )


def _choose(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    source = context.get_parameter_source(str(parameter.name))
    if source is click.core.ParameterSource.COMMANDLINE and value and value != language.current():
        before = language.current()
        context.call_on_close(lambda: language.use(before))
        language.use(value)
    return value


def show_error(error: click.ClickException) -> None:
    """Print what is wrong with a command line in one line, and where the right one is said."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError) or context is None:
        error.show()  # it is the help itself, or about a file
        return
    mark, dash = ("：", "——") if language.current() == "zh" else (": ", " -- ")
    text = make_plain(tr(error.format_message()))
    words = ("npufix", mark, text, dash, context.command_path, " --help")
    click.echo("".join(words), err=True)


class Formatter(click.HelpFormatter):
    """Writes help in the current language, and knows that Chinese characters are wide."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write ``Usage: npufix ...``."""
        super().write_usage(prog, args, tr("Usage:") + " " if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        """Write the title of a section."""
        super().write_heading(tr(heading))

    def write_text(self, text: str) -> None:
        """Write paragraphs, each wrapped unless a backspace says that its lines stay."""
        if language.current() == "en":
            super().write_text(text)
            return
        margin = " " * self.current_indent
        shown = []
        for paragraph in text.split("\n\n"):
            kept = paragraph.startswith("\b")
            body = [_example(line) for line in paragraph.splitlines()[1:]] if kept else (
                layout.wrap(tr(" ".join(paragraph.split())), self.width - len(margin))
            )  # fmt: skip
            shown.append("\n".join(margin + line for line in body))
        self.write("\n\n".join(shown) + "\n")

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write names with their meaning in two columns."""
        if language.current() == "en":
            super().write_dl(rows, col_max, col_spacing)
            return
        rows = list(rows)
        longest = max((layout.width(name) for name, _ in rows), default=0)
        first = min(longest, col_max) + col_spacing
        margin = " " * self.current_indent
        for name, meaning in rows:
            text = layout.wrap(_translate_help(meaning), max(self.width - first - len(margin), 10))
            head = layout.pad(name, first)
            if layout.width(name) > first - col_spacing:
                self.write(f"{margin}{name}\n")
                head = " " * first
            for number, line in enumerate(text):
                self.write(f"{margin}{head if not number else ' ' * first}{line}".rstrip() + "\n")


def _translate_help(text: str) -> str:
    """Translate what an option means, and click's remarks behind it separately."""
    body, mark, remark = text.rpartition("  [")
    return f"{tr(body)}  [{tr(remark[:-1])}]" if mark else tr(text)


def _example(line: str) -> str:
    """Translate what stands behind a command, not the command."""
    command, gap, remark = line.rpartition("   ")
    return f"{command}{gap}{tr(remark)}" if gap and command.strip() else tr(line)


def use_formatter() -> None:
    """Let click write all help with ``Formatter``."""
    context: Any = click.Context
    context.formatter_class = Formatter
