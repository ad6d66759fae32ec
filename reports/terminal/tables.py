"""The tables of the report on a terminal: times and calls per step, 80 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.language import tr
from npufix.reports.terminal.rows import Columns
from npufix.reports.terminal.text import paragraph, print_indented
from npufix.reports.wording.headroom import headroom_lines
from npufix.reports.wording.report import critical_text, few_tensors, figures_text, plain
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from npufix.reports.prediction import Bar, Headroom, HeadroomRow
    from npufix.reports.report import (
        Critical,
        HotCollective,
        HotLine,
        HotModule,
        HotOperator,
        HotShape,
        Report,
        StepSplit,
    )

_KERNELS = Columns(23, (-15, 7, 9, 9, 9, 8), gap=2)
_SHAPES = Columns(28, (-16, 8, 10, 10, 8), gap=2)
_PLACES = Columns(54, (8, 10, 8))
_LINES = Columns(45, (8, 10, 9, 8))
_COLLECTIVES = Columns(30, (6, 9, 9, 9, 9, 8))
_WATERFALL = Columns(36, (10, 10, -24), gap=2)
_BAR, _HARDLY = 22, 0.0005
"""Cells; and the share of a step that is neither a gain nor a loss."""
_HEADROOM = Columns(30, (10, 10, 10, 9, -11), gap=2)


class _PerStep:
    """Turns what was counted over all recorded steps into what an average step has."""

    def __init__(self, split: StepSplit | None, compute_ns: int = 0) -> None:
        self._steps = split.recorded_steps if split is not None else 1
        self._length_ns = split.total_ns if split is not None else 0
        self._compute_ns = compute_ns
        self.title = "Of step" if self._length_ns else "Of compute"

    def calls(self, count: int) -> str:
        return number(count / self._steps)

    def time(self, ns: int) -> str:
        return milliseconds(ns / self._steps)

    def share(self, ns: int) -> str:
        if self._length_ns:
            return percent(ns / self._steps / self._length_ns)
        return percent(ns / (self._compute_ns or 1))


def show_step_remarks(split: StepSplit | None, console: Console) -> None:
    """Print what an average step is made of beyond its three parts, and what it leaves out."""
    if split is None:
        return
    if split.preparing_ns:
        before = milliseconds(split.preparing_ns)
        print_indented(
            Text(f"{before} of the free time is before the first kernel", "dim"), console
        )
    if split.overlapped_ns:
        hidden = milliseconds(split.overlapped_ns)
        print_indented(
            Text(f"{hidden} of communication is hidden behind computing", "dim"), console
        )
    for odd in split.left_out:
        n = odd.step
        name = "a step" if n is None else f"step {n}"
        text = (
            f"left out: {name}, {odd.reason}: {milliseconds(odd.total_ns)}, {odd.ratio:.1f} times"
        )
        print_indented(Text(f"{text} a typical step", "yellow"), console)


def show_hot_operators(
    operators: Sequence[HotOperator], split: StepSplit | None, console: Console, *, details: bool
) -> None:
    """Print the Types with the most device time; line of code and shapes below each."""
    per = _PerStep(split)
    title = "Of step" if split is not None else "Of compute"
    _KERNELS.show(("Operator", "Core", "Calls", "Time", "Mean", "Critical", title), console, "bold")
    for op in operators:
        name, core = plain(op.type), plain(op.core)
        share = op.share_of_step if split is not None else op.share
        cells = (per.calls(op.calls), per.time(op.total_ns), milliseconds(op.mean_ns))
        _KERNELS.show((name, core, *cells, _critical(op.critical), percent(share)), console)
        if op.where:
            more = f" and {format_count(op.lines - 1, 'other line')}" if op.lines > 1 else ""
            print_indented(Text(f"{plain(op.where)} {plain(op.function)}{more}", "dim"), console)
        figures = figures_text(op, details=details)
        if op.shapes or figures:
            more = f" and {format_count(op.other_shapes, 'other shape')}" if op.other_shapes else ""
            parts = [f"{plain(few_tensors(op.shapes))}{more}" if op.shapes else "", figures]
            print_indented(Text("; ".join(filter(None, parts)), "dim"), console)


def show_hot_lines(lines: Sequence[HotLine], report: Report, console: Console) -> None:
    """Print the lines of the user that asked for most device time."""
    per = _PerStep(report.split, report.compute_ns)
    level = "Line" if any(hot.level == "line" for hot in lines) else "Function"
    _LINES.show((level, "Calls", "Time", "Critical", per.title), console, "bold")
    for hot in lines:
        place = plain(f"{hot.path}:{hot.line} {hot.function}")
        cells = (per.calls(hot.calls), per.time(hot.total_ns), _critical(hot.critical))
        _LINES.show((place, *cells, per.share(hot.total_ns)), console)
        via = f"through {hot.via}: " if hot.via else ""
        parts = [plain(f"{via}{', '.join(hot.types)}"), critical_text(hot.critical)]
        print_indented(Text("; ".join(filter(None, parts)), "dim"), console)


def _critical(found: Critical | None) -> str:
    return "" if found is None else milliseconds(found.total_ns)


def show_hot_modules(modules: Sequence[HotModule], report: Report, console: Console) -> None:
    """Print the nn.Modules that asked for most device time."""
    per = _PerStep(report.split, report.compute_ns)
    _PLACES.show(("Module", "Calls", "Time", per.title), console, "bold")
    for hot in modules:
        cells = (per.calls(hot.calls), per.time(hot.total_ns), per.share(hot.total_ns))
        _PLACES.show((plain(hot.module), *cells), console)
        print_indented(Text(plain(", ".join(hot.types)), "dim"), console)


def show_hot_shapes(shapes: Sequence[HotShape], report: Report, console: Console) -> None:
    """Print the shapes that cost most, whatever the Type."""
    per = _PerStep(report.split, report.compute_ns)
    _SHAPES.show(("Shapes", "Core", "Calls", "Time", "Mean", per.title), console, "bold")
    for hot in shapes:
        cells = (per.calls(hot.calls), per.time(hot.total_ns), milliseconds(hot.mean_ns))
        share = per.share(hot.total_ns)
        _SHAPES.show((plain(hot.type), plain(hot.core), *cells, share), console)
        print_indented(Text(plain(few_tensors(hot.shapes)), "dim"), console)


def show_hot_collectives(
    collectives: Sequence[HotCollective], split: StepSplit | None, console: Console
) -> None:
    """Print the collectives that take most time: moving data, waiting for others, or neither."""
    per = _PerStep(split, sum(hot.elapse_ns for hot in collectives))
    header = ("Collective", "Calls", "Time", "Moves", "Waits", "Idle", "Of step")
    _COLLECTIVES.show(header, console, "bold")
    for hot in collectives:
        times = (hot.elapse_ns, hot.transit_ns, hot.wait_ns, hot.idle_ns)
        cells = (per.calls(hot.calls), *map(per.time, times), per.share(hot.elapse_ns))
        _COLLECTIVES.show((plain(hot.name), *cells), console)
        said = [tr(f"{size(hot.size_bytes)} each")] if hot.size_bytes > 0 else []
        group = [tr(f"group {plain(hot.group)}")] if hot.group else []
        if said or group:
            print_indented(Text(", ".join([*said, *group]), "dim"), console)


def show_headroom(headroom: Headroom | None, console: Console) -> None:
    """Print the operators and the lines that take most above their bounds."""
    if headroom is None:
        return
    for line in headroom_lines(headroom):
        paragraph(line, console)
    _show_headroom_rows("Operator", headroom.operators, console)
    if headroom.lines:
        console.print()
        _show_headroom_rows("Line", headroom.lines, console)


def show_waterfall(bars: Sequence[Bar], report: Report, console: Console) -> None:
    """Print what leads from the step of today to the predicted one, without what saves nothing."""
    if not bars:
        return
    now = bars[0].step_ns + bars[0].saved_ns
    told = [bar for bar in bars if abs(bar.saved_ns) > _HARDLY * now]
    longest = max(now, *(bar.step_ns for bar in bars), 1)

    def draw(step_ns: int, saved_ns: int) -> str:
        left, whole = (round(_BAR * ns / longest) for ns in (step_ns, step_ns + max(0, saved_ns)))
        return f"  {'█' * left}{'░' * (whole - left)}"

    _WATERFALL.show(("From today's step", "Saves", "Step", ""), console, "bold")
    _WATERFALL.show(("", "", milliseconds(now), draw(now, 0)), console)
    for bar in told:
        name = f"{bar.finding} {bar.rule} {report.findings[bar.finding - 1].name}"
        times = (milliseconds(bar.saved_ns), milliseconds(bar.step_ns))
        _WATERFALL.show((plain(name), *times, draw(bar.step_ns, bar.saved_ns)), console)


def _show_headroom_rows(title: str, rows: Sequence[HeadroomRow], console: Console) -> None:
    _HEADROOM.show((title, "Above", "Time", "Bound", "Reached", "  By"), console, "bold")
    for row in rows:
        times = (row.above_ns, row.time_ns, row.bound_ns)
        cells = (*map(milliseconds, times), percent(row.reached), f"  {tr(row.limit)}")
        _HEADROOM.show((plain(row.name), *cells), console)
