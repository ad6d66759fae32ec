"""Lines of text on a terminal, wrapped at its width."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.wording import plain

if TYPE_CHECKING:
    from rich.console import Console

_MARGIN = "   "
# Nothing that can be seen in a text, and no white space, at which a line could be broken.
_GLUE = "\ue000"


def paragraph(text: str, console: Console, style: str = "", margin: str = "") -> None:
    """Print text of several lines if need be; a number stays with its unit."""
    joined = re.sub(r"(?<=\d) (?=(?:us|ms)\b)", _GLUE, plain(text))
    for part in Text(joined, style).wrap(console, max(1, console.width - len(margin))):
        part.rstrip()
        part.plain = part.plain.replace(_GLUE, " ")
        console.print(Text.assemble(margin, part))


def indented(line: str | Text, console: Console) -> None:
    """Print a line that belongs to the one above it."""
    text = Text(plain(line)) if isinstance(line, str) else line
    for part in text.wrap(console, max(1, console.width - len(_MARGIN))):
        part.rstrip()
        console.print(Text.assemble(_MARGIN, part))
