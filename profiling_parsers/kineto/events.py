"""The events of a Kineto trace that lead from a device task to a line, as tables.

The spelling of torch 1.8 to 1.10 (``Operator``, ``Kernel``, ``external id``) and that of all
later versions (``cpu_op``, ``kernel``, ``External id``) end in the same columns.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.kineto.arguments import OPERATOR, TASK, Args, Arguments, TaskArguments
from npufix.profiling_parsers.kineto.file import TraceFile
from npufix.profiling_parsers.tables.columns import one_line
from npufix.profiling_parsers.tables.kernel_times import LONGEST_NS
from npufix.profiling_parsers.trace.json_stream import Event, EventStream
from npufix.profiling_parsers.trace.rows import (
    Codes,
    EventTable,
    Keys,
    parse_durations,
    parse_moments,
    parse_texts,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

CORES = ("GPU", "Memcpy", "Memset", "MTIA", "CPU")
"""Values of ``core``; the tables of device tasks hold positions in it."""
_GPU, _MEMCPY, _MEMSET, _MTIA, _ = range(len(CORES))

_ANNOTATIONS = re.compile(
    r"ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)|\[pytorch\||(?:nccl|gloo|mpi|ucc|hccl|xccl):"
)
"""Of torch 1.8 to 1.10, where annotations have the category of operators."""
_TASKS = {
    "kernel": _GPU,
    "Kernel": _GPU,
    "gpu_memcpy": _MEMCPY,
    "Memcpy": _MEMCPY,
    "gpu_memset": _MEMSET,
    "Memset": _MEMSET,
}
_RUNTIMES = (
    *("Runtime", "cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime"),
    *("privateuse1_runtime", "privateuse1_driver"),
)
_PLACE = ("pid", "tid", "start_ns")
_TABLES = {
    "operators": (
        *("name", "duration_ns", "sequence", "input_dims", "input_types", "stack", "module"),
        *("external", *_PLACE),
    ),
    "annotations": ("name", "duration_ns", "on_device", *_PLACE),
    "calls": ("name", "duration_ns", *_PLACE),
    "runtime": ("name", "duration_ns", "correlation", "external", *_PLACE),
    "device": (
        *("name", "duration_ns", "core", "device", "correlation", "external", "stream"),
        "start_ns",
    ),
    "flow_starts": ("flow", *_PLACE),
    "flow_ends": ("flow", *_PLACE),
}
_SMALL = (
    *("name", "input_dims", "input_types", "stack", "module", "core", "device", "on_device"),
    *("pid", "tid", "stream"),
)
_LONGEST_US, _LONGEST_TASK_US = 9e12, LONGEST_NS / 1000
_MTIA_WAITS = ("event_record", "event_wait")
_LARGEST_DEVICE, _LARGEST_STREAM = 1 << 10, 1 << 31


@dataclass(frozen=True)
class KinetoTrace:
    """The tables, in the order of the file; times of ``start_ns`` as written, in nanoseconds.

    ``operators`` -- ``name``, ``duration_ns``, ``sequence``, ``input_dims``, ``input_types``
    (codes into ``dims`` and ``types``), ``stack`` (index into ``stacks``), ``module`` (category,
    the Module Hierarchy of TorchScript), ``external`` (id), ``pid``, ``tid``, ``start_ns``.
    ``annotations`` -- ``name``, ``duration_ns``, ``on_device``, ``pid``, ``tid``, ``start_ns``.
    ``calls`` (of Python) -- ``name``, ``duration_ns``, ``pid``, ``tid``, ``start_ns``.
    ``runtime`` -- ``name``, ``duration_ns``, ``correlation``, ``external``, ``pid``, ``tid``,
    ``start_ns``.
    ``device`` -- ``name``, ``duration_ns``, ``core`` (position in ``CORES``), ``device``,
    ``correlation``, ``external``, ``stream``, ``start_ns``.
    ``flow_starts``, ``flow_ends`` (forward to backward) -- ``flow``, ``pid``, ``tid``,
    ``start_ns``.
    """

    operators: pd.DataFrame
    annotations: pd.DataFrame
    calls: pd.DataFrame
    runtime: pd.DataFrame
    device: pd.DataFrame
    flow_starts: pd.DataFrame
    flow_ends: pd.DataFrame
    dims: Codes[bytes]
    types: Codes[bytes]
    stacks: tuple[str, ...]
    head: bytes
    tail: bytes
    cut: int | None
    malformed: int
    damage: str | None
    packed: bool


class _Collector:
    """The rows of the events that are needed."""

    def __init__(self) -> None:
        named = [kind for kind, columns in _TABLES.items() if "name" in columns]
        self.names = {kind: Codes[str]() for kind in named}
        self.dims, self.types = Codes[bytes](), Codes[bytes]()
        self.stacks, self.modules = Codes({"": 0}), Codes({"": 0})
        self.keys = Keys()
        self.malformed = 0
        self.tables = {
            name: EventTable(*columns, small=_SMALL) for name, columns in _TABLES.items()
        }
        self._kinds: dict[str, Callable[[list[Event]], None]] = {
            "Operator": self._early_operators,
            "cpu_op": self._operators,
            "user_annotation": partial(self._annotations, on_device=False),
            "gpu_user_annotation": partial(self._annotations, on_device=True),
            "python_function": self._calls,
            "fwdbwd": self._flows,
            "mtia_ccp_events": self._mtia_tasks,
            **{name: partial(self._tasks, core=core) for name, core in _TASKS.items()},
            **dict.fromkeys(_RUNTIMES, self._runtime),
        }

    def add(self, events: list[Event]) -> None:
        """Take the rows of one chunk."""
        kinds: dict[str, list[Event]] = {kind: [] for kind in self._kinds}
        ignored: list[Event] = []
        for kind, event in zip(parse_texts([event.cat for event in events]), events, strict=True):
            kinds.get(kind, ignored).append(event)
        for kind, take in self._kinds.items():
            if kinds[kind]:
                take(kinds[kind])

    def _early_operators(self, events: list[Event]) -> None:
        operators: list[Event] = []
        annotations: list[Event] = []
        for event in events:
            is_annotation = _ANNOTATIONS.match(text_of(event.name)) is not None
            (annotations if is_annotation else operators).append(event)
        self._operators(operators)
        self._annotations(annotations, on_device=False)

    def _operators(self, events: list[Event]) -> None:
        events = self._lasting(events)
        arguments = [self._decode(OPERATOR, event) for event in events]
        self._add(
            "operators",
            events,
            self.keys.of([one.sequence for one in arguments]),
            self.dims.of([bytes(one.dims or one.first_dims) for one in arguments]),
            self.types.of([bytes(one.types) for one in arguments]),
            self.stacks.of(parse_texts([one.stack for one in arguments])),
            self.modules.of(parse_texts([one.module for one in arguments])),
            self.keys.of([one.external for one in arguments]),
            *self._places(events),
        )

    def _annotations(self, events: list[Event], *, on_device: bool) -> None:
        events = self._lasting(events)
        place = np.full(len(events), on_device, np.int64)
        self._add("annotations", events, place, *self._places(events))

    def _calls(self, events: list[Event]) -> None:
        events = self._lasting(events)
        self._add("calls", events, *self._places(events))

    def _tasks(self, events: list[Event], core: int) -> None:
        events = self._lasting(events, _LONGEST_TASK_US)
        arguments = [self._decode(TASK, event) for event in events]
        # Without a device, the process is called after it.
        devices = self.keys.of(
            [
                event.pid if one.device is None else one.device
                for event, one in zip(events, arguments, strict=True)
            ]
        )
        streams = self.keys.of([event.tid for event in events])
        self._add(
            "device",
            events,
            np.full(len(events), core, np.int64),
            np.where((devices >= 0) & (devices < _LARGEST_DEVICE), devices, -1),
            self.keys.of([one.correlation for one in arguments]),
            self._externals(arguments),
            np.where((streams >= 0) & (streams < _LARGEST_STREAM), streams, -1),
        )

    def _mtia_tasks(self, events: list[Event]) -> None:
        copies: list[Event] = []
        kernels: list[Event] = []
        for event in events:
            if event.name not in _MTIA_WAITS:  # the device does nothing while it waits
                (copies if event.name == "dma_request" else kernels).append(event)
        self._tasks(copies, _MEMCPY)
        self._tasks(kernels, _MTIA)

    def _runtime(self, events: list[Event]) -> None:
        events = [event for event in events if event.ph == "X"]
        arguments = [self._decode(TASK, event) for event in events]
        correlations = self.keys.of([one.correlation for one in arguments])
        externals = self._externals(arguments)
        lasting = [event.dur if _is_duration(event.dur, _LONGEST_US) else 0 for event in events]
        names = self.names["runtime"].of(parse_texts([event.name for event in events]))
        columns = (names, parse_durations(lasting), correlations, externals, *self._places(events))
        self._append("runtime", events, *columns)

    def _flows(self, events: list[Event]) -> None:
        for phase, kind in (("s", "flow_starts"), ("f", "flow_ends")):
            ends = [event for event in events if event.ph == phase]
            flows = self.keys.of([event.id for event in ends])
            self._append(kind, ends, flows, *self._places(ends))

    def _lasting(self, events: list[Event], longest: float = _LONGEST_US) -> list[Event]:
        """Return the events that have a duration; it counts those that should have one."""
        complete = [event for event in events if event.ph == "X"]
        lasting = [event for event in complete if _is_duration(event.dur, longest)]
        # Left out and counted: as 0 they would make a wrong total.
        self.malformed += len(complete) - len(lasting)
        return lasting

    def _add(self, kind: str, events: list[Event], *columns: Integers) -> None:
        """Add rows of events that last: name, duration, ``columns``, start."""
        names = self.names[kind].of(parse_texts([event.name for event in events]))
        self._append(
            kind, events, names, parse_durations([event.dur for event in events]), *columns
        )

    def _append(self, kind: str, events: list[Event], *columns: Integers) -> None:
        """Add rows that end with the start of the events; without one they are malformed."""
        starts, valid = parse_moments([event.ts for event in events])
        self.malformed += int(np.count_nonzero(~valid))
        rows = (*columns, starts)
        self.tables[kind].add(*(rows if valid.all() else (column[valid] for column in rows)))

    def _externals(self, arguments: list[TaskArguments]) -> Integers:
        return self.keys.of(
            [one.first_external if one.external is None else one.external for one in arguments]
        )

    def _places(self, events: list[Event]) -> tuple[Integers, Integers]:
        pids = self.keys.of([event.pid for event in events])
        return pids, self.keys.of([event.tid for event in events])

    def _decode(self, arguments: Arguments[Args], event: Event) -> Args:
        decoded = arguments.of(event)
        if decoded is None:
            self.malformed += 1
            return arguments.empty
        return decoded


def _is_duration(value: object, longest: float) -> bool:
    """Tell whether ``value`` is a number of microseconds that fits; floats come as texts."""
    if type(value) is int:
        return 0 <= value < longest
    try:
        return type(value) is str and 0 <= float(value) < longest
    except ValueError:
        return False


def read_events(path: Path) -> KinetoTrace:
    """Read the trace; what cannot be read is left out and told in ``cut`` and ``malformed``.

    Raise ``OSError`` if the file cannot be opened.
    """
    rows = _Collector()
    with closing(TraceFile(path)) as file:
        stream = EventStream(file)  # type: ignore[arg-type]  # it only reads and tells
        for events in stream:
            rows.add(events)
        if stream.cut is None:
            file.finish()
    frames = {name: table.frame() for name, table in rows.tables.items()}
    for kind, codes in rows.names.items():
        frames[kind]["name"] = codes.category(frames[kind]["name"], one_line)
    frames["operators"]["module"] = rows.modules.category(frames["operators"]["module"], one_line)
    return KinetoTrace(
        **frames,
        dims=rows.dims,
        types=rows.types,
        stacks=tuple(rows.stacks),
        head=file.head,
        tail=file.tail,
        cut=stream.cut,
        malformed=stream.malformed + rows.malformed,
        damage=file.damage,
        packed=file.packed,
    )
