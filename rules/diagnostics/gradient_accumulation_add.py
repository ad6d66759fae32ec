"""Weight gradients that are computed in half precision and then added to float32 ones.

What: the backward pass of a linear layer multiplies, and ``main_grad += grad`` adds the result to
the gradient in float32 that the optimizer wants.

Why it is slow on the NPU: the product is written and read once more only to be added. The matrix
product can accumulate into the float32 gradient.

Evidence: MatMul (or GroupedMatmul) of half precision followed by an Add that reads a tensor of the
same shape as its result and writes float32, with a Cast or a TransData at most in between.

Use instead: ``--gradient-accumulation-fusion`` of Megatron with MindSpeed (``npu_matmul_add_fp32``),
``--gemm-gradient-accumulation-fusion`` for grouped products (``npu_groupmatmul_add_fp32``).

Safety: advice. The product is no longer rounded to half precision before it is added, which is more
exact, not less. Both operators write in place and have no gradient of their own.

References: npu_matmul_add.md and npu_groupmatmul_add.md of MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import GROUPED_MATMUL, MATMUL, Fusable, fusable
from npufix.rules.shared.recording.recorded_cells import dtype_name
from npufix.rules.shared.recording.recorded_shapes import reads, same_elements

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Observation, Recording
    from npufix.rules.shared.recording.sequences import Mask, Occurrences

_HALF = frozenset({"BF16", "FLOAT16"})


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for products that are added to a gradient in float32."""
    kinds = ((MATMUL, "npu_matmul_add_fp32"), (GROUPED_MATMUL, "npu_groupmatmul_add_fp32"))
    for product, operator in kinds:
        yield from fusable(
            recording,
            Fusable(
                parts=(product, "Add"),
                saved=(1,),
                operator=operator,
                basis="at most all these additions",
                likely=0.8,  # the sum is read while the product is computed
                between=("Cast", "TransData"),
                links=_accumulates,
            ),
        )


def _accumulates(found: Occurrences) -> Mask:
    """Tell where the sum is in float32 although the product is not, and as large."""
    product, sums = found.part(0), found.part(1)
    half = _first_dtypes(product["input_dtypes"], _HALF)
    single = _first_dtypes(sums["input_dtypes"], frozenset({"FLOAT"}))
    return half & single & reads(product, sums, same_elements)


def _first_dtypes(cells: pd.Series[str], wanted: frozenset[str]) -> Mask:
    names = [dtype_name(str(name).split(";")[0]) in wanted for name in cells.cat.categories]
    matches: Mask = np.array([*names, False], np.bool_)[cells.cat.codes]
    return matches


RULE = Diagnostic(
    id="NPU127",
    name="gradient-accumulation-add",
    summary="weight gradients are written, read and added to float32 ones",
    advice=(
        "Megatron with MindSpeed: --gradient-accumulation-fusion (npu_matmul_add_fp32), "
        "--gemm-gradient-accumulation-fusion for grouped products"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
