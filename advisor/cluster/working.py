"""Ranks spread over an executor: in batches, whatever comes back first, none lost.

A process that dies takes with it what it was sent. Those ranks are tried again, a batch at a
time, and the batch that is fatal again is halved, until the rank is known that kills its reader.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from typing import TYPE_CHECKING

from npufix.advisor.cluster import tasks
from npufix.advisor.cluster.executors import ExecutorError
from npufix.profiling_parsers.cluster import fingerprint
from npufix.profiling_parsers.cluster.summary import Summary, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from pathlib import Path

    Work = Callable[[Sequence[str]], tasks.Answer]

_SECONDS_A_TASK = 0.5
"""Less would be spent on sending it."""
_SECONDS_OF_PATIENCE = 30
"""Without an answer, until it is looked at whether any can come."""
_FIRST_BATCH, _LARGEST_BATCH = 4, 256
KILLED = "the process that read it was killed, as happens when memory runs out"


def parse_ranks(
    executor: Executor | None, dumps: Sequence[Path], workers: int = 1
) -> Iterator[tuple[int, Summary]]:
    """Yield the position and the summary of each dump, in any order; ``None`` is this process."""
    for place, data in Spreading(executor, tasks.summaries, dumps, workers).results():
        summary = decode(data or encode(Summary(problem=KILLED, readable=False)))
        yield place, summary


class Spreading:
    """What is waiting, what is under way, and what has to be tried alone; it begins at once."""

    def __init__(
        self,
        executor: Executor | None,
        work: Work,
        dumps: Sequence[Path],
        workers: int = 1,
        *,
        largest: int = _LARGEST_BATCH,
    ) -> None:
        """``executor`` ``None`` is this process; ``largest`` is how many ranks a task may have."""
        self.executor, self.work, self.workers = executor, work, workers
        self.paths = [str(dump.absolute()) for dump in dumps]
        self.largest = largest
        self.waiting = deque(range(len(self.paths)))
        self.suspects: deque[list[int]] = deque()
        self.running: dict[Future[tasks.Answer], tuple[list[int], bool]] = {}
        """The ranks of each, and whether they were sent alone."""
        self.batch = min(_FIRST_BATCH, largest)
        self._send()

    def results(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the position of each dump and what was found, ``None`` where that was fatal.

        Raises:
            ExecutorError: those who work there have not this version of this program.

        """
        if self.executor is None:
            for place, path in enumerate(self.paths):
                yield place, self.work([path])[2][0]
            return
        try:
            while self.waiting or self.suspects or self.running:
                self._send()
                done, _ = wait(self.running, _SECONDS_OF_PATIENCE, FIRST_COMPLETED)
                if not done and (check := getattr(self.executor, "check", None)):
                    check()
                for future in done:
                    yield from self._iterate_finished(future, *self.running.pop(future))
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Give up what is under way."""
        for future in self.running:
            future.cancel()

    def _send(self) -> None:
        """Keep every worker busy; what may be fatal is alone with the executor."""
        if self.executor is None:
            return
        if self.suspects:
            if not self.running:
                self._submit(self.suspects.popleft(), alone=True)
            return
        while self.waiting and len(self.running) <= self.workers:
            # No worker is to be busy with a large batch when the others have nothing to do.
            fair = -(-len(self.waiting) // (2 * self.workers))
            count = max(1, min(self.batch, fair))
            self._submit([self.waiting.popleft() for _ in range(min(count, len(self.waiting)))])

    def _submit(self, places: list[int], *, alone: bool = False) -> None:
        if self.executor is None:  # nothing is sent then
            return
        future = self.executor.submit(self.work, [self.paths[place] for place in places])
        self.running[future] = places, alone

    def _iterate_finished(
        self,
        future: Future[tasks.Answer],
        places: list[int],
        alone: bool,  # noqa: FBT001 - of one caller
    ) -> Iterator[tuple[int, bytes | None]]:
        if future.cancelled():
            raise ExecutorError("the executor has gone", "start it again, or give --executor local")
        error = future.exception()
        if error is None:
            program, seconds, found = future.result()
            if program != fingerprint.program():
                raise ExecutorError(
                    "a worker has another version of npufix",
                    "install the same version of npufix wherever workers and the scheduler run",
                )
            each = max(seconds / len(places), 1e-4)
            self.batch = max(1, min(self.largest, round(_SECONDS_A_TASK / each)))
            yield from zip(places, found, strict=True)
        elif isinstance(error, (ImportError, AttributeError)):
            raise ExecutorError(
                f"a worker cannot load npufix ({error})",
                "install the same version of npufix wherever workers and the scheduler run",
            ) from error
        elif not alone:
            self.suspects.append(places)
        elif len(places) > 1:
            half = len(places) // 2
            self.suspects += [places[:half], places[half:]]
        else:
            yield places[0], None
