"""Being told to end (``kill``, a terminal that closes, a batch system): as Ctrl-C does, tidily."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_SIGNALS = ("SIGTERM", "SIGHUP")
_INTERRUPTED = 130
_seen: list[int] = []


class Stopped(KeyboardInterrupt):
    """The process was told to end."""


def begin() -> None:
    """Let the signals that end a program undo first what is half done.

    What is ignored stays ignored (nohup), and a second signal ends it at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    whose = os.getpid()

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != whose:  # a child that was forked
            os.kill(os.getpid(), number)
        _seen.append(number)
        raise Stopped

    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, stop)


def end() -> None:
    """Leave the signals to somebody else's program."""
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        handler = None if number is None else signal.getsignal(number)
        if number is not None and getattr(handler, "__module__", "") == __name__:
            signal.signal(number, signal.SIG_DFL)


def status() -> int:
    """Return the exit status of a command that was interrupted: a shell's for that signal."""
    return 128 + _seen[-1] if _seen else _INTERRUPTED
