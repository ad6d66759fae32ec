"""What a history shows: the one thing that its outputs see."""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1


class TrendRun(msgspec.Struct, frozen=True):
    """A run of the history that was looked at."""

    time: str
    commit: str


class TrendShift(msgspec.Struct, frozen=True):
    """A change of level for good."""

    kind: str
    """``jump`` or ``drift``."""
    first: int
    """Index of its first run in ``TrendReport.runs``: of a jump the first of the new level."""
    last: int
    """Index of its last run; of a jump as ``first``."""
    before: float
    """The level before it, in the unit of the series."""
    after: float
    change: float
    """Relative: above 0 is worse."""
    why: list[str] = []
    """The hot operators that changed most across it, each a sentence."""


class TrendSeries(msgspec.Struct, frozen=True):
    """One metric, or one hot operator, over the runs."""

    name: str
    """``step-time``; of a hot operator ``MatMulV2|4096,5120``."""
    unit: str
    """``ns``, ``bytes`` or ``count``; per step."""
    values: list[float | None]
    """One a run; None where it was not measured."""
    levels: list[float | None]
    """The same without noise."""
    noise: float
    """Relative standard deviation between runs."""
    shifts: list[TrendShift] = []
    worse: float | None = None
    """How far the level of now is above the best one since the last acceptance, relative."""


class TrendReport(msgspec.Struct, frozen=True):
    """A finished look at a history."""

    tool: str
    verdict: str
    """``pass``, ``fail`` or ``inconclusive``."""
    headline: str
    exit_status: int
    file: str
    runs: list[TrendRun]
    """Of one environment, in order of time."""
    left_out: int
    """Runs of other environments, or before the window."""
    tolerance: float
    metrics: list[TrendSeries]
    operators: list[TrendSeries]
    """The hottest."""
    reasons: list[str] = []
    next_steps: list[str] = []
    accepted: str = ""
    """Why the level of the last acceptance was taken, "" if there is none."""
    schema: int = SCHEMA_VERSION
