"""A child process as the parent sees it: start it, ask it, and survive whatever happens there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.rewriters.verification.sandbox.job_folders import (
    mark_in_use,
    remove,
    remove_left_behind,
)
from npufix.rewriters.verification.sandbox.messages import (
    WAITING,
    Greeting,
    Question,
    Reply,
    Start,
    describe_signal,
)
from npufix.rewriters.verification.workers.backends import Backend, child_environment

if TYPE_CHECKING:
    from npufix.rewriters.edit.job import Job

_PREFIX = "npufix-verify-"
_CHILD = "npufix.rewriters.verification.workers.child"
# Importing torch from a cold disk or a network file system.
_START_S = 600.0
_GRACE_S = 60.0
"""For a child that keeps the time of its jobs itself: how late it may be."""
_BUSY = 10
_ENDING_S = 5.0
"""For processes of jobs to be gone that have not noticed yet that theirs is."""


class ChildLostError(Exception):
    """The child ended or had to be ended; the text says why."""


class NoChildError(Exception):
    """No child can be started here at all; the text says why."""


class Child:
    """A warm process that has imported torch and verifies the jobs it is sent."""

    def __init__(self, start: Start) -> None:
        """Start the process; it is ready when it has said so."""
        self.start = start
        self.running: dict[int, float] = {}
        """Its jobs, and when each must be done."""
        self.ready = False
        self._deadline = time.monotonic() + _START_S
        remove_left_behind(_PREFIX)
        # The child removes it as well, should we be ended first.
        self._home = tempfile.TemporaryDirectory("", _PREFIX, ignore_cleanup_errors=True)
        home = self._home.name
        self._in_use = mark_in_use(home)
        told = msgspec.structs.replace(start, in_use=self._in_use)
        self._errors = Path(home, "stderr")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", _CHILD, msgspec.json.encode(told).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                env=child_environment(Backend(start.ground), os.environ, home),
                start_new_session=True,
                pass_fds=[self._in_use],
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018 - opened as pipes above
        self.questions, self.replies = stdin.fileno(), stdout.fileno()
        os.set_blocking(self.questions, False)
        self._said = b""
        self.unsent = b""

    @property
    def room(self) -> int:
        """How many more jobs it can take now."""
        return self.start.at_once - len(self.running) if self.ready else 0

    @property
    def deadline(self) -> float:
        """When something must have been heard of it."""
        return min(self.running.values(), default=float("inf")) if self.ready else self._deadline

    def ask(self, number: int, job: Job, timeout_s: float, left: int) -> None:
        """Have ``job`` verified."""
        # Without a process for each job nobody looks at their processor time.
        # With one, a busy machine may keep them from it for as long as they may wait, and longer.
        most = _BUSY * WAITING * timeout_s + _GRACE_S if self.start.forks else 2 * timeout_s
        self.running[number] = time.monotonic() + most
        self.unsent += msgspec.json.encode(Question(number, job, timeout_s, left)) + b"\n"
        self.send()

    def send(self) -> None:
        """Send what it takes of what is left to send."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # if it is gone, we hear it
            while self.unsent:
                self.unsent = self.unsent[os.write(self.questions, self.unsent) :]

    def hear(self) -> list[Reply]:
        """Return what it says, once there is something to read.

        Raises:
            ChildLostError: it says nothing any more.
            NoChildError: it cannot even start.

        """
        data = os.read(self.replies, 1 << 16)
        if not data:
            death = self._death()
            if not self.ready:
                raise NoChildError(f"the verifier does not start: {death}")
            raise ChildLostError(death)
        *lines, self._said = (self._said + data).split(b"\n")
        if lines and not self.ready:
            greeting = msgspec.json.decode(lines.pop(0), type=Greeting)
            if greeting.error:
                raise NoChildError(greeting.error)
            self.ready = True
        replies = [msgspec.json.decode(line, type=Reply) for line in lines]
        for reply in replies:
            self.running.pop(reply.number, None)
        return replies

    def late(self) -> str:
        """Say what it has not done in time."""
        if not self.ready:
            return f"it has not started within {_START_S:g} s"
        return "no verdict within the time limit"

    def close(self) -> None:
        """End the process, with everything it may have started, and leave nothing behind."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended in between
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # unsent bytes for one that is gone
                    pipe.close()
        # The process of a job that is ending may take things away, or write, at the same moment.
        end = time.monotonic() + _ENDING_S
        remove(self._home.name)
        while Path(self._home.name).exists() and time.monotonic() < end:
            time.sleep(0.01)
            remove(self._home.name)
        os.close(self._in_use)
        self._home.cleanup()

    def _death(self) -> str:
        code = self._process.wait()
        said: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # the child has tidied up
            said = self._errors.read_text(errors="replace").strip().splitlines()
        last = f": {said[-1][:300]}" if said else ""
        if code < 0:
            return describe_signal(-code) + last
        return f"the code ended its process with exit code {code}{last}"
