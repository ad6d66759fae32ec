"""The one thing that every output and the gate see: a finished diagnosis.

Times are nanoseconds on the device. Unless a field says otherwise they are per step; a dump
without a schedule counts as one step.
"""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1


class Problem(msgspec.Struct, frozen=True):
    """Something that makes the diagnosis partial."""

    where: str
    what: str
    remedy: str
    damaged: bool = False
    """An input is broken, so the exit status says so; otherwise it was just not collected."""


class Environment(msgspec.Struct, frozen=True):
    """The profiled machine; ``None`` where the dump does not say."""

    rank: int | None
    world_size: int | None
    torch_npu: str | None
    cann: str | None
    profiler_level: str | None
    simulated: str | None


class StepSplit(msgspec.Struct, frozen=True):
    """Where the time of an average step goes."""

    steps: int
    total_ns: int
    computing_ns: int
    exposed_communication_ns: int
    free_ns: int


class HotOperator(msgspec.Struct, frozen=True):
    """The kernels of one Type on one core; ``share`` is that of all compute, 0..1."""

    type: str
    core: str
    calls: int
    """Over all recorded steps."""
    total_ns: int
    """Over all recorded steps."""
    mean_ns: int
    share: float
    shapes: str
    """Input shapes and dtypes that take most of its time."""
    other_shapes: int
    where: str
    """``file.py:12`` that takes most of its time, empty if unknown."""
    function: str
    lines: int
    """How many lines of code asked for it."""


class HotShape(msgspec.Struct, frozen=True):
    """The kernels of one Type on inputs of the same shapes, over all recorded steps."""

    type: str
    core: str
    shapes: str
    calls: int
    total_ns: int
    mean_ns: int
    share: float
    """Of all compute, 0..1."""


class Condition(msgspec.Struct, frozen=True):
    """What must hold for a rewrite to be equal; ``basis``: source, profile or open."""

    name: str
    text: str
    basis: str


class Saving(msgspec.Struct, frozen=True):
    """What a change is expected to save per step, and why."""

    low_ns: int
    high_ns: int
    basis: str


class Measure(msgspec.Struct, frozen=True):
    """Errors of one compared tensor against a float64 run of the original code."""

    what: str
    dtype: str
    error_original: float
    error_patched: float


class Verdict(msgspec.Struct, frozen=True):
    """What running both versions has shown: equivalent, refuted or not verified."""

    status: str
    ground: str
    scope: str
    reason: str
    cases: int
    measures: list[Measure]
    counterexample: str


class Finding(msgspec.Struct, frozen=True):
    """A slow pattern at a line of the user's code."""

    rule: str
    name: str
    summary: str
    path: str
    line: int
    function: str
    code: str
    replacement: str
    """The new expression, empty if the tool cannot write it."""
    safety: str
    conditions: list[Condition]
    problem: str
    """Why the tool does not write the change; empty if it can."""
    fingerprint: str
    """Stays the same when the code moves to another line."""
    kernels: list[str]
    """Kernel Types that the dump measured at this place."""
    calls: int
    device_ns: int
    share: float
    """Of the step, 0..1."""
    saving: Saving | None
    diff: str = ""
    verdict: Verdict | None = None

    @property
    def place(self) -> str:
        """Return ``file.py:12``."""
        return f"{self.path}:{self.line}"


class Report(msgspec.Struct, frozen=True):
    """A finished diagnosis."""

    tool: str
    headline: str
    dump: str
    source: str
    environment: Environment | None
    split: StepSplit | None
    compute_ns: int
    """Device time of all compute kernels over all recorded steps."""
    attributed: float
    """Share of the compute time that was led to a line of source, 0..1."""
    hot_operators: list[HotOperator]
    hot_shapes: list[HotShape]
    findings: list[Finding]
    problems: list[Problem]
    next_steps: list[str]
    schema: int = SCHEMA_VERSION


class ReportError(Exception):
    """A file that is no report of this version; the message says why."""


def to_json(report: Report) -> str:
    """Return a report as JSON, indented, keys in the order of the fields."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def from_json(text: str | bytes) -> Report:
    """Read a report.

    Raises:
        ReportError: it is no report, or one of another schema version.

    """
    try:
        version = msgspec.json.decode(text, type=_Versioned).schema
        if version != SCHEMA_VERSION:
            raise ReportError(f"report schema {version}, this version reads {SCHEMA_VERSION}")
        return msgspec.json.decode(text, type=Report)
    except msgspec.DecodeError as error:
        raise ReportError(f"not a report: {error}") from error


class _Versioned(msgspec.Struct):
    schema: int
