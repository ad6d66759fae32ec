"""The findings as tracks of a trace (Chrome's JSON), for Perfetto and MindStudio Insight.

Perfetto colours a slice by its name, so names begin with the id of the rule. A trace has no exact
numbers for an epoch in microseconds: where times are texts in the original they are texts here.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from npufix.reports.wording.report import interval, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npufix.reports.report import Finding

_PROCESS = "npufix findings"
_CATEGORY = "npufix"
_PATH, _PATH_TID = "critical path", 0
"""The threads of findings have numbers from 1."""
_COLOUR = "terrible"
"""For chrome://tracing; Perfetto ignores it."""
_LONGEST_TEXT = 300
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Slice:
    """A kernel of a finding, or the recording of a finding that has none."""

    finding: int
    """Position in the findings."""
    start_ns: int
    duration_ns: int
    kernel: str = ""
    target: tuple[object, object] | None = None
    """Process and thread of the kernel's own slice, for an arrow to it."""


@dataclass(frozen=True)
class Clock:
    """How times are written: less ``origin_ns``, as texts or as numbers."""

    texts: bool
    origin_ns: int = 0

    def at(self, ns: int) -> bytes:
        """Return a time as it stands in the trace."""
        text = microseconds(ns - self.origin_ns)
        return b'"' + text + b'"' if self.texts else text


@dataclass
class _Lanes:
    """Threads of one rule: slices that overlap cannot lie on one."""

    ends: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0

    def lane(self, start: int, end: int) -> int:
        """Return the lane of the next slice, in order of the starts."""
        if self.ends and self.ends[0][0] <= start:
            lane = heapq.heapreplace(self.ends, (max(end, start + 1), self.ends[0][1]))[1]
        else:
            lane, self.count = self.count, self.count + 1
            heapq.heappush(self.ends, (max(end, start + 1), lane))
        return lane


def microseconds(ns: int) -> bytes:
    """Return nanoseconds as decimal microseconds, exactly."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}".encode()


def finding_events(
    findings: Sequence[Finding], slices: Iterable[Slice], clock: Clock, pid: int
) -> Iterator[bytes]:
    """Yield the events of the findings: a track a rule, and arrows to the kernels.

    The arrows need slices that come before them, so these events belong behind all others.
    """
    yield from process_events(pid, _PROCESS, sort_index=-1)
    labels = [_label(found) for found in findings]
    arguments = [_arguments(number, found) for number, found in enumerate(findings, 1)]
    rules = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    lanes = {label: _Lanes() for label in rules}
    threads: dict[tuple[str, int], int] = {}
    flow = 0
    for item in sorted(slices, key=lambda s: (s.start_ns, s.finding)):
        label = labels[item.finding]
        lane = lanes[label].lane(item.start_ns, item.start_ns + item.duration_ns)
        tid = threads.get((label, lane))
        if tid is None:
            threads[label, lane] = tid = len(threads) + 1
            name = label if lane == 0 else f"{label} ({lane + 1})"
            yield from _thread_events(pid, tid, name, rules[label] * 1000 + lane)
        head = b'{"ph":"X","cat":"%s","name":%s,"pid":%d,"tid":%d' % (
            _CATEGORY.encode(), _encode(label), pid, tid
        )  # fmt: skip
        kernel = _encode(_short(item.kernel))
        yield head + b',"ts":%s,"dur":%s,"cname":"%s","args":{%s,"kernel":%s}}' % (
            clock.at(item.start_ns), microseconds(item.duration_ns), _COLOUR.encode(),
            arguments[item.finding], kernel,
        )  # fmt: skip
        if item.target is not None:
            flow += 1
            # Inside both slices, so that it binds to them and to nothing that ends or begins there.
            middle = clock.at(item.start_ns + item.duration_ns // 2)
            yield _flow(b"s", flow, label, (pid, tid), middle)
            yield _flow(b"f", flow, label, item.target, middle)


def path_events(spans: Iterable[tuple[int, int, str]], clock: Clock, pid: int) -> Iterator[bytes]:
    """Yield a track of the critical path, beside those of the findings, which come before it.

    ``spans`` are start, end and what is waited for: one behind the other, so they lie on one track.
    """
    yield from _thread_events(pid, _PATH_TID, _PATH, -1)
    for start, end, name in spans:
        yield b'{"ph":"X","cat":"%s","name":%s,"pid":%d,"tid":%d,"ts":%s,"dur":%s}' % (
            _CATEGORY.encode(), _encode(_short(name)), pid, _PATH_TID, clock.at(start),
            microseconds(end - start),
        )  # fmt: skip


def kernel_events(
    kernels: Iterable[tuple[str, int, int, int]], clock: Clock, pid: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the thread and the event of kernels of a profile without a trace.

    ``kernels`` are name, device, start and duration, in order of their starts.
    """
    yield from ((0, event) for event in process_events(pid, "NPU kernels", sort_index=0))
    lanes: dict[int, _Lanes] = {}
    threads: dict[tuple[int, int], int] = {}
    for name, device, start, duration in kernels:
        lane = lanes.setdefault(device, _Lanes()).lane(start, start + duration)
        tid = threads.get((device, lane))
        if tid is None:
            threads[device, lane] = tid = len(threads) + 1
            title = f"device {device}" if device >= 0 else "device"
            title = title if lane == 0 else f"{title} ({lane + 1})"
            order = max(device, 0) * 1000 + lane
            yield from ((0, event) for event in _thread_events(pid, tid, title, order))
        yield tid, b'{"ph":"X","cat":"kernel","name":%s,"pid":%d,"tid":%d,"ts":%s,"dur":%s}' % (
            _encode(_short(name)), pid, tid, clock.at(start), microseconds(duration)
        )  # fmt: skip


def process_events(pid: int, name: str, sort_index: int) -> Iterator[bytes]:
    """Yield what names and places a process."""
    yield _metadata("process_name", pid, 0, {"name": name})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": sort_index})


def _thread_events(pid: int, tid: int, name: str, sort_index: int) -> Iterator[bytes]:
    yield _metadata("thread_name", pid, tid, {"name": name})
    yield _metadata("thread_sort_index", pid, tid, {"sort_index": sort_index})


def _metadata(name: str, pid: int, tid: int, args: dict[str, object]) -> bytes:
    return _encode({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})


def _flow(kind: bytes, number: int, name: str, track: tuple[object, object], at: bytes) -> bytes:
    binding = b',"bp":"e"' if kind == b"f" else b""
    pid, tid = map(_encode, track)
    return b'{"ph":"%s"%s,"cat":"%s","name":%s,"id":%d,"pid":%s,"tid":%s,"ts":%s}' % (
        kind, binding, _CATEGORY.encode(), _encode(name), number, pid, tid, at
    )  # fmt: skip


def _label(found: Finding) -> str:
    return f"{found.rule} {found.name}"


def _arguments(number: int, found: Finding) -> bytes:
    """Return what is shown of a finding when one of its slices is clicked, without brackets."""
    saves = {}
    if found.saving is not None:
        saves = {
            "saves per step": interval(found.saving),
            "saving_low_us": found.saving.low_ns / 1000,
            "saving_high_us": found.saving.high_ns / 1000,
            "basis": found.saving.basis,
        }
    shown = {
        "finding": f"{number}. {_label(found)}",
        "summary": found.summary,
        "where": found.place,
        "function": found.function,
        "does": found.what,
        "safety": found.safety,
        "verdict": found.verdict.status if found.verdict else "",
        **saves,
        "device_us per step": found.device_ns / 1000,
    }
    kept = {
        key: _short(value) if isinstance(value, str) else value
        for key, value in shown.items()
        if value not in {"", None}
    }
    return _encode(kept)[1:-1]


def _short(text: str) -> str:
    return plain(text[:_LONGEST_TEXT])
