"""The columns of the tables of a ``Profile``: what each is called, holds, and means.

A column that only some dumps record has a value that stands for ``unknown``: readers that do not
know it leave it out, and it is filled in. So a new column of kernels is a row here, the readers
whose dumps record it, and whoever uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from npufix.profiling_parsers.tables.columns import category

if TYPE_CHECKING:
    from collections.abc import Mapping


class SchemaError(TypeError):
    """A reader returned a table that is not as it was promised: a fault of this program."""


class ColumnSchema(NamedTuple):
    """One column of a table."""

    dtype: str
    meaning: str
    unit: str = ""
    unknown: Any = None
    """What stands for "the dump does not say" in an optional column; ``None``: it must be there."""


KERNELS: Mapping[str, ColumnSchema] = {
    "step": ColumnSchema("Int64", "step id, <NA> without a schedule"),
    "name": ColumnSchema("category", "Name of kernel_details"),
    "type": ColumnSchema("category", "Type of kernel_details: the operator it belongs to"),
    "core": ColumnSchema("category", "Accelerator Core of kernel_details"),
    "start_ns": ColumnSchema("int64", "when it started on the device", "ns since the epoch"),
    "duration_ns": ColumnSchema("int64", "how long it ran", "ns"),
    "wait_ns": ColumnSchema("int64", "how long the device had nothing to do before it", "ns", -1),
    "input_shapes": ColumnSchema("category", '``"4,128;128"``, without quotes', unknown=""),
    "input_dtypes": ColumnSchema("category", '``"FLOAT;FLOAT"``', unknown=""),
    "output_shapes": ColumnSchema("category", "as ``input_shapes``", unknown=""),
    "communication": ColumnSchema("bool", "a collective, not compute"),
    "device": ColumnSchema("int32", "Device_id, -1 if the dump does not say"),
    "stream": ColumnSchema(
        "int32", "queue of the device: its tasks run one after the other", unknown=-1
    ),
    "state": ColumnSchema("category", "OP State: ``dynamic`` or ``static``", unknown=""),
    "hf32": ColumnSchema(
        "category", "HF32 Eligible: ``YES`` if float32 is rounded to HF32, ``NO``", unknown=""
    ),
    "bound": ColumnSchema(
        "category",
        "the busiest pipe by the PMU columns: ``cube``, ``vector``, ``mte``, ``scalar``, or "
        "``none`` if each is idle for a fifth of the time",
        unknown="",
    ),
    "bound_ratio": ColumnSchema(
        "float32",
        "share of the duration in which that pipe, or the busiest, was busy",
        "0..1",
        np.nan,
    ),
    "launch_ns": ColumnSchema("int64", "when the host launched it", "ns since the epoch", -1),
    "host_op": ColumnSchema(
        "int32",
        "row of ``host_ops`` that asked for it: ``aten::mul``, not the launch ``aclnnMul`` inside",
        unknown=-1,
    ),
    "stack": ColumnSchema("int32", "index into ``stacks``", unknown=-1),
    "module": ColumnSchema("int32", "index into ``modules``", unknown=-1),
    "basis": ColumnSchema(
        "category",
        "how the stack was found: ``call-stack`` (the executing line), ``forward`` (a backward "
        "kernel led to its forward operator), ``function`` (of the Python functions around the "
        "operator, whose lines are those of the ``def``), ``forward-function`` (both)",
        unknown="",
    ),
    "node": ColumnSchema(
        "int32", "node of autograd: n of the forward call, -2 - n of its gradient", unknown=-1
    ),
}
"""``Profile.kernels``: one row per device task, in start order."""


def complete_kernels(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return kernels with all columns of ``KERNELS``: those that the dump does not say are filled.

    Columns and their types are checked, not values.

    Raise ``SchemaError`` if a column is missing or of another type, or there is one too many.
    """
    columns: dict[str, Any] = {}
    for name, column in KERNELS.items():
        if name not in kernels:
            if column.unknown is None:
                raise SchemaError(f"kernels have no column {name}")
            columns[name] = unknown_values(column, len(kernels))
        elif (dtype := str(kernels[name].dtype)) == column.dtype:
            columns[name] = kernels[name]
        else:
            raise SchemaError(f"kernels have {name} as {dtype}, not {column.dtype}")
    if extra := {*kernels.columns} - {*KERNELS}:
        raise SchemaError(f"kernels have columns that no schema names: {', '.join(sorted(extra))}")
    return pd.DataFrame(columns, index=kernels.index, copy=False)


def unknown_values(column: ColumnSchema, count: int) -> Any:  # noqa: ANN401 - a column
    """Return an optional column of a dump that does not say it."""
    if column.dtype == "category":
        return category(np.zeros(count, np.int8), [column.unknown])
    return np.full(count, column.unknown, column.dtype)
