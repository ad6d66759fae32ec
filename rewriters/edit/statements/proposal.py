"""What a search found: where, what to write there or what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import span

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

    from npufix.rewriters.edit.edit import Span


_WIDE = 96
"""Lines of other calls end here, about."""
_CLOSING = re.compile(r"\s*,?\s*(#[^\n]*\s*)?\)")


@dataclass(frozen=True, slots=True)
class Change:
    """A part of the text and what stands there afterwards."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """One place that a rule is about."""

    code: ast.expr | ast.stmt
    advice: str = ""
    """What to do by hand, where nothing is written."""
    form: str = ""
    """The name of the ``pattern`` of the form that it is, "" for the first."""
    changes: tuple[Change, ...] = ()
    elsewhere: tuple[Change, ...] = ()
    """The same, with the old code for other devices; empty: the new code runs everywhere."""
    shown: str = ""
    """The new code, for a report."""
    asked: tuple[tuple[str, str], ...] = ()
    """What the conditions are about, as the verifier calls it, with its code: ``mask``, ``bad``."""
    asked_at: ast.stmt | None = None
    """The statement before which that is known, ``None`` for the one of ``code``."""
    proven: frozenset[str] = frozenset()
    """The conditions of the form that the source proves here; the others are open."""


def apply_changes(lines: Sequence[str], changes: Sequence[Change]) -> str:
    """Return a text with changes that do not overlap."""
    text = list(lines)
    for change in sorted(changes, key=lambda c: c.span, reverse=True):
        first, start, last, end = change.span
        head, tail = text[first - 1][:start], text[last - 1][end:]
        text[first - 1 : last] = [f"{head}{change.text}{tail}"]
    return "".join(text)


def more_arguments(call: ast.Call, lines: Sequence[str], *added: str) -> Change | None:
    """Return what adds arguments behind the others, ``None`` if there is no plain place.

    Each gets a line of its own where the last one has.
    """
    given = [*call.args, *(k.value for k in call.keywords)]
    if not given:
        return None
    *_, last, end = max(span(code, lines) for code in given)
    *_, final, close = span(call, lines)
    rest = "".join([*lines[last - 1 : final - 1], lines[final - 1][:close]])[end:]
    starts = [(arg.lineno, arg.col_offset) for arg in call.args]
    starts += [(arg.lineno, arg.col_offset) for arg in call.keywords]
    row, column = max(starts)
    indent = lines[row - 1][:column]
    lone = indent.isspace() and len(given) > 1
    first = next((c for r, c in sorted(starts) if r == row), 0)
    front = lines[row - 1][:first]
    hugged = "\n" in rest  # ``f(\n    a, b\n)``, which is laid out anew as a whole
    if not (lone or hugged) and front.isspace() and end + sum(map(len, added)) > _WIDE:
        indent, lone = front, True  # ``f(a,\n  b, c)``: on a line of its own below ``b``
    joint = f",\n{indent}" if lone else ", "
    text = "".join(f"{joint}{one}" for one in added)
    return Change((last, end, last, end), text) if _CLOSING.fullmatch(rest) else None
