"""A real Dask cluster on this machine: a scheduler and two workers, each a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cluster_dumps import dump_paths

from npufix.advisor.cluster.executors import ExecutorError, open_executor
from npufix.advisor.cluster.looking import Looking, Ways
from npufix.advisor.cluster.working import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("distributed", reason="the extra npufix[cluster] is not installed")
pytestmark = [
    pytest.mark.xdist_group("dask"),
    # Of other people's libraries, at the time they are imported.
    pytest.mark.filterwarnings("ignore"),
]
_MANY = 150


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def start(*words: str, **more: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)


@contextmanager
def running(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    port = free_port()
    process = start("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    with running(process):
        address = f"tcp://127.0.0.1:{port}"
        for _ in range(6000):
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield address


def worker(scheduler: str, **more: Any) -> subprocess.Popen[bytes]:
    plain = ("--nthreads", "1", "--no-dashboard", "--no-nanny")
    return start("worker", scheduler, *plain, **more)


def test_killing_a_worker_in_the_middle_loses_nothing(job: Path, scheduler: str) -> None:
    dumps = dump_paths(job)
    dumps = (dumps * _MANY)[:_MANY]
    first, second = worker(scheduler), worker(scheduler)
    with running(first, second), open_executor(f"dask:{scheduler}") as (executor, workers):
        results = parse_ranks(executor, dumps, workers)
        found = dict([next(results)])
        first.kill()
        found.update(results)
        assert sorted(found) == list(range(_MANY))
        assert [found[place].rank for place in range(_MANY)] == [i % 6 for i in range(_MANY)]
        assert not any(summary.problem for summary in found.values())
        # The whole way, on the worker that is left, says what this machine alone says.
        with closing(Looking(Ways(f"dask:{scheduler}", cache=False))) as looking:
            there = looking.ranks(dump_paths(job), None)
            _, cluster = looking.whole(there)
        with closing(Looking(Ways(cache=False))) as looking:
            here = looking.ranks(dump_paths(job), None)
        assert there.summaries == here.summaries
        assert cluster is not None
        assert sorted(cluster.details) == sorted(here.roles)


def test_a_worker_without_this_program_is_told(scheduler: str, tmp_path: Path) -> None:
    package = tmp_path / "npufix"
    package.mkdir()
    (package / "__init__.py").write_text("raise ModuleNotFoundError('no npufix here')", "utf-8")
    lacking = worker(scheduler, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    with (
        running(lacking),
        pytest.raises(ExecutorError, match="cannot load npufix"),
        open_executor(f"dask:{scheduler}"),
    ):
        pass


def test_a_scheduler_that_is_not_there_is_told_soon() -> None:
    with (
        pytest.raises(ExecutorError, match="no Dask scheduler answers at tcp://127"),
        open_executor(f"dask:tcp://127.0.0.1:{free_port()}"),
    ):
        pass
