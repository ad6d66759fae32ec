"""What a run would take after a change, as the replay of its recording predicts it.

Times are nanoseconds per step.
"""

from __future__ import annotations

import msgspec

WORST_ERROR = 0.1
"""Of a replay without a change; what is further off predicts nothing."""


class Critical(msgspec.Struct, frozen=True):
    """How much of some kernels the step waits for."""

    device_ns: int
    """Of those that lie on the critical path."""
    host_ns: int
    """What the host takes to launch them, where that lies on it."""
    slack_ns: int
    """How much later each of them could end, at least, before the step does."""

    @property
    def total_ns(self) -> int:
        """What of them lies on the critical path; each moment is counted once."""
        return self.device_ns + self.host_ns


class Prediction(msgspec.Struct, frozen=True):
    """The step after some changes."""

    step_ns: int
    step_low_ns: int
    """In nine of ten cases the step lies between this and ``step_high_ns``."""
    step_high_ns: int
    saved_ns: int
    """Negative for a loss."""
    saved_low_ns: int
    saved_high_ns: int
    verdict: str
    """``gain``, ``loss``, ``none`` or, where it may be either, ``unclear``."""
    limit: str
    """What is busy longest then: host, computing, communication or loading; ``pauses`` of the
    device where the launches were not recorded."""
    limit_ns: int
    critical: Critical | None = None
    """Of the kernels that it changes; ``None`` where it changes none."""
    alone_ns: int | None = None
    """What it saves where only the diagnosed rank is changed, and so waits for the others; ``None``
    where one rank is known."""


class Bar(msgspec.Struct, frozen=True):
    """A finding in the waterfall from the step of today to the predicted one."""

    finding: int
    """Its number in the report, from 1."""
    rule: str
    saved_ns: int
    """Beside what those before it save."""
    step_ns: int
    """What is left behind it."""


class Question(msgspec.Struct, frozen=True):
    """What was asked with ``--what-if`` or ``--without``."""

    rules: list[str]
    without: bool
    findings: list[int]
    """The numbers of the findings that are changed for it."""
    missing: list[str]
    """Rules with no finding here, or none whose change can be replayed."""
    answer: Prediction | None
    waterfall: list[Bar] = []
    """From the step of today to the answer."""


class Forecast(msgspec.Struct, frozen=True):
    """The replay of a run, and what it predicts."""

    model: str
    """``replay``: of launches, streams and waits; ``pauses``: without launches, so that what the
    device waits for the host goes, or stays, with the kernels."""
    now_ns: int
    """The step as it goes on without a change."""
    error: float
    """How far the replay without a change is from the recorded step, as a share of it."""
    steps: int
    kernels: int
    """Of these steps."""
    limit: str
    limit_ns: int
    together: Prediction | None
    """All findings whose change can be replayed, at once."""
    waterfall: list[Bar] = []
    question: Question | None = None
    critical_path: dict[str, int] = {}
    """What it runs through: computing, communication, host, loading, and from one kernel to the
    next (``between``)."""


class HeadroomRow(msgspec.Struct, frozen=True):
    """The kernels of one Type, or of one line of code."""

    name: str
    """The Type, or ``file.py:12``."""
    calls: int
    """Over all steady steps."""
    time_ns: int
    """Of those whose bound is known."""
    bound_ns: int
    """The shortest that they could take."""
    above_ns: int
    """What they take beyond it."""
    limit: str
    """What sets most of the bound: compute, memory, launch or link."""
    reached: float
    """Share of the time that the bound is, 0..1."""


class Headroom(msgspec.Struct, frozen=True):
    """What a run takes above the bounds of its kernels."""

    basis: str
    """By what rates the bounds are taken."""
    chip: str
    """"" where it is not known."""
    sources: list[str]
    """Where the rates of the chip are published."""
    tb_per_s: float
    tflops: dict[str, float]
    """Of the dtypes that products of this run have."""
    covered: float
    """Share of the device time whose bound is known, 0..1."""
    time_ns: int
    """Of the kernels whose bound is known."""
    bound_ns: int
    above_ns: int
    operators: list[HeadroomRow]
    """Those first that take most above their bounds."""
    lines: list[HeadroomRow]

    def cut(self, rows: int) -> Headroom:
        """Return it with only so many operators and lines."""
        return msgspec.structs.replace(
            self, operators=self.operators[:rows], lines=self.lines[:rows]
        )
