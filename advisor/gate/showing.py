"""A baseline as people read it."""

from __future__ import annotations

import statistics
import textwrap
from typing import TYPE_CHECKING

from npufix.advisor.project.units import format_amount, percent
from npufix.reports.baseline import UNITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.reports.baseline import Baseline

_IN_MEMORY = {"us": "ns", "bytes": "bytes", "count": "count"}
_ENOUGH_FOR_NOISE = 2
_WIDTH = 80


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
        cells = "".join(f"{format_amount(figure, unit):>12}" for figure in figures)
        yield f"{name:<24}{cells}{_noise(metric.values):>9}"
    hot = sorted(baseline.hot_ops.items(), key=lambda item: -statistics.median(item[1].runs))
    if hot:
        yield ""
        yield f"{'a step':>12}{'calls':>8}{'noise':>9}  hot operator"
    for name, operator in hot[:top]:
        spent = [number * UNITS["us"] for number in operator.runs]
        text = f"{format_amount(statistics.median(spent), 'ns'):>12}{operator.calls:>8.4g}"
        head = f"{text}{_noise(spent):>9}  "
        yield from textwrap.wrap(
            name.replace("|", " ", 1), _WIDTH, initial_indent=head,
            subsequent_indent=" " * len(head), break_on_hyphens=False,
        )  # fmt: skip


def _noise(values: list[float]) -> str:
    if len(values) < _ENOUGH_FOR_NOISE or not statistics.fmean(values):
        return "-"
    return percent(statistics.stdev(values) / statistics.fmean(values))
