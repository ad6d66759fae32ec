"""How pages are made: templates, their filters, scripts, both languages, data for the scripts.

Everything from a dump or a source goes through the escaping of Jinja2, or into a JSON block that
no text can close; a Content-Security-Policy forbids every request.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from npufix.reports import language
from npufix.reports.encoding import encode
from npufix.reports.html import tables
from npufix.reports.wording import comparison as comparison_wording
from npufix.reports.wording import report as wording
from npufix.reports.wording.prediction import alone_text, doubt_text
from npufix.rules.shared.quantities import milliseconds, number, percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SAID = re.compile(r'\bt\("([^"]+)"')
_SHARED = ("shared.js", "tables.js")
_LONGEST = 300
_TAIL = 2
_ROWS_WITHOUT_SCRIPTS = 100
"""Rows of each table that the page holds as text; scripts show the others."""


def render_page(
    template: str,
    scripts: Sequence[str],
    made: Sequence[tables.DataTable],
    data: Mapping[str, object],
    **shown: object,
) -> str:
    """Return a page: a template with its scripts, its tables and what the scripts draw."""
    scripts = (*_SHARED, *scripts, "start.js")
    rows = {table.name: table.rows for table in made}
    return (
        _environment()
        .get_template(template)
        .render(
            shown,
            tables={table.name: table for table in made},
            scripts=scripts,
            data=_json({"tables": rows, "words": _words(scripts, made), **data}),
            few=_ROWS_WITHOUT_SCRIPTS,
            language=language.current(),
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "doubt": doubt_text,
        "alone": alone_text,
        "ms": milliseconds,
        "interval": wording.interval,
        "plain": wording.plain,
        "kernels": wording.name_kernels,
        "short": _short,
        "plain_lines": lambda text: "\n".join(map(wording.plain, text.splitlines())),
        "launches": wording.launches,
        "signed": wording.sign_lines,
        "percent": percent,
        "figure": tables.figure,
        "number": number,
        "saved": wording.word_saving,
        "size": size,
        "tail": _tail,
    }
    made.globals |= {
        "asset": _asset,
        "t": _spoken,
        "label": _label,
        "parted": _part,
        "said": language.tr,
        "heat": tables.heat,
        "is_figure": tables.is_figure,
        "words": comparison_wording,
    }
    return made


def _short(text: str) -> str:
    """Return the beginning of a text that is too long for a table; shared.js does the same."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,})"


def _tail(path: str) -> str:
    """Return the end of a long path, which tells it from others."""
    parts = path.split("/")
    return path if len(parts) <= _TAIL else "…/" + "/".join(parts[-_TAIL:])


def _text(name: str) -> str:
    folder = "templates" if name.endswith(".html") else "scripts"
    return (files(__package__) / folder / name).read_text("utf-8")


def _asset(name: str) -> Markup:
    """Return a script or a style of ours as it is; none of them may close its own element."""
    text = _text(name)
    if "</script" in text or "</style" in text:
        raise AssertionError(f"{name} would end its element")
    return Markup(text)  # noqa: S704 - a file of this package


def _spoken(text: str) -> Markup:
    """Return a text that the switch of the page puts into the other language."""
    return _switch(*language.both(text))


def _switch(english: str, chinese: str) -> Markup:
    english, chinese = (wording.plain(text).replace(" -> ", " → ") for text in (english, chinese))
    if english == chinese:
        return escape(english)
    shown = chinese if language.current() == "zh" else english
    return Markup('<span class="t" data-en="{}" data-zh="{}">{}</span>').format(
        english, chinese, shown
    )


def _part(sentence: str) -> tuple[Markup, Markup]:
    """Return the first part of a long sentence, and the rest of it."""
    english, chinese = language.both(sentence)
    first, _, rest = english.partition("; ")
    one, _, other = chinese.partition("；")
    if not rest or not other:
        return _spoken(sentence), Markup("")
    return _switch(first, one), _switch(rest, other)


def _label(text: str) -> Markup:
    """Return an ``aria-label`` that the switch changes."""
    english, chinese = language.both(text)
    shown = chinese if language.current() == "zh" else english
    return Markup('aria-label="{}" data-label-en="{}" data-label-zh="{}"').format(
        shown, english, chinese
    )


def _words(scripts: Sequence[str], made: Sequence[tables.DataTable]) -> dict[str, str]:
    """Return what the scripts say, and the texts of ours in tables, in Chinese."""
    said = dict.fromkeys(text for name in scripts for text in _SAID.findall(_text(name)))
    for table in made:
        for column, kind in enumerate(table.kinds):
            if kind in {tables.SAID, tables.RELATIVE}:
                texts = (row[column] for row in table.rows)
                said |= dict.fromkeys(text for text in texts if text and isinstance(text, str))
    return {text: chinese for text in said if (chinese := language.both(text)[1]) != text}


def _json(data: object) -> Markup:
    """Return JSON that cannot end the script element around it, whatever texts are in it."""
    text = encode(data).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704 - escaped right above
