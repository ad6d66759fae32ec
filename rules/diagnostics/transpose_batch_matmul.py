"""A batched product whose operand or result is transposed in a kernel of its own.

What: ``(x.transpose(0, 1) @ w).transpose(0, 1)`` with one weight per head, as multi-head latent
attention absorbs its projections.

Why it is slow on the NPU: Transpose moves the whole activation and computes nothing. TransposeBatch-
MatMul reads and writes the tensors in the order they have.

Evidence: Transpose > BatchMatMul and BatchMatMul > Transpose where the second reads a tensor as large
as the first wrote, of three axes, k and n multiples of 16 and at most 65535, in a run without a
backward pass.

Use instead: ``torch_npu.npu_transpose_batchmatmul(x, w, perm_x1=[1, 0, 2], perm_x2=[0, 1, 2],
perm_y=[1, 0, 2])``.

Safety: advice. Inference only: it has no gradient and does not say so. No bias; the result is always
transposed back, ``perm_y=[1, 0, 2]``.

References: torch_npu.npu_transpose_batchmatmul in the API reference of Ascend Extension for PyTorch;
passes of torchair.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import BATCH_MATMUL, Fusable, fusable, passes_on, trains
from npufix.rules.shared.recording.recorded_shapes import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording
    from npufix.rules.shared.recording.sequences import Mask, Occurrences

_AXES, _UNIT, _LONGEST = 3, 16, 65535


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for results that are transposed, and one for other operands."""
    if trains(recording):
        return
    for parts, product in (((BATCH_MATMUL, "Transpose"), 0), (("Transpose", BATCH_MATMUL), 1)):
        yield from fusable(
            recording,
            Fusable(
                parts=parts,
                saved=(1 - product,),
                operator="npu_transpose_batchmatmul",
                basis="at most all these transpositions",
                likely=0.9,  # the product reads or writes as much, in another order
                links=partial(_fits, product),
            ),
        )


def _fits(product: int, found: Occurrences) -> Mask:
    linked: Mask = passes_on((0, 1))(found)
    cells = found.part(product)["input_shapes"]
    known = [_is_taken(str(cell)) for cell in cells.cat.categories]
    fits: Mask = linked & np.array([*known, False], np.bool_)[cells.cat.codes]
    return fits


def _is_taken(cell: str) -> bool:
    """Tell whether the operator takes two operands of these shapes."""
    match shapes(cell)[:2]:
        case (left, right) if len(left) == len(right) == _AXES:
            return all(axis % _UNIT == 0 and axis <= _LONGEST for axis in right[1:])
    return False


RULE = Diagnostic(
    id="NPU139",
    name="transpose-batch-matmul",
    summary="a batched product is transposed in a kernel of its own",
    advice=(
        "inference: torch_npu.npu_transpose_batchmatmul(x, w, perm_x1=[1, 0, 2], "
        "perm_x2=[0, 1, 2], perm_y=[1, 0, 2])"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
