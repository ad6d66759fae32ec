"""Small recordings for tests of diagnostics: a row says only what matters to the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from npufix.profiling_parsers.profile import Environment
from npufix.profiling_parsers.schema import KERNELS
from npufix.profiling_parsers.signals import SCHEMAS, Signals
from npufix.rules.diagnostic import Recording

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

US = 1_000
MS = 1_000_000
START = 1_736_408_883_000_000_000

_LINE: dict[str, Any] = {"path": "", "line": 0, "function": ""}
_KERNEL: dict[str, Any] = {
    **{name: column.unknown for name, column in KERNELS.items()},
    "step": 1, "name": "aclnnAdd_AddAiCore_Add", "type": "Add", "core": "AI_VECTOR_CORE",
    "start_ns": 0, "duration_ns": 10 * US, "wait_ns": 0, "communication": False, "device": 0,
    "state": "dynamic", **_LINE,
}  # fmt: skip
_HOST_OP: dict[str, Any] = {
    "name": "aten::add", "start_ns": 0, "duration_ns": US, "sequence": -1, "input_dims": "",
    "input_types": "", "stack": -1, **_LINE,
}  # fmt: skip
_STEP: dict[str, Any] = {
    "step": 1, "device": 0, "computing_ns": 0, "communication_exposed_ns": 0, "overlapped_ns": 0,
    "communication_ns": 0, "free_ns": 0, "bubble_ns": -1,
}  # fmt: skip


def kernels(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return kernels; moments are nanoseconds after a start, as they are in dumps."""
    frame = _frame(_KERNEL, rows)
    frame["start_ns"] += START
    frame["launch_ns"] = frame["launch_ns"].where(
        frame["launch_ns"] < 0, frame["launch_ns"] + START
    )
    return frame.astype({name: column.dtype for name, column in KERNELS.items()})


def in_a_row(durations: Sequence[int], gap: int, **columns: Any) -> list[dict[str, Any]]:
    """Return kernels of these durations with the same gap between them, from 0 on."""
    rows, at = [], 0
    for duration in durations:
        rows.append({"start_ns": at, "duration_ns": duration, **columns})
        at += duration + gap
    return rows


def host_ops(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return host operators; moments are nanoseconds after the start."""
    frame = _frame(_HOST_OP, rows)
    frame["start_ns"] += START
    return frame


def signal(table: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table of ``Signals``; what a row leaves out is unknown."""
    unknown = {"category": "", "int64": -1, "float64": float("nan")}
    defaults = {name: unknown[kind] for name, kind in SCHEMAS[table].items()}
    return _frame(defaults, rows).astype(dict(SCHEMAS[table]))


def recording(  # noqa: PLR0913 - the parts of a recording
    kernel_rows: Sequence[Mapping[str, Any]] = (),
    host_rows: Sequence[Mapping[str, Any]] = (),
    *,
    step: Mapping[str, Any] | None = None,
    step_ns: int = 100 * MS,
    step_count: int = 1,
    recorded_steps: int = 0,
    variables: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    **signals: Sequence[Mapping[str, Any]],
) -> Recording:
    """Return a recording; ``step`` is the one row of its steps, further names are signals."""
    steps = _frame(_STEP, [] if step is None else [step])
    return Recording(
        kernels=kernels(kernel_rows),
        host_ops=host_ops(host_rows),
        steps=steps.astype({"step": "Int64", "device": "int32"}),
        step_ns=step_ns,
        step_count=step_count,
        signals=Signals(**{name: signal(name, rows) for name, rows in signals.items()}),
        environment=environment or Environment(variables=variables or {}),
        recorded_steps=recorded_steps,
    )


def _frame(defaults: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    unknown = {name for row in rows for name in row} - set(defaults)
    assert not unknown, unknown
    kinds = {str: "category", bool: "bool", int: "int64", float: "float64"}
    return pd.DataFrame(
        {
            name: pd.Series([row.get(name, value) for row in rows], dtype=kinds[type(value)])
            for name, value in defaults.items()
        }
    )
