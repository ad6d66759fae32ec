"""What the page shows beyond the report: where each part of the time went, and when.

Times are nanoseconds. Names are written once, in lists; rows hold their numbers, so that ten
thousand operators are a small page.
"""

from __future__ import annotations

import msgspec


class Cells(msgspec.Struct, frozen=True):
    """The compute kernels of the steady steps, by module, line, Type and shapes."""

    steps: int
    """How many steps the sums are over."""
    modules: list[str]
    """``Model_0/Linear_0``; "" where none is known."""
    places: list[str]
    """``file.py:12 forward``; "" where none is known."""
    types: list[str]
    shapes: list[str]
    """"" for all others of the Type."""
    rows: list[tuple[int, int, int, int, int, int, int]]
    """Backward (0 or 1), module, place, Type, shapes, calls, time."""


class Lane(msgspec.Struct, frozen=True):
    """A row of the time line."""

    kind: str
    """``host``, ``compute``, ``communication``, ``AI CPU``, ``idle`` or ``critical``: what the step
    waits for."""
    number: int
    """From 1: kernels that overlap lie on several."""
    stream: int = -1
    """Of the device, -1 where the dump does not say."""


class Timeline(msgspec.Struct, frozen=True):
    """One typical step; what is too short to be seen is drawn as one with its neighbours."""

    title: str
    length_ns: int
    lanes: list[Lane]
    labels: list[str]
    places: list[str]
    spans: list[tuple[int, int, int, int, int, int, int]]
    """Lane, start from that of the step, duration, label, finding (-1: none), how many these are,
    place. The labels of ``idle`` are causes: ``late``, ``value``, ``loading``, ``launched`` or
    ``unknown``."""


class Links(msgspec.Struct, frozen=True):
    """How fast ranks reach each other."""

    ranks: list[int]
    gb_per_s: list[list[float | None]]
    """A row for each source, a column for each destination."""
    left_out: int = 0
    """Ranks that moved less than those shown."""


class Curve(msgspec.Struct, frozen=True):
    """Bytes over time."""

    name: str
    points: list[tuple[int, int]]
    """Time since the first of all points, bytes."""


class Memory(msgspec.Struct, frozen=True):
    """Device memory over the recording."""

    length_ns: int
    curves: list[Curve]
    at_peak: list[tuple[str, int, int]]
    """Who holds memory at the peak: operator, blocks, bytes; the most first."""


class ShownLine(msgspec.Struct, frozen=True):
    """A line of a file; text as it is in the source now; time and calls per step."""

    number: int
    text: str
    total_ns: int = 0
    calls: float = 0
    findings: list[int] = []
    """Positions in the report's findings."""


class ShownFile(msgspec.Struct, frozen=True):
    """A file of the user with the lines that cost time, and those around them."""

    path: str
    total_ns: int
    lines: list[ShownLine]
    """In order; where numbers are missing, lines are left out."""


class Details(msgspec.Struct, frozen=True):
    """Everything that the pictures of a page are drawn from."""

    cells: Cells | None = None
    timeline: Timeline | None = None
    links: Links | None = None
    memory: Memory | None = None
    sources: list[ShownFile] = []
