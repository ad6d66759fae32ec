"""A matrix product, and a reduce-scatter of its result that nothing hides.

What: row-parallel layers with sequence parallelism multiply, then add the partial results of the
ranks and keep a part each.

Why it is slow on the NPU: the links wait until the whole product is there, then the cube cores wait
for the links. ``npu_mm_reduce_scatter_base`` sends one block while it computes the next (MC2).

Evidence: pairs of MatMul and hcom_reduceScatter_ beside which no other kernel runs, after which a
kernel reads an equal part (one half to one 64th) of the product. Gradients that a distributed
optimizer scatters are followed by kernels of another size.

Use instead: ``torch_npu.npu_mm_reduce_scatter_base(x, weight.t(), hcom, world_size)``; in training
``--use-ascend-mc2`` of MindSpeed, which also has the backward pass.

Safety: advice. Matrices only; k from 256 to below 65535; the rows must divide by the number of
ranks; sum only, no bias; Atlas A2 with 2, 4 or 8 cards that are all connected, Atlas A3 with up to
32; all MC2 operators of a model share one group; CANN 8.0.RC2 or newer.

References: torch_npu.npu_mm_reduce_scatter_base in the API reference of Ascend Extension for
PyTorch; ascend-mc2 of MindSpeed.
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import MATMUL
from npufix.rules.shared.recording.matmul_collectives import REDUCE_SCATTER, overlappable_results
from npufix.rules.shared.recording.recorded_shapes import split_among_ranks

RULE = Diagnostic(
    id="NPU123",
    name="matmul-reduce-scatter",
    summary="a matrix product waits for the reduce-scatter of its result",
    advice=(
        "torch_npu.npu_mm_reduce_scatter_base(x, weight.t(), hcom, world_size); training: "
        "--use-ascend-mc2 of MindSpeed"
    ),
    check=lambda recording: overlappable_results(
        recording, MATMUL, REDUCE_SCATTER, split_among_ranks, "npu_mm_reduce_scatter_base"
    ),
    table="fusion",
    requires="torch_npu>=2.1; CANN>=8.0; chip A2 A3",
)
