"""Operators that launch more than one kernel, or one whose time is not a roofline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from simulate import cost
from simulate.kernels import MIX, TABLE, VECTOR, Kernel, from_table, kernel
from simulate.record import Operator, Tensor


def index_put(operator: Operator) -> list[Kernel]:
    target, mask, value = operator.tensors
    count = operator.index_counts
    indices = Tensor((count,), torch.int64)
    nonzero = kernel(
        "NonzeroV2",
        "NonzeroAiCore",
        "NonZero",
        MIX,
        [mask],
        [indices] * len(mask.shape),
        cost.NON_ZERO.us(mask.numel),
    )
    if cost.is_index_put_on_ai_cpu(target, count):
        type_, core, time = "IndexPut", "AI_CPU", cost.INDEX_PUT_AI_CPU.us(count)
    else:
        type_, core, time = "IndexPutV2", VECTOR, cost.INDEX_PUT.us(count)
    inputs = [target, value, *[indices] * len(mask.shape)]
    put = kernel("IndexPutImpl", type_, type_, core, inputs, [target], time)
    # The host has to know how many indices there are before it can launch the second kernel.
    launched = [replace(nonzero, waits=True), put]
    if not operator.name.endswith("_"):
        launched.insert(0, copy_kernel(target, strided=False))
    return launched


def copy_kernel(tensor: Tensor, *, strided: bool) -> Kernel:
    function, type_ = (
        ("TransposeAiCore", "Transpose") if strided else ("TensorMoveAiCore", "TensorMove")
    )
    return kernel("InplaceCopy", function, type_, VECTOR, [tensor], [tensor])


def matmul(operator: Operator) -> list[Kernel]:
    api, function, type_ = {
        "aten::mm": ("Mm", "MatMulV3Common", "MatMulV3"),
        "aten::addmm": ("Addmm", "MatMulCommon", "MatMulV2"),
        "aten::bmm": ("BatchMatMul", "BatchMatMulNd", "BatchMatMulV2"),
    }[operator.name]
    tensors, (output,) = operator.tensors, operator.outputs
    if operator.name == "aten::addmm":
        tensors = [*tensors[1:], tensors[0]]  # the bias comes last on the device
    duration = cost.matmul_us(tensors, output)
    return [kernel(api, function, type_, "AI_CORE", tensors, [output], duration)]


def mul(operator: Operator) -> list[Kernel]:
    """A product of two types casts the integer side first."""
    target = operator.outputs[0]
    casts, inputs = [], []
    for tensor in operator.tensors:
        cast = replace(tensor, dtype=target.dtype)
        if tensor.shape and tensor.dtype != target.dtype:
            casts.append(kernel("Mul", "CastAiCore", "Cast", VECTOR, [tensor], [cast]))
        inputs.append(cast)
    key = "mul/1" if len(inputs) == 1 else "mul"
    return [*casts, kernel(*TABLE[key], inputs, [target])]


def power(operator: Operator) -> list[Kernel]:
    if operator.arguments[1] == 2:
        tensors = operator.tensors
        return [kernel("PowTensorScalar", "SquareAiCore", "Square", VECTOR, tensors, tensors)]
    return from_table(operator)


def reduce_sum(operator: Operator) -> list[Kernel]:
    [launched] = from_table(operator)
    if operator.tensors[0].dtype == torch.int64:
        elements = operator.tensors[0].numel
        launched = replace(launched, duration_us=cost.REDUCE_SUM_INT64.us(elements))
    return [launched]


def native_dropout(operator: Operator) -> list[Kernel]:
    (x,) = operator.tensors
    bits = Tensor((-(-x.numel // 8),), torch.uint8)
    drop = Tensor((1,), torch.float32)
    return [
        kernel("DropoutGenMaskV2", "DSAGenBitMask", "DSAGenBitMask", "DSA_SQE", [], [bits]),
        kernel(
            "DropoutDoMask", "DropoutDoMaskAiCore", "DropOutDoMask", VECTOR, [x, bits, drop], [x]
        ),
    ]


def zeros_like(tensor: Tensor) -> Kernel:
    return kernel(*TABLE["zeros_like"], [tensor], [tensor])


def masked_fill(operator: Operator) -> list[Kernel]:
    tensor, mask = operator.tensors[:2]
    fill = kernel(
        "InplaceMaskedFillScalar",
        "MaskedFillAiCore",
        "MaskedFill",
        VECTOR,
        [tensor, mask, Tensor((), tensor.dtype)],
        [tensor],
    )
    return [copy_kernel(tensor, strided=operator.strided), fill]


def clone(operator: Operator) -> list[Kernel]:
    return [copy_kernel(operator.tensors[0], strided=operator.strided)]


def write_into_zeros(operator: Operator) -> list[Kernel]:
    """The gradient of a slice: zeros, with one part overwritten."""
    (part,), (whole,) = operator.tensors, operator.outputs
    write = kernel("InplaceCopy", "ViewCopyAiCore", "ViewCopy", VECTOR, [whole, part], [part])
    return [zeros_like(whole), write]


def embedding_backward(operator: Operator) -> list[Kernel]:
    grad, index = operator.tensors
    (out,) = operator.outputs
    api = "EmbeddingDenseBackward"
    keys = Tensor((index.numel,), torch.int32)
    time = cost.SORT.us(index.numel)
    return [
        kernel(api, "SortAiCore", "Sort", MIX, [keys], [keys, keys], time),
        kernel(api, "EmbeddingDenseGradV2", "MemSet", VECTOR, [], [out]),
        kernel(api, "EmbeddingDenseGradV2", "EmbeddingDenseGradV2", MIX, [grad, keys, keys], [out]),
    ]


def top_k(operator: Operator) -> list[Kernel]:
    (scores,), (values, indices) = operator.tensors, operator.outputs
    narrow = replace(indices, dtype=torch.int32)
    return [
        kernel(
            "Topk", "TopkV2", "TopKV2", MIX, [scores], [values, narrow], cost.TOP_K.us(scores.numel)
        ),
        kernel("Topk", "CastAiCore", "Cast", VECTOR, [narrow], [indices]),
    ]


def one_hot(operator: Operator) -> list[Kernel]:
    (indices,), (out,) = operator.tensors, operator.outputs
    value = Tensor((1,), torch.int64)
    fill = kernel("InplaceFillScalar", "FillAiCore", "Fill", VECTOR, [value], [value])
    time = cost.ONE_HOT.us(out.numel)
    inputs = [indices, value, value]
    return [fill, fill, kernel("OneHot", "OneHotAiCore", "OneHot", VECTOR, inputs, [out], time)]


def repeat_interleave(operator: Operator) -> list[Kernel]:
    (lengths,), (out,) = operator.tensors, operator.outputs
    type_ = "RepeatInterleave"
    time = cost.REPEAT_INTERLEAVE.us(out.numel)
    repeats = Tensor((1,), torch.int64)
    return [kernel("RepeatInterleaveInt", type_, type_, VECTOR, [lengths, repeats], [out], time)]


def gather(operator: Operator) -> list[Kernel]:
    source, index = operator.tensors
    type_, time = "GatherElements", cost.GATHER_ELEMENTS.us(index.numel)
    return [kernel("Gather", type_, type_, VECTOR, [source, index], operator.outputs, time)]


def scatter_add(operator: Operator) -> list[Kernel]:
    target, index, source = operator.tensors
    type_, time = "ScatterElementsV2", cost.SCATTER_ELEMENTS.us(index.numel)
    add = kernel("ScatterAdd", type_, type_, VECTOR, [target, index, source], [target], time)
    return [copy_kernel(target, strided=False), add]


def nll_loss(operator: Operator) -> list[Kernel]:
    scores, target = operator.tensors[:2]
    weight = Tensor((scores.shape[-1],), scores.dtype)
    total = Tensor((), scores.dtype)
    loss = [total, total]
    return [
        kernel(*TABLE["ones_like"], [weight], [weight]),
        kernel("NLLLoss", "NLLLossAiCore", "MemSet", VECTOR, [], loss),
        # The kernel reads one score per row, not the whole matrix.
        kernel("NLLLoss", "NLLLossAiCore", "NLLLoss", MIX, [scores, target, weight], loss, 12.0),
    ]


def nll_loss_backward(operator: Operator) -> list[Kernel]:
    grad, scores, target = operator.tensors[:3]
    weight = Tensor((scores.shape[-1],), scores.dtype)
    inputs = [scores, grad, target, weight, Tensor((), scores.dtype)]
    api, function, type_ = "NLLLossBackward", "NLLLossGradAiCore", "NLLLossGrad"
    ones = kernel(*TABLE["ones_like"], [weight], [weight])
    return [ones, kernel(api, function, type_, VECTOR, inputs, operator.outputs)]


def foreach_add(operator: Operator) -> list[Kernel]:
    """The optimizer counts its steps in scalars that stay on the host."""
    if all(not tensor.shape for tensor in operator.tensors):
        return []
    return from_table(operator)


def nothing(_: Operator) -> list[Kernel]:
    return []


SPECIAL: dict[str, Callable[[Operator], list[Kernel]]] = {
    "aten::_foreach_add_": foreach_add,
    "aten::_local_scalar_dense": nothing,
    "aten::addmm": matmul,
    "aten::bmm": matmul,
    "aten::clone": clone,
    "aten::embedding_dense_backward": embedding_backward,
    "aten::gather": gather,
    "aten::index_put": index_put,
    "aten::index_put_": index_put,
    "aten::masked_fill": masked_fill,
    "aten::mm": matmul,
    "aten::mul": mul,
    "aten::native_dropout": native_dropout,
    "aten::new_empty_strided": nothing,
    "aten::nll_loss_backward": nll_loss_backward,
    "aten::nll_loss_forward": nll_loss,
    "aten::one_hot": one_hot,
    "aten::pow": power,
    "aten::repeat_interleave": repeat_interleave,
    "aten::scatter_add": scatter_add,
    "aten::select_backward": write_into_zeros,
    "aten::slice_backward": write_into_zeros,
    "aten::sum": reduce_sum,
    "aten::topk": top_k,
}


def launches(operator: Operator) -> list[Kernel]:
    """Return the kernels of an operator in launch order; views launch none."""
    storages = {tensor.storage for tensor in operator.tensors}
    in_place = operator.name.endswith("_")
    view = bool(operator.outputs) and all(out.storage in storages for out in operator.outputs)
    if view and not in_place:
        return []
    return SPECIAL.get(operator.name, from_table)(operator)
