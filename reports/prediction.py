"""What a run would take after a change, as the replay of its recording predicts it.

Times are nanoseconds per step.
"""

from __future__ import annotations

import msgspec

WORST_ERROR = 0.1
"""Of a replay without a change; what is further off predicts nothing."""


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
