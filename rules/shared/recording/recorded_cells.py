"""The shapes and dtypes of each kernel, cell by cell, and how much memory it moves by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Kernels that do little more than move their operands.
ELEMENT_WISE = (
    "Add", "Adds", "Axpy", "BroadcastTo", "Cast", "Div", "Exp", "MaskedFill", "Mul", "Muls",
    "RealDiv", "Relu", "ReluGrad", "SelectV2", "Sub", "Tanh", "TensorMove",
)  # fmt: skip
CELLS = ["input_shapes", "input_dtypes", "output_shapes"]
"""The columns of ``Profile.kernels`` that say what a kernel reads and writes."""
LARGE_BYTES = 1 << 20
"""A kernel that moves more is limited by the bandwidth, not by its launch."""
_WIDTHS = {
    "BF16": 2, "BOOL": 1, "COMPLEX128": 16, "COMPLEX64": 8, "DOUBLE": 8, "FLOAT": 4, "FLOAT16": 2,
    "INT16": 2, "INT32": 4, "INT64": 8, "INT8": 1, "UINT8": 1,
}  # fmt: skip
_USUAL_WIDTH = 4
_LARGEST_KEY = 1 << 62


def tensor_bytes(shapes: str, dtypes: str) -> list[int]:
    """Return the size of each tensor of a shape cell: ``"4,8;8"`` and ``"FLOAT;INT64"``."""
    names = dtypes.split(";")
    widths = [_WIDTHS.get(dtype_name(name), _USUAL_WIDTH) for name in names]
    return [
        _elements(shape) * (widths[index] if index < len(widths) else _USUAL_WIDTH)
        for index, shape in enumerate(shapes.split(";"))
    ]


def count_moved_bytes(kernels: pd.DataFrame) -> Floats:
    """Return the bytes of all inputs and outputs of each kernel, 0 where shapes are unknown."""
    return per_row(kernels, CELLS, _count_moved)


def per_row(rows: pd.DataFrame, columns: Sequence[str], value: Callable[..., float]) -> Floats:
    """Return ``value`` of the cells of each row; it sees each combination of cells once."""
    cells, of_row = distinct_cells(rows, columns)
    spread: Floats = np.array([value(*cell) for cell in cells], np.float64)[of_row]
    return spread


def list_costliest(
    cells: pd.Series[str], spent_ns: NDArray[np.int64], most: int
) -> list[tuple[str, int, int]]:
    """Return the cells that take longest, those unknown aside: text, time, number of rows."""
    codes, names = cells.cat.codes.to_numpy(np.int64), cells.cat.categories
    known = codes >= 0
    counts = np.bincount(codes[known], minlength=len(names))
    times = np.bincount(codes[known], spent_ns[known], minlength=len(names))
    there = [at for at in np.flatnonzero(counts).tolist() if names[at] != ""]
    ranked = sorted(there, key=lambda at: -times[at])[:most]
    return [(str(names[at]), round(times[at]), int(counts[at])) for at in ranked]


def distinct_cells(
    rows: pd.DataFrame, columns: Sequence[str]
) -> tuple[list[tuple[str, ...]], NDArray[np.int64]]:
    """Return the combinations of cells that there are, and which of them each row has."""
    if rows.empty:
        return [], np.zeros(0, np.int64)
    import pandas as pd

    texts = [[*map(str, rows[name].cat.categories), ""] for name in columns]
    # A code of -1 stands for the "" at the end.
    codes = [
        rows[name].cat.codes.to_numpy(np.int64) % len(t)
        for name, t in zip(columns, texts, strict=True)
    ]
    keys, count = codes[0], len(texts[0])
    for code, names in zip(codes[1:], texts[1:], strict=True):
        if count * len(names) >= _LARGEST_KEY:
            keys, distinct = pd.factorize(keys)
            count = len(distinct)
        keys, count = keys * len(names) + code, count * len(names)
    of_row, distinct = pd.factorize(keys)
    row = np.empty(len(distinct), np.int64)
    row[of_row] = np.arange(len(of_row))
    cells = [tuple(names[code[at]] for names, code in zip(texts, codes, strict=True)) for at in row]
    return cells, of_row


def dtypes(cell: str) -> list[str]:
    """Return the dtypes of a cell, ``"DT_BF16;FLOAT"``, as older versions of CANN name them."""
    return [dtype_name(part) for part in cell.split(";")]


def width(dtype: str) -> int:
    """Return the bytes of one element, 0 if the dtype is not known."""
    return _WIDTHS.get(dtype, 0)


def dtype_name(recorded: str) -> str:
    """Return a dtype without the prefix that newer versions of CANN write."""
    return recorded.strip().removeprefix("DT_")


def _count_moved(inputs: str, dtypes: str, outputs: str) -> int:
    # What is written mostly has the dtype of the first input.
    written = ";".join([dtypes.split(";", maxsplit=1)[0]] * (outputs.count(";") + 1))
    return sum(tensor_bytes(inputs, dtypes)) + sum(tensor_bytes(outputs, written))


def _elements(shape: str) -> int:
    dims = [int(dim) for dim in shape.split(",") if dim.strip().isdigit()]
    # Not numpy: the product of a damaged shape may be larger than an int64.
    total = 1 if dims else 0
    for dim in dims:
        total *= dim
    return total
