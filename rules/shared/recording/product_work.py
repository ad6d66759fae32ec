"""How much products of matrices compute, by the shapes that the dump recorded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import elements, shapes

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_MATRIX = 2


def product_operations(rows: pd.DataFrame) -> Floats:
    """Return the floating-point operations of each product, batched or not; 0 if unknown."""
    return per_row(rows, ["input_shapes", "output_shapes"], _operations)


def _operations(inputs: str, outputs: str) -> float:
    left, right = (*shapes(inputs)[:_MATRIX], (), ())[:_MATRIX]
    out = shapes(outputs)[0]
    if not len(left) == len(right) == len(out) >= _MATRIX or not elements(out):
        return 0
    batch = elements(out[:-_MATRIX])
    if not elements(left[:-_MATRIX]) == elements(right[:-_MATRIX]) == batch:
        return 0
    # Whichever operand is transposed: (M K) (K N) / (M N) is K squared, B times of a batch.
    inner = math.sqrt(elements(left) * elements(right) / elements(out) / batch)
    return 2 * elements(out) * inner
