"""A console that puts everything out in the chosen language."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.console import Console as EnglishConsole
from rich.segment import Segment
from rich.table import Table
from rich.text import Span, Text

from npufix.reports.language import current, layout, strip_steering, tr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import ConsoleOptions, RenderableType

_CELLS = re.compile(r"\S+(?: \S+)*")
_FEWEST_TITLES = 2
_QUANTITIES = frozenset(
    {"step", "computing", "compute", "kernels", "idle", "free", "exposed communication",
     "free time", "peak memory"}
)  # fmt: skip


class Verbatim(Text):
    """Text that is said as it is: code, or what is translated already."""


class Console(EnglishConsole):
    """Translates what is printed, unless it is ``Verbatim``."""

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - rich's interface
        """Print as rich does."""
        if current() == "en":
            super().print(*objects, **options)
            return
        said = [translate(one) for one in objects]
        if not (options.get("soft_wrap") or options.get("overflow")):
            said = [self._break_lines(one) if isinstance(one, Text) else one for one in said]
        super().print(*said, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does: what it puts in itself steers the terminal, no text does."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else strip_steering(text), style, control)

    def on_broken_pipe(self) -> None:
        """Leave it to the program what to do when its reader has gone: rich ends it with 1.

        Raises:
            BrokenPipeError: always.

        """
        raise BrokenPipeError

    def _break_lines(self, text: Text) -> Text:
        """Break lines where Chinese allows it: rich breaks at spaces only."""
        if layout.width(text.plain) <= self.width:
            return text
        return Text("\n", end=text.end).join(lines(text, self, self.width))


def translate(one: Any) -> Any:  # noqa: ANN401 - whatever rich prints
    """Return what is printed in the current language; the styles stay where they are."""
    if isinstance(one, Verbatim) or current() == "en":
        return one
    if isinstance(one, str):
        return _row(one)
    if isinstance(one, Text):
        return _text(one)
    if isinstance(one, Table):
        for column in one.columns:
            column.header = translate(column.header)
            column._cells[:] = [translate(cell) for cell in column._cells]  # noqa: SLF001 - rich offers no other way
    return one


def lines(text: Text, console: EnglishConsole, columns: int) -> Iterator[Text]:
    """Yield a text as lines of at most so many columns."""
    columns = max(1, columns)
    cut: Iterable[Text]
    if layout.width(text.plain) <= columns and not {"\n", "\t"} & set(text.plain):
        cut = [text.copy()]
    elif current() == "en":
        cut = text.wrap(console, columns)
    else:
        cut = text.divide(layout.breaks(text.plain, columns))
    for line in cut:
        line.rstrip()
        yield line


def _text(text: Text) -> Text:
    cuts = sorted({0, len(text), *(at for span in text.spans for at in (span.start, span.end))})
    cuts = [at for at in cuts if 0 < at < len(text)]
    out = Text("", style=text.style, justify=text.justify, overflow=text.overflow,
               no_wrap=text.no_wrap, end=text.end)  # fmt: skip
    for piece in text.divide(cuts):
        said = _row(piece.plain)
        styles = [Span(0, len(said), span.style) for span in piece.spans]
        out.append_text(Text(said, spans=styles))
    return out


def _row(line: str) -> str:
    """Translate a text or, of a row of titles, each title above its column."""
    said = tr(line)
    found = list(_CELLS.finditer(line))
    if said != line or "\n" in line or len(found) < _FEWEST_TITLES:
        return said
    titles = [tr(cell.group()) for cell in found]
    changed = [one != cell.group() for one, cell in zip(titles, found, strict=True)]
    if sum(changed) < _FEWEST_TITLES:
        # The first column of a table of ours names a quantity; other names are the user's.
        if not (changed[0] and found[0].group() in _QUANTITIES):
            return line
        titles[1:] = [cell.group() for cell in found[1:]]
    out = ""
    for number, (title, cell) in enumerate(zip(titles, found, strict=True)):
        # The first column is aligned to the left, numbers to the right.
        room = (
            cell.start()
            if not number or title == cell.group()
            else cell.end() - layout.width(title)
        )
        gap = room - layout.width(out)
        out += " " * max(gap, 1 if number else cell.start()) + title
    return out
