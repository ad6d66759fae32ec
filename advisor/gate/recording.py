"""Runs that commands make: base and head in turn, each into a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.measurement import Measurement

OUTPUT = "{output}"
"""In a command: the folder that its dump goes into."""
VARIABLE = "NPUFIX_OUTPUT"
"""The same, in its environment."""
_LAST_LINES = 5
_LONGEST_LINE = 200
_GRACE_S = 5.0
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})


class RecordingError(UserError):
    """A command that makes no dump: ``message`` and ``remedy``."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """A command that makes a dump each time."""

    name: str
    """``base`` or ``head``."""
    command: str
    folder: Path
    """Where it runs."""
    limit_s: float

    def record(self, output: Path) -> None:
        """Run it; what it and its children print goes to a file beside ``output``.

        Whatever ends us ends it, and all that it has started.

        Raises:
            RecordingError: it fails, takes too long, or leaves nothing in ``output``.

        """
        output.mkdir(parents=True)
        log = output.with_name(f"{output.name}.log")
        command = self.command.replace(OUTPUT, _quote(output))
        process: subprocess.Popen[bytes] | None = None
        try:
            with log.open("wb") as said, _hold_signals():
                process = subprocess.Popen(  # noqa: S603 - the user's own command
                    [_shell(), "-c", command],
                    cwd=self.folder,
                    env={**os.environ, VARIABLE: str(output)},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            status = process.wait(self.limit_s)
        except subprocess.TimeoutExpired as error:
            remedy = "give it more with --time-limit, or record fewer steps"
            message = f"{self.name}: still running after {self.limit_s:g} s"
            raise RecordingError(f"{message}{_read_last_lines(log)}", remedy) from error
        except OSError as error:
            message = f"{self.name}: {error.filename or self.folder}: {error.strerror}"
            raise RecordingError(message, "name a folder that can be used") from error
        finally:
            if process is not None:
                _end(process)
        if status:
            ended = f"signal {-status}" if status < 0 else f"exit status {status}"
            message = f"{self.name}: the command ended with {ended}{_read_last_lines(log)}"
            raise RecordingError(message, f"run it by hand: {self.command}")
        if not any(output.iterdir()):
            message = f"{self.name}: the command left no dump in {output}{_read_last_lines(log)}"
            raise RecordingError(
                message, f"write {OUTPUT} (or ${VARIABLE}) where it takes the folder of its dump"
            )


def turns(pairs: range) -> Iterator[tuple[int, bool]]:
    """Yield which of base (False) and head (True) runs next, in which pair.

    Each goes first in every other pair: what the first one warms up is no gain of the second.
    """
    for pair in pairs:
        for head in (False, True) if pair % 2 == 0 else (True, False):
            yield pair, head


def in_turn(
    base: Sequence[Measurement], head: Sequence[Measurement]
) -> Sequence[tuple[Measurement, Measurement]]:
    """Return runs as the pairs that ran one after the other; none if they did not run in turn.

    The clock of the device says when each of them began.
    """
    if len(base) != len(head):
        return []
    begun = [(run.started_ns, side, run) for side, runs in enumerate((base, head)) for run in runs]
    if any(moment is None for moment, _, _ in begun):
        return []
    order = sorted(begun, key=lambda each: each[0] or 0)
    pairs = [
        sorted(pair, key=lambda each: each[1]) for pair in zip(order[::2], order[1::2], strict=True)
    ]
    if any((one[1], other[1]) != (0, 1) for one, other in pairs):
        return []
    return [(one[2], other[2]) for one, other in pairs]


def _quote(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


def _shell() -> str:
    """Return the user's own shell where it is one of the usual language, else what there is."""
    own = os.environ.get("SHELL", "")
    if Path(own).name in _SHELLS and os.access(own, os.X_OK):
        return own
    return shutil.which("bash") or "/bin/sh"


@contextmanager
def _hold_signals() -> Iterator[None]:
    """Let what interrupts us wait: a process that is started meanwhile would be left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda seen, _: held.append(seen))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for seen in held:
        signal.raise_signal(seen)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a command: first it is asked to, then it is made to."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)


def _read_last_lines(log: Path) -> str:
    """Return the last lines that a command has printed."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_LINES * _LONGEST_LINE))
        lines = file.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    text = " | ".join(line.strip()[:_LONGEST_LINE] for line in lines if line.strip())
    return f"; it said: {text}" if text else ", and said nothing"
