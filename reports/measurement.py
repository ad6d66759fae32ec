"""What runs are compared by: few numbers of each run, and what they are made of.

One number a run and metric, because the steps of a run share its luck (clock, allocation,
neighbours) and are no independent samples. Times are nanoseconds per step on the device.
"""

from __future__ import annotations

import msgspec

from npufix.reports import report  # noqa: TC001 - msgspec reads the annotations


class MeasuredMetric(msgspec.Struct, frozen=True):
    """One metric of one run: the median over its steady steps."""

    value: float
    unit: str
    """``ns``, ``bytes`` or ``count``."""
    spread: float | None = None
    """Relative median absolute deviation between the steps of the run; None of a single step."""


class MeasuredOperator(msgspec.Struct, frozen=True):
    """The kernels of one Type on inputs of the same shapes and dtypes, per step."""

    type: str
    shapes: str
    core: str
    calls: float
    total_ns: float


class MeasuredLine(msgspec.Struct, frozen=True):
    """A line of the user's code and the kernels it asked for, per step."""

    path: str
    line: int
    function: str
    total_ns: float
    calls: float
    types: list[str] = []


class MeasuredFinding(msgspec.Struct, frozen=True):
    """A finding, as far as it can be recognised in another run."""

    fingerprint: str
    """Of the rule, the file, the function and the code, not of the line number."""
    rule: str
    name: str
    path: str
    line: int
    device_ns: float = 0.0
    saving_ns: float = 0.0
    """The middle of the estimate."""
    kernels_save_ns: tuple[float, float] | None = None
    """What its kernels alone are said to save per step, at least and at most."""


class Measurement(msgspec.Struct, frozen=True):
    """One run."""

    origin: str
    """The dump or report that it was read from."""
    environment: report.Environment | None
    steps: int
    """Steady steps that the medians are over."""
    metrics: dict[str, MeasuredMetric]
    """By name: step-time, compute, exposed-communication, free-time, peak-memory, launches."""
    operators: list[MeasuredOperator] = []
    lines: list[MeasuredLine] = []
    findings: list[MeasuredFinding] = []
    format: str = ""
    """Of the dump, as in ``Report``."""
    partial: list[str] = []
    """What is missing or broken in the dump, in words."""
    source: str = ""
    """The source that findings in code were looked for in, "" if there was none."""
    unit: str = "step"
    """What the numbers are of: a ``step``, or the whole ``recording``, where none is marked."""
    bounds: str = ""
    """From where to where a step lasts, as in ``StepSplit``; "" if nobody says."""
    ranks: int = 1
    """How many ranks the dump holds, of which the slowest stands for the run."""
    averaged: bool = False
    """The numbers are averages over several steps, as a report holds them, and no medians."""
    started_ns: int | None = None
    """When its first kernel started, since the epoch; None where nobody says."""
