"""The first screen of a diagnosis: where the step goes, what is slow, what to do; 80x24."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.language import tr
from npufix.reports.language.layout import cut, pad, width
from npufix.reports.language.terminal import Verbatim
from npufix.reports.terminal.text import paragraph, print_indented
from npufix.reports.wording.prediction import forecast_summary
from npufix.reports.wording.report import (
    asker,
    environment_text,
    name_kernels,
    plain,
    word_contained,
)
from npufix.rules.shared.quantities import format_count, milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from npufix.reports.report import Finding, Problem, Report, StepSplit

SECTIONS = (
    "findings", "operators", "shapes", "lines", "modules", "collectives", "headroom", "ranks",
)  # fmt: skip
"""What there is beyond the first screen; each is an option of ``diagnose``."""
CLASSES = {"safe": "green", "conditional": "yellow", "advice": "cyan"}
_PARTS = (("compute", "blue", "█"), ("communication", "magenta", "▓"), ("idle", "yellow", "░"))
"""Told apart by their signs where there is no colour."""
_MOST_ROWS = 6
_MOST_PROBLEMS = 2
_ADVICE = "{advice}"
"""Where the advice goes in a sentence."""
_MOST_NAMES = 3
_LONGEST_NAME, _LONGEST_PLACE = 30, 26
_LARGE, _SMALLEST_TOLD = 0.1, 0.001
_NARROW = 70
_HEADER = ("", "of step", "saves ≤", "what", "where", "rule")


def show_summary(report: Report, console: Console) -> None:
    """Print the first screen of a report of a dump."""
    _show_title(report, console)
    show_step(report.split, console)
    _show_gaps(report, console)
    console.print()
    paragraph(report.headline, console, "bold")
    if report.findings:
        console.print()
        _show_table(report.findings, console)
    for line in forecast_summary(report.forecast):
        paragraph(line, console)
    console.print()
    _show_ways_on(report, console)


def show_step(split: StepSplit | None, console: Console) -> None:
    """Print the step as a bar with its parts."""
    if split is None or not split.total_ns:
        return
    title = tr(f"{split.unit.capitalize()} {milliseconds(split.total_ns)}")
    times = (split.computing_ns, split.exposed_communication_ns, split.free_ns)
    bar = Verbatim(f"{title} ")
    room = max(10, console.width - width(title) - 1)
    legend = Verbatim("")
    for (name, colour, sign), ns, cells in zip(_PARTS, times, _share_out(times, room), strict=True):
        bar.append(sign * cells, colour)
        if ns:
            legend.append("  " if legend else "")
            legend.append(sign, colour)
            legend.append(f" {tr(name)} {milliseconds(ns)} {percent(ns / split.total_ns)}")
    console.print(bar, soft_wrap=True)
    console.print(legend)


def _share_out(times: Sequence[int], room: int) -> list[int]:
    """Share cells out in proportion; what there is has one at least."""
    whole = sum(times)
    cells = [max(1, round(ns / whole * room)) if ns else 0 for ns in times]
    cells[cells.index(max(cells))] += room - sum(cells)
    return cells


def _show_title(report: Report, console: Console) -> None:
    environment, split = report.environment, report.split
    known = environment_text(environment) if environment else ""
    if split is not None and split.steps > 1:
        known = f"{known}, mean of {split.steps} steps".removeprefix(", ")
    if split is not None and split.left_out:
        known += f", {len(split.left_out)} left out"
    name = plain(PurePath(report.dump).name)
    told = Verbatim.assemble((name, "bold"), (f"  {tr(plain(known))}" if known else "", "dim"))
    if width(told.plain) <= console.width:
        console.print(told)
    else:
        console.print(Verbatim(name, "bold"), soft_wrap=True)
        paragraph(known, console, "dim")
    if environment is not None and environment.simulated:
        what, _, _ = environment.simulated.partition(": ")
        paragraph(f"Simulated dump: {what}", console, "yellow")


def _show_gaps(report: Report, console: Console) -> None:
    """Print what makes the diagnosis partial; what is damaged is never left out."""
    damaged = [problem for problem in report.problems if problem.damaged]
    others = [problem for problem in report.problems if not problem.damaged]
    told: list[Problem] = [*damaged, *others[: max(0, _MOST_PROBLEMS - len(damaged))]]
    for problem in told:
        remedy = f" -- {tr(problem.remedy)}" if problem.damaged else ""
        paragraph(f"{problem.where}: {tr(problem.what)}{remedy}", console, "yellow")
    if len(told) < len(report.problems):
        rest = format_count(len(report.problems) - len(told), "other problem")
        paragraph(f"and {rest}: -v", console, "yellow")
    if not report.problems and not _leads_somewhere(report):
        paragraph("No call stacks: nothing is led to a line of code.", console, "yellow")


def _leads_somewhere(report: Report) -> bool:
    return bool(
        report.attributed or report.attributed_to_functions or report.attributed_by_operators
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A finding in the table."""

    number: int
    finding: Finding
    what: str
    where: str

    @property
    def share(self) -> str:
        return percent(self.finding.share) if self.finding.share else "?"

    @property
    def saves(self) -> str:
        saving = self.finding.saving
        if saving is not None:
            return milliseconds(saving.high_ns)
        return tr(word_contained(self.finding))

    @property
    def rule(self) -> str:
        return f"{self.finding.rule} {_mark(self.finding)}".rstrip()

    @property
    def style(self) -> str:
        return "bold red" if self.finding.share >= _LARGE else ""


def _mark(finding: Finding) -> str:
    """Return ``*`` if ``npufix patch`` writes a change, ``+`` if it would with ``--allow``."""
    if not finding.replacement or finding.problem:
        return ""
    return "+" if any(condition.basis == "open" for condition in finding.conditions) else "*"


def _show_table(findings: Sequence[Finding], console: Console) -> None:
    kept = [(n, f) for n, f in enumerate(findings, 1) if f.share >= _SMALLEST_TOLD]
    rows = [_Row(n, f, _what(f, findings), _where(f)) for n, f in kept[:_MOST_ROWS]]
    if console.width < _NARROW:
        _show_list(rows, console)
    else:
        _show_columns(rows, console)
    marks = {_mark(finding) for finding in findings}
    remarks = ["*: npufix patch writes it"] * ("*" in marks)
    remarks += ["+: with --allow"] * ("+" in marks)
    if len(rows) < len(findings):
        more = format_count(len(findings) - len(rows), "more finding")
        remarks.insert(0, f"{more}: --findings")
    if remarks:
        print_indented(Text("; ".join(remarks), "dim"), console)


def _show_columns(rows: Sequence[_Row], console: Console) -> None:
    fixed = 2 + 8 + 9 + 3 * 2 + max([len(row.rule) for row in rows], default=0)
    room = console.width - fixed
    wanted = (
        max([width(row.what) for row in rows], default=0),
        max([width(row.where) for row in rows], default=0),
    )
    place = min(
        wanted[1], max(_LONGEST_PLACE, room - wanted[0]), room - min(wanted[0], _LONGEST_NAME)
    )
    name = max(room - place, 4) if wanted[0] + place > room else wanted[0]

    def line(cells: Sequence[str], styles: Sequence[str]) -> Verbatim:
        number, share, saves, what, where, rule = cells
        padded = (
            pad(number, 2, right=True), pad(share, 8, right=True), pad(saves, 9, right=True),
            "  " + pad(cut(what, name), name), "  " + pad(where, place), "  " + rule,
        )  # fmt: skip
        made = Verbatim()
        for text, style in zip(padded, styles, strict=True):
            made.append(text, style)
        return made

    console.print(line([tr(title) for title in _HEADER], ["dim"] * len(_HEADER)), soft_wrap=True)
    for row in rows:
        where = _fitting(row.where, place)
        cells = (str(row.number), row.share, row.saves, row.what, where, row.rule)
        styles = ("", row.style, row.style, "bold", "", CLASSES[row.finding.safety])
        console.print(line(cells, styles), soft_wrap=True)


def _show_list(rows: Sequence[_Row], console: Console) -> None:
    """Print what a narrow terminal has no columns for."""
    for row in rows:
        title = Verbatim.assemble(
            f"{row.number}. ", (row.share, row.style), " ", (row.what, "bold"), " ",
            (row.rule, CLASSES[row.finding.safety]),
        )  # fmt: skip
        console.print(title)
        said = [f"saves ≤ {row.saves}", row.where]
        print_indented(Text("  ".join(filter(None, said)), "dim"), console)


def _what(finding: Finding, findings: Sequence[Finding]) -> str:
    """Return the name of a finding; where a rule has several about the run, of what."""
    return f"{plain(finding.name)} {name_kernels(finding, findings)}".rstrip()


def _where(finding: Finding) -> str:
    """Return the line, and how many more there are: ``main.py:354 +8``."""
    if finding.ranks:
        few = ", ".join(map(str, finding.ranks[:4]))
        return tr(f"rank {few}") + (" ..." if len(finding.ranks) > 4 else "")  # noqa: PLR2004 - few
    if finding.kind == "code":
        return plain(finding.place)
    if name := asker(finding):
        return plain(name.rpartition("::")[2])
    placed = [place for place in finding.places if place.path]
    if not placed:
        return ""
    more = f" +{len(placed) - 1}" if len(placed) > 1 else ""
    return plain(f"{placed[0].path}:{placed[0].line}{more}")


def _fitting(place: str, columns: int) -> str:
    """Return the end of a path that fits: ``mlp.py:20`` of ``/home/me/bert_like/mlp.py:20``."""
    while width(place) > columns:
        _, mark, rest = place.partition("/")
        if not mark:
            return cut(place, columns)
        place = rest
    return place


def _show_ways_on(report: Report, console: Console) -> None:
    """Print what to do first, what the dump lacks, and where there is more."""
    patch = any(step.startswith("npufix patch ") for step in report.next_steps)
    number, finding = next(
        ((n, f) for n, f in enumerate(report.findings, 1) if f.advice), (0, None)
    )
    if finding is not None and not patch:
        paragraph(_with_advice(f"Start with {number}: {tr(_ADVICE)}", finding), console)
        _show_command(f"npufix rules show {finding.rule}", console, "   ")
    for step in report.next_steps:
        _show_command(step, console, "Start: " if patch else "   ")
    if finding is not None and patch:
        paragraph(_with_advice(f"Then {number}: {tr(_ADVICE)}", finding), console)
    missing = [tr(part.name) for part in report.not_recorded]
    if missing:
        more = len(missing) - _MOST_NAMES
        names = tr(", ").join(missing[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        paragraph(f"Not recorded: {names} (-v: what for, and how to)", console, "dim")
    # One line of 80 columns; shapes and modules are operators and lines, seen from elsewhere.
    # Headroom is computed only where it is asked for.
    offered = {*there(report), *(("headroom",) if report.compute_ns else ())}
    offered -= {"shapes", "modules"}
    options = " ".join(f"--{name}" for name in SECTIONS if name in offered)
    paragraph(f"More: {options} --html FILE -v", console, "dim")


def _show_command(command: str, console: Console, before: str) -> None:
    console.print(Verbatim.assemble(tr(before), (plain(command), "bold")), soft_wrap=True)


def there(report: Report) -> Iterator[str]:
    """Yield the sections that a report has something in."""
    contents = (
        report.findings, report.hot_operators, report.hot_shapes, report.hot_lines,
        report.hot_modules, report.hot_collectives, report.headroom, report.ranks,
    )  # fmt: skip
    yield from (name for name, content in zip(SECTIONS, contents, strict=True) if content)


def _with_advice(sentence: str, finding: Finding) -> str:
    """Return a sentence with what to do first about what ``patch`` does not write.

    It is said in one piece and cut then: a part of a message has no translation of its own.
    """
    advice = tr(plain(finding.advice.splitlines()[0]))
    first = re.split(r"(?:; |；)(?![^(（]*[)）])", advice)[0]
    return tr(sentence).replace(_ADVICE, first)
