"""Processes for each job, forked from one that has imported torch already.

So the import is paid once, and nothing that the code of one job does - patched modules, threads,
closed files, a crash - is there for the next one.

One poll waits for questions and answers, and looks how much each job has used: what has had its
processor time, waits for ever, or fills the disk is killed with all it started.
"""

from __future__ import annotations

import gc
import os
import select
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.rewriters.verification.sandbox import landlock
from npufix.rewriters.verification.sandbox.job_folders import find_excess, remove
from npufix.rewriters.verification.sandbox.job_processes import JobProcesses, Walls
from npufix.rewriters.verification.sandbox.messages import WAITING, Question, Reply
from npufix.rewriters.verification.sandbox.preloading import Preloader, note_imports, wants_compiler

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.rewriters.verification.sandbox.messages import Answer, Start

_MOST_BYTES = 16 << 20
"""Of an answer; more is not one."""
_LOOK_MS = 500.0
"""How often to look at what was written, and at the clocks."""


class ForkServer:
    """Answers questions, several at once, until the parent closes the pipe."""

    def __init__(
        self,
        reading: int,
        writing: int,
        start: Start,
        verify: Callable[[Question], Answer],
        after_fork: Callable[[], None],
    ) -> None:
        """``verify`` runs in the judges of the jobs, ``after_fork`` first in all processes."""
        self._reading, self._writing = reading, writing
        self._in_use = start.in_use
        stubs = [start.stubs] if start.stubs else []
        more = tuple(map(Path, (*landlock.list_installed(), *stubs)))
        self._walls = Walls(start.memory_bytes, more, self._open_files, after_fork, verify)
        self._buffer = b""
        self._running: dict[int, JobProcesses] = {}
        self._poll = select.poll()
        self._poll.register(reading, select.POLLIN)
        self._preloader = Preloader()
        self._looked = time.monotonic()

    def serve(self) -> None:
        """Work until there is nobody to work for."""
        try:
            while self._turn():
                pass
        finally:
            for one in list(self._running.values()):
                self._end(one)

    def _open_files(self) -> list[int]:
        return [self._in_use, self._reading, self._writing, *self._running]

    def _turn(self) -> bool:
        for pipe, _ in self._poll.poll(_LOOK_MS if self._running else None):
            if pipe == self._reading:
                data = os.read(pipe, 1 << 16)
                if not data:  # the parent is gone
                    return False
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    self._start(msgspec.json.decode(line, type=Question))
            else:
                self._hear(self._running[pipe])
        now = time.monotonic()
        if now >= self._looked + _LOOK_MS / 1000:
            for one in list(self._running.values()):
                waited = 0.0 if one.wants_processor else now - max(self._looked, one.began)
                one.waited_s += waited
                self._look_at(one)
            self._looked = now
        return True

    def _look_at(self, one: JobProcesses) -> None:
        """End what takes too much: limits of the system do not bound the sum of all it does."""
        most = one.question.timeout_s
        if one.spent_s > most:
            self._end(one)
            self._reply(one, f"no verdict within {most:g} s of processor time", late=True)
        elif one.waited_s > WAITING * most:
            self._end(one)
            self._reply(one, f"no verdict within {WAITING * most:g} s: the code waits", late=True)
        elif excess := find_excess(one.processes, one.folder):
            self._end(one)
            self._reply(one, excess)

    def _start(self, question: Question) -> None:
        if wants_compiler(question.job.original):
            self._preloader.take(["torch._dynamo"])
        one = JobProcesses(question, Path(tempfile.mkdtemp(prefix="job-")), self._walls)
        # Their collections need not look at, and copy, the half a million objects of torch.
        gc.freeze()
        note_imports()
        one.begin()
        self._running[one.pipe] = one
        self._poll.register(one.pipe, select.POLLIN)

    def _hear(self, one: JobProcesses) -> None:
        data = os.read(one.pipe, 1 << 16)
        one.said += data
        if len(one.said) > _MOST_BYTES:
            self._end(one)
            self._reply(one, "the verdict has no end")
        elif not data:
            lost = one.death() if one.told is None else ""
            self._end(one)
            self._reply(one, lost)

    def _reply(self, one: JobProcesses, lost: str, *, late: bool = False) -> None:
        remove(one.folder)
        told = one.told
        if lost or told is None:
            self._send(Reply(one.question.number, lost=lost, late=late, ended=True))
            return
        self._send(Reply(one.question.number, told.answer))
        if one.question.left:
            self._preloader.take(told.imported)

    def _send(self, reply: Reply) -> None:
        data = msgspec.json.encode(reply) + b"\n"
        while data:
            data = data[os.write(self._writing, data) :]

    def _end(self, one: JobProcesses) -> None:
        one.end()
        self._poll.unregister(one.pipe)
        os.close(one.pipe)
        del self._running[one.pipe]
