"""The tables of the report on a terminal, 80 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.terminal.rows import Columns
from npufix.reports.terminal.text import paragraph, print_indented
from npufix.reports.wording.report import few_tensors, figures_text, plain
from npufix.rules.shared.quantities import counted, milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from npufix.reports.report import (
        HotLine,
        HotModule,
        HotOperator,
        HotShape,
        StepSplit,
    )

_KERNELS = Columns(28, (-16, 8, 10, 10, 8), gap=2)
_PLACES = Columns(54, (8, 10, 8))


def show_split(split: StepSplit | None, console: Console) -> None:
    """Print where the average step goes, if that is known."""
    if split is None:
        return
    total = split.total_ns or 1
    parts = [
        ("computing", split.computing_ns),
        ("exposed communication", split.exposed_communication_ns),
        ("free", split.free_ns),
    ]
    mean = f" (mean of {split.steps} steps)" if split.steps > 1 else ""
    line = f"{split.unit.capitalize()} {milliseconds(split.total_ns)}{mean}: "
    line += ", ".join(f"{name} {milliseconds(ns)} {percent(ns / total)}" for name, ns in parts)
    paragraph(line, console)
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
        name = "a step" if odd.step is None else f"step {odd.step}"
        text = (
            f"left out: {name}, {odd.reason}: {milliseconds(odd.total_ns)}, {odd.ratio:.1f} times"
        )
        print_indented(Text(f"{text} a typical step", "yellow"), console)


def show_hot_operators(
    operators: Sequence[HotOperator], console: Console, *, details: bool
) -> None:
    """Print the Types with the most device time; line of code and shapes below each."""
    header = ("Hot operator", "Core", "Calls", "Total", "Mean", "Share")
    _KERNELS.show(header, console, "bold")
    for op in operators:
        name, core = plain(op.type), plain(op.core)
        spent = milliseconds(op.total_ns), milliseconds(op.mean_ns)
        _KERNELS.show((name, core, f"{op.calls:,}", *spent, percent(op.share)), console)
        if op.where:
            more = f" and {counted(op.lines - 1, 'other line')}" if op.lines > 1 else ""
            print_indented(Text(f"{plain(op.where)} {plain(op.function)}{more}", "dim"), console)
        figures = figures_text(op, details=details)
        if op.shapes or figures:
            more = f" and {counted(op.other_shapes, 'other shape')}" if op.other_shapes else ""
            parts = [f"{plain(few_tensors(op.shapes))}{more}" if op.shapes else "", figures]
            print_indented(Text("; ".join(filter(None, parts)), "dim"), console)


def show_hot_lines(lines: Sequence[HotLine], console: Console) -> None:
    """Print the lines of the user that asked for most device time."""
    level = "line" if any(hot.level == "line" for hot in lines) else "function"
    _PLACES.show((f"Hot {level}", "Calls", "Total", "Share"), console, "bold")
    for hot in lines:
        place = plain(f"{hot.path}:{hot.line} {hot.function}")
        cells = (place, f"{hot.calls:,}", milliseconds(hot.total_ns), percent(hot.share))
        _PLACES.show(cells, console)
        via = f"through {hot.via}: " if hot.via else ""
        print_indented(Text(plain(f"{via}{', '.join(hot.types)}"), "dim"), console)


def show_hot_modules(modules: Sequence[HotModule], console: Console) -> None:
    """Print the nn.Modules that asked for most device time."""
    _PLACES.show(("Hot module", "Calls", "Total", "Share"), console, "bold")
    for hot in modules:
        name = plain(hot.module)
        cells = (name, f"{hot.calls:,}", milliseconds(hot.total_ns), percent(hot.share))
        _PLACES.show(cells, console)
        print_indented(Text(plain(", ".join(hot.types)), "dim"), console)


def show_hot_shapes(shapes: Sequence[HotShape], console: Console) -> None:
    """Print the shapes that cost most, whatever the Type."""
    header = ("Hot shapes", "Core", "Calls", "Total", "Mean", "Share")
    _KERNELS.show(header, console, "bold")
    for hot in shapes:
        spent = milliseconds(hot.total_ns), milliseconds(hot.mean_ns)
        name = plain(hot.type)
        cells = (name, plain(hot.core), f"{hot.calls:,}", *spent, percent(hot.share))
        _KERNELS.show(cells, console)
        print_indented(Text(plain(few_tensors(hot.shapes)), "dim"), console)
