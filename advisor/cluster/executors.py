"""Where ranks are read: in processes of this machine, or on a Dask cluster.

Both are a ``concurrent.futures.Executor``, so that nobody else has to know which it is.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import re
import time
import warnings
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from npufix.profiling_parsers.cluster import fingerprint
from npufix.profiling_parsers.progress import nobody_listens
from npufix.rewriters.write import child_processes
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

_SECONDS_TO_CONNECT = 5
_SECONDS_FOR_A_WORKER = 60
_SECONDS_WITHOUT = 300
"""Until workers that have gone are not waited for; those of a queue may come back."""
_RETRIES = 3
_PROBE = f"__import__({fingerprint.__name__!r}, fromlist=['program']).program()"
"""Asks a worker for its version in Python's own words: it would die of a name that it lacks."""
_INSTALL = "install the same version of npufix wherever workers and the scheduler run"
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


class DaskExecutor(Executor):
    """Sends tasks to the workers of a cluster."""

    def __init__(self, client: Any, address: str) -> None:  # noqa: ANN401 - distributed is an extra
        self._client, self._address = client, address
        self._executor = client.get_executor(retries=_RETRIES, pure=False)
        self._seen = time.monotonic()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - the interface of Executor
        """Run a function on a worker."""
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        return future

    def check(self) -> None:
        """Look whether anything can still come back.

        Raises:
            ExecutorError: no worker is left, or one cannot do the work.

        """
        versions = self._versions(self._client.run, on_error="return")
        if versions:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > _SECONDS_WITHOUT:
            what = f"all workers of the Dask scheduler at {self._address} have gone"
            raise ExecutorError(what, f"start some with dask worker {self._address}")
        for worker, version in versions.items():
            _compare(f"the worker {worker}", version)

    def check_scheduler(self) -> None:
        """Look whether the scheduler can pass on the work; raise as ``check``."""
        version = self._versions(self._client.run_on_scheduler)
        _compare(f"the Dask scheduler at {self._address}", version)

    def _versions(self, run: Callable[..., Any], **options: str) -> Any:  # noqa: ANN401 - of one or of many
        try:
            return run(eval, _PROBE, **options)
        except (ImportError, AttributeError) as error:
            return error
        except (OSError, TimeoutError, ValueError) as error:
            what = f"the Dask scheduler at {self._address} has gone"
            raise ExecutorError(what, "start it again, or give --executor local") from error


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
def open_executor(where: str) -> Iterator[tuple[Executor, int]]:
    """Open ``local``, ``local:8`` or ``dask:tcp://host:8786``; yield it and how many work there.

    Raises:
        ExecutorError: it is none of these, or nothing answers there.

    """
    check_place(where)
    kind, _, address = where.partition(":")
    if kind == "dask":
        with _connect(address) as found:
            yield found
        return
    workers = int(address) if address else child_processes.processors()
    pool = LocalExecutor(workers)
    try:
        with child_processes.ended_on_error():
            yield pool, workers
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Leave Ctrl-C and the terminal to the parent, which ends its children."""
    child_processes.begin(parent)
    nobody_listens()


@contextlib.contextmanager
def _connect(address: str) -> Iterator[tuple[Executor, int]]:
    """Connect to a scheduler; yield an executor and how many tasks it runs at a time.

    Raises:
        ExecutorError: nothing answers there, or it cannot do the work.

    """
    try:
        from distributed import Client
    except ImportError as error:
        what = f"--executor dask:{address} needs Dask"
        raise ExecutorError(what, "pip install 'npufix[cluster]'") from error
    for name in ("distributed", "tornado"):  # what is wrong is said here, once
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        connect: Any = Client  # has no types
        client = connect(address, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError) as error:
        what = f"no Dask scheduler answers at {address}"
        remedy = "start it with dask scheduler, or give --executor local"
        raise ExecutorError(what, remedy) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_SECONDS_FOR_A_WORKER)
        except (TimeoutError, OSError) as error:
            what = f"the Dask scheduler at {address} has no worker"
            raise ExecutorError(what, f"start one with dask worker {address}") from error
        executor = DaskExecutor(client, address)
        executor.check_scheduler()
        executor.check()
        yield executor, max(sum(client.nthreads().values()), 1)


def _compare(who: str, version: object) -> None:
    if isinstance(version, (ImportError, AttributeError)):
        raise ExecutorError(f"{who} cannot load npufix ({version})", _INSTALL)
    if isinstance(version, str) and version != fingerprint.program():
        raise ExecutorError(f"{who} has another version of npufix", _INSTALL)
