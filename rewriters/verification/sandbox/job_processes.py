"""The processes of one job: a judge, and one for each version of the user's code.

::

    fork server --- judge --+-- original   searches for arguments, calls the original
                            +-- changed    calls the changed code

The judge holds none of the user's code and has the only pipe to the server. The other two get
calls from it and send back what these did, as data; neither sees what the other one sends.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from npufix.rewriters.verification.sandbox import landlock
from npufix.rewriters.verification.sandbox.guard import guard_side_effects
from npufix.rewriters.verification.sandbox.limits import limit_resources, source_folders
from npufix.rewriters.verification.sandbox.messages import Answer, describe_signal
from npufix.rewriters.verification.sandbox.preloading import list_new_imports
from npufix.rewriters.verification.sandbox.remote import (
    NoiseError,
    Pipe,
    Worker,
    WorkerLostError,
    clock_of,
    run_everywhere,
    serve,
    use_workers,
)
from npufix.rewriters.verification.sandbox.system_calls import (
    give_up_privileges,
    give_up_processes_and_network,
)
from npufix.rewriters.write.child_processes import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.sandbox.messages import Question

VERSIONS = ("original", "changed")
_TOKEN_BYTES = 16
_DYING_S = 0.5
"""Between closing the pipe and ending, for a process that ends."""
_NOISY, _LOST = 98, 99
"""The exit codes of a judge to whom nobody speaks sense any more."""
# Kept here: the user's code may replace anything in these modules.
_exit = os._exit


class Told(msgspec.Struct, frozen=True):
    """What the judge writes."""

    answer: Answer
    imported: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Walls:
    """What the processes of all jobs have in common."""

    memory_bytes: int
    more: tuple[Path, ...]
    """What may be read besides."""
    others: Callable[[], Sequence[int]]
    """The open files of the server, which are none of theirs."""
    after_fork: Callable[[], None]
    """Called first in each process that runs the user's code."""
    verify: Callable[[Question], Answer]


@dataclass(slots=True)
class JobProcesses:
    """The processes of a job, as the server sees them."""

    question: Question
    folder: Path
    walls: Walls
    pipe: int = -1
    """Where the judge writes."""
    processes: list[int] = field(default_factory=list)
    """Those that were not seen to end: the judge is the last."""
    began: float = field(default_factory=time.monotonic)
    waited_s: float = 0.0
    """While none of them computed, or wanted to."""
    said: bytearray = field(default_factory=bytearray)
    _ended: dict[int, int] = field(default_factory=dict)
    _spent: dict[int, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Start them."""
        pipes = [(os.pipe(), os.pipe()) for _ in VERSIONS]
        every = [end for two in pipes for pipe in two for end in pipe]
        pairs = []
        for version, (asking, answering) in zip(VERSIONS, pipes, strict=True):
            token = os.urandom(_TOKEN_BYTES)
            own = Pipe(asking[0], answering[1], token)
            process = self._fork(version, every, {*own[:2]}, functools.partial(serve, own))
            pairs.append(Worker(process, Pipe(answering[0], asking[1], token)))
        self.pipe, writing = os.pipe()
        mine = {writing, *(end for worker in pairs for end in worker.pipe[:2])}
        self._fork("judge", [*every, self.pipe], mine, lambda: self._judge(pairs, writing))
        for end in (*every, writing):
            os.close(end)

    def _fork(
        self, name: str, ends: Sequence[int], kept: set[int], work: Callable[[], None]
    ) -> int:
        """Start one process, which keeps some of the ends of pipes and closes the others."""
        parent = os.getpid()
        process = os.fork()
        if not process:
            for end in (*self.walls.others(), *ends):
                if end not in kept:
                    os.close(end)
            _run(name, self.folder, parent, self.question.job, self.walls, work)
        self.processes.append(process)
        return process

    def _judge(self, workers: list[Worker], writing: int) -> None:
        """Verify, and write what was found."""
        use_workers(workers)
        try:
            answer = self.walls.verify(self.question)
            imported: tuple[str, ...] = ()
            if not self.question.job.others:  # else they are those of another version
                found = run_everywhere(list_new_imports)
                imported = tuple(dict.fromkeys(name for names in found for name in names))
        except NoiseError:
            _exit(_NOISY)
        except WorkerLostError:
            _exit(_LOST)
        data = msgspec.json.encode(Told(answer, imported))
        while data:
            data = data[os.write(writing, data) :]

    @property
    def told(self) -> Told | None:
        """What the judge has written, if it is whole."""
        try:
            return msgspec.json.decode(bytes(self.said), type=Told)
        except msgspec.DecodeError:
            return None

    @property
    def spent_s(self) -> float:
        """The processor seconds that they have used."""
        for process in self.processes:
            with contextlib.suppress(OSError):  # it has ended
                self._spent[process] = time.clock_gettime(clock_of(process))
        return sum(self._spent.values())

    @property
    def wants_processor(self) -> bool:
        """Whether one of them computes or reads, or would on a machine that is less busy."""
        for process in self.processes:
            with contextlib.suppress(OSError):  # it has ended, or there is no /proc
                stat = Path(f"/proc/{process}/stat").read_bytes()
                if stat.rpartition(b")")[2].split()[:1] in ([b"R"], [b"D"]):
                    return True
        return False

    def end(self) -> None:
        """End them, with all that they have started."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)  # before it leads a group
        for process in self.processes:
            os.waitpid(process, 0)
        self.processes.clear()

    def death(self) -> str:
        """Return how one has ended so that there is no verdict, and end the others."""
        judge = self.processes[-1]
        self._wait_for(judge, _DYING_S)
        by_itself = self._ended.get(judge)
        if by_itself is not None and os.WIFEXITED(by_itself):
            if os.WEXITSTATUS(by_itself) == _NOISY:
                self.end()
                return "the code wrote without end into the pipe of its observations"
            if os.WEXITSTATUS(by_itself) != _LOST:
                self.end()
                return f"the judge ended{self._last_words('judge')}"
        elif by_itself is not None:
            self.end()
            return describe_signal(os.WTERMSIG(by_itself))
        workers = dict(zip(self.processes, VERSIONS, strict=False))
        until = time.monotonic() + _DYING_S
        # One that only lost the judge ends well, and perhaps before the one that crashed is dead.
        while time.monotonic() < until and not any(self._ended.get(p) for p in workers):
            for process in workers:
                self._wait_for(process, 0.0)
            if workers.keys() <= self._ended.keys():
                break
            time.sleep(0.005)
        ended = [p for p in workers if p in self._ended]
        lost = next((p for p in ended if self._ended[p]), ended[0] if ended else None)
        self.end()
        if lost is None:
            return "the code closed the pipe of its observations"
        return _describe(self._ended[lost], self._last_words(workers[lost]))

    def _wait_for(self, process: int, seconds: float) -> None:
        """Note how a process has ended, if it does so in time."""
        until = time.monotonic() + seconds
        while process in self.processes:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                self._ended[process] = status
                self.processes.remove(process)
            elif time.monotonic() >= until:
                return
            else:
                time.sleep(0.005)

    def _last_words(self, name: str) -> str:
        """Return the last line that a process has written to stderr."""
        with contextlib.suppress(OSError), Path(self.folder, name, "stderr").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return f": {lines[-1][:300]}" if lines else ""
        return ""


def _run(  # noqa: PLR0913, PLR0917 - all that a process is
    name: str, folder: Path, parent: int, job: Job, walls: Walls, work: Callable[[], None]
) -> NoReturn:
    """Do the work of a process behind its walls, and end it."""
    try:
        gc.enable()
        end_with_parent(parent)
        os.setsid()
        home = folder / name / "home"
        home.mkdir(parents=True)
        errors = os.open(folder / name / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(errors, 2)
        os.close(errors)
        # What the code prints is nobody's; what ends it is said below Python.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for good
        os.chdir(home)
        os.environ.update(HOME=str(home), TMPDIR=str(home))
        tempfile.tempdir = None
        with contextlib.suppress(OSError):  # when memory runs out, this is what goes
            Path("/proc/self/oom_score_adj").write_text("1000")
        if name in VERSIONS:
            walls.after_fork()
        limit_resources(walls.memory_bytes)
        guard_side_effects(str(home))
        give_up_privileges()
        landlock.confine(home, source_folders(job), walls.more)
        give_up_processes_and_network()
        work()
    except WorkerLostError:  # the other side is gone, or the code has closed the pipe to it
        _exit(0)
    except BaseException:  # noqa: BLE001 - the parent gets its last line
        with contextlib.suppress(BaseException):
            os.write(2, traceback.format_exc().encode(errors="replace"))
        _exit(1)
    _exit(0)


def _describe(status: int, words: str) -> str:
    if os.WIFSIGNALED(status):
        return describe_signal(os.WTERMSIG(status)) + words
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "the code ended its process (0), or closed the pipe of its observations"
    return f"the code ended its process with exit code {code}{words}"
