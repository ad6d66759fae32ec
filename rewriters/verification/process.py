"""A child process as the parent sees it: start it, ask it, and survive whatever happens there."""

from __future__ import annotations

import contextlib
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

from npufix.rewriters.verification.grounds import Ground, environment_of
from npufix.rewriters.verification.job import Answer

if TYPE_CHECKING:
    from npufix.rewriters.verification.job import Job

_CHILD = "npufix.rewriters.verification.child"
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

    def __init__(self, memory_bytes: int, ground: Ground, chip: str = "", stubs: str = "") -> None:
        """Start the process and wait until torch is imported.

        ``chip`` and ``stubs``, the folder of the libraries, are for a virtual NPU.
        """
        self._home = tempfile.TemporaryDirectory(prefix="npufix-verify-")
        home = self._home.name
        self._errors = Path(home, "stderr")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603 — our own module, no shell
                [sys.executable, "-m", _CHILD, str(memory_bytes), ground.value, chip, stubs],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                env=environment_of(ground, os.environ, home),
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

    def ask(self, job: Job, timeout_s: float) -> Answer:
        """Have ``job`` verified."""
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 — opened as a pipe above
        try:
            stdin.write(msgspec.json.encode(job) + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise ChildLostError(self._death()) from None
        return msgspec.json.decode(self._line(timeout_s), type=Answer)

    def kill(self) -> None:
        """End the process, with everything it may have started; from any thread."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended in between
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and leave nothing of it behind."""
        self.kill()
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
