"""The parent's side: hand jobs to a child process and survive whatever happens there."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.rewriters.verdict import Status, Verdict
from npufix.rewriters.verification.sandbox import environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.verification.job import Job

_CHILD = "npufix.rewriters.verification.child"
_NO_TORCH = "torch is not installed; pip install npufix[verify]"
# Importing torch from a cold disk or a network file system.
_START_S = 120.0


class Greeting(msgspec.Struct):
    """The first line of a child."""

    torch: str = ""
    error: str = ""


class ChildLostError(Exception):
    """The child ended or had to be ended; the text says why."""


class NoChildError(Exception):
    """No child can be started here at all; the text says why."""


class Child:
    """A warm process that has imported torch and verifies one job per line."""

    def __init__(self, memory_bytes: int) -> None:
        """Start the process and wait until torch is imported."""
        self._home = tempfile.TemporaryDirectory(prefix="npufix-verify-")
        home = self._home.name
        self._errors = Path(home, "stderr")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603 — our own module, no shell
                [sys.executable, "-m", _CHILD, str(memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                env=environment(os.environ, home),
                start_new_session=True,
            )
        self._buffer = b""
        try:
            greeting = msgspec.json.decode(self._line(_START_S), type=Greeting)
        except ChildLostError as lost:
            self.close()
            raise NoChildError(f"the verifier does not start: {lost}") from None
        if greeting.error:
            self.close()
            raise NoChildError(greeting.error)

    def ask(self, job: Job, timeout_s: float) -> Verdict:
        """Have ``job`` verified."""
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 — opened as a pipe above
        try:
            stdin.write(msgspec.json.encode(job) + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise ChildLostError(self._death()) from None
        return msgspec.json.decode(self._line(timeout_s), type=Verdict)

    def close(self) -> None:
        """End the process, with everything it may have started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended in between
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # unsent bytes for one that is gone
                    pipe.close()
        self._home.cleanup()

    def _line(self, timeout_s: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 — opened as a pipe above
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise ChildLostError(f"no verdict within {timeout_s:g} s")
            data = os.read(stdout.fileno(), 1 << 16)
            if not data:
                raise ChildLostError(self._death())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _death(self) -> str:
        code = self._process.wait()
        said = self._errors.read_text(errors="replace").strip().splitlines()
        last = f": {said[-1][:300]}" if said else ""
        if code < 0:
            return f"the code ended its process with {signal.Signals(-code).name}{last}"
        return f"the code ended its process with exit code {code}{last}"


def verify(
    jobs: Sequence[Job], *, timeout_s: float = 60, memory_bytes: int = 4 << 30
) -> list[Verdict]:
    """Verify ``jobs`` in order, each within ``timeout_s``; the rest survive a crash."""
    if not jobs:
        return []
    if importlib.util.find_spec("torch") is None:
        return [_unverified(job, _NO_TORCH) for job in jobs]
    verdicts: list[Verdict] = []
    child: Child | None = None
    try:
        for job in jobs:
            try:
                child = child or Child(memory_bytes)
                verdicts.append(child.ask(job, timeout_s))
            except ChildLostError as lost:  # noqa: PERF203 — one bad job must not end the others
                verdicts.append(_unverified(job, str(lost)))
                if child is not None:
                    child.close()
                child = None
    except NoChildError as error:
        verdicts += [_unverified(job, str(error)) for job in jobs[len(verdicts) :]]
    finally:
        if child is not None:
            child.close()
    return verdicts


def _unverified(job: Job, reason: str) -> Verdict:
    return Verdict(Status.NOT_VERIFIED, ground="nothing ran", scope=job.qualname, reason=reason)
