"""From the kernels of a run to what the charts of the HTML report are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.evidence.ranking import shape_text
from npufix.reports.html.details import Cell, Details, ShownFile, ShownLine, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.advisor.diagnose.findings import Located
    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.report import Finding, Report

    Integers = NDArray[np.int64]

_CELLS = 3000
_SPANS = 3000
_FILES = 30
_LINES_AROUND = 3
_MOST_LINES = 600
_LONGEST_LINE = 400


def page_details(diagnosis: Diagnosis, report: Report, tree: SourceTree | None) -> Details:
    """Return what the page of a diagnosis shows beside its report."""
    evidence = diagnosis.evidence
    if evidence is None:
        return Details(sources=_sources({}, report.findings, tree))
    costs = _costs(evidence)
    return Details(
        cells=_cells(costs),
        timeline=_timeline(evidence, _numbered(diagnosis.found, report.findings)),
        sources=_sources(_by_line(costs), report.findings, tree),
    )


def _costs(evidence: Evidence) -> pd.DataFrame:
    """Return the calls and the time of each Type, shapes and line, the most first."""
    keys = ["type", "input_shapes", "input_dtypes", "path", "line", "function"]
    rows = evidence.kernels.loc[evidence.computes, [*keys, "duration_ns"]]
    found = rows.groupby(keys, sort=False, observed=True)["duration_ns"].agg(["size", "sum"])
    return found.reset_index().sort_values("sum", ascending=False, kind="stable")


def _cells(costs: pd.DataFrame) -> list[Cell]:
    shown = costs.iloc[:_CELLS]
    cells = [
        Cell(str(kind), shape_text(str(shapes), str(dtypes)), str(path), line, str(name), n, ns)
        for kind, shapes, dtypes, path, line, name, n, ns in zip(
            *(shown[column].tolist() for column in shown), strict=True
        )
    ]
    rest = costs.iloc[_CELLS:].groupby("type", sort=False, observed=True)[["size", "sum"]].sum()
    cells += [
        Cell(str(kind), "", "", 0, "", int(n), int(ns))
        for kind, n, ns in zip(rest.index, rest["size"], rest["sum"], strict=True)
    ]
    return cells


def _by_line(costs: pd.DataFrame) -> dict[str, dict[int, tuple[int, int]]]:
    """Return calls and time by path and line, of what is led to a line or a function."""
    known = costs[costs["path"] != ""]
    sums = known.groupby(["path", "line"], observed=True)[["size", "sum"]].sum()
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for (path, line), calls, total in zip(sums.index, sums["size"], sums["sum"], strict=True):
        found.setdefault(str(path), {})[int(line)] = int(calls), int(total)
    return found


def _numbered(found: Sequence[Located], findings: Sequence[Finding]) -> dict[int, int]:
    """Return the position of the finding of each kernel that belongs to one."""
    places = {finding.fingerprint: number for number, finding in enumerate(findings)}
    return {
        kernel: places[item.finding.fingerprint]
        for item in reversed(found)  # the most rewarding last: it wins
        if item.finding.fingerprint in places
        for kernel in item.kernels
    }


def _timeline(evidence: Evidence, owners: dict[int, int]) -> Timeline | None:
    title, rows = _typical_step(evidence)
    if rows.empty:
        return None
    collective = rows["communication"].to_numpy(dtype=bool)
    on_cpu = rows["core"].astype(str).str.contains("AI_CPU").to_numpy()
    lane = np.where(collective, 1, np.where(on_cpu, 2, 0)).astype(np.int64)
    start = rows["start_ns"].to_numpy() - int(rows["start_ns"].min())
    duration = rows["duration_ns"].to_numpy()
    length = int((start + duration).max())
    owner = np.array([owners.get(int(label), -1) for label in rows.index], np.int64)
    labels = rows["type"].cat.codes.to_numpy().astype(np.int64)
    spans = [
        span
        for number in np.unique(lane)
        for at in [np.flatnonzero(lane == number)]
        for span in _merged(
            int(number), start[at], duration[at], labels[at], owner[at], length // _SPANS
        )
    ]
    names = [str(name) for name in rows["type"].cat.categories]
    used = sorted({span[3] for span in spans})
    new = {code: number for number, code in enumerate(used)}
    return Timeline(
        title,
        length,
        ["compute", "communication", "AI CPU"],
        [names[code] if code >= 0 else "" for code in used],
        [(a, b, c, new[d], e, f) for a, b, c, d, e, f in spans],
    )


def _typical_step(evidence: Evidence) -> tuple[str, pd.DataFrame]:
    """Return the kernels of the steady step of median length, or all without steps."""
    rows = evidence.kernels[evidence.steady]
    if rows["step"].isna().all():
        return "the recording", rows
    ends = (rows["start_ns"] + rows["duration_ns"]).groupby(rows["step"]).max()
    lengths = (ends - rows.groupby("step")["start_ns"].min()).sort_values(kind="stable")
    step = lengths.index[len(lengths) // 2]
    return f"step {step}", rows[(rows["step"] == step).to_numpy(dtype=bool)]


def _merged(  # noqa: PLR0913, PLR0917 - the columns of a span
    lane: int, start: Integers, duration: Integers, label: Integers, owner: Integers, pixel: int
) -> list[tuple[int, int, int, int, int, int]]:
    """Return spans in which neighbours below one pixel, of the same finding, are one."""
    order = np.argsort(start, kind="stable")
    start, duration, label, owner = (part[order] for part in (start, duration, label, owner))
    end = np.maximum.accumulate(start + duration)
    small = duration <= pixel
    joined = small[1:] & small[:-1] & (owner[1:] == owner[:-1]) & (start[1:] - end[:-1] <= pixel)
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    group = np.cumsum(np.concatenate([[0], ~joined]))
    longest = np.lexsort((duration, group))[np.append(first[1:], len(start)) - 1]
    ends = np.maximum.reduceat(start + duration, first)
    counts = np.diff(np.append(first, len(start)))
    columns = (start[first], ends - start[first], label[longest], owner[first], counts)
    return [(lane, *span) for span in zip(*(column.tolist() for column in columns), strict=True)]


def _sources(
    costs: dict[str, dict[int, tuple[int, int]]],
    findings: Sequence[Finding],
    tree: SourceTree | None,
) -> list[ShownFile]:
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
    costs: dict[int, tuple[int, int]], findings: dict[int, list[int]], text: Sequence[str]
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
