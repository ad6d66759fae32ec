"""The rows of the events of a trace that are needed, chunk by chunk."""

from __future__ import annotations

from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from npufix.profiling_parsers.signals import LONG_CALL_NS
from npufix.profiling_parsers.tables.payloads import payload
from npufix.profiling_parsers.trace.rows import (
    BUILT_IN,
    MODULE,
    Codes,
    EventTable,
    Keys,
    parse_durations,
    parse_moments,
    parse_texts,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from npufix.profiling_parsers.trace.json_stream import Event

    Integers = NDArray[np.int64]

_NO_ARGUMENTS = b"{}"
_NO_TEXT = msgspec.Raw(b'""')
_FREQUENCY = "AI Core Freq"
_MINDSPORE = (1, 2, "1", "2")
"""Processes under which MindSpore writes its operators, which have no category; no other event
that has none is of a process of so small a number."""
_PLACE = ("pid", "tid", "start_ns")
_TABLES = {
    "operators": (
        *("name", "duration_ns", "sequence", "input_dims", "input_types", "stack", "module"),
        *_PLACE,
    ),
    "calls": ("name", "duration_ns", *_PLACE),
    "functions": ("name", "duration_ns", *_PLACE),
    "long_calls": ("name", "duration_ns", *_PLACE),
    "device": ("kernel", *_PLACE),
    "tasks": ("name", "kind", "duration_ns", *_PLACE),
    "flow_starts": ("flow", *_PLACE),
    "flow_ends": ("flow", *_PLACE),
    "launch_starts": ("flow", *_PLACE),
    "launch_ends": ("flow", *_PLACE),
    "copies": ("duration_ns", *_PLACE),
    "gc": ("duration_ns", *_PLACE),
    "frequency": ("khz", *_PLACE),
}
_CODES = ("name", "input_dims", "input_types", "stack", "module", "kernel", "kind", "pid", "tid")


class _Arguments(msgspec.Struct, gc=False):
    """What is needed of the ``args`` of an operator. Texts stay as they are: most come again."""

    sequence: Any = msgspec.field(name="Sequence number", default=-1)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_TEXT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_TEXT)
    stack: msgspec.Raw = msgspec.field(name="Call stack", default=_NO_TEXT)
    module: msgspec.Raw = msgspec.field(name="Module Hierarchy", default=_NO_TEXT)


class _Other(msgspec.Struct, gc=False):
    """What is needed of the ``args`` of other events."""

    name: Any = ""
    labels: Any = ""
    mhz: Any = msgspec.field(name="MHz", default=None)
    task: Any = msgspec.field(name="Task Type", default=None)
    mode: Any = msgspec.field(name="Mode", default=None)
    subtask: Any = msgspec.field(name="task type", default=None)
    count: Any = None
    dtype: Any = msgspec.field(name="data_type", default="")


_COLLECTIVE = ("hcom_", "Hccl", "hccl")
_COPY, _OVER_PCIE = "MEMCPY_ASYNC", "PCIE_DMA_SQE"
"""Name of the copies of a device, and which of them are from or to the host."""
_CANN = "AscendCL@"
"""How the names of calls into CANN begin, of the level that contains all others."""
_Args = TypeVar("_Args", _Arguments, _Other)

_ARGUMENTS = msgspec.json.Decoder(_Arguments)
_OTHER = msgspec.json.Decoder(_Other)


class Collector:
    """The rows of the events that are needed; ``kernels`` as in ``read_trace``."""

    def __init__(self, kernels: Mapping[str, int] | None) -> None:
        self.kernels = kernels
        self.names, self.functions, self.tasks = Codes[str](), Codes[str](), Codes[str]()
        self.dims, self.types, self.modules = Codes[bytes](), Codes[bytes](), Codes[bytes]()
        self.stacks = Codes({bytes(_NO_TEXT): 0})
        self.keys = Keys()
        self.processes: dict[int, str] = {}
        self.labels: dict[int, str] = {}
        self.lanes: dict[tuple[int, int], str] = {}
        self.payloads: dict[str, int] = {}
        """Bytes of each collective by name."""
        self.malformed = 0
        self.tables = {
            name: EventTable(*columns, small=_CODES) for name, columns in _TABLES.items()
        }
        self._kinds: dict[str, Callable[[list[Event]], None]] = {
            "cpu_op": self._operators,
            "python_function": self._functions,
            "async_npu": partial(self._flows, "flow"),
            "HostToDevice": partial(self._flows, "launch"),
            "GC": self._collections,
            "X": self._of_device,
            "C": self._counters,
            "M": self._metadata,
        }

    def add(self, events: list[Event]) -> None:
        """Take the rows of one chunk."""
        # Device events, counters and names have no category.
        named = [
            event.cat or ("cpu_op" if event.ph == "X" and event.pid in _MINDSPORE else event.ph)
            for event in events
        ]
        kinds: dict[str, list[Event]] = {kind: [] for kind in self._kinds}
        ignored: list[Event] = []
        for kind, event in zip(parse_texts(named), events, strict=True):
            kinds.get(kind, ignored).append(event)
        for kind, take in self._kinds.items():
            if kinds[kind]:
                take(kinds[kind])

    def _add(self, table: str, events: list[Event], *columns: Integers) -> None:
        """Add rows that end with the place of the events; without a time they are malformed."""
        starts, valid = parse_moments([event.ts for event in events])
        if "duration_ns" in _TABLES[table]:
            valid &= columns[_TABLES[table].index("duration_ns")] >= 0
        pids = self.keys.of([event.pid for event in events])
        tids = self.keys.of([event.tid for event in events])
        rows = (*columns, pids, tids, starts)
        self.malformed += int(np.count_nonzero(~valid))
        self.tables[table].add(*(rows if valid.all() else (column[valid] for column in rows)))

    def _operators(self, events: list[Event]) -> None:
        arguments = [self._decode(_ARGUMENTS, event) or _Arguments() for event in events]
        self._add(
            "operators",
            events,
            self.names.of(parse_texts([event.name for event in events])),
            parse_durations([event.dur for event in events]),
            self.keys.of([each.sequence for each in arguments]),
            self.dims.of([bytes(each.dims) for each in arguments]),
            self.types.of([bytes(each.types) for each in arguments]),
            self.stacks.of([bytes(each.stack) for each in arguments]),
            self.modules.of([bytes(each.module) for each in arguments]),
        )
        if len(self.stacks) > 1:  # then functions lead to no better place
            is_module = [name.startswith(MODULE) for name in self.functions]
            self.tables["calls"].keep("name", np.array(is_module, np.bool_))

    def _functions(self, events: list[Event]) -> None:
        """Take the modules, the functions where they are the only way to a line, and long ones."""
        names = pa.array(parse_texts([event.name for event in events]), pa.string())
        lengths = parse_durations([event.dur for event in events])
        modules = pc.starts_with(names, MODULE)
        functions = pc.invert(pc.or_(modules, pc.starts_with(names, BUILT_IN)))
        wanted = pc.or_(modules, functions) if len(self.stacks) == 1 else modules
        long = pc.and_(functions, pa.array(lengths >= LONG_CALL_NS))
        for table, mask in (("calls", wanted), ("functions", long)):
            chosen = mask.to_numpy(zero_copy_only=False)
            coded = names.filter(mask).dictionary_encode()
            codes = self.functions.of(coded.dictionary.to_pylist())[np.asarray(coded.indices)]
            self._add(table, list(compress(events, chosen.tolist())), codes, lengths[chosen])

    def _flows(self, kind: str, events: list[Event]) -> None:
        for phase, end in (("s", "starts"), ("f", "ends")):
            ends = [event for event in events if event.ph == phase]
            self._add(f"{kind}_{end}", ends, self.keys.of([event.id for event in ends]))

    def _collections(self, events: list[Event]) -> None:
        self._add("gc", events, parse_durations([event.dur for event in events]))

    def _of_device(self, events: list[Event]) -> None:
        """Take kernels, or all that may be one, copies, and long calls into CANN."""
        (self._tasks if self.kernels is None else self._kernels)(events)
        copies = [event for event in events if event.name == _COPY]
        kinds = [(self._decode(_OTHER, event) or _Other()).task for event in copies]
        copies = [event for event, kind in zip(copies, kinds, strict=True) if kind == _OVER_PCIE]
        self._add("copies", copies, parse_durations([event.dur for event in copies]))
        calls = [event for event in events if str(event.name).startswith(_CANN)]
        lengths = parse_durations([event.dur for event in calls])
        long = [event for event, ns in zip(calls, lengths, strict=True) if ns >= LONG_CALL_NS]
        names = [name.removeprefix(_CANN) for name in parse_texts([event.name for event in long])]
        self._add("long_calls", long, self.names.of(names), lengths[lengths >= LONG_CALL_NS])

    def _kernels(self, events: list[Event]) -> None:
        """Take the events of the kernels: their names tell them from others without category."""
        codes = [(self.kernels or {}).get(text_of(event.name), -1) for event in events]
        found = [event for event, code in zip(events, codes, strict=True) if code >= 0]
        known = np.array([code for code in codes if code >= 0], np.int64)
        self._add("device", found, known)
        for event in found:
            if (name := text_of(event.name)).startswith(_COLLECTIVE):
                arguments = self._decode(_OTHER, event) or _Other()
                self.payloads[name] = payload(arguments.count, text_of(arguments.dtype))

    def _tasks(self, events: list[Event]) -> None:
        """Take what is no call of CANN, no part of a collective and no lane of a summary."""
        kept, kinds = [], []
        for event in events:
            arguments = self._decode(_OTHER, event) or _Other()
            other = arguments.mode is not None or arguments.subtask is not None
            if not other and bytes(event.args) != _NO_ARGUMENTS:
                kept.append(event)
                kinds.append(text_of(arguments.task))
        names = self.names.of(parse_texts([event.name for event in kept]))
        durations = parse_durations([event.dur for event in kept])
        self._add("tasks", kept, names, self.tasks.of(kinds), durations)

    def _counters(self, events: list[Event]) -> None:
        """Take the clock; a trace may hold millions of counters of other things."""
        named = [event for event in events if str(event.name).startswith(_FREQUENCY)]
        arguments = [self._decode(_OTHER, event) or _Other() for event in named]
        known = [event for event, each in zip(named, arguments, strict=True) if each.mhz]
        khz = parse_durations([each.mhz for each in arguments if each.mhz])
        self._add("frequency", known, np.maximum(khz, 0))

    def _metadata(self, events: list[Event]) -> None:
        for event in events:
            arguments = self._decode(_OTHER, event) or _Other()
            pid, name = self.keys.key(event.pid), text_of(arguments.name)
            if event.name == "process_name":
                self.processes[pid] = name
            elif event.name == "process_labels":
                self.labels[pid] = text_of(arguments.labels)
            elif event.name == "thread_name":
                self.lanes[pid, self.keys.key(event.tid)] = name

    def _decode(self, decoder: msgspec.json.Decoder[_Args], event: Event) -> _Args | None:
        try:
            return decoder.decode(event.args)
        except (msgspec.DecodeError, UnicodeDecodeError):  # args is no object or damaged
            self.malformed += 1
            return None
