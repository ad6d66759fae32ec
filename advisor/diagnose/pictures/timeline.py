"""One typical step over time: the host, the kernels in lanes, and why the device was idle.

Host and device are drawn on the clock of the dump. A gap is time in which no kernel and no
collective runs; what ends it says why it was there: a kernel that the host launched only after the
device had run dry (``late``; ``value`` where the host waited for a result of the device then,
``loading`` where it waited for the next batch), or one that had been launched long before
(``launched``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.advisor.diagnose.pictures.cells import place_text
from npufix.advisor.diagnose.pictures.path_spans import between_kernels, spans_of_path
from npufix.reports.html.details import Lane, Timeline
from npufix.rules.shared.recording.observing import NEXT_BATCH
from npufix.rules.shared.recording.pauses import SPELLINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.predict.graph.critical_path import CriticalPath

    Integers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_SPANS = 3000
"""Of one lane; beyond that, neighbours are drawn as one."""
_MOST_LANES = 4
"""Of one kind."""
_CAUSES = ("late", "value", "loading", "launched", "unknown")
_LATE, _VALUE, _LOADING, _LAUNCHED, _UNKNOWN = range(5)
_ENGINE = "autograd::engine::evaluate_function: "
_STEP_MARK = "ProfilerStep#"


class _Window(NamedTuple):
    title: str
    start: int
    end: int


class _Row(NamedTuple):
    """What lies on one lane: equally long columns, in order of the starts."""

    lane: Lane
    start: Integers
    end: Integers
    label: Integers
    owner: Integers
    place: Integers


class _Names:
    """Texts that spans refer to by number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def column(self, texts: list[str]) -> Integers:
        """Return the number of each text."""
        numbers = self.numbers
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)


def timeline(
    evidence: Evidence,
    owners: Mapping[int, int],
    waits: Mapping[str, list[int]],
    path: CriticalPath | None = None,
) -> Timeline | None:
    """Return a typical step; ``owners``: label of a kernel -> position of its finding.

    ``waits``: place, ``file.py:12``, of the kernel that the device waited for -> positions of the
    findings about such waits. The critical ``path`` gets a lane where this step was replayed.
    """
    kernels = evidence.kernels
    if kernels.empty or not evidence.steady.any():
        return None
    window = _typical_step(evidence)
    labels, places = _Names(), _Names()
    starts = kernels["start_ns"].to_numpy()
    ends = starts + kernels["duration_ns"].to_numpy()
    inside = (ends > window.start) & (starts < window.end)
    host = _host(evidence.host_ops, window, labels, places)
    rows = [host] if host is not None else []
    rows += _kernels(kernels[inside], owners, labels, places)
    gaps = _gaps(evidence, window, starts, ends, labels, waits)
    rows += [gaps] if gaps is not None else []
    critical = _critical(kernels, path, window, labels, places) if path is not None else None
    rows += [critical] if critical is not None else []
    length = window.end - window.start
    spans = [
        (number, *span)
        for number, row in enumerate(rows)
        for span in _merge(_clip(row, window), length)
    ]
    lanes = [row.lane for row in rows]
    return Timeline(window.title, length, lanes, list(labels.numbers), list(places.numbers), spans)


def _typical_step(evidence: Evidence) -> _Window:
    """Return the steady step of median length, or all without steps.

    It begins and ends with its mark on the host where that is known, else with its kernels.
    """
    rows = evidence.kernels[evidence.steady]
    starts, ends = rows["start_ns"], rows["start_ns"] + rows["duration_ns"]
    if rows["step"].isna().all():
        return _Window("the recording", int(starts.min()), int(ends.max()))
    first, last = starts.groupby(rows["step"]).min(), ends.groupby(rows["step"]).max()
    lengths = (last - first).sort_values(kind="stable")
    n = lengths.index[len(lengths) // 2]
    marks = evidence.host_ops[(evidence.host_ops["name"] == f"{_STEP_MARK}{n}").to_numpy()]
    if len(marks):
        begin = int(marks["start_ns"].iloc[0])
        end = begin + int(marks["duration_ns"].iloc[0])
        # Kernels may run long after their step has ended on the host: then the mark is another's.
        if begin < last[n] and first[n] < end:
            return _Window(f"step {n}", begin, max(end, begin + 1))
    return _Window(f"step {n}", int(first[n]), int(last[n]))


def _outermost(start: Integers, end: Integers) -> Mask:
    """Tell which of some intervals, in order of their starts, begin after all before have ended."""
    before = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], end[:-1]]))
    free: Mask = start >= before
    return free


def _host(ops: pd.DataFrame, window: _Window, labels: _Names, places: _Names) -> _Row | None:
    """Return the operators of the host that no other one is around."""
    if ops.empty:
        return None
    starts = ops["start_ns"].to_numpy()
    ends = starts + ops["duration_ns"].to_numpy()
    marks = _match_names(ops["name"], f"{_STEP_MARK}.*")
    inside = (ends > window.start) & (starts < window.end) & ~marks
    own = ops[inside].sort_values(["start_ns", "duration_ns"], ascending=[True, False])
    starts = own["start_ns"].to_numpy()
    ends = starts + own["duration_ns"].to_numpy()
    outer = _outermost(starts, ends)
    shown = own[outer]
    if shown.empty:
        return None
    names = labels.column([name.removeprefix(_ENGINE) for name in shown["name"].astype(str)])
    nobody = np.full(len(shown), -1, np.int64)
    at = places.column(_places(shown))
    return _Row(Lane("host", 1), starts[outer], ends[outer], names, nobody, at)


def _places(rows: pd.DataFrame) -> list[str]:
    columns = (rows[name].tolist() for name in ("path", "line", "function"))
    return [place_text(str(p), line, str(f)) for p, line, f in zip(*columns, strict=True)]


def _kernels(
    rows: pd.DataFrame, owners: Mapping[int, int], labels: _Names, places: _Names
) -> list[_Row]:
    rows = rows.sort_values("start_ns", kind="stable")
    start = rows["start_ns"].to_numpy()
    end = start + rows["duration_ns"].to_numpy()
    label = labels.column(rows["type"].astype(str).tolist())
    owner = np.array([owners.get(int(kernel), -1) for kernel in rows.index], np.int64)
    place = places.column(_places(rows))
    collective = rows["communication"].to_numpy(dtype=bool)
    on_cpu = rows["core"].astype(str).str.contains("AI_CPU").to_numpy(bool) & ~collective
    found = []
    kinds = (
        ("compute", ~collective & ~on_cpu), ("AI CPU", on_cpu), ("communication", collective),
    )  # fmt: skip
    streams = rows["stream"].to_numpy() if "stream" in rows else np.full(len(rows), -1)
    for kind, chosen in kinds:
        for lane, own in _lanes(kind, np.flatnonzero(chosen), start, end, streams):
            found.append(_Row(lane, *(part[own] for part in (start, end, label, owner, place))))
    return found


def _lanes(
    kind: str, rows: Integers, start: Integers, end: Integers, streams: Integers
) -> Iterator[tuple[Lane, Integers]]:
    """Yield a lane for each stream with its rows; without streams, one more for what overlaps."""
    known, counts = np.unique(streams[rows], return_counts=True)
    if len(known) and known[0] >= 0:
        busiest = known[np.argsort(-counts, kind="stable")][:_MOST_LANES]
        for number, stream in enumerate(busiest.tolist(), 1):
            yield Lane(kind, number, stream), rows[streams[rows] == stream]
        return
    for number in range(1, _MOST_LANES + 1):
        if not len(rows):
            return
        free = _outermost(start[rows], end[rows])
        free |= number == _MOST_LANES
        yield Lane(kind, number), rows[free]
        rows = rows[~free]


def _critical(
    kernels: pd.DataFrame, path: CriticalPath, window: _Window, labels: _Names, places: _Names
) -> _Row | None:
    """Return what the step waits for: kernels, and in between the host where that was recorded."""
    spans = spans_of_path(path, kernels, window.start, window.end)
    if spans is None:
        return None
    begins, ends, own = spans
    rows = kernels.loc[own[own >= 0]]
    names, at = np.full((2, len(own)), -1, np.int64)
    names[own >= 0] = labels.column(list(rows["type"].astype(str)))
    names[own < 0] = labels.column([between_kernels(path)] * int((own < 0).sum()))
    at[own >= 0] = places.column(_places(rows))
    return _Row(Lane("critical", 1), begins, ends, names, np.full(len(own), -1), at)


def _gaps(  # noqa: PLR0913, PLR0917 - columns of kernels beside what they are drawn into
    evidence: Evidence,
    window: _Window,
    starts: Integers,
    ends: Integers,
    labels: _Names,
    waits: Mapping[str, list[int]],
) -> _Row | None:
    """Return the time in which nothing runs, with its cause."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    launches = evidence.kernels["launch_ns"].to_numpy()[order]
    begins = np.concatenate([[window.start], np.maximum.accumulate(ends)])
    nexts = np.concatenate([starts, [window.end]])
    launched = np.concatenate([launches, [-1]])
    lo, hi = np.maximum(begins, window.start), np.minimum(nexts, window.end)
    real = hi > lo
    if not real.any():
        return None
    begin, end, launched = lo[real], hi[real], launched[real]
    late = launched - begin > (end - begin) // 2
    cause = np.where(launched < 0, _UNKNOWN, np.where(late, _LATE, _LAUNCHED))
    host = evidence.host_ops
    reads = host[host["name"].isin([*SPELLINGS]).to_numpy(bool)]
    loads = host[_match_names(host["name"], NEXT_BATCH)]
    cause = np.where((cause == _LATE) & _find_covered(reads, begin), _VALUE, cause)
    cause = np.where(_find_covered(loads, (begin + end) // 2), _LOADING, cause)
    said = labels.column([_CAUSES[number] for number in cause.tolist()])
    nexts = np.append(order, -1)[real]
    owner = _find_waits(evidence.kernels, nexts, end - begin, cause, waits)
    return _Row(Lane("idle", 1), begin, end, said, owner, np.full(len(begin), -1, np.int64))


def _find_waits(
    kernels: pd.DataFrame,
    nexts: Integers,
    lengths: Integers,
    cause: Integers,
    waits: Mapping[str, list[int]],
) -> Integers:
    """Return the finding about each gap that the host explains, the longest gaps first.

    Of several findings about waits at the place of the next kernel it is one that has no gap yet.
    """
    owner = np.full(len(nexts), -1, np.int64)
    if not waits:
        return owner
    paths, lines = kernels["path"].astype(str).to_numpy(), kernels["line"].to_numpy()
    taken: set[int] = set()
    by_host = np.isin(cause, [_LATE, _VALUE, _LOADING]) & (nexts >= 0)
    for gap in np.argsort(-lengths, kind="stable").tolist():
        if by_host[gap]:
            found = waits.get(f"{paths[nexts[gap]]}:{lines[nexts[gap]]}", [])
            owner[gap] = next((one for one in found if one not in taken), found[0] if found else -1)
            taken.add(int(owner[gap]))
    return owner


def _match_names(names: pd.Series[str], pattern: str) -> Mask:
    """Tell which names, of a category, a pattern fits."""
    wanted = [name for name in names.cat.categories if re.fullmatch(pattern, str(name))]
    found: Mask = names.isin(wanted).to_numpy(bool)
    return found


def _find_covered(ops: pd.DataFrame, moments: Integers) -> Mask:
    """Tell which moments lie within one of the operators."""
    if ops.empty:
        return np.zeros(len(moments), np.bool_)
    order = ops.sort_values("start_ns", kind="stable")
    starts = order["start_ns"].to_numpy()
    ends = np.maximum.accumulate(starts + order["duration_ns"].to_numpy())
    at = np.searchsorted(starts, moments, side="right") - 1
    inside: Mask = (at >= 0) & (ends[at.clip(min=0)] >= moments)
    return inside


def _clip(row: _Row, window: _Window) -> _Row:
    start = np.clip(row.start, window.start, window.end) - window.start
    end = np.clip(row.end, window.start, window.end) - window.start
    return row._replace(start=start, end=end)


def _merge(row: _Row, length: int) -> list[tuple[int, int, int, int, int, int]]:
    """Return spans in which, of too many, neighbours below one pixel of one finding are one."""
    start, end, label, owner, place = row[1:]
    if not len(start):
        return []
    pixel = length // _SPANS if len(start) > _SPANS else -1
    reached = np.maximum.accumulate(end)
    small = end - start <= pixel
    joined = (
        small[1:] & small[:-1] & (owner[1:] == owner[:-1]) & (start[1:] - reached[:-1] <= pixel)
    )
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    group = np.cumsum(np.concatenate([[0], ~joined]))
    longest = np.lexsort((end - start, group))[np.append(first[1:], len(start)) - 1]
    ends = np.maximum.reduceat(end, first)
    counts = np.diff(np.append(first, len(start)))
    columns = (
        start[first], ends - start[first], label[longest], owner[first], counts, place[longest],
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))
