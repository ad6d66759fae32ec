"""A grouped product of experts, and an all-reduce of its result that nothing hides.

What: experts that are split over ranks multiply, then ``dist.all_reduce`` adds their partial
results.

Why it is slow on the NPU: cube cores and links wait for each other.

Evidence: pairs of GroupedMatmul and hcom_allReduce_ beside which no other kernel runs, and after
which a kernel reads as many numbers as the product has.

Use instead: ``npu_grouped_mat_mul_all_reduce(x, weight, hcomm, group_list=...)`` of MindSpeed.

Safety: advice. 2, 4 or 8 cards; at most 64 tensors in a list; no backward pass is documented.

References: npu_grouped_mat_mul_all_reduce.md of MindSpeed.
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import GROUPED_MATMUL
from npufix.rules.shared.recording.matmul_collectives import ALL_REDUCE, overlappable_results
from npufix.rules.shared.recording.recorded_shapes import same_elements

RULE = Diagnostic(
    id="NPU125",
    name="grouped-matmul-all-reduce",
    summary="a grouped product waits for the all-reduce of its result",
    advice="mindspeed.ops.npu_grouped_mat_mul_all_reduce(x, weight, hcomm, group_list=...)",
    check=lambda recording: overlappable_results(
        recording, GROUPED_MATMUL, ALL_REDUCE, same_elements, "npu_grouped_mat_mul_all_reduce"
    ),
    table="fusion",
    requires="torch_npu>=2.1; CANN>=8.0; chip A2",
)
