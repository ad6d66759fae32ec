"""What a search for the commit that made a program slower has found."""

from __future__ import annotations

import msgspec

from npufix.reports.gate_report import Change  # noqa: TC001 - msgspec reads the annotations

SCHEMA_VERSION = 1
_SHORT = 12


class BisectCommit(msgspec.Struct, frozen=True):
    """A commit."""

    id: str
    author: str
    time: str
    """ISO 8601."""
    subject: str
    merge: bool = False

    @property
    def short(self) -> str:
        """Return how people call it."""
        return self.id[:_SHORT]


class BisectStep(msgspec.Struct, frozen=True):
    """A commit that was held against the good one."""

    commit: BisectCommit
    verdict: str
    """``good``, ``bad`` or ``skipped``."""
    reason: str
    change: float | None
    """Relative, of the metric."""
    runs: int
    """So many of it, and as many of the good commit."""


class BisectReport(msgspec.Struct, frozen=True):
    """A finished search."""

    tool: str
    headline: str
    exit_status: int
    """0: one commit is found; 3: several may be it, or nobody can tell."""
    good: BisectCommit
    found: list[BisectCommit]
    """The first that is worse; several where those between were skipped; none if nothing is."""
    steps: list[BisectStep]
    """In the order in which they were tried."""
    change: list[str] = []
    """What the found ones changed, as git shows it."""
    grown: list[Change] = []
    """The hot operators that grew with it, the most first."""
    metric: str = "step-time"
    schema: int = SCHEMA_VERSION
