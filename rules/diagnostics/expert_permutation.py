"""Tokens that are sorted by expert and put back in small kernels.

What: ``order = experts.argsort(); back = order.argsort(); x.index_select(0, order // k)`` in front of
the experts; ``(y.index_select(0, back).view(t, k, h) * probabilities).sum(1)`` behind them.

Why it is slow on the NPU: two sorts, of which one only inverts the other, and a product and a sum
over k copies of every token.

Evidence: Sort > Sort > Index or Gather, and Gather > Mul > ReduceSum where each reads what the one
before wrote.

Use instead: ``npu_moe_token_permute(tokens, indices, num_out_tokens)`` and
``npu_moe_token_unpermute(permuted, sorted_indices, probs)`` of torch_npu or ``mindspeed.ops``;
``--moe-permute-fusion`` of MindSpeed (alltoall dispatchers).

Safety: advice. The second result of the permutation is the inverse one (argsort of argsort), int32,
which is not what Megatron keeps. Both have gradients.

References: moe-token-permute-and-unpermute.md of MindSpeed; torch_npu.npu_moe_token_permute in the
API reference of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import Fusable, fusable, passes_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_SORT = "Sort|ArgSort"
_GATHER = "Index|GatherV2|GatherV3"
_SMALL = ("Cast", "FloorDiv", "RealDiv", "Muls", "TensorMove", "ViewCopy")


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for the way to the experts, and one for the way back."""
    yield from fusable(
        recording,
        Fusable(
            parts=(_SORT, _SORT, _GATHER),
            saved=(1,),
            operator="npu_moe_token_permute",
            basis="at most the second sort, which only inverts the first",
            between=_SMALL,
            links=passes_on((0, 1), (0, 2)),
        ),
    )
    yield from fusable(
        recording,
        Fusable(
            parts=(_GATHER, "Mul", "ReduceSum|ReduceSumD"),
            saved=(1, 2),
            operator="npu_moe_token_unpermute",
            basis="at most product and sum, if they become part of the gather",
            between=("Cast",),
            links=passes_on((0, 1), (1, 2)),
        ),
    )


RULE = Diagnostic(
    id="NPU136",
    name="expert-permutation",
    summary="tokens are sorted by expert and put back in small kernels",
    advice=(
        "npu_moe_token_permute and npu_moe_token_unpermute of torch_npu or mindspeed.ops; "
        "--moe-permute-fusion of MindSpeed"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; CANN>=8.0; chip A2 A3",
)
