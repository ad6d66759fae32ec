"""Ranks are spread over processes, and none is lost, whatever happens to a process."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn

import pytest
from cluster_dumps import dump_paths

from npufix.advisor.cluster import tasks
from npufix.advisor.cluster.details import decode_whole
from npufix.advisor.cluster.executors import ExecutorError, open_executor
from npufix.advisor.cluster.working import parse_ranks
from npufix.advisor.diagnose.ranks import Ways, read_dump
from npufix.profiling_parsers.cluster.summary import decode
from npufix.profiling_parsers.discover import find_dumps
from npufix.profiling_parsers.progress import advance, listening
from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npufix.profiling_parsers.cluster.summary import Summary

FATAL = "000002_"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_memory() -> NoReturn:
    raise MemoryError


def own_fault() -> NoReturn:
    raise KeyError("x")


def hang() -> None:
    time.sleep(1800)


def failing_with(
    fail: Callable[[], object], monkeypatch: pytest.MonkeyPatch, seconds: float = 300
) -> None:
    """Let the reader of rank 2 fail; processes that are forked later inherit it.

    It alone has so many seconds: the others get through on a slow machine as well.
    """
    works, within = tasks.summarise, tasks._summary

    def is_meant(dump: Path) -> bool:
        return dump.name.split("_")[2].endswith("002")

    def fails(dump: Path) -> Summary:
        if is_meant(dump):
            fail()
        return works(dump)

    def limited(dump: Path) -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            if is_meant(dump):
                patch.setattr(tasks, "_MOST_SECONDS", seconds)
            return within(dump)

    monkeypatch.setattr(tasks, "summarise", fails)
    monkeypatch.setattr(tasks, "_summary", limited)


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (die, "the process that read it was killed"),
        (no_memory, "not enough memory"),
        (own_fault, "internal error, please report it: KeyError: 'x'"),
        (hang, "could not be read within 1 s"),
    ],
)
def test_a_rank_that_breaks_its_reader_is_a_row(
    job: Path, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None], reason: str
) -> None:
    failing_with(fail, monkeypatch, seconds=1)
    dumps = dump_paths(job)
    with open_executor("local:2") as (executor, workers):
        found = dict(parse_ranks(executor, dumps, workers))
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    problems = [found[place].problem for place in range(6)]
    assert reason in problems.pop(2)
    assert problems == [""] * 5


def test_a_file_that_hangs_is_left_behind_where_no_signal_can_end_it(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = dump_paths(job)[1:4]
    monkeypatch.setattr(tasks, "_MOST_SECONDS_WHOLE", 0.01)
    ended = threading.Event()
    failing_with(ended.wait, monkeypatch, seconds=0.5)
    monkeypatch.setattr(tasks, "read_profile", lambda _: ended.wait())
    with ThreadPoolExecutor(1) as threads:  # as the threads of a worker of Dask
        _, _, found = threads.submit(tasks.summaries, [str(dump) for dump in dumps]).result()
        _, _, (whole,) = threads.submit(tasks.wholes, [str(dumps[0])]).result()
    ended.set()
    problems = [decode(data).problem for data in found]
    assert problems == ["", "it could not be read within 0.5 s", ""]
    read = decode_whole(whole)
    assert read is not None
    assert read.problem == "it could not be read within 0.01 s"


def test_a_process_says_nothing_of_its_progress(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failing_with(lambda: advance("bytes", 1, 2), monkeypatch)
    with listening(lambda *_: os.write(1, b"heard")), open_executor("local:2") as (pool, workers):
        assert len(list(parse_ranks(pool, dump_paths(job), workers))) == 6
    assert "heard" not in capfd.readouterr().out


@pytest.mark.parametrize("where", ["local:0", "local:x", "dask", "dask:nowhere", "spark:1"])
def test_what_is_no_executor_is_told(where: str, job: Path) -> None:
    with pytest.raises(ExecutorError, match=f"--executor {where}: unknown"), open_executor(where):
        pass
    # Where nothing had to be started there, too.
    with pytest.raises(ExecutorError, match=f"--executor {where}: unknown"):
        read_dump(job, None, Ways(where))


def test_a_pipe_instead_of_a_file_does_not_hang(own_job: Path) -> None:
    dump = dump_paths(own_job)[0]
    file = dump / "ASCEND_PROFILER_OUTPUT" / "communication.json"
    file.unlink()
    os.mkfifo(file)
    (found,) = (summary for _, summary in parse_ranks(None, [dump]))
    assert found.rows("steps") == 4
    assert len(read_profile(find_dumps(own_job)[1]).steps) == 4
