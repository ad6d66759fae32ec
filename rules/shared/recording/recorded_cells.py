"""Works something out of the shapes and dtypes of each kernel, once for each distinct cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.shared.recording.tensor_traffic import dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_WIDTHS = {
    "BF16": 2, "BOOL": 1, "DOUBLE": 8, "FLOAT": 4, "FLOAT16": 2, "INT32": 4, "INT64": 8, "INT8": 1,
}  # fmt: skip


def per_row(rows: pd.DataFrame, columns: Sequence[str], value: Callable[..., float]) -> Floats:
    """Return ``value`` of the cells of each row; it sees each combination of cells once."""
    if rows.empty:
        return np.zeros(0)
    texts = [[*map(str, rows[name].cat.categories), ""] for name in columns]
    sizes = tuple(len(names) for names in texts)
    # A code of -1 stands for the "" at the end.
    codes = tuple(rows[name].cat.codes.to_numpy(np.int64) for name in columns)
    keys, of_row = np.unique(np.ravel_multi_index(codes, sizes, "wrap"), return_inverse=True)
    distinct = np.column_stack(np.unravel_index(keys, sizes)).tolist()
    values = [
        value(*(names[code] for names, code in zip(texts, cell, strict=True))) for cell in distinct
    ]
    spread: Floats = np.array(values, np.float64)[of_row]
    return spread


def dtypes(cell: str) -> list[str]:
    """Return the dtypes of a cell, ``"DT_BF16;FLOAT"``, as older versions of CANN name them."""
    return [dtype_name(part) for part in cell.split(";")]


def width(dtype: str) -> int:
    """Return the bytes of one element, 0 if the dtype is not known."""
    return _WIDTHS.get(dtype, 0)
