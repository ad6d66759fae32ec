"""What parent and child say to each other: one line of JSON each."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import msgspec

from npufix.rewriters.edit.job import Job  # noqa: TC001 - msgspec reads it
from npufix.rewriters.verification.verdict import Verdict  # noqa: TC001 - msgspec reads it

WAITING = 10
"""How much longer than it may compute a job may wait; for its turn on a busy machine, any time."""


class Start(msgspec.Struct, frozen=True):
    """How a child is started."""

    ground: str
    chip: str = ""
    """What a virtual NPU pretends to be."""
    stubs: str = ""
    """The folder of its libraries."""
    memory_bytes: int = 4 << 30
    """By how much one job may make its process grow."""
    at_once: int = 1
    """How many jobs it may run at the same time."""
    forks: bool = False
    """Whether each of them has a process of its own."""
    in_use: int = -1
    """The open file that tells others that the folder of the child is in use."""


class Greeting(msgspec.Struct, frozen=True):
    """The first line of a child: ready, or why not."""

    torch: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the child says to a job."""

    verdict: Verdict
    files: tuple[str, ...] = ()
    """Further files of the user that were imported on the way."""
    lasting: bool = True
    """Whether the same job would get the same answer; not so if it ran out of time or memory."""


class Question(msgspec.Struct, frozen=True):
    """A job to verify."""

    number: int
    job: Job
    timeout_s: float
    left: int = 0
    """How many more jobs there will be."""


class Reply(msgspec.Struct, frozen=True):
    """What became of a job."""

    number: int
    answer: Answer | None = None
    lost: str = ""
    """Why there is no answer: what ended the process."""
    late: bool = False
    """Whether that was a limit of time: which no other ground makes longer."""
    ended: bool = False
    """Whether it was the job's own processes that ended, or had to be ended."""
    spent: bool = False
    """Whether the child can answer nothing more."""


def describe_signal(number: int) -> str:
    """Say that the code was ended by a signal."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    by = ", by the system when memory ran out perhaps" if number == signal.SIGKILL else ""
    return f"the code ended its process with {name}{by}"
