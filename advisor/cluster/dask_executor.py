"""A Dask cluster as an ``Executor``: whose workers have this program, and have not all gone."""

from __future__ import annotations

import contextlib
import logging
import time
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from npufix.advisor.cluster.executors import ExecutorError
from npufix.profiling_parsers.cluster import fingerprint

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


@contextlib.contextmanager
def connected(address: str) -> Iterator[tuple[Executor, int]]:
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
