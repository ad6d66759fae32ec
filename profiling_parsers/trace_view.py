"""trace_view.json: operators with their call stacks, device events, and the flows between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa

from npufix.profiling_parsers.csv_columns import category
from npufix.profiling_parsers.exact_time import epoch_ns
from npufix.profiling_parsers.json_stream import Event, EventStream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FLOW_CATEGORY = "async_npu"
_OPERATOR_CATEGORY = "cpu_op"
_LARGEST_KEY = 1 << 62
_INT64_DIGITS = 19
_LONGEST_US = 9e12


@dataclass(frozen=True)
class Trace:
    """The parts of a trace that lead from a kernel to a line. ``pid``, ``tid``: int64.

    ``operators`` -- ``name``, ``pid``, ``tid``, ``start_ns``, ``duration_ns``, ``sequence``,
    ``input_dims``, ``input_types``, ``stack`` (index into ``stacks``).
    ``device`` -- ``kernel`` (code of the kernel name), ``pid``, ``tid``, ``start_ns``.
    ``flow_starts``, ``flow_ends`` -- ``flow`` (id), ``pid``, ``tid``, ``start_ns``: the end of a
    flow lies on a device event, its start on an operator.
    ``stacks`` -- texts, as recorded; the first is empty, for operators without.
    """

    operators: pd.DataFrame
    device: pd.DataFrame
    flow_starts: pd.DataFrame
    flow_ends: pd.DataFrame
    stacks: tuple[str, ...]
    cut: int | None
    malformed: int


class _Codes(dict[str, int]):
    """Number texts in the order in which they come."""

    def __missing__(self, text: str) -> int:
        self[text] = code = len(self)
        return code

    def category(self, codes: pd.Series[int]) -> pd.Categorical[str]:
        """Return a column of codes as a category of the texts, line breaks taken out."""
        unique: dict[str, int] = {}
        merged = [unique.setdefault(_one_line(text), len(unique)) for text in self]
        return category(np.array(merged, np.int64)[codes], list(unique))


class _Arguments(msgspec.Struct, gc=False):
    """What is needed of the ``args`` of an operator."""

    sequence: Any = msgspec.field(name="Sequence number", default=-1)
    dims: Any = msgspec.field(name="Input Dims", default="")
    types: Any = msgspec.field(name="Input type", default="")
    stack: Any = msgspec.field(name="Call stack", default="")


_ARGUMENTS = msgspec.json.Decoder(_Arguments)


class _Table:
    """Rows of int64 whose last column is a time, kept as one array per chunk of the file."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns
        self.rows: list[tuple[Any, ...]] = []
        self.malformed = 0
        self._chunks = [np.empty((len(columns), 0), np.int64)]

    def flush(self) -> None:
        """Turn the rows into arrays; a row whose time is no number is counted and dropped."""
        if self.rows:
            *integers, times = zip(*self.rows, strict=True)
            starts, valid = epoch_ns(pa.array(times, pa.string()))
            chunk = np.array([*integers, starts], np.int64)
            self._chunks.append(chunk if valid.all() else chunk[:, valid])
            self.malformed += int(np.count_nonzero(~valid))
            self.rows.clear()

    def frame(self) -> pd.DataFrame:
        """Return everything kept."""
        return pd.DataFrame(np.concatenate(self._chunks, axis=1).T, columns=list(self.columns))


class _Collector:
    """The rows of the events that are needed."""

    def __init__(self, kernels: Mapping[str, int]) -> None:
        self.kernels = kernels
        self.names, self.dims, self.types = _Codes(), _Codes(), _Codes()
        self.stacks, self.keys = _Codes({"": 0}), _Codes()
        self.malformed_arguments = 0
        where = ("pid", "tid", "start_ns")
        self.operators = _Table(
            "name", "duration_ns", "sequence", "input_dims", "input_types", "stack", *where
        )
        self.device = _Table("kernel", *where)
        self.flows = {"s": _Table("flow", *where), "f": _Table("flow", *where)}

    @property
    def tables(self) -> tuple[_Table, ...]:
        return self.operators, self.device, *self.flows.values()

    @property
    def malformed(self) -> int:
        """Number of events that were left out or lost their arguments."""
        return self.malformed_arguments + sum(table.malformed for table in self.tables)

    def add(self, events: list[Event]) -> None:
        """Take the rows of one chunk."""
        for event in events:
            name = event.name
            if event.cat == _OPERATOR_CATEGORY:
                self.operators.rows.append(self._operator(event))
            elif event.cat == _FLOW_CATEGORY:
                if event.ph in ("s", "f"):
                    flow = self._key(event.id)
                    self.flows[event.ph].rows.append((flow, *self._where(event)))
            elif event.ph == "X" and type(name) is str and name in self.kernels:
                # Device events have no category; a kernel's name is what tells them apart.
                self.device.rows.append((self.kernels[name], *self._where(event)))
        for table in self.tables:
            table.flush()

    def _operator(self, event: Event) -> tuple[Any, ...]:
        try:
            arguments = _ARGUMENTS.decode(event.args)
        except (msgspec.DecodeError, UnicodeDecodeError):  # args is no object or damaged
            arguments = _Arguments()
            self.malformed_arguments += 1
        return (
            self.names[_text(event.name)],
            _duration_ns(event.dur),
            self._key(arguments.sequence),
            self.dims[_text(arguments.dims)],
            self.types[_text(arguments.types)],
            self.stacks[_text(arguments.stack)],
            *self._where(event),
        )

    def _where(self, event: Event) -> tuple[int, int, str]:
        return self._key(event.pid), self._key(event.tid), _text(event.ts)

    def _key(self, value: object) -> int:
        """Return an integer, written as a number or as text, as it is, and number others from -2.

        -1 is kept for "none", which is how the profiler writes it too.
        """
        if type(value) is str and value.isdecimal():
            value = int(value) if len(value) <= _INT64_DIGITS else value
        if type(value) is int and -1 <= value < _LARGEST_KEY:
            return value
        return -2 - self.keys[_text(value)]


def _one_line(text: str) -> str:
    return text.replace("\r", "").replace("\n", "")


def _text(value: object) -> str:
    """Return a JSON value as the text that stood there."""
    if type(value) is str:
        return value
    return "" if value is None else repr(value)


def _duration_ns(value: object) -> int:
    try:
        microseconds = float(value)  # type: ignore[arg-type]  # whatever the file holds
    except (TypeError, ValueError):
        return 0
    return round(microseconds * 1000) if 0 <= microseconds < _LONGEST_US else 0


def read_trace(path: Path, kernels: Mapping[str, int]) -> Trace:
    """Read a trace; ``kernels`` (name -> code) are the device events to look for.

    What cannot be read is left out and told in ``cut`` and ``malformed``.
    """
    rows = _Collector(kernels)
    with path.open("rb") as file:
        stream = EventStream(file)
        for events in stream:
            rows.add(events)
    return _trace(rows, stream.cut, stream.malformed)


def no_trace() -> Trace:
    """Return what the trace of a dump without trace_view.json holds."""
    return _trace(_Collector({}), cut=None, malformed=0)


def _trace(rows: _Collector, cut: int | None, malformed: int) -> Trace:
    operators = rows.operators.frame()
    return Trace(
        operators=operators.assign(
            name=rows.names.category(operators["name"]),
            input_dims=rows.dims.category(operators["input_dims"]),
            input_types=rows.types.category(operators["input_types"]),
        ),
        device=rows.device.frame(),
        flow_starts=rows.flows["s"].frame(),
        flow_ends=rows.flows["f"].frame(),
        stacks=tuple(rows.stacks),
        cut=cut,
        malformed=malformed + rows.malformed,
    )
