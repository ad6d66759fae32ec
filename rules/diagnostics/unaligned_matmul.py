"""Matrix products whose rows do not begin at multiples of 512 bytes.

What: MatMul of more than 50 µs with a last dimension of more than 1000 elements that is not a
multiple of 512 bytes: a vocabulary of 151,936 in bfloat16 has rows of 303,872 bytes.

Why it is slow on the NPU: the cube reads tiles from memory in lines of 512 bytes. Where rows begin
in the middle of a line, each tile costs more reads, and CANN adds vector cores that re-arrange the
operands (Accelerator Core is then MIX_AIC).

Evidence: recorded shapes and dtypes, and the TransData around these products; the operations per
second of these products against those of the aligned ones of this recording. A product that writes
such rows counts only where that shows it to be slow.

Use instead: pad that dimension once, when the layer is made: a vocabulary to a multiple of 256 for
half precision, 128 for float32 (``--make-vocab-size-divisible-by 256`` in Megatron,
``model.resize_token_embeddings(n, pad_to_multiple_of=256)`` in transformers).

Safety: advice; more rows of a vocabulary change the shape of checkpoints, and the new logits must
be masked or never be targets.

References: MIXAIC of the msprof guide (1000 elements, 50 µs, 512 bytes); cube checks of
msprof-analyze (inner axes % 256).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import percent
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing
from npufix.rules.shared.recording.recorded_cells import dtypes, per_row, width
from npufix.rules.shared.recording.recorded_shapes import product_operations, shapes
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Observation, Recording

MIXAIC_NS = 50_000
MIXAIC_AXIS = 1000
LINE_BYTES = 512
"""ALIGN512"""
_MATMUL = r"(Batch)?MatMul(V\d|Common)?"
_CONVERSION = r"TransData\w*"
_AROUND = (
    (_CONVERSION, _MATMUL), (_CONVERSION, _CONVERSION, _MATMUL), (_MATMUL, _CONVERSION)
)  # fmt: skip
_MATRIX = 2
_OPERANDS = 2
_FEW = 3
_SLOW = 0.8
"""Share of the rate of aligned products below which one is slow."""
_LOST = 0.02
"""Share of their time from which unaligned products are slower than aligned ones."""
_LIKELY = 0.95
"""Of what is lost: aligned products of this recording are as quick as that, others of their own."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such products together."""
    long = computing(recording, _MATMUL)
    long = long[long["duration_ns"] > MIXAIC_NS]
    unaligned = per_row(long, ["input_shapes", "input_dtypes"], _worst_axis)
    unaligned = np.maximum(unaligned, _slow_results(long, unaligned > 0))
    rows = long[unaligned > 0]
    if rows.empty:
        return
    axes = np.unique(unaligned[unaligned > 0]).astype(np.int64)
    saved, basis = _estimate_saved(rows, long[unaligned == 0])
    if saved is not None and saved < _LOST * rows["duration_ns"].sum():
        return  # the dump itself says that they are as fast as aligned ones
    around = _conversions(rows, recording)
    converted = int(around["duration_ns"].sum())
    if converted and saved is not None:
        saved, basis = saved + converted, f"{basis}, and the conversions around them"
    yield from tell_together(
        "matrix products with rows that are no multiple of 512 bytes"
        + (", with their format conversions" if converted else ""),
        recording.kernels.loc[rows.index.union(around.index)],
        recording,
        basis=basis,
        saved_ns=saved,
        likely_ns=None if saved is None else _LIKELY * saved,
        evidence=(
            ("elements in a row", ", ".join(map(str, axes[:_FEW]))),
            ("run as MIX_AIC", percent(float((rows["core"] == "MIX_AIC").mean()))),
        ),
    )


def _slow_results(long: pd.DataFrame, known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the length of the rows that a product writes, where they make it slow; else 0.

    Some versions write rows of 50257 elements as quickly as any: the others of the dump tell.
    """
    written = per_row(long, ["output_shapes", "input_dtypes"], _worst_axis)
    rates = product_operations(long) / long["duration_ns"].to_numpy()
    alike = ~known & (written == 0) & (rates > 0)
    if alike.sum() < _FEW:
        return np.zeros(len(long))
    slow = ~known & (rates > 0) & (rates < _SLOW * float(np.median(rates[alike])))
    return np.where(slow, written, 0.0)


def _conversions(products: pd.DataFrame, recording: Recording) -> pd.DataFrame:
    """Return the format conversions right before and behind products."""
    labels = Labels()
    for parts in _AROUND:
        found = find(recording, parts)
        product = found.part(parts.index(_MATMUL))
        found = found.where(product.index.isin(products.index))
        labels |= found.labels
    rows = recording.kernels.loc[labels.array]
    return rows.drop(index=rows.index.intersection(products.index))


def _worst_axis(inputs: str, kinds: str) -> float:
    """Return the length of a row that is not aligned, 0 if all of them are or nothing tells."""
    pairs = zip(shapes(inputs)[:_OPERANDS], dtypes(kinds)[:_OPERANDS], strict=False)
    rows = [(shape[-1], shape[-1] * width(kind)) for shape, kind in pairs if len(shape) >= _MATRIX]
    return max((n for n, size in rows if n > MIXAIC_AXIS and size % LINE_BYTES), default=0)


def _estimate_saved(rows: pd.DataFrame, aligned: pd.DataFrame) -> tuple[float | None, str]:
    """Return what is lost against the rate of aligned products, and why."""
    good, done = product_operations(aligned), product_operations(rows)
    known = good > 0
    if known.sum() < _FEW or not (done > 0).all():
        return None, "the dump has too few aligned products, or no shapes, to compare with"
    rates = good[known] / aligned["duration_ns"].to_numpy()[known]
    rate = float(np.median(rates))
    lost = rows["duration_ns"].to_numpy() - done / rate
    basis = f"at most what is lost against the {rate / 1000:.0f} TFLOP/s of aligned products here"
    return float(lost.clip(min=0).sum()), basis


RULE = Diagnostic(
    id="NPU232",
    name="unaligned-matmul",
    summary="rows of a large matrix product are no multiple of 512 bytes",
    advice=(
        "pad the dimension when the layer is made, to a multiple of 256 (half precision) or 128 "
        "(float32): Megatron --make-vocab-size-divisible-by 256; transformers "
        "resize_token_embeddings(n, pad_to_multiple_of=256)"
    ),
    check=check,
    table="affinity",
    requires="chip A2 A3 A5",
)
