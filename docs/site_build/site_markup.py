"""Text of the code as Markdown."""

from __future__ import annotations

import html
import re

_MARKUP = re.compile(r"``(.+?)``|`([^`]+)`|([*\[\]{}\\&<>]|(?<!\w)_|_(?!\w))", re.DOTALL)


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return escaped(" ".join(text.split())).replace("|", "\\|")


def escaped(text: str) -> str:
    """Return plain text with code in backquotes as Markdown: nothing else in it is markup."""

    def as_markdown(found: re.Match[str]) -> str:
        if sign := found[3]:
            return html.escape(sign) if sign in "&<>" else f"\\{sign}"
        return f"`{(found[1] or found[2]).strip()}`"

    return _MARKUP.sub(as_markdown, text)


def fenced(text: str, language: str = "") -> str:
    """Return a block of code."""
    fence = "````" if "```" in text else "```"
    lines = text.strip("\n").rstrip()
    return f"{fence}{language}\n{lines}\n{fence}"
