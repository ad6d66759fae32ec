"""A router that takes a softmax and then the largest probabilities.

What: ``scores = logits.softmax(-1); weights, experts = scores.topk(k)`` of a mixture of experts.

Why it is slow on the NPU: SoftmaxV2 writes the scores of all experts for TopKV2, which sorts them in
a general way. ``npu_moe_gating_top_k_softmax`` keeps them in the core.

Evidence: SoftmaxV2 followed by a TopKV2 of a tensor of the same size, in a run without a backward
pass.

Use instead: ``weights, experts, rows = torch_npu.npu_moe_gating_top_k_softmax(logits, None, k)``, and
``npu_moe_init_routing_v2``, ``npu_moe_compute_expert_tokens`` and ``npu_moe_finalize_routing``
behind it; ``npu_moe_gating_top_k`` for the grouped sigmoid gates of DeepSeek-V3.

Safety: advice. Inference only: the backward pass raises. The experts are int32 instead of int64. The
weights are not renormalised: what divides them by their sum stays. k at most 1024.

References: torch_npu.npu_moe_gating_top_k_softmax in the API reference of Ascend Extension for
PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import Fusable, fusable, passes_on, trains

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for selections right behind a softmax."""
    if trains(recording):
        return
    yield from fusable(
        recording,
        Fusable(
            parts=("SoftmaxV2", "TopKV2|TopK|TopKV3"),
            saved=(0,),
            operator="npu_moe_gating_top_k_softmax",
            basis="at most every softmax, if it becomes part of the selection",
            between=("Cast",),
            links=passes_on((0, 1)),
        ),
    )


RULE = Diagnostic(
    id="NPU137",
    name="expert-routing",
    summary="a router writes the softmax of all experts to select a few",
    advice="inference: torch_npu.npu_moe_gating_top_k_softmax(logits, None, k)",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; CANN>=8.0; chip A2 A3",
)
