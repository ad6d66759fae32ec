"""Which kernels an ATen operator launches on an Atlas A2, and how long they take.

The ordinary cases are one table. Operators that launch more than one kernel, or one whose time is
not a roofline, have a function each. Names follow the convention of real dumps,
``aclnn<API>_<dispatch function>_<Type>``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from benchmarks.generator.program import Kernel
from benchmarks.generator.recorded import cost
from benchmarks.generator.recorded.record import Operator, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Kernels = list[Kernel]

_TABLE = """
add Add AddAiCore Add
add/1 Adds AddAiCore Add
rsub/1 Rsubs SubAiCore Sub
mul Mul MulAiCore Mul
mul/1 Muls MulAiCore Mul
div Div RealDivAiCore RealDiv
div/1 Divs RealDivAiCore RealDiv
neg Neg NegAiCore Neg
pow/1 PowTensorScalar PowsAiCore Pows
rsqrt Rsqrt RsqrtAiCore Rsqrt
cos Cos CosAiCore Cos
sin Sin SinAiCore Sin
log Log LogAiCore Log
lt LtTensor LessAiCore Less
lt/1 LtScalar LessAiCore Less
ge GeTensor GreaterEqualAiCore GreaterEqual
bitwise_not BitwiseNot LogicalNotAiCore LogicalNot
mean Mean ReduceMeanAiCore ReduceMean MIX_AIV
sum ReduceSum ReduceSumOpAiCore ReduceSum MIX_AIV
cat Cat ConcatD ConcatD
arange Arange ArangeAiCore Range
zeros InplaceZero ZerosLikeAiCore ZerosLike
zeros_like InplaceZero ZerosLikeAiCore ZerosLike
new_zeros InplaceZero ZerosLikeAiCore ZerosLike
ones_like InplaceOne OnesLikeAiCore OnesLike
rand InplaceUniform DSARandomUniform DSARandomUniform DSA_SQE
clone InplaceCopy TensorMoveAiCore TensorMove
copy_ InplaceCopy TensorMoveAiCore TensorMove
embedding Embedding GatherV2AiCore GatherV2
silu Silu SiluAiCore Swish
silu_backward SiluBackward SiluGrad SiluGrad
_softmax Softmax SoftmaxAiCore SoftmaxV2
_softmax_backward_data SoftmaxBackward SoftmaxGrad SoftmaxGrad
_log_softmax LogSoftmax LogSoftmaxAiCore LogSoftmaxV2
_log_softmax_backward_data LogSoftmaxBackward LogSoftmaxGrad LogSoftmaxGrad
native_layer_norm LayerNorm LayerNormV4 LayerNormV4
native_layer_norm_backward LayerNormBackward LayerNormGradV3 LayerNormGradV3
native_dropout_backward DropoutDoMask DropoutDoMaskAiCore DropOutDoMask
_foreach_mul_ ForeachMulScalarV2 ForeachMulScalarV2 ForeachMulScalar
_foreach_lerp_ ForeachLerpScalar ForeachLerpScalar ForeachLerpScalar
_foreach_addcmul_ ForeachAddcmulScalarV2 ForeachAddcmulScalarV2 ForeachAddcmulScalar
_foreach_sqrt ForeachSqrt ForeachSqrt ForeachSqrt
_foreach_div_ ForeachDivScalarList ForeachDivScalarList ForeachDivScalarList
_foreach_add_ ForeachAddScalarV2 ForeachAddScalarV2 ForeachAddScalar
_foreach_addcdiv_ ForeachAddcdivScalarList ForeachAddcdivScalarList ForeachAddcdivScalarList
"""
TABLE = {
    key: ([*row, "AI_VECTOR_CORE"])[:4] for key, *row in map(str.split, _TABLE.strip().splitlines())
}
"""Operator: API, dispatch function, Type, core; ``add/1`` is add with one tensor and a number."""
_CUBE = (0.42, 0.31, 0.48, 0.77, 0.12)
_MEMORY_BOUND, _SCALAR_BOUND = (0.16, 0.09, 0.58, 0.44), (0.03, 0.91, 0.11, 0.07)
_WALKING = {"IndexPutV2", "GatherElements", "RepeatInterleave", "OneHot", "ReduceSum"}


def _device_tensors(tensors: Sequence[Tensor]) -> tuple[str, str, str]:
    """Return shapes, types and formats."""
    if not tensors:
        return "N/A", "N/A", "N/A"
    cells = zip(*((each.dims, each.types[0], "FORMAT_ND") for each in tensors), strict=True)
    dims, types, formats = map(";".join, cells)
    return dims, types, formats


def kernel(  # noqa: PLR0913, PLR0917 - what a kernel is made of
    api: str,
    function: str,
    kind: str,
    core: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    duration_us: float | None = None,
) -> Kernel:
    """Build one kernel; without a duration it runs at the roofline."""
    if duration_us is None:
        duration_us = cost.roofline_us(core, inputs, outputs)
    blocks = {"AI_CPU": 1, "DSA_SQE": 0}.get(core)
    if blocks is None:  # 24 cube cores, 48 vector cores, fewer for small tensors
        elements = sum(tensor.numel for tensor in outputs or inputs)
        blocks = max(1, min(24 if core == "AI_CORE" else 48, -(-elements // 2048)))
    busy = _CUBE if core == "AI_CORE" else _SCALAR_BOUND if kind in _WALKING else _MEMORY_BOUND
    name, tensors = f"aclnn{api}_{function}_{kind}", map(_device_tensors, (inputs, outputs))
    return Kernel(name, kind, core, duration_us, *tensors, blocks, busy=busy)


def _of(core: str, names: str, *rest: object) -> Kernel:
    """Build a kernel of ``API function Type``, the last two of which may be the same."""
    api, function, *kind = names.split()
    return kernel(api, function, *(kind or [function]), core, *rest)  # type: ignore[arg-type]


_vector, _mix = partial(_of, "AI_VECTOR_CORE"), partial(_of, "MIX_AIV")


def _from_table(operator: Operator) -> Kernels:
    """Return one kernel per operator; an unknown one gets a vector kernel of its own Type."""
    name = operator.name.removeprefix("aten::")
    inputs = operator.tensors
    outputs = list(operator.outputs) or inputs
    key = f"{name}/1" if len(inputs) == 1 and f"{name}/1" in TABLE else name
    if key in TABLE:
        return [kernel(*TABLE[key], inputs, outputs)]
    camel = re.sub(r"_+([a-z0-9])", lambda match: match[1].upper(), f"_{name.strip('_')}")
    return [_vector(f"{camel} {camel}AiCore {camel}", inputs, outputs)]


def _copy(tensor: Tensor, *, strided: bool = False) -> Kernel:
    kind = "TransposeAiCore Transpose" if strided else "TensorMoveAiCore TensorMove"
    return _vector(f"InplaceCopy {kind}", [tensor], [tensor])


def _index_put(operator: Operator) -> Kernels:
    target, mask, value = operator.tensors
    count = operator.index_counts
    indices = [Tensor((count,), torch.int64)] * len(mask.shape)
    time = cost.NON_ZERO.us(mask.numel)
    # The host has to know how many indices there are before it can launch the second kernel.
    nonzero = _mix("NonzeroV2 NonzeroAiCore NonZero", [mask], indices, time)
    tensors = ([target, value, *indices], [target])
    if cost.is_index_put_on_ai_cpu(target, count):
        put = _of("AI_CPU", "IndexPutImpl IndexPut", *tensors, cost.INDEX_PUT_AI_CPU.us(count))
    else:
        put = _vector("IndexPutImpl IndexPutV2", *tensors, cost.INDEX_PUT.us(count))
    return [nonzero, put] if operator.name.endswith("_") else [_copy(target), nonzero, put]


def _matmul(names: str, operator: Operator) -> Kernels:
    tensors, (output,) = operator.tensors, operator.outputs
    if operator.name == "aten::addmm":
        tensors = [*tensors[1:], tensors[0]]  # the bias comes last on the device
    return [_of("AI_CORE", names, tensors, [output], cost.matmul_us(tensors, output))]


def _mul(operator: Operator) -> Kernels:
    """Cast the integer side of a product of two types first."""
    target = operator.outputs[0]
    casts, inputs = [], []
    for tensor in operator.tensors:
        cast = replace(tensor, dtype=target.dtype)
        if tensor.shape and tensor.dtype != target.dtype:
            casts.append(_vector("Mul CastAiCore Cast", [tensor], [cast]))
        inputs.append(cast)
    key = "mul/1" if len(inputs) == 1 else "mul"
    return [*casts, kernel(*TABLE[key], inputs, [target])]


def _power(operator: Operator) -> Kernels:
    if operator.arguments[1] == 2:  # noqa: PLR2004 - a square
        tensors = operator.tensors
        return [_vector("PowTensorScalar SquareAiCore Square", tensors, tensors)]
    return _from_table(operator)


def _reduce_sum(operator: Operator) -> Kernels:
    [launched] = _from_table(operator)
    if operator.tensors[0].dtype == torch.int64:
        elements = operator.tensors[0].numel
        launched = replace(launched, duration_us=cost.REDUCE_SUM_INT64.us(elements))
    return [launched]


def _native_dropout(operator: Operator) -> Kernels:
    (x,) = operator.tensors
    bits, drop = Tensor((-(-x.numel // 8),), torch.uint8), Tensor((1,), torch.float32)
    return [
        _of("DSA_SQE", "DropoutGenMaskV2 DSAGenBitMask", [], [bits]),
        _vector("DropoutDoMask DropoutDoMaskAiCore DropOutDoMask", [x, bits, drop], [x]),
    ]


def _masked_fill(operator: Operator) -> Kernels:
    tensor, mask = operator.tensors[:2]
    inputs = [tensor, mask, Tensor((), tensor.dtype)]
    fill = _vector("InplaceMaskedFillScalar MaskedFillAiCore MaskedFill", inputs, [tensor])
    return [_copy(tensor, strided=operator.strided), fill]


def _clone(operator: Operator) -> Kernels:
    return [_copy(operator.tensors[0], strided=operator.strided)]


def _write_into_zeros(operator: Operator) -> Kernels:
    """Write the gradient of a slice: zeros, with one part overwritten."""
    (part,), (whole,) = operator.tensors, operator.outputs
    write = _vector("InplaceCopy ViewCopyAiCore ViewCopy", [whole, part], [part])
    return [kernel(*TABLE["zeros_like"], [whole], [whole]), write]


def _embedding_backward(operator: Operator) -> Kernels:
    grad, index = operator.tensors
    keys, api = Tensor((index.numel,), torch.int32), "EmbeddingDenseBackward"
    return [
        _mix(f"{api} SortAiCore Sort", [keys], [keys, keys], cost.SORT.us(index.numel)),
        _vector(f"{api} EmbeddingDenseGradV2 MemSet", [], operator.outputs),
        _mix(f"{api} EmbeddingDenseGradV2", [grad, keys, keys], operator.outputs),
    ]


def _top_k(operator: Operator) -> Kernels:
    (scores,), (values, indices) = operator.tensors, operator.outputs
    narrow = replace(indices, dtype=torch.int32)
    time = cost.TOP_K.us(scores.numel)
    return [
        _mix("Topk TopkV2 TopKV2", [scores], [values, narrow], time),
        _vector("Topk CastAiCore Cast", [narrow], [indices]),
    ]


def _one_hot(operator: Operator) -> Kernels:
    (indices,), (out,) = operator.tensors, operator.outputs
    value = Tensor((1,), torch.int64)
    fill = _vector("InplaceFillScalar FillAiCore Fill", [value], [value])
    inputs, time = [indices, value, value], cost.ONE_HOT.us(out.numel)
    return [fill, fill, _vector("OneHot OneHotAiCore OneHot", inputs, [out], time)]


def _repeat_interleave(operator: Operator) -> Kernels:
    (lengths,), (out,) = operator.tensors, operator.outputs
    inputs, time = [lengths, Tensor((1,), torch.int64)], cost.REPEAT_INTERLEAVE.us(out.numel)
    return [_vector("RepeatInterleaveInt RepeatInterleave", inputs, [out], time)]


def _gather(operator: Operator) -> Kernels:
    source, index = operator.tensors
    time = cost.GATHER_ELEMENTS.us(index.numel)
    return [_vector("Gather GatherElements", [source, index], operator.outputs, time)]


def _scatter_add(operator: Operator) -> Kernels:
    target, index, source = operator.tensors
    inputs, time = [target, index, source], cost.SCATTER_ELEMENTS.us(index.numel)
    return [_copy(target), _vector("ScatterAdd ScatterElementsV2", inputs, [target], time)]


def _nll_loss(operator: Operator) -> Kernels:
    scores, target = operator.tensors[:2]
    weight = Tensor((scores.shape[-1],), scores.dtype)
    loss = [Tensor((), scores.dtype)] * 2
    return [
        kernel(*TABLE["ones_like"], [weight], [weight]),
        _vector("NLLLoss NLLLossAiCore MemSet", [], loss),
        # The kernel reads one score per row, not the whole matrix.
        _mix("NLLLoss NLLLossAiCore NLLLoss", [scores, target, weight], loss, 12.0),
    ]


def _nll_loss_backward(operator: Operator) -> Kernels:
    grad, scores, target = operator.tensors[:3]
    weight = Tensor((scores.shape[-1],), scores.dtype)
    inputs = [scores, grad, target, weight, Tensor((), scores.dtype)]
    return [
        kernel(*TABLE["ones_like"], [weight], [weight]),
        _vector("NLLLossBackward NLLLossGradAiCore NLLLossGrad", inputs, operator.outputs),
    ]


def _foreach_add(operator: Operator) -> Kernels:
    """Leave out the scalars in which the optimizer counts its steps: they stay on the host."""
    return _from_table(operator) if any(tensor.shape for tensor in operator.tensors) else []


def _nothing(_: Operator) -> Kernels:
    return []


_SPECIAL: dict[str, Callable[[Operator], Kernels]] = {
    "_foreach_add_": _foreach_add, "_local_scalar_dense": _nothing,
    "addmm": partial(_matmul, "Addmm MatMulCommon MatMulV2"),
    "bmm": partial(_matmul, "BatchMatMul BatchMatMulNd BatchMatMulV2"),
    "clone": _clone, "embedding_dense_backward": _embedding_backward, "gather": _gather,
    "index_put": _index_put, "index_put_": _index_put, "masked_fill": _masked_fill,
    "mm": partial(_matmul, "Mm MatMulV3Common MatMulV3"), "mul": _mul,
    "native_dropout": _native_dropout, "new_empty_strided": _nothing,
    "nll_loss_backward": _nll_loss_backward, "nll_loss_forward": _nll_loss, "one_hot": _one_hot,
    "pow": _power, "repeat_interleave": _repeat_interleave, "scatter_add": _scatter_add,
    "select_backward": _write_into_zeros, "slice_backward": _write_into_zeros,
    "sum": _reduce_sum, "topk": _top_k,
}  # fmt: skip


def launches(operator: Operator) -> Kernels:
    """Return the kernels of an operator in launch order; views launch none."""
    storages = {tensor.storage for tensor in operator.tensors}
    in_place = operator.name.endswith("_")
    view = bool(operator.outputs) and all(out.storage in storages for out in operator.outputs)
    if view and not in_place:
        return []
    return _SPECIAL.get(operator.name.removeprefix("aten::"), _from_table)(operator)
