"""What runs where a rank is read: paths in, bytes out, so that any process can do it.

Whatever goes wrong with a rank becomes a row that says so; only what goes wrong with the process
itself is left to whoever sent the task.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from npufix.advisor.cluster.details import RankWhole, encoded_whole, whole_of
from npufix.profiling_parsers.cluster import fingerprint
from npufix.profiling_parsers.cluster.reading import summarise
from npufix.profiling_parsers.cluster.summary import Summary, encoded
from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MOST_SECONDS = 300
"""For the small files of a rank: it is one of very many."""

Answer = tuple[str, float, list[bytes]]
"""Which program has worked, for how many seconds, and what it found of each rank."""


def summaries(dumps: Sequence[str]) -> Answer:
    """Read the small files of some ranks."""
    return _answer(dumps, _summary)


def wholes(dumps: Sequence[str]) -> Answer:
    """Read some ranks as a whole."""
    return _answer(dumps, _whole)


def _answer(dumps: Sequence[str], work: Callable[[Path], bytes]) -> Answer:
    begin = time.perf_counter()
    found = [work(Path(dump)) for dump in dumps]
    return fingerprint.program(), time.perf_counter() - begin, found


def _summary(dump: Path) -> bytes:
    if not dump.exists():
        return encoded(Summary(problem=_unseen(dump), readable=False))
    try:
        with _limited(_MOST_SECONDS):
            return encoded(summarise(dump))
    except Exception as error:  # noqa: BLE001 - one broken rank must not hide the others
        return encoded(Summary(problem=reason(error), readable=False))


def _whole(dump: Path) -> bytes:
    if not dump.exists():
        return encoded_whole(RankWhole(problem=_unseen(dump)))
    try:
        return encoded_whole(whole_of(read_profile(dump)))
    except Exception as error:  # noqa: BLE001 - same
        return encoded_whole(RankWhole(problem=reason(error)))


def reason(error: BaseException) -> str:
    """Return why a rank cannot be read."""
    if isinstance(error, DumpError):
        return error.message
    if isinstance(error, MemoryError):
        return "there is not enough memory to read it"
    if isinstance(error, _TooSlowError):
        return f"it could not be read within {_MOST_SECONDS} s"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}"
    return f"internal error, please report it: {type(error).__name__}: {error}"


def _unseen(dump: Path) -> str:
    return f"{dump}: not there for the process that reads it; all must see the same files"


class _TooSlowError(Exception):
    pass


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Give up after a time, where a signal can: in the main thread of a process."""
    alarms = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    if not alarms or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    usual = signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, usual)


def _give_up(_number: int, _frame: object) -> NoReturn:
    raise _TooSlowError
