"""What a comparison says in sentences: the answer, how the runs differ, what to keep in mind."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from npufix.reports.wording.comparison import METRIC_NAMES, relative
from npufix.rules.shared.quantities import format_count, milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.advisor.compare.side import ComparedRun
    from npufix.reports.comparison import (
        Explanation,
        HostOperatorChange,
        MetricChange,
        OperatorChange,
        Prediction,
    )
    from npufix.reports.gate_report import Change

_FACTS = {
    "chip": "chip",
    "cann": "CANN",
    "torch": "torch",
    "torch_npu": "torch_npu",
    "world_size": "world size",
    "rank": "rank",
    "profiler_level": "profiler level",
    "simulated": "simulated",
}
_ALIKE = 0.5
_MOST = 0.5
_FEW_STEPS = 3
_WAITS = 0.1
"""Of what was saved: with less more waiting, the step has got shorter by about as much."""
_RATIO = 0.02
"""Ratios of batch sizes closer than that are one."""


def different_programs(
    operators: Sequence[OperatorChange | HostOperatorChange], metrics: Sequence[MetricChange]
) -> str:
    """Say that the runs are of different programs, "" where one of them mostly does the same.

    One: where a hot operator was replaced, the run without it does little that the other does not.
    """
    rows = [row for row in operators if not getattr(row, "communication", False)]
    shares = []
    for side, other in (("before_ns", "after_ns"), ("after_ns", "before_ns")):
        times = [getattr(row, side) for row in rows]
        if None in times or not sum(times):
            return ""
        shares.append(sum(getattr(row, side) for row in rows if getattr(row, other)) / sum(times))
    if max(shares) >= _ALIKE:
        return ""
    share = percent(max(shares))
    said = f"These are different programs: only {share} of the compute time is in common operators."
    for metric in metrics:
        if metric.name == "step-time" and metric.before and metric.after:
            one, other = milliseconds(metric.before), milliseconds(metric.after)
            return f"{said} A step takes {one} in the first and {other} in the second run."
    return said


def headline(
    before: ComparedRun,
    explanation: Explanation | None,
    metrics: Sequence[MetricChange],
    *,
    across_devices: bool,
) -> str:
    """Return the answer in one sentence."""
    if explanation is None:
        return _of_metrics(metrics)
    start, end = explanation.before_ns, explanation.after_ns
    name = {"compute": "Compute time"}.get(explanation.of, explanation.of.capitalize())
    times = f"{name} {milliseconds(start)} -> {milliseconds(end)}"
    if not start or start == end:
        return f"{times}: no difference."
    change = f"{times} ({relative(start, end)})"
    if across_devices:
        gpu, npu = (start, end) if before.shown.format == "kineto" else (end, start)
        ratio = npu / gpu if gpu else 0.0
        change = f"{times} (the NPU takes {ratio:.3g} times as long as the GPU)"
    verdict = next((m.verdict for m in metrics if m.name == "step-time"), "unknown")
    if verdict == "within" and not across_devices:
        return f"{change}, within what the steps of these runs differ by anyway."
    # What works in the other direction explains nothing.
    along = [p for p in explanation.parts if (_change(p) > 0) == (end > start)]
    if not along or abs(_change(along[0])) <= abs(explanation.unexplained_ns):
        left = milliseconds(abs(explanation.unexplained_ns))
        return f"{change}; {left} of {milliseconds(abs(end - start))} cannot be explained."
    part = along[0]
    if abs(_change(part)) > abs(end - start):
        against = (p for p in explanation.parts if _change(p) and p not in along)
        back = next((f"; {_format_change(p)} by {p.what}" for p in against), "")
        return f"{change}: {_format_change(part)} by {part.what}{back}."
    spent = f"{milliseconds(abs(_change(part)))} of {milliseconds(abs(end - start))}"
    return f"{change}; {part.what} explains {spent}."


def _format_change(part: Change) -> str:
    sign = "+" if _change(part) > 0 else "-"
    return f"{sign}{milliseconds(abs(_change(part)))}"


def _change(part: Change) -> float:
    return part.after_ns - part.before_ns


def _of_metrics(metrics: Sequence[MetricChange]) -> str:
    for metric in metrics:
        if metric.unit == "ns" and metric.before and metric.after is not None:
            times = f"{milliseconds(metric.before)} -> {milliseconds(metric.after)}"
            name = METRIC_NAMES.get(metric.name, metric.name).capitalize()
            return f"{name} {times} ({relative(metric.before, metric.after)})."
    return "Nothing is known about the time of both runs."


def differences(before: ComparedRun, after: ComparedRun) -> list[str]:
    """Say in what the runs differ beside their times, where both say it."""
    found = []
    one, other = before.shown, after.shown
    if one.environment is not None and other.environment is not None:
        for field, name in _FACTS.items():
            values = [getattr(side.environment, field) for side in (one, other)]
            both = None not in values or field == "simulated"
            if both and bool(values[0]) == bool(values[1]) and field == "simulated":
                continue
            if both and values[0] != values[1]:
                said = [_format_value(field, value) for value in values]
                found.append(f"{name} {said[0]} -> {said[1]}")
    if one.format and other.format and one.format != other.format:
        found.append(f"format {one.format} -> {other.format}")
    if one.devices != other.devices:
        found.append(f"devices {one.devices} -> {other.devices}")
    if len(one.ranks) != len(other.ranks):
        found.append(f"ranks recorded {len(one.ranks) or 1} -> {len(other.ranks) or 1}")
    return found


def _format_value(field: str, value: object) -> str:
    return str(bool(value)).lower() if field == "simulated" else str(value)


def notes(
    before: ComparedRun,
    after: ComparedRun,
    metrics: Sequence[MetricChange],
    *,
    across_devices: bool,
) -> list[str]:
    """Say what to keep in mind about the figures."""
    return [
        *_about_steps(before, after, metrics),
        *_about_tables(before, after, across_devices=across_devices),
        *_about_sources(before, after),
        *_about_batch(before, after),
    ]


def about_the_host(saved: Prediction | None, explanation: Explanation | None) -> list[str]:
    """Say so if the device waits for the host in the time that changes have freed."""
    if saved is None or explanation is None:
        return []
    free = next((_change(p) for p in explanation.parts if p.kind == "free time"), 0.0)
    if saved.measured_ns <= 0 or free < _WAITS * saved.measured_ns:
        return []
    spent = f"{milliseconds(saved.measured_ns)} of kernels"
    waits = f"the device waits {milliseconds(free)} longer"
    return [f"The changes save {spent}, but {waits}: the host limits the step now"]


def _about_steps(
    before: ComparedRun, after: ComparedRun, metrics: Sequence[MetricChange]
) -> Iterator[str]:
    sides = before.shown, after.shown
    if {side.unit for side in sides} == {"step", "recording"}:
        which = "first" if before.shown.unit == "recording" else "second"
        yield (
            f"The {which} run has no steps: its whole recording stands against one step of the"
            " other; --steps-before and --steps-after say how many it holds"
        )
    if any(side.devices > 1 for side in sides):
        yield "Times are those of one device, the mean over all"
    step = next((m for m in metrics if m.name == "step-time"), None)
    if step is None or step.before is None or step.after is None:
        return
    if any(side.kind == "report" for side in sides):
        yield "A report holds means only, so nothing says how its steps differ among themselves"
        return
    if any(side.kind == "dump" and side.steps < _FEW_STEPS for side in sides):
        fewest = min(side.steps for side in sides if side.kind == "dump")
        yield (
            f"{format_count(fewest, 'step')} cannot tell a difference from noise; profile at least"
            f" {_FEW_STEPS} behind the warm-up"
        )
        return
    if all(side.kind == "dump" for side in sides):
        yield (
            "Steps of one run share its luck (clock, memory, neighbours), so they are not"
            " independent: only several runs of each tell a small difference from noise"
            " (npufix gate)"
        )


def _about_tables(
    before: ComparedRun, after: ComparedRun, *, across_devices: bool
) -> Iterator[str]:
    runs = before, after
    for which, run in zip(("first", "second"), runs, strict=True):
        if run.shown.kind != "dump":
            yield (
                f"The {which} run is a {run.shown.kind}: it holds the hottest operators only,"
                ' so what it does not list is "—", and there are no host operators'
            )
        elif not run.types.complete:
            yield (
                f"The {which} dump is broken: kernels may be missing in it, so what it does not"
                ' hold is "—"'
            )
    if across_devices:
        yield (
            "Kernels of a GPU and of an NPU have other names, so the operators of PyTorch that"
            " asked for them are compared"
        )
    if not (before.knows_findings and after.knows_findings):
        yield (
            "Findings are not compared: that takes the source of both runs (--source-before,"
            " --source-after)"
        )


def _about_sources(before: ComparedRun, after: ComparedRun) -> Iterator[str]:
    for which, run in (("first", before), ("second", after)):
        tree = run.tree
        for problem in run.shown.problems:
            if tree is not None and problem.where == str(tree.root):
                yield f"The {which} run: {problem.what}"


def _about_batch(before: ComparedRun, after: ComparedRun) -> Iterator[str]:
    """Say so if most operators have larger inputs, or run more often, by one factor."""
    sizes = [_first_sizes(run) for run in (before, after)]
    if (ratio := _common_ratio(*sizes)) is not None:
        yield (
            f"The inputs of most operators are {ratio:g} times as long in their first dimension in"
            " the second run: the batch differs, and nothing is scaled for it"
        )
    if (ratio := _common_ratio(_calls(before), _calls(after))) is not None:
        yield (
            f"Most operators run {ratio:g} times as often in a step of the second run: its steps"
            " are not those of the first (gradient accumulation, steps that were not marked)"
        )


def _common_ratio(
    before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]]
) -> float | None:
    """Return by what most numbers differ, weighed by time; None if by nothing in common."""
    weights: dict[float, float] = defaultdict(float)
    for name in before.keys() & after.keys():
        (one, spent), (other, other_spent) = before[name], after[name]
        if one > 0 and other > 0:
            weights[float(f"{other / one:.3g}")] += min(spent, other_spent)
    ratio = max(sorted(weights), key=lambda value: weights[value], default=1.0)
    is_common = weights[ratio] > _MOST * sum(weights.values())
    return ratio if is_common and abs(ratio - 1) > _RATIO else None


def _calls(run: ComparedRun) -> dict[str, tuple[float, float]]:
    """Return for each host operator how often it runs, and its time."""
    if run.cells is None or run.host_calls is None:
        return {}
    spent = run.cells.groupby("host")["total_ns"].sum()
    return {
        str(name): (float(calls), float(spent.get(name, 0.0)))
        for name, calls in run.host_calls.items()
    }


def _first_sizes(run: ComparedRun) -> dict[str, tuple[float, float]]:
    """Return for each host operator the first size of its hottest input, and its time."""
    if run.cells is None:
        return {}
    known = run.cells[(run.cells["host"] != "") & run.cells["shapes"].str.match(r"\d")]
    known = known.assign(size=known["shapes"].str.extract(r"^(\d+)")[0].astype("int64"))
    sums = known.groupby(["host", "size"])["total_ns"].sum().reset_index()
    sums = sums.sort_values("total_ns", kind="stable").drop_duplicates("host", keep="last")
    return {
        str(host): (float(size), float(spent))
        for host, size, spent in zip(sums["host"], sums["size"], sums["total_ns"], strict=True)
    }
