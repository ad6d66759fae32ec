"""How much memory kernels move, by the shapes and dtypes that the dump recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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


def tensor_bytes(shapes: str, dtypes: str) -> list[int]:
    """Return the size of each tensor of a shape cell: ``"4,8;8"`` and ``"FLOAT;INT64"``."""
    names = dtypes.split(";")
    widths = [_WIDTHS.get(dtype_name(name), _USUAL_WIDTH) for name in names]
    return [
        _elements(shape) * (widths[index] if index < len(widths) else _USUAL_WIDTH)
        for index, shape in enumerate(shapes.split(";"))
    ]


def moved_bytes(kernels: pd.DataFrame) -> Floats:
    """Return the bytes of all inputs and outputs of each kernel, 0 where shapes are unknown."""
    if kernels.empty:
        return np.zeros(0)
    texts = [[*map(str, kernels[name].cat.categories), ""] for name in CELLS]
    shape = tuple(len(names) for names in texts)
    # A code of -1 stands for the "" at the end. One look at each distinct combination of cells.
    codes = tuple(kernels[name].cat.codes.to_numpy(np.int64) for name in CELLS)
    keys, of_row = np.unique(np.ravel_multi_index(codes, shape, "wrap"), return_inverse=True)
    distinct = np.column_stack(np.unravel_index(keys, shape)).tolist()
    sizes = [
        _moved(texts[0][inputs], texts[1][dtypes], texts[2][outputs])
        for inputs, dtypes, outputs in distinct
    ]
    moved: Floats = np.array(sizes, np.float64)[of_row]
    return moved


def dtype_name(recorded: str) -> str:
    """Return a dtype without the prefix that newer versions of CANN write."""
    return recorded.strip().removeprefix("DT_")


def _moved(inputs: str, dtypes: str, outputs: str) -> int:
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
