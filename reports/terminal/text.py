"""Lines of text on a terminal, wrapped at its width."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.language import tr
from npufix.reports.language.terminal import Verbatim, lines, translate
from npufix.reports.wording.report import plain, sign_lines
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from rich.console import Console

_MARGIN = "   "
_GOES_ON = "      "
# Nothing that can be seen in a text, and no white space, at which a line could be broken.
_GLUE = "\ue000"


def paragraph(text: str, console: Console, style: str = "", margin: str = "") -> None:
    """Print text of several lines if need be; a number stays with its unit."""
    joined = re.sub(r"(?<=\d) (?=(?:µs|ms|s|min)\b)", _GLUE, tr(plain(text)))
    for part in lines(Text(joined, style), console, console.width - len(margin)):
        part.plain = part.plain.replace(_GLUE, " ")
        console.print(Verbatim(margin).append_text(part), soft_wrap=True)


def print_indented(line: str | Text, console: Console) -> None:
    """Print a line that belongs to the one above it."""
    text = translate(Text(plain(line)) if isinstance(line, str) else line)
    shown = Verbatim()
    for part in lines(text, console, console.width - len(_MARGIN)):
        shown.append("\n" * bool(shown) + _MARGIN).append_text(part)
    console.print(shown, soft_wrap=True)  # in lines already


def print_code(code: str, replacement: str, console: Console, most: int = 0) -> None:
    """Print code and what is written instead, if anything, below the line that they belong to.

    Of more lines than ``most`` only the first are printed, and how many others there are; 0: all.
    """
    old = ("-", "red") if replacement else (" ", "")
    shown = Verbatim()
    for text, (sign, style) in ((code, old), (replacement, ("+", "green"))):
        signed = sign_lines(text, sign)
        left_out = len(signed) - most if 0 < most < len(signed) - 1 else 0
        if left_out:
            others = format_count(left_out, "other line")
            signed[most:] = [f"{sign} ... {tr(f'and {others}')}"]
        for line in map(plain, signed):
            # What is broken at the width of the terminal goes on further to the right.
            columns = console.width - len(_MARGIN) - len(_GOES_ON)
            first, *more = lines(Verbatim(line, style), console, columns)
            for part in (first, *(Text(_GOES_ON).append_text(part) for part in more)):
                shown.append(_MARGIN).append_text(part).append("\n")
    console.print(shown, end="", soft_wrap=True)
