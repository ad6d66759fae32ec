"""Rows of a table on a terminal: in columns where there is room, else one below the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.language.layout import pad, width
from npufix.reports.terminal.text import print_indented

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Columns:
    """Widths of the columns of a table; the first gets what a wide terminal has left."""

    name: int
    others: tuple[int, ...]
    """Numbers are aligned to the right; below zero: texts, aligned to the left."""
    gap: int = 1
    """Between a name and what follows it."""
    growth: int = 20
    """What the first column takes of a wide terminal at most."""

    def show(self, cells: Sequence[str], console: Console, style: str = "") -> None:
        """Print a row; a name that is too long gets a line of its own."""
        name, *rest = cells
        spare = console.width - self.name - sum(map(abs, self.others))
        if spare < 0:
            console.print(Text(name, style), soft_wrap=True)
            said = "  ".join(filter(None, rest))
            if said:
                print_indented(Text(said, style), console)
            return
        first = self.name + min(spare, self.growth)
        if width(name) > first - self.gap:
            console.print(Text(name, style), soft_wrap=True)
            name = ""
        texts = [pad(name, first)]
        for text, columns in zip(rest, self.others, strict=True):
            texts.append(pad(text, abs(columns), right=columns > 0))
        console.print(Text("".join(texts).rstrip(), style))
