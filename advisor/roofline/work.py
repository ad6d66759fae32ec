"""The work of each kernel by its Type, shapes and dtypes: operations, and bytes to be moved."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.roofline.products import product_operations
from npufix.rules.shared.recording.recorded_cells import distinct_cells, dtype_name, width
from npufix.rules.shared.recording.recorded_shapes import shapes

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.shared.recording.recorded_shapes import Shape

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

COLUMNS = ["type", "input_shapes", "input_dtypes", "output_shapes"]
_RATES = {
    "BF16": "bf16", "FLOAT16": "fp16", "FLOAT": "fp32", "FLOAT32": "fp32", "INT8": "int8",
    "UINT8": "int8", "INT4": "int8", "FLOAT8_E4M3FN": "fp8", "FLOAT8_E5M2": "fp8",
    "HIFLOAT8": "fp8", "FLOAT4_E2M1": "fp4", "FLOAT4_E1M2": "fp4",
}  # fmt: skip
"""What products of a dtype are called in the table of chips."""
RATE_NAMES = ("", *dict.fromkeys(_RATES.values()))

_MANNERS = {
    "part": r"Gather|Slice|StridedSlice|Index$|IndexSelect|Embedding$|SplitV?D?$|aten::(embedding|"
    r"index|index_select|gather|slice|narrow|select)$",
    "into": r"Scatter|IndexPut|InplaceIndexAdd|InplaceAddRows|aten::(index_put|index_add|scatter)",
    "rows": r"EmbeddingDenseGrad|aten::embedding_dense_backward",
    "fill": r"(Zeros|Ones)Like|Fill|Mem[Ss]et|aten::(fill_|zero_|zeros_like|ones_like)",
    "weights": r"Apply(Fused)?(Adam|Momentum|Adagrad|RMSProp|Rms)|aten::_fused_(adam|sgd)",
    "compare": r"(Not)?Equal|Greater|Less|Is(Nan|Inf|Finite)|Logical|aten::(eq|ne|gt|ge|lt|le|is)",
    "narrow": r"Cast$",
    "reduce": r"aten::(sum|mean|norm|linalg_vector_norm|max|min|arg|any|all|prod|var|std)",
    "copy": r"aten::copy_$",
}
"""What kernels of a Type read and write. ``part``: as much of their first operand as they write;
``into``: as much of it as the others hold; ``rows``: as many as gradients come."""
_NARROW = 2
"""Bytes of a float16: the least that a conversion mostly writes."""


@dataclass(frozen=True)
class Work:
    """One row for each combination of ``COLUMNS`` that there is."""

    operations: Floats
    """Of products, convolutions and attention; 0 for what does little but move."""
    moved: Floats
    """Bytes that have to be read and written at least."""
    rate: Integers
    """Position in ``RATE_NAMES`` of the dtype of a product."""
    known: NDArray[np.bool_]
    """Whether the shapes say any of this."""
    of_kernel: Integers
    """The row of each kernel."""


def work_of(kernels: pd.DataFrame) -> Work:
    """Return the work of kernels, each combination of cells looked at once."""
    cells, of_kernel = distinct_cells(kernels, COLUMNS)
    found = np.array([_work(*cell) for cell in cells], np.float64).reshape(-1, 4).T
    return Work(found[0], found[1], found[2].astype(np.int64), found[3] > 0, of_kernel)


def _work(kind: str, inputs: str, dtypes: str, outputs: str) -> tuple[float, float, int, bool]:
    read, written = _shapes(inputs), _shapes(outputs)
    names = [dtype_name(part) for part in dtypes.split(";")]
    sizes = [_elements(shape) * _width(names, at) for at, shape in enumerate(read)]
    largest = max(range(len(sizes)), key=sizes.__getitem__, default=0)
    own = names[largest] if largest < len(names) else ""
    operations = product_operations(kind, read, written)
    rate = RATE_NAMES.index(_RATES[own]) if operations and own in _RATES else 0
    moved = _count_moved_bytes(
        kind, sizes, written, _width(names, largest), product=bool(operations)
    )
    # Scalars have no shape, but a dtype: that they are small is known.
    return operations, moved, rate, bool(operations or moved or dtypes.strip("; "))


def _count_moved_bytes(
    kind: str, read: list[int], written: tuple[Shape, ...], element: int, *, product: bool
) -> float:
    """Return the bytes that a kernel moves at least; ``element``: those of one element."""
    manner = _manner(kind)
    if manner == "compare":
        element = 1
    elif manner == "narrow":
        element = min(element, _NARROW)
    out = sum(map(_elements, written)) * element
    total, others = sum(read), sum(read[1:])
    first = read[0] if read else 0
    if manner == "part" and out:
        return 2 * out + min(others, out)
    if manner == "weights" and not out:  # weights and moments in place, gradients only read
        return total + sum(read[:3])
    if manner in {"fill", "into", "rows"}:
        return {"fill": out or first, "into": 2 * others, "rows": 2 * first}[manner]
    if kind.startswith("aten::") and not out and not product and manner not in {"reduce", "copy"}:
        # What PyTorch's operators return is not recorded: as large as what they are given.
        return total + max(read, default=0)
    return total + out


@cache
def _manner(kind: str) -> str:
    return next((name for name, what in _MANNERS.items() if re.match(what, kind)), "")


def _shapes(cell: str) -> tuple[Shape, ...]:
    return shapes(cell) if cell else ()


def _elements(shape: Shape) -> int:
    total = 1 if shape else 0
    for size in shape:
        total *= size
    return total


def _width(names: list[str], at: int) -> int:
    return width(names[at]) if at < len(names) else width(names[0])
