"""The one thing that every output and the gate see: a finished diagnosis.

Times are nanoseconds on the device. Unless a field says otherwise they are per step; a dump
without a schedule counts as one step.
"""

from __future__ import annotations

import msgspec

from npufix.profiling_parsers.profile import Problem
from npufix.reports.encoding import encode_indented
from npufix.reports.prediction import Critical, Forecast, Headroom, Prediction
from npufix.rewriters.verification.verdict import Launches, Measure, Synchronisations, Times, Tried
from npufix.rules.diagnostic import Place

__all__ = [
    "Critical", "Forecast", "Headroom", "Launches", "Measure", "Place", "Prediction", "Problem",
    "Synchronisations", "Times", "Tried",
]  # fmt: skip

SCHEMA_VERSION = 2
_SMALL = 0.001


class Environment(msgspec.Struct, frozen=True):
    """The profiled machine; ``None`` where the dump does not say."""

    rank: int | None
    world_size: int | None
    torch_npu: str | None
    cann: str | None
    profiler_level: str | None
    simulated: str | None
    torch: str | None = None
    chip: str | None = None
    devices: list[int] = []
    """Device ids of the kernels; empty if the dump does not say."""


class LeftOutStep(msgspec.Struct, frozen=True):
    """A step that no average contains."""

    step: int | None
    total_ns: int
    reason: str
    """``warm-up`` or ``outlier``."""
    ratio: float
    """Of its length to that of a typical step."""


class StepSplit(msgspec.Struct, frozen=True):
    """Where the time of an average step goes."""

    steps: int
    """How many steps the average is taken over."""
    total_ns: int
    computing_ns: int
    exposed_communication_ns: int
    free_ns: int
    overlapped_ns: int = 0
    """Communication hidden behind computing; part of ``computing_ns``."""
    left_out: list[LeftOutStep] = []
    recorded_steps: int = 1
    """How many steps the totals of the report are over."""
    preparing_ns: int = 0
    """Before the first kernel: loading, copies, the first launch; part of ``free_ns``."""
    unit: str = "step"
    """``recording`` where the dump has no steps: then all times "per step" are those of it."""
    bounds: str = ""
    """From where to where a step lasts: ``marks`` of the host, as ``stated`` by the profiler, or
    ``kernels``, from the first to the last."""


class Rank(msgspec.Struct, frozen=True):
    """One rank of a cluster, per steady step; times are ``None`` where the dump does not say."""

    rank: int | None
    dump: str
    computing_ns: int | None
    exposed_communication_ns: int | None
    free_ns: int | None
    problem: str = ""
    diagnosed: bool = False
    readable: bool = True
    """Whether it can be diagnosed; otherwise its small files are all there is."""
    role: str = ""
    """Why it was read as a whole: slowest, fastest, median, outlier, asked; "" if it was not."""
    host: str = ""
    """Name of its machine, "" if the dump does not say."""


class RankSteps(msgspec.Struct, frozen=True):
    """Where each rank spends each step: one row a rank, as ``Report.ranks``, one number a step.

    ``None`` where a rank did not record the step.
    """

    steps: list[int | None]
    computing_ns: list[list[int | None]]
    exposed_communication_ns: list[list[int | None]]
    free_ns: list[list[int | None]]


class HotOperator(msgspec.Struct, frozen=True):
    """The kernels of one Type on one core; ``share`` is that of all compute, 0..1."""

    type: str
    core: str
    calls: int
    """Over all recorded steps."""
    total_ns: int
    """Over all recorded steps."""
    mean_ns: int
    """Over the steady steps, as ``p50_ns``, ``p95_ns`` and ``max_ns``."""
    share: float
    shapes: str
    """Input shapes and dtypes that take most of its time."""
    other_shapes: int
    where: str
    """``file.py:12`` that takes most of its time, empty if unknown."""
    function: str
    lines: int
    """How many lines of code asked for it."""
    share_of_step: float = 0.0
    """Of the average step, 0..1; 0 where the length of a step is unknown."""
    p50_ns: int = 0
    p95_ns: int = 0
    max_ns: int = 0
    bound: str = ""
    """The pipe that limits most of its time: cube, vector, mte, scalar; or none; "" unknown."""
    bound_ratio: float | None = None
    """Share of the duration in which that pipe, or the busiest, is busy, 0..1."""
    via: str = ""
    """The library function that the line called."""
    critical: Critical | None = None
    """Per step; ``None`` where the run cannot be replayed."""


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
    p50_ns: int = 0
    p95_ns: int = 0
    max_ns: int = 0
    bound: str = ""


class HotLine(msgspec.Struct, frozen=True):
    """A line of the user's code and the kernels it asked for, over all recorded steps."""

    path: str
    line: int
    function: str
    level: str
    """``line``: the executing line; ``function``: only the function is known."""
    via: str
    """The library function that the line called, "" if it called the operator itself."""
    calls: int
    total_ns: int
    share: float
    """Of all compute, 0..1."""
    types: list[str]
    """Types that take most of its time, the first the most."""
    critical: Critical | None = None
    """Per step; ``None`` where the run cannot be replayed."""


class HotModule(msgspec.Struct, frozen=True):
    """An nn.Module and the kernels it asked for, over all recorded steps."""

    module: str
    calls: int
    total_ns: int
    share: float
    types: list[str]


class HotCollective(msgspec.Struct, frozen=True):
    """A collective and what its time goes to, over all recorded steps."""

    name: str
    kind: str
    """``collective`` or ``p2p``."""
    group: str
    calls: int
    elapse_ns: int
    transit_ns: int
    wait_ns: int
    """For the other ranks."""
    idle_ns: int
    """In which it neither moves data nor waits."""
    size_bytes: int
    """Of its operand, of one call; -1 if the dump does not say."""
    gb_per_s: float | None = None
    """On the transport that moved most of its data, if the dump says so."""


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


class Verdict(msgspec.Struct, frozen=True):
    """What running both versions has shown: equivalent, refuted or not verified."""

    status: str
    ground: str
    scope: str
    reason: str
    cases: int
    measures: tuple[Measure, ...]
    counterexample: str
    on: str = "reference"
    """The ground: npu, virtual-npu, reference, or none where nothing could run."""
    script: str = ""
    """The counterexample as a Python program, "" if there is none."""
    launches: Launches | None = None
    """None where nothing records them."""
    times: Times | None = None
    """None but on a real device."""
    worth: str = ""
    """What decided whether an equal change is offered, with its figures; "" if nothing had to."""
    notes: tuple[str, ...] = ()
    """Differences that refute nothing, as no ordinary caller sees them; why there is no script."""
    tried: Tried | None = None
    """None where nothing ran."""
    synchronisations: Synchronisations | None = None
    """None where they were not counted."""


ASKER = "asked for by"
"""Name of the fact that says what of C++ asks for kernels that no line of the program does."""
CAUSE = "cause"
"""Name of the fact that says which finding is why a rank is late."""


class Fact(msgspec.Struct, frozen=True):
    """A number behind a finding."""

    name: str
    value: str


class Finding(msgspec.Struct, frozen=True):
    """A slow pattern at a line of the user's code, or (``kind``) one of the run as a whole."""

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
    kind: str = "code"
    """``code`` or ``run``."""
    what: str = ""
    """The fact with its numbers, for a finding about the run."""
    advice: str = ""
    evidence: list[Fact] = []
    places: list[Place] = []
    ranks: list[int] = []
    """The ranks that a finding about a cluster is about, the worst first."""
    overlap: str = ""
    """Which finding before it is about the same time, "" if none: ``the same 20.1 ms as 1``."""
    kernel_saving: Saving | None = None
    """Of the time of its kernels alone, where ``saving`` is what a replay says of the step."""
    predicted: Prediction | None = None
    """The step with this change alone; ``None`` where it cannot be replayed."""
    unpredicted: str = ""
    """Why it cannot be replayed, "" where it was or where there is no run."""

    @property
    def place(self) -> str:
        """Return ``file.py:12``, "" for a finding that has no line."""
        return f"{self.path}:{self.line}" if self.path else ""

    @property
    def said_safety(self) -> str:
        """Return how safe it is in words: what a recording proves holds for its calls."""
        recorded = any(condition.basis == "profile" for condition in self.conditions)
        return "safe for the recorded calls" if self.safety == "safe" and recorded else self.safety

    @property
    def is_small(self) -> bool:
        """Whether it is about less than a thousandth of the step, and told in one line."""
        return 0 < self.share < _SMALL and self.verdict is None


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
    format: str = ""
    """Of the dump: ascend-text, ascend-db, msprof, trace or kineto."""
    attributed_to_functions: float = 0.0
    """Share of the compute time that was led to a function only, 0..1."""
    attributed_by_operators: float = 0.0
    """Share of the compute time on ``hot_lines`` where they come from the sums of the operators
    (operator_details), because no kernel is led to a line; ``types`` then are host operators."""
    hot_lines: list[HotLine] = []
    hot_modules: list[HotModule] = []
    hot_collectives: list[HotCollective] = []
    ranks: list[Rank] = []
    """All ranks, where the dump holds several."""
    rank_steps: RankSteps | None = None
    skipped_rules: list[Fact] = []
    """Rules that the versions of this run do not allow, and why."""
    not_recorded: list[Fact] = []
    """What the dump does not hold, and what cannot be said for want of it."""
    collect: str = ""
    """The code that would collect what is missing, "" if nothing is."""
    forecast: Forecast | None = None
    """What the changes would gain; ``None`` without a dump."""
    headroom: Headroom | None = None
    """What the kernels take above the bounds of the chip; ``None`` where nobody asked for it."""
    schema: int = SCHEMA_VERSION

    def cut(self, rows: int) -> Report:
        """Return the report with only so many hot operators, shapes, lines and so on."""
        return msgspec.structs.replace(
            self,
            hot_operators=self.hot_operators[:rows],
            hot_shapes=self.hot_shapes[:rows],
            hot_lines=self.hot_lines[:rows],
            hot_modules=self.hot_modules[:rows],
            hot_collectives=self.hot_collectives[:rows],
            headroom=self.headroom.cut(rows) if self.headroom else None,
        )


class ReportError(Exception):
    """A file that is no report of this version; the message says why."""


def tool() -> str:
    """Return the name and version of this program."""
    from importlib.metadata import version

    return f"npufix {version('npufix')}"


def to_json(report: Report) -> str:
    """Return a report as JSON, indented, keys in the order of the fields."""
    return encode_indented(report)


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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"not a report: {error}") from error


class _Versioned(msgspec.Struct):
    schema: int
