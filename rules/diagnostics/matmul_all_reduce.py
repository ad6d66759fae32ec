"""A matrix product, and an all-reduce of its result that nothing hides.

What: row-parallel layers multiply, then ``dist.all_reduce`` adds the partial results of the ranks.

Why it is slow on the NPU: the cube cores wait while the partial results travel, and the links wait
while the product is made. ``npu_mm_all_reduce_base`` cuts the product into blocks and sends one
while the next is computed (MC2).

Evidence: pairs of MatMul and hcom_allReduce_ beside which no other kernel runs, and after which a
kernel reads as many numbers as the product has. All-reduces of gradients are no such pairs: they
are hidden behind the backward pass, or what follows them has another size. Pairs that
``matmul-all-reduce-add-rms-norm`` can take whole are told there.

Use instead: in inference ``torch_npu.npu_mm_all_reduce_base(x, weight.t(), hcom, reduce_op="sum")``
with ``hcom = group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)``, for the prefill,
not for decoding. In training ``--use-ascend-mc2`` of MindSpeed, which has the backward pass.

Safety: advice. The operator has no gradient and says nothing about it. Its bias is added on every
rank before the reduction: give it to one rank only. The weight of nn.Linear goes in transposed.
Sum only; 1, 2, 4 or 8 cards of Atlas A2 that are all connected by HCCS; all MC2 operators of a
model share one group; not together with CoC or MoE of MindSpeed; CANN 8.0.RC2 or newer.

References: torch_npu.npu_mm_all_reduce_base in the API reference of Ascend Extension for PyTorch;
fusion operator page MatmulAllReduce of the migration guide; ascend-mc2 of MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.matmul_all_reduce import (
    find_reduced_products,
    list_fits_with_norm,
)
from npufix.rules.shared.recording.matmul_collectives import overlappable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for products whose all-reduce is exposed."""
    found = find_reduced_products(recording)
    if found.count:
        found = found.without(
            [n for fit in list_fits_with_norm(recording) for n in fit.found.labels]
        )
    yield from overlappable(found, 0, 1, "npu_mm_all_reduce_base")


RULE = Diagnostic(
    id="NPU120",
    name="matmul-all-reduce",
    summary="a matrix product waits for the all-reduce of its result",
    advice=(
        "inference (prefill): torch_npu.npu_mm_all_reduce_base(x, weight.t(), hcom); training: "
        "--use-ascend-mc2 of MindSpeed"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; CANN>=8.0; chip A2",
)
