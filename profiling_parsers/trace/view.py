"""trace_view.json: operators with their call stacks, device events, and the flows between them."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from npufix.profiling_parsers.progress import advance
from npufix.profiling_parsers.tables.columns import one_line
from npufix.profiling_parsers.trace.collector import Collector
from npufix.profiling_parsers.trace.json_stream import EventStream
from npufix.profiling_parsers.trace.rows import text_of
from npufix.profiling_parsers.trace.unpacked import UnpackedFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pandas as pd

_LINKS = ("device", "flow_starts", "flow_ends", "launch_starts", "launch_ends")


@dataclass(frozen=True)
class Trace:
    """The parts of a trace that lead from a kernel to a line. ``pid``, ``tid``: integers.

    ``operators`` -- ``name``, ``pid``, ``tid``, ``start_ns``, ``duration_ns``, ``sequence``,
    ``input_dims``, ``input_types``, ``stack`` (index into ``stacks``), ``module`` (category).
    ``calls`` -- the Python functions and modules: ``name``, ``pid``, ``tid``, ``start_ns``,
    ``duration_ns``. Where operators have stacks, the modules only.
    ``functions`` -- the same of the long calls of Python functions.
    ``long_calls`` -- the same of those into CANN.
    ``device`` -- ``kernel`` (code of the kernel name), ``pid``, ``tid``, ``start_ns``.
    ``tasks`` -- where the kernels were not known, all that may be one: ``name``, ``kind`` (Task
    Type, empty if it has none), ``duration_ns``, ``pid``, ``tid``, ``start_ns``.
    ``flow_starts``, ``flow_ends`` -- ``flow`` (id), ``pid``, ``tid``, ``start_ns``: the end of a
    flow lies on a device event, its start on an operator.
    ``launch_starts``, ``launch_ends`` -- the same from the call of CANN that launched.
    ``copies`` -- between host and device: ``pid``, ``tid``, ``start_ns``, ``duration_ns``; where
    ``link_kernels`` returns it, ``asked_ns`` as in ``Signals.copies``.
    ``gc`` -- runs of the garbage collector: ``start_ns``, ``duration_ns``.
    ``frequency`` -- clock of the AI cores: ``pid``, ``start_ns``, ``mhz``.
    ``stacks`` -- texts, as recorded; the first is empty, for operators without.
    ``payloads`` -- bytes of the collectives among the kernels, by name, 0 unknown.
    ``processes``, ``labels``, ``lanes`` -- names of pids and of (pid, tid).
    """

    operators: pd.DataFrame
    calls: pd.DataFrame
    functions: pd.DataFrame
    long_calls: pd.DataFrame
    device: pd.DataFrame
    tasks: pd.DataFrame
    flow_starts: pd.DataFrame
    flow_ends: pd.DataFrame
    launch_starts: pd.DataFrame
    launch_ends: pd.DataFrame
    copies: pd.DataFrame
    gc: pd.DataFrame
    frequency: pd.DataFrame
    stacks: tuple[str, ...]
    processes: Mapping[int, str]
    labels: Mapping[int, str]
    lanes: Mapping[tuple[int, int], str]
    payloads: Mapping[str, int]
    cut: int | None
    malformed: int

    def without_links(self) -> Trace:
        """Return it without the tables that lead from kernels to operators, which are large.

        One row of each is left, so that they do not look as if nothing had been recorded.
        """
        return replace(self, **{name: getattr(self, name).head(1).copy() for name in _LINKS})


def read_trace(path: Path, kernels: Mapping[str, int] | None) -> Trace:
    """Read a trace; ``kernels`` (name -> code) are the device events to look for, None for all.

    What cannot be read is left out and told in ``cut`` and ``malformed``.

    Raise ``OSError`` if the file cannot be opened or read.
    """
    rows = Collector(kernels)
    with UnpackedFile(path) as file, _without_garbage_collection():
        stream, size = EventStream(file), path.stat().st_size
        for events in stream:
            rows.add(events)
            advance(path.name, file.bytes_read, size)
    return _trace(rows, stream.cut, stream.malformed)


def no_trace() -> Trace:
    """Return what the trace of a dump without trace_view.json holds."""
    return _trace(Collector({}), cut=None, malformed=0)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Millions of new objects and no cycles among them: the collector would find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _trace(rows: Collector, cut: int | None, malformed: int) -> Trace:
    frames = {name: table.frame() for name, table in rows.tables.items()}
    own = ("operators", "calls", "functions", "long_calls", "tasks", "frequency")
    operators, calls, functions, long_calls, tasks, frequency = (frames.pop(name) for name in own)
    return Trace(
        operators=operators.assign(
            name=rows.names.category(operators["name"], one_line),
            input_dims=rows.dims.category(operators["input_dims"], _line_of),
            input_types=rows.types.category(operators["input_types"], _line_of),
            module=rows.modules.category(operators["module"], _line_of),
        ),
        calls=calls.assign(name=rows.functions.category(calls["name"], one_line)),
        functions=functions.assign(name=rows.functions.category(functions["name"], one_line)),
        long_calls=long_calls.assign(name=rows.names.category(long_calls["name"], one_line)),
        tasks=tasks.assign(
            name=rows.names.category(tasks["name"], one_line),
            kind=rows.tasks.category(tasks["kind"], one_line),
        ),
        frequency=frequency.assign(mhz=frequency.pop("khz") / 1000.0),
        stacks=tuple(map(_json_text, rows.stacks)),
        processes=rows.processes,
        labels=rows.labels,
        lanes=rows.lanes,
        payloads=rows.payloads,
        cut=cut,
        malformed=malformed + rows.malformed,
        **frames,
    )


def _line_of(raw: bytes) -> str:
    return one_line(_json_text(raw))


def _json_text(raw: bytes) -> str:
    try:
        return text_of(msgspec.json.decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError):  # the text is damaged
        return ""
