"""Text of the code as Markdown."""

from __future__ import annotations

import re


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return escaped(" ".join(text.split())).replace("|", "\\|")


def escaped(text: str) -> str:
    """Return plain text with code in backquotes as Markdown: nothing else in it is markup."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(_code(part) if part.startswith("`") else _plain(part) for part in parts)


def _code(part: str) -> str:
    return "`" + part.strip("`").strip() + "`"


def _plain(part: str) -> str:
    part = part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([*\[\]{}\\])|(?<!\w)_|_(?!\w)", lambda match: "\\" + match[0], part)


def fenced(text: str, language: str = "") -> str:
    """Return a block of code."""
    fence = "````" if "```" in text else "```"
    lines = text.strip("\n").rstrip()
    return f"{fence}{language}\n{lines}\n{fence}"
