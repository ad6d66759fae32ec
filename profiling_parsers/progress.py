"""How far something that takes a while has come, for whoever shows it.

Work says it here, deep in a reader or a search; a program that listens shows it. Nobody has to
pass anything on, and where nobody listens nothing happens.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Listener = Callable[[str, int, int], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("progress listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener`` with what is done, how much of it, and of how much."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def nobody_listens() -> None:
    """Say nothing from here on: in a forked process, whose parent has the terminal."""
    _LISTENER.set(None)


def advance(what: str, done: int, total: int) -> None:
    """Say that ``done`` of ``total`` (bytes, files, ranks) are done."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, done, total)
