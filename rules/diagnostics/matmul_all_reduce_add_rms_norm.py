"""A matrix product, the all-reduce of its result, a residual addition and an RMSNorm.

What: the end of a row-parallel layer and the begin of the next block: the product of one module is
reduced in a second one, added to the residual in a third and normalised in a fourth.

Why it is slow on the NPU: the result is written and read four times, and the links wait for the
cube cores and the other way round. ``npu_mm_all_reduce_add_rms_norm`` of MindSpeed does all of it
in one kernel, and sends one block while it computes the next.

Evidence: MatMul > hcom_allReduce_ > Add > RmsNorm (or AddRmsNorm) with nothing beside the
all-reduce; every limit of the page of the operator against the recorded shapes, dtypes and ranks,
for products of half precision, of int8 with int8 (QuantBatchMatmul), and with int8 weights
(WeightQuantBatchMatmul). Sequences that break a limit are left to ``matmul-all-reduce``.

Use instead: ``y, normed = npu_mm_all_reduce_add_rms_norm(x1, x2, residual, gamma, hcom,
reduce_op="sum", epsilon=eps)`` from ``mindspeed.ops.npu_mm_all_reduce_add_rms_norm``, or its
variant ``npu_mm_all_reduce_add_rms_norm_``, which writes ``y`` into the residual. As the four
operations lie in different modules, this is no local change: the places are all four of them.

Safety: advice. For inference: the operator has no backward pass, so nothing is said about runs
that train. The bias is added on every rank before the reduction. The in-place variant changes the
residual for everybody who holds it.

References: npu_mm_all_reduce_add_rms_norm.md of MindSpeed (2024-05-27 and current).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.matmul_all_reduce import list_fits_with_norm, norm_observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for each scenario whose limits nothing recorded breaks."""
    for fit in list_fits_with_norm(recording):
        yield from norm_observation(fit)


RULE = Diagnostic(
    id="NPU121",
    name="matmul-all-reduce-add-rms-norm",
    summary="product, all-reduce, residual addition and RMSNorm run one after the other",
    advice=(
        "mindspeed.ops.npu_mm_all_reduce_add_rms_norm.npu_mm_all_reduce_add_rms_norm(x1, x2, "
        "residual, gamma, hcom, reduce_op='sum', epsilon=eps), for inference"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; CANN>=8.0; chip A2",
)
