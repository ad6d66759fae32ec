"""Where ranks are read: in processes of this machine, or on a Dask cluster.

Both are a ``concurrent.futures.Executor``, so that nobody else has to know which it is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import warnings
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from npufix.profiling_parsers.progress import nobody_listens
from npufix.rewriters.write import child_processes
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

_ADDRESS = re.compile(r"((tcp|tls|ws|wss|ucx)://)?[^\s/]+:[0-9]{1,5}")


class ExecutorError(UserError):
    """Nothing can be run there: ``message`` and ``remedy``."""


class LocalExecutor(Executor):
    """Processes of this machine; one that dies breaks what is under way, but not what follows."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - the interface of Executor
        """Run a function in another process."""
        with warnings.catch_warnings():
            # The children touch nothing that the threads of other libraries hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                return self._running().submit(fn, *args, **kwargs)
            except BrokenProcessPool:
                self.shutdown()
                return self._running().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the interface of Executor
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)
            self._pool = None

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # A forked child has all libraries loaded, and does not run the caller's program anew.
            forks = "fork" in multiprocessing.get_all_start_methods()
            context = multiprocessing.get_context("fork" if forks else "spawn")
            self._pool = ProcessPoolExecutor(self.workers, context, _begin, (os.getpid(),))
        return self._pool


def check_place(where: str) -> None:
    """Look whether this is a place at all, before anything is read.

    Raises:
        ExecutorError: it is none.

    """
    kind, _, address = where.partition(":")
    if kind == "dask" and _ADDRESS.fullmatch(address):
        return
    if kind != "local" or (":" in where and not re.fullmatch("[1-9][0-9]{0,3}", address)):
        known = "local, local:8 or dask:tcp://HOST:8786"
        raise ExecutorError(f"--executor {where}: unknown", f"give {known}")


@contextlib.contextmanager
def opened(where: str) -> Iterator[tuple[Executor, int]]:
    """Open ``local``, ``local:8`` or ``dask:tcp://host:8786``; yield it and how many work there.

    Raises:
        ExecutorError: it is none of these, or nothing answers there.

    """
    check_place(where)
    kind, _, address = where.partition(":")
    if kind == "dask":
        from npufix.advisor.cluster.dask_executor import connected

        with connected(address) as found:
            yield found
        return
    workers = int(address) if address else cores()
    pool = LocalExecutor(workers)
    try:
        with child_processes.ended_on_error():
            yield pool, workers
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(parent: int) -> None:
    """Leave Ctrl-C and the terminal to the parent, which ends its children."""
    child_processes.begin(parent)
    nobody_listens()
