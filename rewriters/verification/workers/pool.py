"""The child processes of a verification: as many as are useful, replaced when they are lost."""

from __future__ import annotations

import os
import selectors
import sys
import tempfile
import time
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from npufix.rewriters.verification.sandbox.messages import Reply, Start
from npufix.rewriters.verification.workers.backends import Backend, child_environment
from npufix.rewriters.verification.workers.process import Child, ChildLostError, NoChildError
from npufix.rewriters.write.child_processes import processors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.job import Job

_MOST_JOBS = 8
"""At a time; each may hold gigabytes."""
_MOST_KEPT = 2
"""Pools: of a device that is asked first, and of what is asked where that cannot say."""
_TRIES = 2
"""For a job whose child is lost though the job has a process of its own."""
_FORKING = frozenset({Backend.REFERENCE.value, Backend.VIRTUAL_NPU.value})
"""A driver does not survive the fork of a process that uses its device."""


class Limits(NamedTuple):
    """What one job may take."""

    timeout_s: float
    memory_bytes: int


_Key: TypeAlias = tuple[Start, int, tuple[tuple[str, str], ...], str]


class _Kept:
    """The pools that wait for the next verification."""

    pools: dict[_Key, Pool] | None = None
    """By what their children were started with; None: they wait for nothing."""

    @classmethod
    def forget(cls) -> None:
        """Leave them to the process that this one was forked from: it ends them."""
        cls.pools = None


os.register_at_fork(after_in_child=_Kept.forget)


@contextmanager
def keep_children() -> Iterator[None]:
    """Keep the children of a verification for those that follow: importing torch takes seconds.

    Each job has processes of its own all the same. They hold a few hundred megabytes until the
    outermost block ends.
    """
    if _Kept.pools is not None:
        yield
        return
    _Kept.pools = {}
    try:
        yield
    finally:
        kept, _Kept.pools = _Kept.pools, None
        for pool in (kept or {}).values():
            pool.close()


def answer(  # noqa: PLR0913, PLR0917 - what children are started with, and what they are asked
    ground: str,
    chip: str,
    stubs: str,
    limits: Limits,
    most: int,
    jobs: Sequence[Job],
    wanted: Sequence[int],
) -> Iterator[Reply]:
    """Yield what became of each of the ``wanted`` jobs, as soon as it is known.

    ``most`` is the number of jobs at a time; 0: as many as there are processors.
    """
    forks = sys.platform == "linux" and ground in _FORKING
    device = ground == Backend.NPU.value
    at_once = 1 if device else (most or min(processors(), _MOST_JOBS))
    start = Start(
        ground=ground,
        chip=chip,
        stubs=stubs,
        memory_bytes=limits.memory_bytes,
        at_once=at_once if forks else 1,
        forks=forks,
    )
    home = tempfile.gettempdir()
    variables = child_environment(Backend(ground), os.environ, home)
    key = start, at_once, tuple(sorted(variables.items())), home
    with keep_children():
        assert _Kept.pools is not None  # noqa: S101 - within the block
        pool = _Kept.pools.pop(key, None) or Pool(start, at_once)
        whole = False
        try:
            yield from pool.verify(jobs, wanted, limits.timeout_s)
            whole = pool.usable
        finally:
            if whole and _Kept.pools is not None:
                _Kept.pools[key] = pool
                while len(_Kept.pools) > _MOST_KEPT:
                    _Kept.pools.pop(next(iter(_Kept.pools))).close()
            else:
                pool.close()


class Pool:
    """Children of one ground."""

    def __init__(self, start: Start, at_once: int) -> None:
        """Have as many of them as it takes for ``at_once`` jobs."""
        self._forks, self._at_once, self._start = start.forks, at_once, start
        self._timeout_s = 0.0
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._lost: Counter[int] = Counter()
        self._waiting: deque[int] = deque()
        self._broken = ""

    def close(self) -> None:
        """End all processes."""
        for child in list(self._children.values()):
            self._close(child)
        self._selector.close()

    @property
    def usable(self) -> bool:
        """Whether more can be asked of it."""
        return not self._broken

    def verify(
        self, jobs: Sequence[Job], wanted: Sequence[int], timeout_s: float
    ) -> Iterator[Reply]:
        """Yield what became of each of the ``wanted`` jobs, as soon as it is known."""
        self._timeout_s = timeout_s
        self._lost.clear()
        self._waiting.extend(wanted)
        left = len(wanted)
        while left:
            if not self._broken:
                self._hire()
                self._assign(jobs)
            for reply in self._reply_broken() if self._broken else self._replies():
                left -= 1
                yield reply

    def _hire(self) -> None:
        """Start as many children as there is work for."""
        unready = sum(child.start.at_once for child in self._children.values() if not child.ready)
        room = unready + sum(child.room for child in self._children.values())
        most = 1 if self._forks else self._at_once
        while len(self._waiting) > room and len(self._children) < most:
            child = Child(self._start)
            self._children[child.replies] = child
            self._selector.register(child.replies, selectors.EVENT_READ, child)
            room += self._start.at_once

    def _assign(self, jobs: Sequence[Job]) -> None:
        for child in self._children.values():
            while child.room and self._waiting:
                number = self._waiting.popleft()
                child.ask(number, jobs[number], self._timeout_s, len(self._waiting))

    def _replies(self) -> Iterator[Reply]:
        """Wait until something happens; yield what that means for jobs."""
        for child in self._children.values():
            child.send()
        unsent = any(child.unsent for child in self._children.values())
        soonest = min((child.deadline for child in self._children.values()), default=0.0)
        wait = max(0.0, soonest - time.monotonic())
        for key, _ in self._selector.select(min(wait, 0.05) if unsent else wait):
            child = key.data
            try:
                for reply in child.hear():
                    if reply.spent:
                        self._close(child)
                    yield reply
            except ChildLostError as lost:
                yield from self._take_back(child, str(lost))
            except NoChildError as error:
                self._broken = str(error)
                yield from self._take_back(child, self._broken)
        for child in list(self._children.values()):
            if time.monotonic() > child.deadline:
                late = child.late()
                if not child.ready:
                    self._broken = f"the verifier does not start: {late}"
                yield from self._take_back(child, late, late=child.ready)

    def _take_back(self, child: Child, why: str, *, late: bool = False) -> Iterator[Reply]:
        """End a child; what it was at is tried again if it is not to blame."""
        running = list(child.running)
        self._close(child)
        for number in running:
            self._lost[number] += 1
            if self._forks and self._lost[number] < _TRIES and not (late or self._broken):
                self._waiting.appendleft(number)
            else:
                yield Reply(number, lost=why, late=late)

    def _reply_broken(self) -> Iterator[Reply]:
        while self._waiting:
            yield Reply(self._waiting.popleft(), lost=self._broken)

    def _close(self, child: Child) -> None:
        if self._children.pop(child.replies, None) is not None:
            self._selector.unregister(child.replies)
        child.close()
