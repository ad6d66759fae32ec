"""The user's files with the time of each line, and the text around those that cost any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.html.details import ShownFile, ShownLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.report import Finding

    Lines = dict[str, dict[int, tuple[float, int]]]

_FILES = 30
_LINES_AROUND = 3
_MOST_LINES = 600
_LONGEST_LINE = 400


def by_line(costs: pd.DataFrame, steps: int) -> Lines:
    """Return calls and time per step by path and line, of what is led to a line or a function."""
    known = costs[costs["path"] != ""]
    sums = known.groupby(["path", "line"], observed=True)[["size", "sum"]].sum()
    found: Lines = {}
    for (path, line), calls, total in zip(sums.index, sums["size"], sums["sum"], strict=True):
        found.setdefault(str(path), {})[int(line)] = int(calls) / steps, int(total) // steps
    return found


def sources(costs: Lines, findings: Sequence[Finding], tree: SourceTree | None) -> list[ShownFile]:
    """Return the files with the most time, and those of the findings."""
    found: dict[str, dict[int, list[int]]] = {}
    for number, finding in enumerate(findings):
        places = [(p.path, p.line) for p in finding.places] or [(finding.path, finding.line)]
        for path, line in places:
            if path:
                found.setdefault(path, {}).setdefault(line, []).append(number)
    totals = {path: sum(ns for _, ns in lines.values()) for path, lines in costs.items()}
    paths = sorted({*costs, *found}, key=lambda path: (-totals.get(path, 0), path))
    return [
        ShownFile(path, totals.get(path, 0), lines)
        for path in paths[:_FILES]
        if (lines := _lines(costs.get(path, {}), found.get(path, {}), _text(path, tree)))
    ]


def _text(path: str, tree: SourceTree | None) -> Sequence[str]:
    file = tree.files.get(path) if tree is not None else None
    return file.text.splitlines() if file is not None else ()


def _lines(
    costs: dict[int, tuple[float, int]], findings: dict[int, list[int]], text: Sequence[str]
) -> list[ShownLine]:
    wanted = {*costs, *findings}
    around = {
        line
        for middle in wanted
        for line in range(middle - _LINES_AROUND, middle + _LINES_AROUND + 1)
        if 0 < line <= len(text)
    }
    shown = sorted(wanted | around)[:_MOST_LINES]
    return [
        ShownLine(
            line,
            text[line - 1][:_LONGEST_LINE] if 0 < line <= len(text) else "",
            costs.get(line, (0, 0))[1],
            costs.get(line, (0, 0))[0],
            findings.get(line, []),
        )
        for line in shown
    ]
