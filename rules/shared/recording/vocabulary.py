"""The kernels of a loss over a vocabulary that is written out: softmax, logarithm, its gradient."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.shared.recording.fusable import MATMUL
from npufix.rules.shared.recording.observing import computing, is_named
from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import elements, shapes

if TYPE_CHECKING:
    import pandas as pd

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.recorded_cells import Floats
    from npufix.rules.shared.recording.recorded_shapes import Shape

_LEAST_CLASSES = 10_000
"""Shorter rows are layers and attention."""
_MATRIX = 2
_FRACTAL, _CUBE = 4, 16
_SUMS = r"Reduce(Sum|Max)(D|V\d)?|ArgMax\w*|ReduceLogSum\w*"
_HALVES = r"LogSoftmax(V\d)?(Grad)?"
"""Passes over all logits that are one kernel each, of torch's own cross_entropy."""
_STEPS = (
    rf"{_HALVES}|NLLLoss(Grad)?|Cast|Exp|Sub|Subs|RealDiv|Div|Divs|Log|Mul|Muls|Neg|Add|Adds|Axpy\w*|MaskedFill"
    rf"|Gather(Elements|V\d|D)?\w*|Scatter\w*|Index(Put)?(V\d)?|OneHot\w*|TensorMove|Zeros?Like|{_SUMS}"
)
"""Types that such a loss and its gradient come from; a fused one has other Types."""


def find_written_out_loss(recording: Recording) -> tuple[pd.DataFrame, int]:
    """Return the kernels of a loss that is written out, and the length of its rows, 0 if none.

    A product of two matrices writes rows as long as its rows, and Exp, Sub and a reduction work on
    them, or a LogSoftmax does. Scores of an attention come from products of batches, or are square.
    """
    rows = computing(recording, _STEPS)
    width = per_row(rows, ["input_shapes"], _row_length)
    wide = rows[width > 0]
    width = width[width > 0].astype(np.int64)
    passes = is_named(wide, rf"Exp|{_HALVES}", "type")
    for length in sorted(set(width[passes].tolist()), reverse=True):
        found = wide[width == length]
        types = {str(name) for name in found["type"].unique()}
        normalises = any(re.fullmatch(_SUMS, name) for name in types) and {"Sub", "Exp"} <= types
        normalises = normalises or any(re.fullmatch(_HALVES, name) for name in types)
        if normalises and _is_written_by_a_product(int(length), recording):
            return found, int(length)
    return rows[:0], 0


def logits_bytes(rows: pd.DataFrame) -> float:
    """Return twice the size of the logits in half precision for each pass: one read, one write."""
    passes = rows[is_named(rows, rf"Exp|{_HALVES}", "type")]
    return float(per_row(passes, ["input_shapes"], _elements).sum()) * 2 * 2


def _row_length(inputs: str) -> float:
    """Return the last dimension of a tensor of many rows and classes, 0 for any other."""
    for shape in shapes(inputs):
        if len(shape) >= _MATRIX and shape[-1] >= _LEAST_CLASSES and elements(shape) > shape[-1]:
            return 0 if shape.count(shape[-1]) > 1 else shape[-1]
    return 0


def _elements(inputs: str) -> float:
    return max((elements(shape) for shape in shapes(inputs)), default=0)


def _is_written_by_a_product(length: int, recording: Recording) -> bool:
    def is_logits(outputs: str) -> float:
        return any(_last_dimension(shape, length) == length for shape in shapes(outputs))

    products = computing(recording, MATMUL)
    found: Floats = per_row(products, ["output_shapes"], is_logits)
    return bool(found.any())


def _last_dimension(shape: Shape, length: int) -> int:
    """Return it as the program sees it: FRACTAL_NZ has (N/16, M/16, 16, 16) for (M, N)."""
    if len(shape) == _FRACTAL and shape[2:] == (_CUBE, _CUBE):
        padded = shape[0] * _CUBE
        return length if padded - _CUBE < length <= padded else padded
    return shape[-1] if len(shape) >= _MATRIX else 0
