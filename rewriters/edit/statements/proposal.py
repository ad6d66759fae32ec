"""What a search found: where, what to write there or what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import behind_arguments

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Sequence

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings


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


def put(  # noqa: PLR0913 - what a proposal says, but for what follows from the code
    here: Surroundings,
    code: ast.expr | ast.stmt,
    new: str,
    *,
    form: str = "",
    asked: tuple[tuple[str, str], ...] = (),
    asked_at: ast.stmt | None = None,
    proven: Iterable[str] = (),
) -> Proposal:
    """Return the proposal to write ``new`` in place of ``code``, and nothing else."""
    return Proposal(
        code,
        form=form,
        changes=(Change(here.span(code), new),),
        shown=new,
        asked=asked,
        asked_at=asked_at,
        proven=frozenset(proven),
    )


def apply_changes(lines: Sequence[str], changes: Sequence[Change]) -> str:
    """Return a text with changes that do not overlap."""
    text = list(lines)
    for change in sorted(changes, key=lambda c: c.span, reverse=True):
        first, start, last, end = change.span
        head, tail = text[first - 1][:start], text[last - 1][end:]
        text[first - 1 : last] = [f"{head}{change.text}{tail}"]
    return "".join(text)


def move_span(place: Span, by: int) -> Span:
    """Return a place so many lines further down."""
    first, start, last, end = place
    return first + by, start, last + by, end


def text_after(here: Surroundings, code: ast.expr | ast.stmt, changes: Sequence[Change]) -> str:
    """Return the text of an expression with those changes that are within its lines."""
    first, start, until, stop = here.span(code)
    own = [c for c in changes if first <= c.span[0] and c.span[2] <= until]
    lines = here.lines[first - 1 : until]
    text = apply_changes(lines, [replace(c, span=move_span(c.span, 1 - first)) for c in own])
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    return text[start : len(text) - len(lines[-1]) + stop].replace(f"\n{indent}", "\n")


def more_arguments(call: ast.Call, lines: Sequence[str], *added: str) -> Change | None:
    """Return what adds arguments behind the others, ``None`` if there is no plain place."""
    found = behind_arguments(call, lines, *added)
    return None if found is None else Change(*found)
