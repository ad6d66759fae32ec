"""Lines and columns of text in which some characters are two columns wide."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

# A word with the mark behind it, one wide character with the marks behind it, or spaces.
_CLOSING = ",。;:、!?)】》”，；：！？）"
_WIDE = r"\u2e80-\u9fff\uff00-\uffef"
_PIECE = re.compile(
    rf"\s+|[([《【“（](?:[{_WIDE}]|[^\s{_WIDE}]*)[{_CLOSING}]*|[{_WIDE}][{_CLOSING}]*"
    rf"|[^\s{_WIDE}]+[{_CLOSING}]*"
)


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return a text filled with spaces up to a number of columns."""
    space = " " * max(0, columns - width(text))
    return space + text if right else text + space


def cut(text: str, columns: int) -> str:
    """Return a text that is no wider than so many columns; what is left out is a sign of it."""
    if width(text) <= columns:
        return text
    kept = text
    while kept and width(kept) >= columns:
        kept = kept[:-1]
    return f"{kept}…"


def breaks(text: str, columns: int) -> list[int]:
    """Return where lines begin, but for the first, if none is wider than ``columns``."""
    found, used = [], 0
    for piece in _PIECE.finditer(text):
        wide = width(piece.group())
        if "\n" in piece.group():
            found.append(piece.start() + piece.group().rindex("\n") + 1)
            used = width(text[found[-1] : piece.end()])
        elif used + wide <= columns or piece.group().isspace():
            used += wide
        else:
            if used:
                found.append(piece.start())
            used = 0
            for offset, char in enumerate(piece.group(), piece.start()):
                if used + _width(char) > columns:
                    found.append(offset)
                    used = 0
                used += _width(char)
    return found


def wrap(text: str, columns: int) -> list[str]:
    """Return a text as lines of at most so many columns."""
    cuts = [0, *breaks(text, columns), len(text)]
    return [text[a:b].rstrip() for a, b in pairwise(cuts)]
