"""Children that end with this process, however it ends; and how many can work at a time."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PDEATHSIG = 1


def begin(parent: int) -> None:
    """In a child: leave Ctrl-C to the parent, and do not stay when that is gone.

    A child waits for work on a pipe that its siblings hold open as well: without this it would
    wait for ever once the parent is killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)


def end_with_parent(parent: int) -> None:
    """Have the system end this process when the one that forked it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:  # gone before that
            os._exit(1)


@contextlib.contextmanager
def ended_on_error() -> Iterator[None]:
    """End at once the children that are made in the block if it fails: nobody needs them then."""
    before = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise


def processors() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
