"""Which device kernel an ATen operator launches on an Atlas A2: the ordinary cases, one table.

Names follow the convention of real dumps, ``aclnn<API>_<dispatch function>_<Type>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from simulate import cost
from simulate.record import Operator, Tensor

VECTOR = "AI_VECTOR_CORE"
MIX = "MIX_AIV"


@dataclass(frozen=True)
class Kernel:
    name: str
    type: str
    core: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    duration_us: float
    waits: bool = False
    """The host needs the result (how many elements a mask selects, the value of a loss)."""


# operator -> (API, dispatch function, Type, core); ``add/1`` is add with one tensor and a number
TABLE: dict[str, tuple[str, str, str, str]] = {
    "add": ("Add", "AddAiCore", "Add", VECTOR),
    "add/1": ("Adds", "AddAiCore", "Add", VECTOR),
    "rsub/1": ("Rsubs", "SubAiCore", "Sub", VECTOR),
    "mul": ("Mul", "MulAiCore", "Mul", VECTOR),
    "mul/1": ("Muls", "MulAiCore", "Mul", VECTOR),
    "div": ("Div", "RealDivAiCore", "RealDiv", VECTOR),
    "div/1": ("Divs", "RealDivAiCore", "RealDiv", VECTOR),
    "neg": ("Neg", "NegAiCore", "Neg", VECTOR),
    "pow/1": ("PowTensorScalar", "PowsAiCore", "Pows", VECTOR),
    "rsqrt": ("Rsqrt", "RsqrtAiCore", "Rsqrt", VECTOR),
    "cos": ("Cos", "CosAiCore", "Cos", VECTOR),
    "sin": ("Sin", "SinAiCore", "Sin", VECTOR),
    "log": ("Log", "LogAiCore", "Log", VECTOR),
    "lt": ("LtTensor", "LessAiCore", "Less", VECTOR),
    "lt/1": ("LtScalar", "LessAiCore", "Less", VECTOR),
    "ge": ("GeTensor", "GreaterEqualAiCore", "GreaterEqual", VECTOR),
    "bitwise_not": ("BitwiseNot", "LogicalNotAiCore", "LogicalNot", VECTOR),
    "mean": ("Mean", "ReduceMeanAiCore", "ReduceMean", MIX),
    "sum": ("ReduceSum", "ReduceSumOpAiCore", "ReduceSum", MIX),
    "cat": ("Cat", "ConcatD", "ConcatD", VECTOR),
    "arange": ("Arange", "ArangeAiCore", "Range", VECTOR),
    "zeros": ("InplaceZero", "ZerosLikeAiCore", "ZerosLike", VECTOR),
    "zeros_like": ("InplaceZero", "ZerosLikeAiCore", "ZerosLike", VECTOR),
    "new_zeros": ("InplaceZero", "ZerosLikeAiCore", "ZerosLike", VECTOR),
    "ones_like": ("InplaceOne", "OnesLikeAiCore", "OnesLike", VECTOR),
    "rand": ("InplaceUniform", "DSARandomUniform", "DSARandomUniform", "DSA_SQE"),
    "clone": ("InplaceCopy", "TensorMoveAiCore", "TensorMove", VECTOR),
    "copy_": ("InplaceCopy", "TensorMoveAiCore", "TensorMove", VECTOR),
    "embedding": ("Embedding", "GatherV2AiCore", "GatherV2", VECTOR),
    "silu": ("Silu", "SiluAiCore", "Swish", VECTOR),
    "silu_backward": ("SiluBackward", "SiluGrad", "SiluGrad", VECTOR),
    "_softmax": ("Softmax", "SoftmaxAiCore", "SoftmaxV2", VECTOR),
    "_softmax_backward_data": ("SoftmaxBackward", "SoftmaxGrad", "SoftmaxGrad", VECTOR),
    "_log_softmax": ("LogSoftmax", "LogSoftmaxAiCore", "LogSoftmaxV2", VECTOR),
    "_log_softmax_backward_data": (
        "LogSoftmaxBackward",
        "LogSoftmaxGrad",
        "LogSoftmaxGrad",
        VECTOR,
    ),
    "native_layer_norm": ("LayerNorm", "LayerNormV4", "LayerNormV4", VECTOR),
    "native_layer_norm_backward": (
        "LayerNormBackward",
        "LayerNormGradV3",
        "LayerNormGradV3",
        VECTOR,
    ),
    "native_dropout_backward": ("DropoutDoMask", "DropoutDoMaskAiCore", "DropOutDoMask", VECTOR),
    "_foreach_mul_": ("ForeachMulScalarV2", "ForeachMulScalarV2", "ForeachMulScalar", VECTOR),
    "_foreach_lerp_": ("ForeachLerpScalar", "ForeachLerpScalar", "ForeachLerpScalar", VECTOR),
    "_foreach_addcmul_": (
        "ForeachAddcmulScalarV2",
        "ForeachAddcmulScalarV2",
        "ForeachAddcmulScalar",
        VECTOR,
    ),
    "_foreach_sqrt": ("ForeachSqrt", "ForeachSqrt", "ForeachSqrt", VECTOR),
    "_foreach_div_": (
        "ForeachDivScalarList",
        "ForeachDivScalarList",
        "ForeachDivScalarList",
        VECTOR,
    ),
    "_foreach_add_": ("ForeachAddScalarV2", "ForeachAddScalarV2", "ForeachAddScalar", VECTOR),
    "_foreach_addcdiv_": (
        "ForeachAddcdivScalarList",
        "ForeachAddcdivScalarList",
        "ForeachAddcdivScalarList",
        VECTOR,
    ),
}


def kernel(
    api: str,
    function: str,
    type_: str,
    core: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    duration_us: float | None = None,
) -> Kernel:
    """Build one kernel; without a duration it runs at the roofline."""
    if duration_us is None:
        duration_us = cost.roofline_us(core, inputs, outputs)
    name = f"aclnn{api}_{function}_{type_}"
    return Kernel(name, type_, core, tuple(inputs), tuple(outputs), duration_us)


def from_table(operator: Operator) -> list[Kernel]:
    """One kernel per operator; an unknown one gets a vector kernel of its own Type."""
    name = operator.name.removeprefix("aten::")
    inputs = operator.tensors
    outputs = list(operator.outputs) or inputs
    key = f"{name}/1" if len(inputs) == 1 and f"{name}/1" in TABLE else name
    if key in TABLE:
        return [kernel(*TABLE[key], inputs, outputs)]
    camel = re.sub(r"_+([a-z0-9])", lambda match: match[1].upper(), f"_{name.strip('_')}")
    return [kernel(camel, f"{camel}AiCore", camel, VECTOR, inputs, outputs)]
