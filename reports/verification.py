"""What ``npufix verify`` has found out about a change."""

from __future__ import annotations

import msgspec

from npufix.reports.report import Verdict  # noqa: TC001 - msgspec reads the annotation

SCHEMA_VERSION = 1


class ChangedFunction(msgspec.Struct, frozen=True):
    """A function that a change touches."""

    path: str
    line: int
    """Where it starts after the change."""
    function: str
    verdict: Verdict


class Verification(msgspec.Struct, frozen=True):
    """The verdicts on a change."""

    tool: str
    against: str
    """What was compared with: a revision, a diff or a file."""
    status: str
    """Of the whole change: that of its worst function."""
    functions: list[ChangedFunction]
    new_files: list[str]
    """There is nothing to compare them with."""
    schema: int = SCHEMA_VERSION

    def count(self, status: str) -> int:
        """Return how many functions have this verdict."""
        return sum(f.verdict.status == status for f in self.functions)
