"""Which operators can be timed again, by their Type: calls of a line, and functions for the rest.

In a call ``t`` are the recorded tensors and ``out`` is the recorded shape of the result. What comes
first is what the recording shows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.advisor.predict.timing import ways

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.advisor.predict.timing.ways import Way

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Asin": "asin", "Atan": "atan", "Ceil": "ceil", "Cos": "cos",
    "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Expm1": "expm1", "Floor": "floor",
    "IsFinite": "isfinite", "IsInf": "isinf", "IsNan": "isnan", "Log": "log", "Log1p": "log1p",
    "Log2": "log2", "LogicalNot": "logical_not", "Neg": "neg", "OnesLike": "ones_like",
    "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Rsqrt": "rsqrt",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt",
    "Square": "square", "Tan": "tan", "Tanh": "tanh", "TensorMove": "clone", "Trunc": "trunc",
    "ViewCopy": "clone", "ZerosLike": "zeros_like", "AsStrided": "clone", "NonZero": "nonzero",
}  # fmt: skip
_BINARY = {
    "Add": "add", "AddV2": "add", "Atan2": "atan2", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "Div": "div", "Equal": "eq", "FloorDiv": "floor_divide",
    "FloorMod": "remainder", "Greater": "gt", "GreaterEqual": "ge", "Less": "lt",
    "LessEqual": "le", "LogicalAnd": "logical_and", "LogicalOr": "logical_or",
    "Maximum": "maximum", "Minimum": "minimum", "Mul": "mul", "NotEqual": "ne", "Pow": "pow",
    "RealDiv": "div", "Sub": "sub", "SquaredDifference": "sub",
}  # fmt: skip
_GRADIENTS = {
    "EluGrad": "F.elu", "GeluGrad": "F.gelu", "GeluGradV2": "F.gelu",
    "HardSwishGrad": "F.hardswish", "LeakyReluGrad": "F.leaky_relu",
    "LogSoftmaxGrad": "lambda x: F.log_softmax(x, -1)", "MishGrad": "F.mish", "ReluGrad": "F.relu",
    "SigmoidGrad": "torch.sigmoid", "SiluGrad": "F.silu",
    "SoftmaxGrad": "lambda x: F.softmax(x, -1)", "SoftmaxGradExt": "lambda x: F.softmax(x, -1)",
    "SoftplusGrad": "F.softplus", "SwishGrad": "F.silu",
    "TanhGrad": "torch.tanh", "RsqrtGrad": "torch.rsqrt", "SqrtGrad": "torch.sqrt",
    "ReciprocalGrad": "torch.reciprocal",
}  # fmt: skip
_OTHERS = {
    "Addcdiv": ("addcdiv: torch.addcdiv(t[0], t[1], t[2])",),
    "Addcmul": ("addcmul: torch.addcmul(t[0], t[1], t[2])",),
    "Adds": ("add_number: torch.add(t[0], 0.5)",),
    "ArgMaxV2": ("argmax: torch.argmax(t[0], -1)",),
    "ArgMaxWithValue": ("largest: torch.max(t[0], -1)",),
    "ArgMin": ("argmin: torch.argmin(t[0], -1)",),
    "BroadcastTo": ("broadcast: t[0].expand(out).contiguous()",),
    "Cast": ("to_float16: t[0].to(torch.float16)", "to_float32: t[0].to(torch.float32)"),
    "ClipByValueV2": ("clamp: torch.clamp(t[0], -1, 1)",),
    "Cumsum": ("running_sum: torch.cumsum(t[0], -1)",),
    "Divs": ("divide_by_number: torch.div(t[0], 1.5)",),
    "DropOutDoMask": (
        "multiply_by_mask: t[0] * (t[0] > 0)",
        "dropout: F.dropout(t[0], 0.1, True)",
    ),
    "ForeachAddList": ("foreach_add: torch._foreach_add(*halves(t))",),
    "ForeachAddScalar": ("foreach_add: torch._foreach_add(t, 0.5)",),
    "ForeachMulScalar": ("foreach_mul: torch._foreach_mul(t, 0.5)",),
    "ForeachMulList": ("foreach_mul: torch._foreach_mul(*halves(t))",),
    "ForeachNorm": ("foreach_norm: torch._foreach_norm(t)",),
    "Gelu": ("gelu: F.gelu(t[0])", 'gelu_by_tanh: F.gelu(t[0], approximate="tanh")'),
    "HardSwish": ("hardswish: F.hardswish(t[0])",),
    "LeakyRelu": ("leaky_relu: F.leaky_relu(t[0])",),
    "Lerp": ("lerp: torch.lerp(t[0], t[1], 0.5)",),
    "LogSoftmaxV2": ("log_softmax: F.log_softmax(t[0], -1)",),
    "LpNormV2": ("norm: torch.linalg.vector_norm(t[0])",),
    "MaskedFill": ("masked_fill: torch.masked_fill(t[0], t[1].bool(), 0.5)",),
    "Mish": ("mish: F.mish(t[0])",),
    "Muls": ("multiply_by_number: torch.mul(t[0], 0.5)",),
    "OneHot": ("one_hot: F.one_hot(t[0].long() % out[-1], out[-1])",),
    "Pack": ("stack: torch.stack(t)",),
    "Pows": ("square: torch.pow(t[0], 2)",),
    "Range": ("arange: torch.arange(out[0], device=t[0].device)",),
    "ReduceAll": ("every: t[0].bool().all(-1)",),
    "ReduceAny": ("any_of: t[0].bool().any(-1)",),
    "ReduceMax": ("largest_of: torch.amax(t[0], axes_of(t, out))",),
    "ReduceMean": ("mean: torch.mean(t[0], axes_of(t, out))",),
    "ReduceMin": ("smallest_of: torch.amin(t[0], axes_of(t, out))",),
    "ReduceSum": ("summed: torch.sum(t[0], axes_of(t, out))",),
    "SelectV2": ("where: torch.where(t[0].bool(), t[1], t[-1])",),
    "Softplus": ("softplus: F.softplus(t[0])",),
    "SoftmaxV2": ("softmax: F.softmax(t[0], -1)",),
    "Sort": ("sort: torch.sort(t[0])",),
    "Subs": ("subtract_number: torch.sub(t[0], 0.5)",),
    "Swish": ("silu: F.silu(t[0])", "written_out_silu: t[0] * torch.sigmoid(t[0])"),
    "Tile": ("tile: t[0].expand(out).contiguous()",),
    "TopKV2": ("topk: torch.topk(t[0], out[-1])",),
    "Fill": ("fill: torch.full(out, 0.5, device=t[0].device)",),
}
_ALIKE = {
    "ArgMaxV2": "ArgMax", "Cumsum": "CumsumV2", "DropOutDoMask": "DropOutDoMaskV3",
    "Fill": "Fills", "Gelu": "GeluV2", "ReduceMax": "ReduceMaxD",
    "ReduceMean": "ReduceMeanD", "ReduceSum": "ReduceSumD", "SelectV2": "Select",
    "Swish": "Silu", "SoftmaxV2": "aten::_softmax", "TopKV2": "TopK",
    "TensorMove": "aten::clone", "Add": "aten::add", "Mul": "aten::mul", "Sub": "aten::sub",
    "Div": "aten::div", "MaskedFill": "MaskedFillV2",
}  # fmt: skip
"""Types that are timed as others are."""
_FUNCTIONS: Mapping[str, tuple[Way, ...]] = {
    "MatMul MatMulV2 MatMulV3 MatMulCommon BatchMatMul BatchMatMulV2 BatchMatMulV3 aten::mm "
    "aten::bmm aten::matmul": (ways.product, ways.contiguous_product),
    "LayerNormV3 LayerNormV4": (ways.layer_norm,),
    "LayerNormGradV3 LayerNormGrad": (ways.layer_norm_gradient,),
    "RmsNorm": (ways.torch_npu_rms_norm, ways.eager_rms_norm),
    "RmsNormGrad": (ways.rms_norm_gradient,),
    "SwiGlu": (ways.torch_npu_swiglu, ways.eager_swiglu, ways.swiglu_of_joined_halves),
    "SwiGluGrad": (ways.swiglu_gradient,),
    "RotaryPositionEmbedding RotaryMul": (ways.torch_npu_rotary_mul, ways.eager_rotary),
    "RotaryPositionEmbeddingGrad RotaryMulGrad": (ways.rotary_gradient,),
    "FlashAttentionScore": (ways.torch_npu_fusion_attention, ways.attention),
    "FlashAttentionScoreGrad": (
        ways.torch_npu_fusion_attention_gradient, ways.attention_gradient,
    ),
    "ConcatD ConcatV2 Concat": (ways.join,),
    "Slice StridedSlice StridedSliceD SplitV SplitVD Split SplitD": (ways.cut,),
    "Transpose TransposeD": (ways.transposed,),
    "GatherV2 Gather Embedding": (ways.looked_up,),
    "EmbeddingDenseGrad EmbeddingDenseGradV2": (ways.embedding_gradient,),
    "Conv2D Conv2DV2": (ways.convolution,),
    "Conv2DBackpropInput Conv2DBackpropInputV2": (ways.convolution_input_gradient,),
    "Conv2DBackpropFilter Conv2DBackpropFilterV2": (ways.convolution_weight_gradient,),
    "MaxPoolWithArgmaxV1 MaxPoolV3 MaxPool": (ways.pool_of_disjoint_windows,),
    "MaxPoolGradWithArgmaxV1": (ways.pool_gradient_of_disjoint_windows,),
    "NLLLoss": (ways.negative_log_likelihood,),
    "NLLLossGrad": (ways.negative_log_likelihood_gradient,),
    "ApplyAdamW ApplyAdamWV2": (ways.fused_adamw, ways.adamw_in_small_kernels),
}  # fmt: skip


def _gather() -> dict[str, tuple[str | Way, ...]]:
    found: dict[str, tuple[str | Way, ...]] = {}
    for kind, name in _UNARY.items():
        found[kind] = (f"{name}: torch.{name}(t[0])",)
    for kind, name in _BINARY.items():
        found[kind] = (f"{name}: torch.{name}(t[0], t[-1])",)
    for kind, text in _GRADIENTS.items():
        name = re.sub(r".*\.|\(.*", "", text)
        found[kind] = (f"{name}_gradient: gradient({text}, t)",)
    found |= _OTHERS
    for kinds, functions in _FUNCTIONS.items():
        found |= dict.fromkeys(kinds.split(), functions)
    return found | {other: found[kind] for kind, other in _ALIKE.items()}


WAYS = _gather()


def source_of_call(call: str) -> tuple[str, str]:
    """Return the name of a call and its text as a function."""
    name, text = call.split(": ", 1)
    is_prepared = text.startswith("gradient(")
    return name, f"def {name}(t, out):\n    return {'' if is_prepared else 'lambda: '}{text}"
