"""Two runs side by side, and what explains their difference: the one thing that outputs see.

Times are nanoseconds per step on the device; of a run on several devices, those of one of them.
``None`` is "not known", never nothing.
"""

from __future__ import annotations

import msgspec

from npufix.reports import gate_report, report  # noqa: TC001 - msgspec reads the annotations

SCHEMA_VERSION = 1


class StepTime(msgspec.Struct, frozen=True):
    """One recorded step on one device."""

    step: int | None
    device: int
    computing_ns: int
    exposed_communication_ns: int
    free_ns: int
    left_out: str = ""
    """Why no figure contains it: ``warm-up`` or ``outlier``."""


class Side(msgspec.Struct, frozen=True):
    """One of the two runs."""

    kind: str
    """``dump``, ``report`` or ``baseline``."""
    origin: str
    source: str
    format: str
    environment: report.Environment | None
    steps: int
    """Steady steps that the figures are over; of a baseline, its runs."""
    unit: str
    """``step``, or ``recording`` where the run has no steps."""
    devices: int = 1
    partial: list[report.Problem] = []
    """What is broken in it, so that its figures are not all there is."""
    problems: list[report.Problem] = []
    """What it lacks, or what is wrong with its source."""
    ranks: list[report.Rank] = []
    recorded: list[StepTime] = []
    """All its steps; only of a dump."""


class MetricChange(msgspec.Struct, frozen=True):
    """One number of a run; ``before`` and ``after`` are medians over the steady steps."""

    name: str
    unit: str
    """``ns``, ``bytes`` or ``count``."""
    before: float | None
    after: float | None
    before_spread: float | None
    """Relative median absolute deviation between steps (of a baseline: of its noisiest run)."""
    after_spread: float | None
    verdict: str
    """``larger`` than what the steps of the runs differ by, ``within`` it, or ``unknown``."""


class OperatorChange(msgspec.Struct, frozen=True):
    """The kernels of one Type; of one shape where ``shapes`` is set."""

    type: str
    shapes: str
    communication: bool
    before_ns: int | None
    after_ns: int | None
    before_calls: float | None
    after_calls: float | None


class HostOperatorChange(msgspec.Struct, frozen=True):
    """An operator of PyTorch and the kernels that it asked for, whatever these are called."""

    name: str
    """``aten::mul``; "" for kernels that nothing is known to have asked for."""
    before_ns: int | None
    after_ns: int | None
    before_calls: float | None
    """Of the operator."""
    after_calls: float | None
    before_kernels: float | None
    after_kernels: float | None
    before_dtypes: list[str] = []
    """Of its tensors, the one with the most device time first."""
    after_dtypes: list[str] = []
    before_names: list[str] = []
    """What it is called there, where devices have their own names for it."""
    after_names: list[str] = []


class LineChange(msgspec.Struct, frozen=True):
    """A line of the user's code in both runs, or the changed lines of one function."""

    path: str
    function: str
    state: str
    """``same``; ``moved`` to another line; ``changed``: the lines of the function that differ;
    ``gone``; ``new`` (where the other run does not list all lines: perhaps)."""
    before_lines: list[int]
    after_lines: list[int]
    before_ns: int | None
    after_ns: int | None
    before_calls: float | None
    after_calls: float | None
    before_types: list[str] = []
    """The Types that take most of its time."""
    after_types: list[str] = []


class FindingChange(msgspec.Struct, frozen=True):
    """A finding in both runs, or in one of them."""

    fingerprint: str
    rule: str
    name: str
    path: str
    function: str
    state: str
    """``gone``, ``new`` or ``still there``."""
    before_line: int | None
    after_line: int | None
    before_ns: int | None
    """Device time at the place."""
    after_ns: int | None


class Prediction(msgspec.Struct, frozen=True):
    """What applied changes were said to save, and what the device time of the place became.

    Findings of one function are measured together: their kernels cannot be told apart.
    """

    rules: list[str]
    path: str
    """"" in the sum of all."""
    function: str
    lines: list[int]
    low_ns: int
    high_ns: int
    measured_ns: int
    """What was saved in fact; negative where it got slower."""
    verdict: str
    """``held``, ``saved more`` or ``saved less`` (by more than 2 % of ``before_ns``)."""
    before_ns: int
    """Of the kernels at the place whose number changed."""
    after_ns: int
    basis: str
    """Where the prediction comes from."""
    decided: str
    """How it was seen that the change is applied, a sentence."""


class Explanation(msgspec.Struct, frozen=True):
    """What the difference is made of: the parts, the others and the unexplained sum up to it."""

    of: str
    """``step``, ``recording`` or, where its length is unknown, ``compute``."""
    before_ns: int
    after_ns: int
    parts: list[gate_report.Change]
    """Three at most, the largest first."""
    others_ns: int
    """The sum of all smaller parts."""
    others: int
    """How many these are."""
    unexplained_ns: int
    """What no part is known for: kernels that ran at the same time, what a report leaves out."""
    lines: list[str]
    """The parts in words."""

    @property
    def difference_ns(self) -> int:
        """Return after less before."""
        return self.after_ns - self.before_ns


class Comparison(msgspec.Struct, frozen=True):
    """A finished comparison."""

    tool: str
    headline: str
    before: Side
    after: Side
    differences: list[str]
    """In what the runs differ beside their times: chip, versions, ranks; each a sentence."""
    notes: list[str]
    """What to keep in mind about the figures, each a sentence."""
    explanation: Explanation | None
    metrics: list[MetricChange]
    operators: list[OperatorChange]
    shapes: list[OperatorChange]
    lines: list[LineChange]
    host_operators: list[HostOperatorChange]
    findings: list[FindingChange]
    predictions: list[Prediction]
    predicted: Prediction | None
    """All applied changes together; None where there is none."""
    across_devices: bool = False
    """A GPU against an NPU: kernels have other names, so host operators are compared."""
    schema: int = SCHEMA_VERSION
