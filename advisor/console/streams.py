"""The standard streams: whatever their encoding, nothing that is printed fails."""

from __future__ import annotations

import codecs
import io
import sys

_HANDLER = "npufix"
_IN_ASCII = {
    "\N{EM DASH}": "--", "\N{EN DASH}": "-", "\N{MINUS SIGN}": "-", "\N{RIGHTWARDS ARROW}": "->",
    "\N{HORIZONTAL ELLIPSIS}": "...", "\N{PLUS-MINUS SIGN}": "+-", "\N{MULTIPLICATION SIGN}": "x",
    "\N{MIDDLE DOT}": "-", "\N{BULLET}": "*", "\N{MICRO SIGN}": "u", "\N{GREEK SMALL LETTER MU}":
    "u", "\N{GREATER-THAN OR EQUAL TO}": ">=", "\N{LESS-THAN OR EQUAL TO}": "<=",
    "\N{LEFT SINGLE QUOTATION MARK}": "'", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"', "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
    "\N{FULL BLOCK}": "#", "\N{DARK SHADE}": "=", "\N{LIGHT SHADE}": ".",
    "\N{NO-BREAK SPACE}": " ", "\N{ALMOST EQUAL TO}": "~", "\N{SUPERSCRIPT TWO}": "2",
}  # fmt: skip


def make_printable() -> None:
    """Let the standard streams write what their encoding lacks in plain letters."""
    codecs.register_error(_HANDLER, _replace_unwritable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _replace_unwritable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(sign, "?") for sign in unknown), error.end


def print_text(text: str) -> None:
    """Print what programs read, such as JSON: UTF-8 whatever the terminal has, as it is."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # somebody put a stream of text in its place
        sys.stdout.write(text)
        return
    buffer.write(text.encode("utf-8", "surrogateescape"))
    buffer.flush()
