"""Lines of text on a terminal, wrapped at its width."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.language import tr
from npufix.reports.language.terminal import Verbatim, lines, translate
from npufix.reports.wording.report import plain

if TYPE_CHECKING:
    from rich.console import Console

_MARGIN = "   "
# Nothing that can be seen in a text, and no white space, at which a line could be broken.
_GLUE = "\ue000"


def paragraph(text: str, console: Console, style: str = "", margin: str = "") -> None:
    """Print text of several lines if need be; a number stays with its unit."""
    joined = re.sub(r"(?<=\d) (?=(?:µs|ms|s|min)\b)", _GLUE, tr(plain(text)))
    for part in lines(Text(joined, style), console, console.width - len(margin)):
        part.plain = part.plain.replace(_GLUE, " ")
        console.print(Verbatim(margin).append_text(part))


def print_indented(line: str | Text, console: Console) -> None:
    """Print a line that belongs to the one above it."""
    text = translate(Text(plain(line)) if isinstance(line, str) else line)
    shown = Verbatim()
    for part in lines(text, console, console.width - len(_MARGIN)):
        shown.append("\n" * bool(shown) + _MARGIN).append_text(part)
    console.print(shown)
