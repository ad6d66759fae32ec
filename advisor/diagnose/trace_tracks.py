"""From a diagnosis to a trace with its findings on tracks of their own, written as a stream."""

from __future__ import annotations

import gzip
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from npufix.advisor.diagnose.pictures.path_spans import between_kernels, spans_of_path
from npufix.profiling_parsers.dump_folder import find_analysed_folder, trace_file
from npufix.profiling_parsers.trace.copied import copy_trace
from npufix.reports.data.trace_events import (
    Clock,
    Slice,
    finding_events,
    kernel_events,
    path_events,
)
from npufix.rules.shared.labels import Labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.profiling_parsers.trace.copied import Places
    from npufix.reports.report import Finding

_FIRST_PID = 900_000_001
_LEVEL = 6
_TRACES = frozenset({"trace", "kineto"})
"""Formats whose dump is a trace itself."""


def write_tracks(
    result: Diagnosis, findings: Sequence[Finding], *, packed: bool, whole: bool, file: IO[bytes]
) -> None:
    """Write the findings over the original trace or, without ``whole``, the findings alone.

    Where the dump has no trace, or one of another run, its kernels are drawn from the profile.
    """
    for trace in dict.fromkeys((_trace_of(result), None)):
        file.seek(0)
        file.truncate()
        if packed:
            with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as inner:
                done = _write(result, findings, trace, inner.write, whole=whole)
        else:
            done = _write(result, findings, trace, file.write, whole=whole)
        if done:
            return


def _trace_of(result: Diagnosis) -> Path | None:
    """Return the trace that a profile was read with, or could have been."""
    root = Path(result.report.dump)
    if result.report.format in _TRACES:
        return root
    if not root.is_dir():
        return None
    path = trace_file(find_analysed_folder(root))
    return path if path.is_file() else None


def _write(
    result: Diagnosis,
    findings: Sequence[Finding],
    trace: Path | None,
    write: Callable[[bytes], object],
    *,
    whole: bool,
) -> bool:
    """Write one array of events; return whether the trace is that of the profile."""
    evidence = result.evidence
    if evidence is None:
        write(b"[]\n")
        return True
    owners = _owners(result, findings)
    kernels = evidence.kernels
    wanted = frozenset(kernel for kernel, _ in owners)
    array = _Array(write)
    places = None
    if trace is not None:
        copied = array.raw if whole else _nothing
        # All of them tell the clock of the trace, where no finding has a kernel.
        places = copy_trace(trace, kernels, wanted or frozenset(kernels.index[:1000]), copied)
        if places.events.empty:
            return False
        clock, pid, offset = Clock(places.texts), _free_pid(places), places.offset_ns or 0
    else:
        first = int(kernels["start_ns"].min()) if len(kernels) else 0
        clock, pid, offset = Clock(texts=False, origin_ns=first), _FIRST_PID, 0
    targets: dict[int, tuple[object, object]] = {}
    if places is None and whole:
        targets = _draw_kernels(kernels, wanted, clock, pid + 1, array)
    slices = _slices(owners, kernels, places, targets, offset)
    if places is not None and not whole:
        slices = (replace(item, target=None) for item in slices)
    runs = _whole_run(result, owners, findings, offset)
    for event in finding_events(findings, chain(slices, runs), clock, pid):
        array.add(event)
    for event in path_events(_path_spans(result, offset), clock, pid) if result.path else ():
        array.add(event)
    array.close()
    return True


class _Array:
    """An array of JSON that grows."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._empty = True
        write(b"[\n")

    def raw(self, text: bytes) -> None:
        """Take the events of a trace, which bring their commas."""
        self._write(text)
        self._empty = False

    def add(self, event: bytes) -> None:
        """Add one event."""
        self._write(event if self._empty else b",\n" + event)
        self._empty = False

    def close(self) -> None:
        """End the array."""
        self._write(b"\n]\n")


def _nothing(_: bytes) -> None:
    """Write nothing."""


def _owners(result: Diagnosis, findings: Sequence[Finding]) -> list[tuple[int, int]]:
    """Return the kernels of the findings, by label, with the position of their finding.

    A kernel lies once on the track of a rule: that of its most rewarding finding.
    """
    kernels = {item.finding.fingerprint: item.kernels for item in result.found}
    kernels |= {item.finding.fingerprint: item.kernels for item in result.seen}
    owners: list[tuple[int, int]] = []
    taken: dict[str, Labels] = {}
    for number, found in enumerate(findings):
        own = Labels(kernels.get(found.fingerprint, ())) - taken.get(found.rule, Labels())
        taken[found.rule] = taken.get(found.rule, Labels()) | own
        owners += [(kernel, number) for kernel in own]
    return owners


def _slices(
    owners: Sequence[tuple[int, int]],
    kernels: pd.DataFrame,
    places: Places | None,
    targets: Mapping[int, tuple[object, object]],
    offset: int,
) -> Iterator[Slice]:
    """Yield the kernels of findings where the trace has them, else where the profile has them."""
    rows = kernels.loc[[kernel for kernel, _ in owners], ["name", "start_ns", "duration_ns"]]
    events: dict[int, tuple[int, int, int, int]] = {}
    if places is not None:
        columns = ("pid", "tid", "start_ns", "duration_ns")
        rest = zip(*(places.events[name].tolist() for name in columns), strict=True)
        events = dict(zip(places.events.index.tolist(), rest, strict=True))
    listed = (rows[name].tolist() for name in ("name", "start_ns", "duration_ns"))
    for (kernel, number), name, start, duration in zip(owners, *listed, strict=True):
        if places is not None and (event := events.get(kernel)) is not None:
            target = places.pids[event[0]], places.tids[event[1]]
            yield Slice(number, event[2], event[3], str(name), target)
        else:
            yield Slice(number, start - offset, duration, str(name), targets.get(kernel))


def _whole_run(
    result: Diagnosis, owners: Sequence[tuple[int, int]], findings: Sequence[Finding], offset: int
) -> Iterator[Slice]:
    """Yield the findings about the run that no kernel stands for, over the whole of it."""
    evidence = result.evidence
    if evidence is None or not evidence.steady.any():
        return
    placed = {number for _, number in owners}
    steady = evidence.kernels[evidence.steady]
    start = int(steady["start_ns"].min())
    end = int((steady["start_ns"] + steady["duration_ns"]).max())
    for number, found in enumerate(findings):
        if found.kind == "run" and number not in placed:
            yield Slice(number, start - offset, end - start)


def _path_spans(result: Diagnosis, offset: int) -> Iterator[tuple[int, int, str]]:
    """Yield what the replayed steps wait for, one behind the other."""
    if result.path is None or result.evidence is None or not len(result.path.label):
        return
    kernels = result.evidence.kernels
    rows = kernels.loc[result.path.label, ["start_ns", "duration_ns"]]
    begin, end = int(rows["start_ns"].min()), int(rows.sum(axis=1).max())
    spans = spans_of_path(result.path, kernels, begin, end)
    if spans is None:
        return
    between = between_kernels(result.path) or "between kernels"
    names = kernels["type"].reindex(spans.label).astype(str).to_numpy()
    names = np.where(spans.label < 0, between, names)
    for start, until, name in zip(spans.start.tolist(), spans.end.tolist(), names, strict=True):
        yield start - offset, until - offset, str(name)


def _draw_kernels(
    kernels: pd.DataFrame, wanted: frozenset[int], clock: Clock, pid: int, array: _Array
) -> dict[int, tuple[object, object]]:
    """Draw the kernels of a profile, and return where those that are wanted lie."""
    columns = ("name", "device", "start_ns", "duration_ns")
    rows = zip(*(kernels[name].tolist() for name in columns), strict=True)
    targets: dict[int, tuple[object, object]] = {}
    labels = iter(kernels.index.tolist())
    for tid, event in kernel_events(rows, clock, pid):
        array.add(event)
        if tid and (label := next(labels)) in wanted:
            targets[label] = pid, tid
    return targets


def _free_pid(places: Places) -> int:
    """Return the number of a process that the trace does not have."""
    taken = {str(pid) for pid in places.all_pids}
    return next(pid for pid in count(_FIRST_PID) if str(pid) not in taken)
