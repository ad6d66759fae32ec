"""What the page shows beyond the report: where each part of the time went, and when.

Times are nanoseconds on the device, over all recorded steps.
"""

from __future__ import annotations

import msgspec


class Cell(msgspec.Struct, frozen=True, array_like=True):
    """The kernels of one Type on the same shapes that one line asked for."""

    type: str
    shapes: str
    """"" for all others of the Type."""
    path: str
    line: int
    function: str
    calls: int
    total_ns: int


class Timeline(msgspec.Struct, frozen=True):
    """One typical step; kernels too short to be seen are drawn as one with their neighbours."""

    title: str
    length_ns: int
    lanes: list[str]
    labels: list[str]
    spans: list[tuple[int, int, int, int, int, int]]
    """Lane, start from that of the step, duration, label, finding (-1: none), kernels."""


class ShownLine(msgspec.Struct, frozen=True):
    """A line of a file; text as it is in the source now."""

    number: int
    text: str
    total_ns: int = 0
    calls: int = 0
    findings: list[int] = []
    """Positions in the report's findings."""


class ShownFile(msgspec.Struct, frozen=True):
    """A file of the user with the lines that cost time, and those around them."""

    path: str
    total_ns: int
    lines: list[ShownLine]
    """In order; where numbers are missing, lines are left out."""


class Details(msgspec.Struct, frozen=True):
    """Everything that the charts of a page are drawn from."""

    cells: list[Cell] = []
    timeline: Timeline | None = None
    sources: list[ShownFile] = []
