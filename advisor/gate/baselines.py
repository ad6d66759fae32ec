"""Baseline files: made of runs, read, written, and shown as people read them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.gate.files import read_file
from npufix.advisor.project.gate_settings import METRICS
from npufix.reports import baseline as files
from npufix.reports.baseline import (
    UNITS,
    Baseline,
    BaselineEnvironment,
    BaselineMetric,
    BaselineOperator,
    round_measure,
)
from npufix.reports.measurement import (
    MeasuredFinding,
    MeasuredMetric,
    MeasuredOperator,
    Measurement,
)
from npufix.reports.report import Environment, ReportError, tool
from npufix.rewriters.write.durable import sync
from npufix.rewriters.write.user_error import UserError
from npufix.rules.shared.quantities import percent, quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

WANTED_RUNS = 3
"""With fewer the noise between runs is a guess."""
HOT_OPERATORS = 30
_IN_FILE = {"ns": "us", "bytes": "bytes", "count": "count"}
_IN_MEMORY = {unit: name for name, unit in _IN_FILE.items()}
_LONGEST_SHAPES = 100
_MOST_BYTES = 64 << 20
_BOUNDS = {"": "recorded", "stated": "recorded", "marks": "from mark to mark",
           "kernels": "from kernels"}  # fmt: skip
FACTS = ("chip", "world_size", "cann", "torch", "torch_npu", "profiler_level")
"""What must be the same for numbers to be comparable, where the dumps say it."""
_ENOUGH_FOR_NOISE = 2
_ENOUGH_TIMES = 5
"""So many times agree by luck in no two runs."""
_WIDTH = 80


class BaselineError(UserError):
    """A baseline that cannot be read, written or made: ``message`` and ``remedy``."""


def merge_baseline(
    measurements: Sequence[Measurement], earlier: Baseline | None = None, commit: str = ""
) -> Baseline:
    """Return the baseline of runs, added to that of ``earlier`` runs; their order is no matter.

    The runs should be of one environment (see ``differences``): that of the first is written.
    """
    earlier = earlier or files.empty()
    environment = environment_of(measurements[0]) if measurements else earlier.environment
    if earlier.run_count:
        environment = earlier.environment
    return Baseline(
        tool=tool(),
        commit=commit or earlier.commit,
        environment=environment,
        run_count=earlier.run_count + len(measurements),
        metrics=_metrics(measurements, earlier.metrics),
        hot_ops=_hot_operators(measurements, earlier.hot_ops),
        with_source=all(run.source for run in measurements)
        and (earlier.with_source or not earlier.run_count),
        run_digests=sorted([*earlier.run_digests, *map(digest, measurements)]),
        findings=sorted(
            {*earlier.findings, *(format_finding(f) for run in measurements for f in run.findings)}
        ),
        kernels_save=dict(sorted((earlier.kernels_save | _savings(measurements)).items())),
    )


def _savings(measurements: Sequence[Measurement]) -> dict[str, tuple[float, float]]:
    return {
        found.fingerprint: (round_measure(low / UNITS["us"]), round_measure(high / UNITS["us"]))
        for run in measurements
        for found in run.findings
        if found.kernels_save_ns is not None
        for low, high in [found.kernels_save_ns]
    }


def environment_of(run: Measurement) -> BaselineEnvironment:
    """Return what must be the same for another run to be comparable."""
    recorded = run.environment
    facts = {name: getattr(recorded, name, None) for name in FACTS}
    return BaselineEnvironment(
        **facts,
        profiler="kineto" if run.format == "kineto" else "ascend",
        step_times=_step_times(run),
        simulated=recorded is not None and recorded.simulated is not None,
        ranks=run.ranks,
    )


def _step_times(run: Measurement) -> str:
    said = "of the whole recording" if run.unit == "recording" else _BOUNDS[run.bounds]
    return f"{said}, averages of a report" if run.averaged else said


def differences(one: BaselineEnvironment, other: BaselineEnvironment) -> list[str]:
    """Say what is not the same: ``chip Ascend910B2, now Ascend910B3``.

    A fact that only one of them knows differs too: equal settings record equal facts.
    """
    return [
        f"{name.replace('_', ' ')} {_format_finding(before)}, now {_format_finding(now)}"
        for name in BaselineEnvironment.__struct_fields__
        if (before := getattr(one, name)) != (now := getattr(other, name))
    ]


def _format_finding(value: object) -> str:
    return "not recorded" if value is None else str(value)


def format_finding(finding: MeasuredFinding) -> str:
    """Return how a finding is written in a baseline."""
    return f"{finding.rule}:{finding.path}:{finding.fingerprint}"


def key(operator: MeasuredOperator) -> str:
    """Return the name of an operator in a baseline; many shapes are shortened."""
    shapes = operator.shapes
    if len(shapes) > _LONGEST_SHAPES:
        mark = hashlib.sha256(shapes.encode()).hexdigest()[:8]
        shapes = f"{shapes[:_LONGEST_SHAPES]}... #{mark}"
    return f"{operator.type}|{shapes}"


def by_key(run: Measurement) -> dict[str, tuple[float, float]]:
    """Return time and calls of the operators of a run, on whatever core."""
    sums: dict[str, tuple[float, float]] = {}
    for operator in run.operators:
        spent, calls = sums.get(key(operator), (0.0, 0.0))
        sums[key(operator)] = (spent + operator.total_ns, calls + operator.calls)
    return sums


def _metrics(
    runs: Sequence[Measurement], earlier: Mapping[str, BaselineMetric]
) -> dict[str, BaselineMetric]:
    made = dict(earlier)
    for run in runs:
        for name, metric in run.metrics.items():
            unit = _IN_FILE[metric.unit]
            known = made.get(name) or BaselineMetric(unit, [])
            spreads = [s for s in (known.mad_within, metric.spread) if s is not None]
            made[name] = BaselineMetric(
                unit,
                sorted([*known.runs, round_measure(metric.value / UNITS[unit])]),
                round_measure(max(spreads)) if spreads else None,
            )
    return dict(sorted(made.items()))


def _hot_operators(
    runs: Sequence[Measurement], earlier: Mapping[str, BaselineOperator]
) -> dict[str, BaselineOperator]:
    spent = {name: list(operator.runs) for name, operator in earlier.items()}
    calls = {name: [operator.calls] * len(operator.runs) for name, operator in earlier.items()}
    for run in runs:
        for name, (total, count) in by_key(run).items():
            spent.setdefault(name, []).append(round_measure(total / UNITS["us"]))
            calls.setdefault(name, []).append(round_measure(count))
    hottest = sorted(spent, key=lambda name: (-statistics.median(spent[name]), name))
    return {
        name: BaselineOperator(sorted(spent[name]), round_measure(statistics.median(calls[name])))
        for name in sorted(hottest[:HOT_OPERATORS])
    }


def typical(baseline: Baseline, origin: str = "") -> Measurement:
    """Return a baseline as if it were one run: the medians over its runs."""
    known = baseline.environment
    return Measurement(
        origin=origin,
        environment=Environment(
            rank=None,
            simulated="as the baseline says" if known.simulated else None,
            **{name: getattr(known, name) for name in FACTS},
        ),
        steps=1,
        metrics={
            name: MeasuredMetric(
                statistics.median(metric.values), _IN_MEMORY[metric.unit], metric.mad_within
            )
            for name, metric in baseline.metrics.items()
        },
        operators=sorted(
            (_typical(name, operator) for name, operator in baseline.hot_ops.items()),
            key=lambda item: (-item.total_ns, item.type, item.shapes),
        ),
        findings=[_parse_finding(text) for text in baseline.findings],
        format="kineto" if known.profiler == "kineto" else "",
    )


def _typical(name: str, operator: BaselineOperator) -> MeasuredOperator:
    kind, _, shapes = name.partition("|")
    spent = statistics.median(operator.runs) * UNITS["us"]
    return MeasuredOperator(kind, shapes, "", operator.calls, spent)


def _parse_finding(text: str) -> MeasuredFinding:
    rule, _, rest = text.partition(":")
    path, _, fingerprint = rest.rpartition(":")
    return MeasuredFinding(fingerprint, rule, "", path, 0)


def fingerprints(baseline: Baseline) -> dict[str, str]:
    """Return the findings of a baseline: fingerprint -> ``RULE path``."""
    found = (_parse_finding(text) for text in baseline.findings)
    return {item.fingerprint: f"{item.rule} {item.path}".strip() for item in found}


def read(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        BaselineError: it is not there, cannot be read, or is no baseline.

    """
    return read_file(
        path, _parse, BaselineError, ("baseline", "npufix baseline update DUMP..."), _MOST_BYTES
    )


def _parse(content: bytes) -> Baseline:
    baseline = files.from_json(content)
    check_units(baseline, "not a baseline: ", "write it anew with npufix baseline update")
    return baseline


def check_units(baseline: Baseline, where: str, remedy: str) -> None:
    """Refuse a metric in another unit than it has: a number of it would mean something else.

    Raises:
        ReportError: there is one; it begins with ``where``.

    """
    for name, metric in baseline.metrics.items():
        unit = _IN_FILE[METRICS[name][0]] if name in METRICS else metric.unit
        if metric.unit != unit:
            wrong = f"metrics.{name}.unit is {metric.unit!r}, not {unit!r}"
            raise ReportError(f"{where}{wrong} -- {remedy}")


def digest(run: Measurement) -> str:
    """Return what no two runs have in common: a digest of their exact times.

    A time has nine digits; that all of them agree is a copy and no luck.
    """
    times = sorted((name, each.value) for name, each in run.metrics.items() if each.unit == "ns")
    text = "\n".join(f"{name} {spent:.9g}" for name, spent in times)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def holds(baseline: Baseline, run: Measurement) -> bool:
    """Tell whether a baseline was made of this run, among others, whatever it is called.

    Where a digest was lost, by the numbers that are left: all times agree to their four digits.
    """
    if digest(run) in baseline.run_digests:
        return True
    if len(baseline.run_digests) >= baseline.run_count:
        return False
    known = [(each.runs, run.metrics[name].value) for name, each in baseline.metrics.items()
             if each.unit == "us" and name in run.metrics]  # fmt: skip
    spent = by_key(run)
    known += [(each.runs, spent[name][0]) for name, each in baseline.hot_ops.items()
              if name in spent]  # fmt: skip
    alike = all(round_measure(value / UNITS["us"]) in numbers for numbers, value in known)
    return alike and len(known) >= _ENOUGH_TIMES


def write(path: Path, baseline: Baseline) -> None:
    """Write a baseline file as a whole or not at all.

    Raises:
        BaselineError: it cannot be written.

    """
    beside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            # Nothing can be put in the place of /dev/stdout.
            path.write_text(files.to_json(baseline), encoding="utf-8")
            return
        target = path.resolve()
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        number, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(number, "w", encoding="utf-8", newline="\n") as file:
            file.write(files.to_json(baseline))
        Path(beside).chmod(mode)
        sync(Path(beside))
        Path(beside).replace(target)
    except OSError as error:
        if beside is not None:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
        raise BaselineError(f"{path}: {error.strerror}", "name a file to write") from error


def _umask() -> int:
    """Return which rights new files do not get; there is no other way to ask."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def values(runs: Iterable[Measurement], name: str) -> list[float]:
    """Return one number a run, of the runs that have the metric."""
    return [run.metrics[name].value for run in runs if name in run.metrics]


def show_baseline(baseline: Baseline, top: int | None) -> Iterator[str]:
    """Yield the lines; ``top`` hot operators, ``None`` for all."""
    known = baseline.environment
    facts = {name: getattr(known, name) for name in known.__struct_fields__}
    said = [f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value]
    yield f"made by {baseline.tool}" + (f" of {baseline.commit}" if baseline.commit else "")
    yield from textwrap.wrap(f"environment: {', '.join(said)}", _WIDTH, subsequent_indent="  ")
    yield ""
    yield f"{'metric':<24}{'median':>12}{'lowest':>12}{'highest':>12}{'noise':>9}"
    for name, metric in sorted(baseline.metrics.items()):
        unit = _IN_MEMORY[metric.unit]
        figures = [statistics.median(metric.values), metric.values[0], metric.values[-1]]
        cells = "".join(f"{quantity(figure, unit):>12}" for figure in figures)
        yield f"{name:<24}{cells}{_noise(metric.values):>9}"
    hot = sorted(baseline.hot_ops.items(), key=lambda item: -statistics.median(item[1].runs))
    if hot:
        yield ""
        yield f"{'a step':>12}{'calls':>8}{'noise':>9}  hot operator"
    for name, operator in hot[:top]:
        spent = [number * UNITS["us"] for number in operator.runs]
        text = f"{quantity(statistics.median(spent), 'ns'):>12}{operator.calls:>8.4g}"
        head = f"{text}{_noise(spent):>9}  "
        yield from textwrap.wrap(
            name.replace("|", " ", 1), _WIDTH, initial_indent=head,
            subsequent_indent=" " * len(head), break_on_hyphens=False,
        )  # fmt: skip


def _noise(values: list[float]) -> str:
    if len(values) < _ENOUGH_FOR_NOISE or not statistics.fmean(values):
        return "-"
    return percent(statistics.stdev(values) / statistics.fmean(values))
