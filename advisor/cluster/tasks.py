"""What runs where a rank is read: paths in, bytes out, so that any process can do it.

Whatever goes wrong with a rank becomes a row that says so; only what goes wrong with the process
itself is left to whoever sent the task.
"""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from npufix.advisor.cluster.details import RankWhole, encode_whole, whole_of
from npufix.profiling_parsers.cluster import fingerprint
from npufix.profiling_parsers.cluster.reading import find_damage, summarise
from npufix.profiling_parsers.cluster.summary import Summary, encode
from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST_SECONDS = 300
"""For the small files of a rank: it is one of very many."""
_MOST_SECONDS_WHOLE = 3600

SOUND = b"sound"
"""What ``checks`` answers where nothing is damaged; else it is what is."""

Answer = tuple[str, float, list[bytes]]
"""Which program has worked, for how many seconds, and what it found of each rank."""


def summaries(dumps: Sequence[str]) -> Answer:
    """Read the small files of some ranks."""
    return _answer(dumps, _summary)


def wholes(dumps: Sequence[str]) -> Answer:
    """Read some ranks as a whole."""
    return _answer(dumps, _whole)


def checks(dumps: Sequence[str]) -> Answer:
    """Look for damage in the rows of the tables of some ranks."""
    return _answer(dumps, _check)


def _answer(dumps: Sequence[str], work: Callable[[Path], bytes]) -> Answer:
    begin = time.perf_counter()
    found = [work(Path(dump)) for dump in dumps]
    return fingerprint.program(), time.perf_counter() - begin, found


def _summary(dump: Path) -> bytes:
    if not dump.exists():
        return encode(Summary(problem=_unseen(dump), readable=False))
    try:
        return _within(_MOST_SECONDS, lambda: encode(summarise(dump)))
    except Exception as error:  # noqa: BLE001 - one broken rank must not hide the others
        return encode(Summary(problem=reason(error), readable=False))


def _whole(dump: Path) -> bytes:
    if not dump.exists():
        return encode_whole(RankWhole(problem=_unseen(dump)))
    try:
        return _within(_MOST_SECONDS_WHOLE, lambda: encode_whole(whole_of(read_profile(dump))))
    except Exception as error:  # noqa: BLE001 - same
        return encode_whole(RankWhole(problem=reason(error)))


def _check(dump: Path) -> bytes:
    try:
        return _within(_MOST_SECONDS, lambda: find_damage(dump).encode() or SOUND)
    except Exception as error:  # noqa: BLE001 - same
        return reason(error).encode()


def reason(error: BaseException) -> str:
    """Return why a rank cannot be read."""
    if isinstance(error, DumpError):
        return error.message
    if isinstance(error, MemoryError):
        return "there is not enough memory to read it"
    if isinstance(error, _TooSlowError):
        return f"it could not be read within {error.args[0]} s"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}"
    return f"internal error, please report it: {type(error).__name__}: {error}"


def _unseen(dump: Path) -> str:
    return f"{dump}: not there for the process that reads it; all must see the same files"


class _TooSlowError(Exception):
    """Of so many seconds."""


def _within(seconds: float, read: Callable[[], bytes]) -> bytes:
    """Give up after a time.

    In the main thread of a process a signal ends what hangs. In any other, as in a worker of Dask,
    nothing can: it is left to itself, and the worker goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        return _left_behind(seconds, read)
    if not hasattr(signal, "SIGALRM") or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        return read()

    def give_up(_number: int, _frame: object) -> NoReturn:
        raise _TooSlowError(seconds)

    usual = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return read()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def _left_behind(seconds: float, read: Callable[[], bytes]) -> bytes:
    """Read in a thread of its own, which is not waited for longer."""
    found: Future[bytes] = Future()

    def run() -> None:
        try:
            found.set_result(read())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return found.result(seconds)
    except NotYetError as error:
        if found.done():  # that of a file system
            raise
        raise _TooSlowError(seconds) from error
