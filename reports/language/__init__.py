"""The language of what people read: English as the code says it, Chinese from a catalogue.

Reports, JSON and the code stay English; texts are translated where they are put out, by what they
say. Code, paths, numbers and names are never touched: only a text that the catalogue holds, or
that one of its templates fits, changes.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npufix.reports.language.catalogue import Catalogue

__all__ = ["LANGUAGES", "both", "current", "from_environment", "markdown", "tr", "use"]

LANGUAGES = ("en", "zh")
VARIABLE = "NPUFIX_LANG"
_MARKED = re.compile(
    r"((?:\s*(?:#{1,6}|-|\d+\.) )?(?:\*\*|<[^<>]{1,99}>){0,9})(.*?)((?:\*\*|</[^<>]{1,99}>){0,9})"
)
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class _Chosen:
    """What this process puts out."""

    language = "en"


def use(language: str) -> None:
    """Put everything out in a language from now on.

    Raises:
        ValueError: it is none of ``LANGUAGES``.

    """
    if language not in LANGUAGES:
        raise ValueError(language)
    _Chosen.language = language


def current() -> str:
    """Return the language that texts are put out in: ``zh``."""
    return _Chosen.language


def from_environment(environ: Mapping[str, str] = os.environ) -> str:
    """Return what ``NPUFIX_LANG`` or else the locale asks for; English unless it is Chinese."""
    wanted = environ.get(VARIABLE) or next(filter(None, map(environ.get, _LOCALE)), "")
    return "zh" if wanted.lower().startswith("zh") else "en"


def tr(text: str) -> str:
    """Return a finished English text in the current language, as it is if nothing is known."""
    return text if _Chosen.language == "en" else _catalogue().translate(text)


def both(text: str) -> tuple[str, str]:
    """Return a text in English and in Chinese, for outputs that hold both."""
    return text, _catalogue().translate(text)


def markdown(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a Markdown text in the current language; code blocks as they are."""
    fence = ""
    for line in map(strip_steering, lines):
        mark = line[: len(line) - len(line.lstrip("`"))]
        if fence:
            fence = "" if mark == fence and line == mark else fence
            yield line
        elif len(mark) >= 3:  # noqa: PLR2004 - what opens a block
            fence = mark
            yield line
        else:
            yield line if _Chosen.language == "en" else _markdown_line(line)


def strip_steering(text: str) -> str:
    """Return a text whose letters steer no terminal, whoever forgot to ask for that before."""
    return text if text.isprintable() else _STEERING.sub("?", text)


def _markdown_line(line: str) -> str:
    if (said := tr(line)) != line:
        return said
    if line.startswith("| "):
        return " | ".join(map(tr, line.strip("| ").split(" | "))).join(("| ", " |"))
    found = _MARKED.fullmatch(line)
    if found is None:
        return line
    mark, body, rest = found.groups()
    return f"{mark}{tr(body)}{rest}"


def _catalogue() -> Catalogue:
    from npufix.reports.language.catalogue import read_catalogue

    return read_catalogue("zh")
