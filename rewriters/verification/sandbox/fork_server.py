"""A process for each job, forked from one that has imported torch already.

So the import is paid once, and nothing that the code of one job does - patched modules, threads,
closed files, a crash - is there for the next one.

A job's process writes its answer between two copies of a random token, and then ends: what its
code prints into the same pipe is not taken for an answer. One poll waits for questions, answers
and deadlines at once; a process that is late, or fills the disk, is killed with all it started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.rewriters.verification.sandbox import landlock
from npufix.rewriters.verification.sandbox.guard import guard_side_effects
from npufix.rewriters.verification.sandbox.job_folders import find_excess, remove
from npufix.rewriters.verification.sandbox.limits import (
    limit_resources,
    source_folders,
)
from npufix.rewriters.verification.sandbox.messages import (
    Answer,
    Question,
    Reply,
    Start,
)
from npufix.rewriters.verification.sandbox.preloading import Preloader, newly_imported
from npufix.rewriters.verification.sandbox.system_calls import (
    give_up_privileges,
    give_up_processes_and_network,
)
from npufix.rewriters.write.child_processes import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_BYTES = 16 << 20
"""Of an answer; more is not one."""
_DYING_S = 0.5
"""Between closing the pipe and ending, for a process that ends."""
_TOKEN_BYTES = 16
_LOOK_MS = 500.0
"""How often to look at what was written."""
_CLOSED = 97
"""The exit code of a process that cannot write its verdict."""
# Kept here: the user's code may replace anything in these modules.
_write, _exit, _encoder = os.write, os._exit, msgspec.json.Encoder()


class _Told(msgspec.Struct, frozen=True):
    """What the process of a job writes."""

    answer: Answer
    imported: tuple[str, ...]


@dataclass(slots=True)
class _Running:
    """The process of a job."""

    question: Question
    process: int
    pipe: int
    token: bytes
    folder: Path
    deadline: float
    said: bytearray = field(default_factory=bytearray)

    @property
    def told(self) -> _Told | None:
        """What it has written, if it is whole; whatever else its code has written besides."""
        _, found, text = bytes(self.said).partition(self.token)
        text, whole, _ = text.partition(self.token)
        if not (found and whole):
            return None
        try:
            return msgspec.json.decode(text, type=_Told)
        except msgspec.DecodeError:
            return None

    def last_words(self) -> str:
        """Return the last line that it has written to stderr."""
        with contextlib.suppress(OSError), Path(self.folder, "stderr").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return f": {lines[-1][:300]}" if lines else ""
        return ""


class ForkServer:
    """Answers questions, several at once, until the parent closes the pipe."""

    def __init__(
        self, reading: int, writing: int, start: Start, verify: Callable[[Question], Answer]
    ) -> None:
        """``verify`` runs in the processes of the jobs."""
        self._reading, self._writing = reading, writing
        self._in_use = start.in_use
        self._memory = start.memory_bytes
        self._more = (Path(start.stubs),) if start.stubs else ()
        self._verify = verify
        self._buffer = b""
        self._running: dict[int, _Running] = {}
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

    def _turn(self) -> bool:
        soonest = min((one.deadline for one in self._running.values()), default=None)
        left = None if soonest is None else max(0.0, soonest - time.monotonic()) * 1000
        left = left if left is None else min(left, _LOOK_MS)
        for pipe, _ in self._poll.poll(left):
            if pipe == self._reading:
                data = os.read(pipe, 1 << 16)
                if not data:  # the parent is gone
                    return False
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    self._start(msgspec.json.decode(line, type=Question))
            else:
                self._hear(self._running[pipe])
        for one in list(self._running.values()):
            if time.monotonic() > one.deadline:
                self._end(one)
                self._reply(one, f"no verdict within {one.question.timeout_s:g} s")
        self._look_at_folders()
        return True

    def _look_at_folders(self) -> None:
        """End what fills the disk or the machine: limits of the system do not bound their sum."""
        if time.monotonic() < self._looked + _LOOK_MS / 1000:
            return
        self._looked = time.monotonic()
        for one in list(self._running.values()):
            if excess := find_excess(one.process, one.folder):
                self._end(one)
                self._reply(one, excess)

    def _start(self, question: Question) -> None:
        folder = Path(tempfile.mkdtemp(prefix="job-"))
        pipe, writing = os.pipe()
        token = os.urandom(_TOKEN_BYTES)
        parent = os.getpid()
        process = os.fork()
        if not process:
            for other in (self._in_use, self._reading, self._writing, pipe, *self._running):
                os.close(other)
            self._work(question, folder, writing, token, parent)
        os.close(writing)
        deadline = time.monotonic() + question.timeout_s
        self._running[pipe] = _Running(question, process, pipe, token, folder, deadline)
        self._poll.register(pipe, select.POLLIN)

    def _work(
        self, question: Question, folder: Path, writing: int, token: bytes, parent: int
    ) -> None:
        """Do the job, in its own process; does not return."""
        try:
            end_with_parent(parent)
            os.setsid()
            errors = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(errors, 2)
            os.close(errors)
            # What the code prints is nobody's; what ends it is said below Python.
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for good
            home = folder / "home"
            home.mkdir()
            os.chdir(home)
            os.environ.update(HOME=str(home), TMPDIR=str(home))
            tempfile.tempdir = None
            with contextlib.suppress(OSError):  # when memory runs out, this is what goes
                Path("/proc/self/oom_score_adj").write_text("1000")
            before = set(sys.modules)
            limit_resources(self._memory)
            guard_side_effects(str(home))
            give_up_privileges()
            landlock.confine(home, source_folders(question.job), self._more)
            give_up_processes_and_network()
            told = _Told(self._verify(question), ())
            if not question.job.others:  # else they are those of another version
                told = _Told(told.answer, newly_imported(before))
            data = token + _encoder.encode(told) + token
            try:
                while data:
                    data = data[_write(writing, data) :]
            except OSError:
                _exit(_CLOSED)
        except BaseException:  # noqa: BLE001 - the parent gets its last line
            with contextlib.suppress(BaseException):
                _write(2, traceback.format_exc().encode(errors="replace"))
            _exit(1)
        _exit(0)

    def _hear(self, one: _Running) -> None:
        data = os.read(one.pipe, 1 << 16)
        one.said += data
        if len(one.said) > _MOST_BYTES:
            self._end(one)
            self._reply(one, "the code wrote without end into the pipe of its verdict")
        elif not data:
            self._reply(one, self._death(one))

    def _death(self, one: _Running) -> str:
        """Return how a process has ended that will not say more."""
        until = time.monotonic() + _DYING_S
        found, status = os.waitpid(one.process, os.WNOHANG)
        while not found and time.monotonic() < until:
            time.sleep(0.005)
            found, status = os.waitpid(one.process, os.WNOHANG)
        if not found:
            self._end(one)
            return "the code closed the pipe of its verdict"
        self._forget(one)
        if os.WIFSIGNALED(status):
            return describe_signal(os.WTERMSIG(status)) + one.last_words()
        code = os.WEXITSTATUS(status)
        if code in {0, _CLOSED}:
            return f"the code ended its process ({code}), or closed the pipe of its verdict"
        return f"the code ended its process with exit code {code}{one.last_words()}"

    def _reply(self, one: _Running, lost: str) -> None:
        remove(one.folder)
        told = one.told
        if told is None:
            self._send(Reply(one.question.number, lost=lost))
            return
        self._send(Reply(one.question.number, told.answer))
        if one.question.left:
            self._preloader.take(told.imported)

    def _send(self, reply: Reply) -> None:
        data = msgspec.json.encode(reply) + b"\n"
        while data:
            data = data[os.write(self._writing, data) :]

    def _end(self, one: _Running) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one.process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.process, signal.SIGKILL)  # before it leads a group
        os.waitpid(one.process, 0)
        self._forget(one)

    def _forget(self, one: _Running) -> None:
        self._poll.unregister(one.pipe)
        os.close(one.pipe)
        del self._running[one.pipe]


def describe_signal(number: int) -> str:
    """Say that the code was ended by a signal."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    by = ", by the system when memory ran out perhaps" if number == signal.SIGKILL else ""
    return f"the code ended its process with {name}{by}"
