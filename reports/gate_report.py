"""What the gate decided, and why: the one thing that its outputs see."""

from __future__ import annotations

import msgspec

from npufix.reports import report  # noqa: TC001 - msgspec reads the annotations

SCHEMA_VERSION = 1


class Change(msgspec.Struct, frozen=True):
    """One part of a run that explains a difference; per step."""

    what: str
    """``MatMulV2 on 4096,5120;5120,5120`` or ``model/mlp.py:12``."""
    kind: str
    """``operator``, ``shape``, ``line``, ``communication``, ``free time`` or ``finding``."""
    before_ns: float
    after_ns: float
    calls_before: float = 0.0
    calls_after: float = 0.0


class GatedMetric(msgspec.Struct, frozen=True):
    """One metric, before and now."""

    name: str
    """``step-time``; of a hot operator ``hot-ops: MatMulV2 4096,5120``."""
    level: str
    """``error`` fails the gate, ``warn`` only says so."""
    unit: str
    """``ns``, ``bytes`` or ``count``."""
    verdict: str
    """``ok``, ``regression``, ``over budget``, ``improvement``, ``accepted``, ``inconclusive``
    or ``new`` (not in the baseline)."""
    reason: str
    """One sentence with the figures."""
    baseline: list[float] = []
    """One number a run."""
    current: list[float] = []
    before: float | None = None
    """The median over the runs."""
    after: float | None = None
    change: float | None = None
    """Relative."""
    noise: float | None = None
    """Relative standard deviation between runs that do not differ, None if unknown."""
    detectable: float | None = None
    """The smallest relative change that the gate could have seen with these runs."""
    p_value: float | None = None
    """After Holm's correction over all tested metrics; None where there was no test."""
    tolerance: float = 0.0
    """Relative; what was used, so wider where there are few runs."""
    floor: float = 0.0
    """In the unit of the metric."""
    budget: float | None = None
    why: list[Change] = []
    """What explains the change, the most important first."""
    history: list[float] = []
    """Of earlier runs on such a machine, the oldest first, and last the median of these."""


class MadeChange(msgspec.Struct, frozen=True):
    """What the findings that are gone were said to save, and what the kernels save in fact."""

    rules: list[str]
    findings: int
    low_ns: int
    high_ns: int
    measured_ns: int
    """Of the compute time per step, medians over the runs; negative where it got slower."""
    verdict: str
    """``held``, ``saved more`` or ``saved less`` (by more than 2 % of the compute time)."""


class GateReport(msgspec.Struct, frozen=True):
    """A finished comparison of runs with their baseline, or of a source with its."""

    tool: str
    verdict: str
    """``pass``, ``fail`` or ``inconclusive``."""
    headline: str
    """The one line that matters."""
    exit_status: int
    baseline: str
    """The file, "" if there is none (budgets only)."""
    runs: list[str]
    """The dumps that were gated; empty of a static gate."""
    environment: report.Environment | None
    metrics: list[GatedMetric]
    new_findings: list[report.Finding] = []
    """Findings that the baseline does not hold and that no configuration accepts."""
    accepted_findings: list[report.Finding] = []
    gone: list[str] = []
    """Fingerprints of the baseline that are not found any more, with rule and place."""
    made: MadeChange | None = None
    """None where no finding is gone, others have come, or nothing was predicted of them."""
    explanation: list[str] = []
    """Three lines at most: what explains the difference of the step time."""
    reasons: list[str] = []
    """Why the gate failed or could not decide, each a sentence."""
    problems: list[report.Problem] = []
    source: str = ""
    """The source that was searched, "" if there was none."""
    known: int = 0
    """How many findings the baseline holds."""
    paired: bool = False
    """Each run was taken in turn with one of the baseline, and compared with that one."""
    next_steps: list[str] = []
    """Commands: how to take what was found into the baseline, how to see more."""
    schema: int = SCHEMA_VERSION
