"""Two runs side by side on a terminal: the answer first, 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rich.text import Text

from npufix.reports.terminal.rows import Columns
from npufix.reports.terminal.text import paragraph, print_indented
from npufix.reports.wording import comparison as words
from npufix.reports.wording.report import few_tensors, plain
from npufix.rules.shared.quantities import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from npufix.reports.comparison import (
        Comparison,
        FindingChange,
        HostOperatorChange,
        LineChange,
        MetricChange,
        OperatorChange,
        Prediction,
        Side,
    )

_Row = TypeVar("_Row", "OperatorChange", "LineChange", "HostOperatorChange")

_ROWS = Columns(29, (9, 9, 10, 9, 14))
_METRICS = Columns(22, (11, 11, 11, 9, 16))
_FEW_ROWS = 5
_STYLES = {"held": "green", "saved more": "green", "saved less": "yellow"}


def show(comparison: Comparison, console: Console, *, top: int, details: bool) -> None:
    """Print a whole comparison, ``top`` rows of each table; ``details`` adds host operators."""
    paragraph(comparison.headline, console, "bold")
    for line in (
        f"Before: {words.side_text(comparison.before)}",
        f"After:  {words.side_text(comparison.after)}",
    ):
        paragraph(line, console, "dim")
    if comparison.differences:
        paragraph(f"Different: {'; '.join(comparison.differences)}", console, "yellow")
    few = min(top, _FEW_ROWS) if not details else top
    hosts = comparison.host_operators
    across = comparison.across_devices
    operators = [op for op in comparison.operators if op.communication or not across]
    sections: list[tuple[object, Callable[[], None]]] = [
        (_differs(comparison), lambda: _show_explanation(comparison, console)),
        (comparison.metrics, lambda: _show_metrics(comparison, console)),
        (_has_ranks(comparison), lambda: _show_ranks(comparison, console)),
        (comparison.predictions, lambda: _show_predictions(comparison, console)),
        (
            _has_changed(hosts) if across or details else None,
            lambda: _show_hosts(hosts, console, top),
        ),
        (_has_changed(operators), lambda: _show_operators("Type", operators, console, top)),
        (
            _has_changed(comparison.shapes) if not across else None,
            lambda: _show_operators("Type on shapes", comparison.shapes, console, few),
        ),
        (_has_changed(comparison.lines), lambda: _show_lines(comparison.lines, console, few)),
        (comparison.findings, lambda: _show_findings(comparison, console, top)),
        (_partial(comparison), lambda: _show_partial(comparison, console)),
        (comparison.notes, lambda: _show_notes(comparison.notes, console)),
    ]
    for content, print_section in sections:
        if content:
            console.print()
            print_section()


def _differs(comparison: Comparison) -> bool:
    explanation = comparison.explanation
    if explanation is None:
        return False
    return bool(explanation.parts or explanation.difference_ns)


def _has_ranks(comparison: Comparison) -> bool:
    return bool(comparison.before.ranks or comparison.after.ranks)


def _has_changed(rows: Sequence[_Row]) -> bool:
    return any(row.before_ns != row.after_ns for row in rows)


def _show_explanation(comparison: Comparison, console: Console) -> None:
    explanation = comparison.explanation
    if explanation is None:
        return
    gap = words.word_difference(explanation.difference_ns)
    console.print(
        Text(f"What explains {gap} per {explanation.of}:".replace("compute", "step"), "bold")
    )
    for line in explanation.lines:
        paragraph(words.part_text(line), console, margin="  ")
    paragraph(words.rest_text(explanation), console, "dim", margin="  ")


def _show_metrics(comparison: Comparison, console: Console) -> None:
    what = "Recording" if "recording" in {comparison.before.unit, comparison.after.unit} else "Step"
    spreads = [words.spread_text(metric) for metric in comparison.metrics]
    header = (f"{what}, median", "Before", "After", "Change", "", "Spread" if any(spreads) else "")
    _METRICS.show(header, console, "bold")
    for metric, spread in zip(comparison.metrics, spreads, strict=True):
        name = words.METRIC_NAMES.get(metric.name, metric.name)
        cells = (*words.metric_values(metric), words.relative(metric.before, metric.after), spread)
        _METRICS.show((name, *cells), console)
    for metric in comparison.metrics[:1]:
        _show_noise(metric, console)


def _show_noise(metric: MetricChange, console: Console) -> None:
    if metric.before_spread is None or metric.after_spread is None:
        return
    print_indented(Text(f"the difference is {words.verdict_text(metric)}", "dim"), console)


def _show_ranks(comparison: Comparison, console: Console) -> None:
    console.print(Text("Ranks: computing, exposed communication, free", "bold"))
    for name, side in (("before", comparison.before), ("after", comparison.after)):
        for rank in side.ranks:
            times = (rank.computing_ns, rank.exposed_communication_ns, rank.free_ns)
            number = "?" if rank.rank is None else rank.rank
            text = f"{name:<7}{number!s:>4}" + "".join(f"{words.time(ns):>12}" for ns in times)
            mark = "  compared" if rank.diagnosed else ""
            console.print(Text(plain(text + mark), "" if mark else "dim"))


def _show_predictions(comparison: Comparison, console: Console) -> None:
    console.print(Text("Changes that were made: predicted and measured saving", "bold"))
    together = [comparison.predicted] if comparison.predicted else []
    several = len(comparison.predictions) > 1
    for prediction in [*comparison.predictions, *(together if several else [])]:
        _show_prediction(prediction, console)


def _show_prediction(prediction: Prediction, console: Console) -> None:
    paragraph(words.word_applied(prediction), console)
    spent = f"{milliseconds(prediction.before_ns)} -> {milliseconds(prediction.after_ns)}"
    line = Text.assemble(
        f"predicted {words.word_predicted(prediction)}, "
        f"measured {words.word_difference(prediction.measured_ns).lstrip('+')} ({spent}): ",
        (prediction.verdict, _STYLES[prediction.verdict]),
    )
    print_indented(line, console)
    if prediction.decided:
        print_indented(Text(plain(prediction.decided), "dim"), console)


def _show_hosts(rows: Sequence[HostOperatorChange], console: Console, top: int) -> None:
    header = ("PyTorch operator", "Before", "After", "Change", "Ratio", "Calls")
    _ROWS.show(header, console, "bold")
    for op in _to_show(rows, top):
        cells = (words.time(op.before_ns), words.time(op.after_ns),
                 words.change(op.before_ns, op.after_ns), words.ratio_text(op))  # fmt: skip
        counted = words.calls(op.before_calls, op.after_calls)
        _ROWS.show((plain(words.host_name(op)), *cells, counted), console)
        kernels = words.calls(op.before_kernels, op.after_kernels)
        said = [f"{kernels} kernels", words.dtypes_text(op)]
        names = [*op.before_names, *op.after_names]
        own = " / ".join(dict.fromkeys(names))
        said += [f"as {own}"] if any(name != op.name for name in names) else []
        print_indented(Text(plain("; ".join(filter(None, said))), "dim"), console)


def _show_operators(title: str, rows: Sequence[OperatorChange], console: Console, top: int) -> None:
    _ROWS.show((title, "Before", "After", "Change", "", "Kernels"), console, "bold")
    for op in _to_show(rows, top):
        cells = (words.time(op.before_ns), words.time(op.after_ns),
                 words.change(op.before_ns, op.after_ns),
                 words.relative(op.before_ns, op.after_ns))  # fmt: skip
        name = f"{op.type} (comm.)" if op.communication else op.type
        counted = words.calls(op.before_calls, op.after_calls)
        _ROWS.show((plain(name), *cells, counted), console)
        if op.shapes:
            print_indented(Text(plain(few_tensors(op.shapes)), "dim"), console)


def _show_lines(rows: Sequence[LineChange], console: Console, top: int) -> None:
    _ROWS.show(("Line", "Before", "After", "Change", "", "Kernels"), console, "bold")
    for line in _to_show(rows, top):
        cells = (words.time(line.before_ns), words.time(line.after_ns),
                 words.change(line.before_ns, line.after_ns),
                 words.relative(line.before_ns, line.after_ns))  # fmt: skip
        counted = words.calls(line.before_calls, line.after_calls)
        _ROWS.show((plain(words.place(line)), *cells, counted), console)
        state = f"{line.state}: " if line.state in {"changed", "moved"} else ""
        print_indented(Text(plain(f"{state}{words.types_text(line)}"), "dim"), console)


def _to_show(rows: Sequence[_Row], top: int) -> list[_Row]:
    """Return the first rows that differ or are known of one run only."""
    return [row for row in rows if row.before_ns != row.after_ns][:top]


def _show_findings(comparison: Comparison, console: Console, top: int) -> None:
    counts = {state: sum(f.state == state for f in comparison.findings)
              for state in ("gone", "new", "still there")}  # fmt: skip
    said = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    console.print(Text(f"Findings: {said}", "bold"))
    shown = [f for f in comparison.findings if f.state != "still there"]
    for finding in shown[:top]:
        line = finding.after_line if finding.state == "new" else finding.before_line
        where = f"{finding.path}:{line} " if finding.path and line else ""
        sign = "-" if finding.state == "gone" else "+"
        text = (
            f"{sign} {finding.rule} {finding.name}  {where}{finding.function}{_show_spent(finding)}"
        )
        paragraph(text, console, margin="  ")
    if len(shown) > top:
        console.print(Text(f"  and {len(shown) - top} more", "dim"))


def _show_spent(finding: FindingChange) -> str:
    ns = finding.after_ns if finding.state == "new" else finding.before_ns
    return f"  {milliseconds(ns)}" if ns else ""


def _partial(comparison: Comparison) -> bool:
    return bool(comparison.before.partial or comparison.after.partial)


def _show_partial(comparison: Comparison, console: Console) -> None:
    console.print("Partial:", style="bold yellow")
    for name, side in (("before", comparison.before), ("after", comparison.after)):
        _show_problems(name, side, console)


def _show_problems(name: str, side: Side, console: Console) -> None:
    for problem in side.partial:
        text = f"{name}: {problem.where}: {problem.what} -- {problem.remedy}"
        paragraph(text, console, margin="  ")


def _show_notes(notes: Sequence[str], console: Console) -> None:
    for note in notes:
        paragraph(f"{note}.", console, "dim")
