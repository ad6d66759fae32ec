"""Which operators can be timed again, by their Type: a call of a line, or functions of ``ways``."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from npufix.advisor.predict.timing import ways

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.advisor.predict.timing.ways import Way


class Call(NamedTuple):
    """A row of ``calls.txt``."""

    name: str
    text: str

    @property
    def is_prepared(self) -> bool:
        """Whether it returns what is timed: a gradient runs its forward pass first."""
        return self.text.startswith("gradient(")


_FUNCTIONS: Mapping[tuple[Way, ...], tuple[str, ...]] = {
    (ways.product, ways.contiguous_product): (
        "MatMul",
        "MatMulV2",
        "MatMulV3",
        "MatMulCommon",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "aten::mm",
        "aten::bmm",
        "aten::matmul",
    ),
    (ways.layer_norm,): (
        "LayerNorm",
        "LayerNormV3",
        "LayerNormV4",
    ),
    (ways.layer_norm_gradient,): (
        "LayerNormGradV3",
        "LayerNormGrad",
    ),
    (ways.torch_npu_rms_norm, ways.eager_rms_norm): ("RmsNorm",),
    (ways.rms_norm_gradient,): ("RmsNormGrad",),
    (ways.torch_npu_swiglu, ways.eager_swiglu, ways.swiglu_of_joined_halves): ("SwiGlu",),
    (ways.swiglu_gradient,): ("SwiGluGrad",),
    (ways.torch_npu_rotary_mul, ways.eager_rotary): (
        "RotaryPositionEmbedding",
        "RotaryMul",
    ),
    (ways.rotary_gradient,): (
        "RotaryPositionEmbeddingGrad",
        "RotaryMulGrad",
    ),
    (ways.torch_npu_fusion_attention, ways.attention): ("FlashAttentionScore",),
    (ways.torch_npu_fusion_attention_gradient, ways.attention_gradient): (
        "FlashAttentionScoreGrad",
    ),
    (ways.torch_npu_grouped_matmul, ways.product_of_each_group): ("GroupedMatmul",),
    (ways.torch_npu_moe_token_unpermute, ways.gathered_tokens): ("MoeTokenUnpermute",),
    (ways.join,): (
        "ConcatD",
        "ConcatV2",
        "Concat",
    ),
    (ways.cut,): (
        "Slice",
        "SliceD",
        "StridedSlice",
        "StridedSliceD",
        "SplitV",
        "SplitVD",
        "Split",
        "SplitD",
    ),
    (ways.transposed,): (
        "Transpose",
        "TransposeD",
    ),
    (ways.looked_up,): (
        "GatherV2",
        "GatherV3",
        "Gather",
        "Embedding",
    ),
    (ways.embedding_gradient,): (
        "EmbeddingDenseGrad",
        "EmbeddingDenseGradV2",
    ),
    (ways.convolution,): (
        "Conv2D",
        "Conv2DV2",
    ),
    (ways.convolution_input_gradient,): (
        "Conv2DBackpropInput",
        "Conv2DBackpropInputV2",
    ),
    (ways.convolution_weight_gradient,): (
        "Conv2DBackpropFilter",
        "Conv2DBackpropFilterV2",
    ),
    (ways.pool_of_disjoint_windows,): (
        "MaxPoolWithArgmaxV1",
        "MaxPoolV3",
        "MaxPool",
    ),
    (ways.pool_gradient_of_disjoint_windows,): ("MaxPoolGradWithArgmaxV1",),
    (ways.negative_log_likelihood,): ("NLLLoss",),
    (ways.negative_log_likelihood_gradient,): ("NLLLossGrad",),
    (ways.fused_adamw, ways.adamw_in_small_kernels): (
        "ApplyAdamW",
        "ApplyAdamWV2",
    ),
}


def _gather() -> dict[str, tuple[Call | Way, ...]]:
    found: dict[str, tuple[Call | Way, ...]] = {}
    for row in files(__package__).joinpath("calls.txt").read_text("utf-8").splitlines():
        if row.startswith("#"):
            continue
        kinds, name, text = row.split(None, 2)
        for kind in kinds.split(","):
            found[kind] = (*found.get(kind, ()), Call(name, text))
    for functions, own in _FUNCTIONS.items():
        found |= dict.fromkeys(own, functions)
    return found


WAYS = _gather()
