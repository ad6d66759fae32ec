"""The parent's side: spread jobs over child processes, and remember what they found."""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verdict import Status, Verdict
from npufix.rewriters.verification.grounds import Ground
from npufix.rewriters.verification.process import Child, ChildLostError, NoChildError
from npufix.rewriters.verification.virtual_npu import VirtualNpuError, installed, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npufix.rewriters.verification.cache import VerdictCache
    from npufix.rewriters.verification.job import Job

_NO_TORCH = "torch is not installed; pip install npufix[verify]"
_MOST_CHILDREN = 8
"""Each of them holds a torch in memory."""
_MEMORY = 4 << 30


def _say_nothing(_done: int, _total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Settings:
    """How jobs are verified."""

    ground: Ground = Ground.REFERENCE
    chip: str = "A2"
    """What a virtual NPU pretends to be."""
    stubs: str = ""
    """The folder of its libraries; empty: they are made ready when they are needed."""
    fallback: Ground | None = None
    """Where to verify what ``ground`` cannot run, for reasons of its own."""
    cache: VerdictCache | None = None
    progress: Callable[[int, int], None] = _say_nothing
    """Called with the number of finished jobs and that of all."""
    children: int = 0
    """At most so many at a time; 0: as many as there are processors."""

    @property
    def kind(self) -> str:
        """The chip, where that makes a difference."""
        return self.chip if self.ground is Ground.VIRTUAL_NPU else ""


def verify(
    jobs: Sequence[Job],
    settings: Settings | None = None,
    *,
    timeout_s: float = 60,
    memory_bytes: int = _MEMORY,
) -> list[Verdict]:
    """Return the verdicts on ``jobs`` in their order, each found within ``timeout_s``.

    A crash, a hang or a lack of memory in one of them is its verdict; the others go on.
    """
    settings = settings or Settings()
    if not jobs:
        return []
    if importlib.util.find_spec("torch") is None:
        return [_unverified(job, _NO_TORCH) for job in jobs]
    limits = _Limits(timeout_s, memory_bytes)
    found = _verified(jobs, settings, limits)
    if settings.ground is Ground.VIRTUAL_NPU:
        _ask_elsewhere(jobs, found, settings, limits)
    return found


class _Limits(NamedTuple):
    timeout_s: float
    memory_bytes: int


def _verified(jobs: Sequence[Job], settings: Settings, limits: _Limits) -> list[Verdict]:
    """Return the verdicts of one ground."""
    found: dict[int, Verdict] = {}
    if settings.cache is not None:
        where = (settings.ground, settings.kind)
        known = ((i, settings.cache.get(job, *where)) for i, job in enumerate(jobs))
        found = {i: verdict for i, verdict in known if verdict is not None}
    settings.progress(len(found), len(jobs))
    left = [i for i in range(len(jobs)) if i not in found]
    if left:
        with closing(_Children(settings, limits)) as children:
            for index, verdict in children.ask(jobs, left):
                found[index] = verdict
                settings.progress(len(found), len(jobs))
    return [found[i] for i in range(len(jobs))]


def _ask_elsewhere(
    jobs: Sequence[Job], found: list[Verdict], settings: Settings, limits: _Limits
) -> None:
    """Have the reference kernels say what the virtual NPU could not.

    It cannot run what has a limit there; and a program that shows a refutation must run where
    there is no torch_npu, so it is tried there.
    """
    left = [
        place
        for place, verdict in enumerate(found)
        if (verdict.limit and settings.fallback is not None)
        or (verdict.status is Status.REFUTED and not verdict.script)
    ]
    other = replace(settings, ground=settings.fallback or Ground.REFERENCE, progress=_say_nothing)
    verdicts = _verified([jobs[place] for place in left], other, limits) if left else []
    for place, verdict in zip(left, verdicts, strict=True):
        first = found[place]
        if first.limit:
            ground = f"{verdict.ground}; not on {settings.ground.value}: {first.reason}"
            found[place] = replace(verdict, ground=ground)
        elif verdict.status is Status.REFUTED:
            found[place] = replace(first, script=verdict.script)


class _Children:
    """The processes that work at once; a thread each waits for one of them."""

    def __init__(self, settings: Settings, limits: _Limits) -> None:
        self._settings = settings
        self._limits = limits
        self._all: list[Child] = []
        self._idle: list[Child] = []
        self._ended = False
        self._broken = ""
        self._stubs = settings.stubs
        if settings.ground is Ground.VIRTUAL_NPU and not self._stubs:
            try:
                self._stubs = str(prepare(installed()))
            except VirtualNpuError as error:
                self._broken = str(error)

    def close(self) -> None:
        """End all processes."""
        self._ended = True
        for child in self._all:
            child.close()

    def ask(self, jobs: Sequence[Job], wanted: Sequence[int]) -> Iterator[tuple[int, Verdict]]:
        """Yield each of the ``wanted`` jobs' verdicts as soon as it is there."""
        most = self._settings.children or min(_processors(), _MOST_CHILDREN)
        with ThreadPoolExecutor(min(most, len(wanted))) as threads:
            asked = {threads.submit(self._verdict, jobs[index]): index for index in wanted}
            try:
                for done in as_completed(asked):
                    yield asked[done], done.result()
            finally:  # interrupted: nobody waits for what is still running
                threads.shutdown(wait=False, cancel_futures=True)
                self._ended = True
                for child in self._all:
                    child.kill()

    def _verdict(self, job: Job) -> Verdict:
        # What ends a process on a virtual NPU may be its doing, or its slowness.
        limit = self._settings.ground is Ground.VIRTUAL_NPU
        if self._broken or self._ended:
            return _unverified(job, self._broken or "interrupted", limit=limit and not self._ended)
        child = self._idle.pop() if self._idle else None
        try:
            if child is None:
                child = Child(
                    self._limits.memory_bytes,
                    self._settings.ground,
                    self._settings.kind,
                    self._stubs,
                )
                self._all.append(child)
            answer = child.ask(job, self._limits.timeout_s)
        except ChildLostError as lost:
            if child is not None:
                child.kill()
            return _unverified(job, str(lost), limit=limit)
        except NoChildError as error:
            self._broken = str(error)
            return _unverified(job, self._broken, limit=limit)
        self._idle.append(child)
        if self._settings.cache is not None:
            ground, chip = self._settings.ground, self._settings.kind
            self._settings.cache.put(job, ground, answer, chip)
        return answer.verdict


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _unverified(job: Job, reason: str, *, limit: bool = False) -> Verdict:
    return Verdict(
        Status.NOT_VERIFIED,
        ground="nothing ran",
        scope=job.qualname,
        reason=reason,
        on=Ground.NONE.value,
        limit=limit,
    )
