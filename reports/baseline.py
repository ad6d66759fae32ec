"""The baseline of a gate: a small file that people review in a pull request.

Sorted, rounded to four digits, one number a run and metric; no names of machines, no dates.
Numbers of one metric are in ascending order, not in that of the runs, so that it does not matter
in which order runs are added. Fields that this version does not know are left alone by readers
(a later version may add some); a file of another schema is refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from npufix.reports.encoding import encode, without_mark
from npufix.reports.report import ReportError, tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEMA_VERSION = 1

UNITS = {"us": 1_000.0, "bytes": 1.0, "count": 1.0}
"""Of a number in the file, and what it is times that in ``ns``, ``bytes`` and ``count``."""
_DIGITS = 4
_LONGEST_STEP_US = 86_400e6
"""A day."""
_POSITIVE = ("step-time", "compute")
_MOST_STREAMS = 100
"""Kernels that run at once: a step in which they take more than that many times as long is none."""
_UPDATE = "write it anew with npufix baseline update"


class BaselineEnvironment(msgspec.Struct, frozen=True, omit_defaults=True):
    """What must be the same for numbers to be comparable; None where the dumps do not say."""

    chip: str | None = None
    world_size: int | None = None
    cann: str | None = None
    torch: str | None = None
    torch_npu: str | None = None
    profiler_level: str | None = None
    profiler: str = "ascend"
    """``ascend`` or ``kineto``, whatever it exports to."""
    step_times: str = "recorded"
    """``recorded`` by the profiler; ``from mark to mark`` of the host; ``from kernels``: from the
    first to the last; or ``of the whole recording``, where no step is marked: then runs must hold
    equally many. ``..., averages of a report``: and not medians of steps."""
    ranks: int = 1
    """So many dumps were in a run."""
    simulated: bool = False
    """No device has run it."""


class BaselineMetric(msgspec.Struct, frozen=True):
    """One metric."""

    unit: str
    """``us``, ``bytes`` or ``count``; per step."""
    runs: list[float]
    """One number a run, ascending."""
    mad_within: float | None = None
    """The largest relative median absolute deviation between the steps of a run."""
    better: str = "lower"

    @property
    def values(self) -> list[float]:
        """Return the numbers in ``ns``, ``bytes`` or ``count``."""
        return [number * UNITS[self.unit] for number in self.runs]


class BaselineOperator(msgspec.Struct, frozen=True):
    """A hot operator: its time in a step in microseconds, one number a run, ascending."""

    runs: list[float]
    calls: float
    """In a step; the median over the runs."""


class Baseline(msgspec.Struct, frozen=True):
    """What later runs are compared with."""

    tool: str
    commit: str
    """Of the program, as the user gave it; "" if unknown."""
    environment: BaselineEnvironment
    run_count: int
    metrics: dict[str, BaselineMetric]
    hot_ops: dict[str, BaselineOperator]
    """By ``Type|shapes and dtypes``."""
    findings: list[str]
    """``RULE:path:fingerprint``, sorted."""
    with_source: bool = False
    """Whether findings in code were looked for in every run."""
    run_digests: list[str] = []
    """Of the exact numbers of each run, sorted: no two runs have the same."""
    kernels_save: dict[str, tuple[float, float]] = {}
    """By fingerprint: what the kernels of a finding are said to save per step, microseconds, at
    least and at most; of the last run that had it."""
    schema: int = SCHEMA_VERSION


class _Versioned(msgspec.Struct):
    schema: int
    headline: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Only reports have one."""


def round_measure(value: float) -> float:
    """Return a number with four significant digits; a whole one where it has no fraction."""
    if not value:
        return 0
    kept = float(f"{value:.{_DIGITS}g}")
    return int(kept) if kept.is_integer() else kept


def empty(environment: BaselineEnvironment | None = None) -> Baseline:
    """Return the baseline of no run."""
    return Baseline(tool(), "", environment or BaselineEnvironment(), 0, {}, {}, [])


def to_json(baseline: Baseline) -> str:
    """Return a baseline as JSON: sorted and indented, a list of numbers on one line each."""
    plain = msgspec.to_builtins(baseline)
    plain["metrics"] = dict(sorted(plain["metrics"].items()))
    plain["hot_ops"] = dict(sorted(plain["hot_ops"].items()))
    if not plain["kernels_save"]:
        del plain["kernels_save"]
    head = {"schema": plain.pop("schema"), **plain}
    parts = [f"  {_text(key)}: {_value(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _value(value: object) -> str:
    """Write a table with one line an entry: what changed is one line of a review."""
    if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
        rows = [f"    {_text(key)}: {_text(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n  }"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {_text(item)}" for item in value) + "\n  ]"
    return _text(value)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(k)}: {_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return encode(value).decode()


def from_json(text: str | bytes) -> Baseline:
    """Read a baseline.

    Raises:
        ReportError: it is none, is cut off, is of another schema, or holds impossible numbers.

    """
    try:
        text = without_mark(text)
        head = msgspec.json.decode(text, type=_Versioned)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"not a baseline: {error} -- {_UPDATE}") from error
    if head.headline is not msgspec.UNSET:
        remedy = "make one of it with npufix baseline update REPORT -o FILE"
        raise ReportError(f"a report, not a baseline -- {remedy}")
    schema = head.schema
    if schema > SCHEMA_VERSION:
        raise ReportError(
            f"baseline schema {schema} is newer than {SCHEMA_VERSION}, the newest that {tool()}"
            " reads -- install the npufix that wrote it, or newer"
        )
    if schema != SCHEMA_VERSION:
        raise ReportError(f"there never was a baseline schema {schema} -- {_UPDATE}")
    try:
        baseline = msgspec.json.decode(text, type=Baseline)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"not a baseline: {error} -- {_UPDATE}") from error
    wrong = next(find_faults(baseline), None) if baseline.run_count else "it holds no run"
    if wrong:
        raise ReportError(f"not a baseline: {wrong} -- {_UPDATE}")
    return baseline


def find_faults(baseline: Baseline) -> Iterator[str]:
    """Say what no run can have measured."""
    if baseline.run_count < 0:
        yield f"run_count is {baseline.run_count}"
    if not baseline.metrics:
        yield "it holds no metric"
    for name, metric in baseline.metrics.items():
        yield from _wrong_metric(f"metrics.{name}", metric, baseline.run_count)
    if baseline.metrics and baseline.run_count > (
        most := max(len(metric.runs) for metric in baseline.metrics.values())
    ):
        yield f"run_count is {baseline.run_count}, and no metric holds more than {most} numbers"
    yield from _other_units(baseline)
    for name, operator in baseline.hot_ops.items():
        yield from _wrong_runs(f"hot_ops.{name}", operator.runs, baseline.run_count)
        if not _is_size(operator.calls):
            yield f"hot_ops.{name}.calls is {operator.calls}"
    for text in baseline.findings:
        if len(text.split(":")) < len(("rule", "path", "fingerprint")):
            yield f"findings holds {text!r}, not RULE:path:fingerprint"


def _other_units(baseline: Baseline) -> Iterator[str]:
    step, compute = (baseline.metrics.get(name) for name in _POSITIVE)
    if (
        step
        and compute
        and max(compute.runs, default=0) > _MOST_STREAMS * max(step.runs, default=0)
    ):
        yield f"metrics.compute is more than {_MOST_STREAMS} times metrics.step-time"


def _wrong_metric(where: str, metric: BaselineMetric, count: int) -> Iterator[str]:
    if metric.unit not in UNITS:
        yield f"{where}.unit is {metric.unit!r}, not {', '.join(UNITS)}"
    if metric.better != "lower":
        yield f"{where}.better is {metric.better!r}, not 'lower'"
    if metric.mad_within is not None and not _is_size(metric.mad_within):
        yield f"{where}.mad_within is {metric.mad_within}"
    yield from _wrong_runs(where, metric.runs, count)
    for number in metric.runs:
        if metric.unit == "us" and number > _LONGEST_STEP_US:
            yield f"{where}.runs holds {number:.4g} µs, more than a day a step"
        if not number and where.endswith(_POSITIVE):
            yield f"{where}.runs holds 0: nothing was measured"


def _wrong_runs(where: str, runs: Sequence[float], count: int) -> Iterator[str]:
    if not 0 < len(runs) <= count:
        yield f"{where}.runs holds {len(runs)} numbers of {count} runs"
    for number in runs:
        if not _is_size(number):
            yield f"{where}.runs holds {number}"


def _is_size(number: float) -> bool:
    return math.isfinite(number) and number >= 0
