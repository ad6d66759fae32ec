"""What the rules say about one line of code, ready to be shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npufix.reports.report import Condition


@dataclass(frozen=True, slots=True)
class Matching:
    """A rule that applies at the line."""

    rule: str
    name: str
    line: int
    code: str
    replacement: str
    safety: str
    conditions: list[Condition]
    not_written: str
    """Why no patch holds it; empty if one does, its open conditions allowed."""


@dataclass(frozen=True, slots=True)
class Parted:
    """A rule that does not apply, and why."""

    rule: str
    name: str
    line: int
    reasons: list[str]
    agreeing: int = 0
    operations: int = 0


@dataclass(frozen=True, slots=True)
class LineExplanation:
    """All that there is to say about a line."""

    path: str
    line: int
    function: str
    remark: str
    """What holds for the whole function, "" if there is nothing."""
    matches: list[Matching]
    refused: list[Parted]
    near: list[Parted]
