"""Text below a row, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.wording import plain

if TYPE_CHECKING:
    from rich.console import Console

_MARGIN = "   "


def indented(line: str | Text, console: Console) -> None:
    """Print a line that belongs to the one above it."""
    text = Text(plain(line)) if isinstance(line, str) else line
    for part in text.wrap(console, max(1, console.width - len(_MARGIN))):
        part.rstrip()
        console.print(Text.assemble(_MARGIN, part))
