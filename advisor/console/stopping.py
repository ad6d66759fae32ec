"""Being told to end (Ctrl-C, ``kill``, a terminal that closes, a batch system): tidily."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_INTERRUPTED = 130
_seen: list[int] = []


class Stopped(KeyboardInterrupt):
    """The process was told to end."""


def begin() -> None:
    """Let the signals that end a program undo first what is half done.

    What is ignored stays ignored (nohup). A second signal ends it at once, but for Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    whose = os.getpid()

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, _default(number))
        if os.getpid() != whose:  # a child that was forked
            os.kill(os.getpid(), number)
        _seen.append(number)
        raise Stopped

    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is _default(number):
            signal.signal(number, stop)


def check() -> None:
    """Raise ``Stopped`` if that was raised before, and a library made another error of it."""
    if _seen:
        raise Stopped


def _default(number: int) -> Callable[[int, FrameType | None], object] | signal.Handlers:
    """Return what Python does at a signal if nobody says otherwise."""
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def end() -> None:
    """Leave the signals to somebody else's program."""
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        handler = None if number is None else signal.getsignal(number)
        if number is not None and getattr(handler, "__module__", "") == __name__:
            signal.signal(number, _default(number))


def status() -> int:
    """Return the exit status of a command that was interrupted: a shell's for that signal."""
    return 128 + _seen[-1] if _seen else _INTERRUPTED
