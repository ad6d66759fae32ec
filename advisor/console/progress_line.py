"""One line on a terminal's stderr that says how far something has come."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from npufix.advisor.console.loudness import is_quiet
from npufix.advisor.console.speaking import make_plain, say
from npufix.profiling_parsers.progress import listening
from npufix.reports.language import tr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

_MINUTES = 100
"""Seconds from which on minutes are said."""
_SHOWN_AFTER_S = 0.5
_BETWEEN_UPDATES_S = 0.1
_BETWEEN_SIGNS_S = 30.0
"""Where there is no terminal: a log of CI shall not grow, nor seem to hang."""
_AS_SHARE = 100_000
"""From so many on, such as bytes, a share of them is said."""


class Countdown:
    """Says how many jobs are done and, from the first that took time, how long the rest takes."""

    def __init__(
        self,
        say: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
        text: str = "Verifying",
        of: str = "",
    ) -> None:
        """``clock`` returns seconds; ``of`` is what is counted."""
        self._say, self._clock = say, clock
        self._text, self._of = text, of
        self._start = clock()
        self._known: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """Say it."""
        if self._known is None:  # these were remembered
            self._known, self._start = done, self._clock()
        text = f"{self._text}: {self._count(done, total)}"
        if self._known < done < total:
            each = (self._clock() - self._start) / (done - self._known)
            left = round(each * (total - done))
            text += (
                f", about {left} s left" if left < _MINUTES else f", about {left // 60} min left"
            )
        self._say(text)

    def _count(self, done: int, total: int) -> str:
        if total >= _AS_SHARE:
            return f"{self._of} {done / total:.0%}".lstrip()
        return f"{done} of {total} {self._of}".rstrip()


class _Line:
    """What is said now; it appears when that takes longer than a moment."""

    def __init__(self, text: str, errors: Console) -> None:
        unicode = errors.encoding.lower().startswith("utf")
        self._status = errors.status(tr(text), spinner="dots" if unicode else "line")
        self._lock = threading.Lock()
        self._ended = False
        self._timer = threading.Timer(_SHOWN_AFTER_S, self._begin)
        self._timer.daemon = True
        self._base, self._updated = text, 0.0
        self._countdown: tuple[str, Countdown] | None = None
        self._timer.start()

    def tell(self, text: str) -> None:
        """Print a line that stays, above this one."""
        self._status.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Say something else."""
        self._base, self._countdown = text, None
        self._update(text)

    def advanced(self, what: str, done: int, total: int) -> None:
        """Say how far it has come, not too often."""
        if done >= total:  # what comes now is not a part of it
            self.say(self._base)
            return
        if self._countdown is None or self._countdown[0] != what:
            self._countdown = what, Countdown(self._update, monotonic, self._base, what)
        elif monotonic() - self._updated < _BETWEEN_UPDATES_S:
            return
        self._updated = monotonic()
        self._countdown[1](done, total)

    def _update(self, text: str) -> None:
        self._status.update(tr(text))

    def end(self) -> None:
        """Wipe the line."""
        with self._lock:
            self._ended = True
            self._timer.cancel()
            self._status.stop()

    def _begin(self) -> None:
        with self._lock:
            if not self._ended:
                self._status.start()


class _Signs:
    """The same in a log: a line now and then, while it takes long."""

    def __init__(self, text: str) -> None:
        self._text, self._ended = text, threading.Event()
        threading.Thread(target=self._tell, daemon=True).start()

    def say(self, text: str) -> None:
        """Say something else next time."""
        self._text = text

    def end(self) -> None:
        """Say nothing more."""
        self._ended.set()

    def _tell(self) -> None:
        while not self._ended.wait(_BETWEEN_SIGNS_S):
            say(f"npufix: {tr(self._text)}...")


_shown: list[_Line] = []


def tell(text: str) -> None:
    """Print a line on stderr at once, on a terminal or not, unless nothing shall be said."""
    if is_quiet():
        return
    if _shown:
        _shown[-1].tell(make_plain(tr(text)))
    else:
        say(text)


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Say on stderr what takes a while; yield what to say something else with."""
    if is_quiet():
        yield lambda _: None
    elif not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        signs = _Signs(text)
        try:
            yield signs.say
        finally:
            signs.end()
    else:
        from npufix.advisor.console.screen import make_console

        line = _Line(text, make_console(stderr=True))
        _shown.append(line)
        try:
            with listening(line.advanced):
                yield line.say
        finally:
            _shown.remove(line)
            line.end()
