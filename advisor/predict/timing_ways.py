"""Ways to run an operator again: each function is copied into a program that times it.

A way takes the recorded tensors and the recorded shape of the result, prepares what is not to be
timed, and returns what is. Those of one operator stand in one tuple of ``WAYS``, the one that the
recording shows first; ``torch_npu`` in a name is one that needs an NPU.
"""

# ruff: noqa: D103, N812, PLR2004, PLW0108, TC004 - short ways, all alike, which load nothing here

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    import torch.nn.functional as F
    import torch_npu

    Tensors = list[torch.Tensor]
    Run = Callable[[], object]


def product(tensors: Tensors, out: list[int]) -> Run:
    """Multiply in the order that gives the recorded result."""
    for left in (tensors[0], tensors[0].mT):
        for right in (tensors[1], tensors[1].mT):
            if left.shape[-1] == right.shape[-2]:
                found = [*left.shape[:-1], right.shape[-1]]
                if found == out or not out:
                    return lambda: torch.matmul(left, right)
    raise ValueError("these shapes are no product of plain matrices: stored in blocks?")


def contiguous_product(tensors: Tensors, out: list[int]) -> Run:
    """Do the same with operands that are laid out as they are read."""
    for left in (tensors[0], tensors[0].mT.contiguous()):
        for right in (tensors[1], tensors[1].mT.contiguous()):
            if left.shape[-1] == right.shape[-2]:
                found = [*left.shape[:-1], right.shape[-1]]
                if found == out or not out:
                    return lambda: torch.matmul(left, right)
    raise ValueError("these shapes are no product of plain matrices: stored in blocks?")


def add(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: torch.add(tensors[0], tensors[-1])


def mul(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: torch.mul(tensors[0], tensors[-1])


def sub(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: torch.sub(tensors[0], tensors[-1])


def div(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: torch.div(tensors[0], tensors[-1])


def exp(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: torch.exp(tensors[0])


def cos(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: torch.cos(tensors[0])


def sin(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: torch.sin(tensors[0])


def relu(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: F.relu(tensors[0])


def gelu(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: F.gelu(tensors[0])


def copy(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: tensors[0].clone()


def to_float16(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: tensors[0].to(torch.float16)


def to_float32(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: tensors[0].to(torch.float32)


def zeros(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: torch.zeros_like(tensors[0])


def softmax(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: F.softmax(tensors[0], -1)


def log_softmax(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: F.log_softmax(tensors[0], -1)


def silu(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: F.silu(tensors[0])


def written_out_silu(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: tensors[0] * torch.sigmoid(tensors[0])


def layer_norm(tensors: Tensors, _out: list[int]) -> Run:
    x, weight, bias = tensors[:3]
    return lambda: F.layer_norm(x, weight.shape, weight, bias)


def torch_npu_rms_norm(tensors: Tensors, _out: list[int]) -> Run:
    x, weight = tensors[:2]
    return lambda: torch_npu.npu_rms_norm(x, weight, 1e-6)


def eager_rms_norm(tensors: Tensors, _out: list[int]) -> Run:
    x, weight = tensors[:2]

    def run() -> object:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * (wide * scale).to(x.dtype)

    return run


def torch_npu_swiglu(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: torch_npu.npu_swiglu(tensors[0], dim=-1)


def eager_swiglu(tensors: Tensors, _out: list[int]) -> Run:
    gate, up = tensors[0].chunk(2, -1)
    return lambda: F.silu(gate) * up


def swiglu_of_joined_halves(tensors: Tensors, _out: list[int]) -> Run:
    """Join gate and up first, as code that has them apart has to."""
    gate, up = (half.contiguous() for half in tensors[0].chunk(2, -1))

    def run() -> object:
        joined = torch.cat([gate, up], -1)
        left, right = joined.chunk(2, -1)
        return F.silu(left) * right

    return run


def torch_npu_rotary_mul(tensors: Tensors, _out: list[int]) -> Run:
    x, cos_of, sin_of = tensors[:3]
    return lambda: torch_npu.npu_rotary_mul(x, cos_of, sin_of)


def eager_rotary(tensors: Tensors, _out: list[int]) -> Run:
    x, cos_of, sin_of = tensors[:3]

    def run() -> object:
        left, right = x.chunk(2, -1)
        return x * cos_of + torch.cat([-right, left], -1) * sin_of

    return run


def attention(tensors: Tensors, out: list[int]) -> Run:
    """Attend without a mask; the softmax of the recording says how many heads there are."""
    heads, rows = out[1], out[2]
    width = tensors[0].shape[-1] // (heads if tensors[0].dim() == 3 else 1)
    made = []
    for one in tensors[:3]:
        whole = one.reshape(*one.shape[:-1], -1, width) if one.dim() == 3 else one
        if tensors[0].dim() == 3:  # rows first, or samples
            whole = whole.permute((1, 2, 0, 3) if tensors[0].shape[0] == rows else (0, 2, 1, 3))
        made.append(whole.repeat_interleave(heads // whole.shape[1], 1).contiguous())
    query, key, value = made
    return lambda: F.scaled_dot_product_attention(query, key, value)


def torch_npu_fusion_attention(tensors: Tensors, out: list[int]) -> Run:
    layout = "BNSD"
    if tensors[0].dim() == 3:
        layout = "SBH" if tensors[0].shape[0] == out[2] else "BSH"
    return lambda: torch_npu.npu_fusion_attention(*tensors[:3], out[1], layout)


def join(tensors: Tensors, out: list[int]) -> Run:
    first = tensors[0].shape
    axes = [axis for axis in range(len(first)) if out and first[axis] != out[axis]]
    return lambda: torch.cat(tensors, axes[0] if axes else -1)


def convolution(tensors: Tensors, _out: list[int]) -> Run:
    x, weight = tensors[:2]
    bias = tensors[2] if len(tensors) > 2 else None
    return lambda: F.conv2d(x, weight, bias)


def summed(tensors: Tensors, _out: list[int]) -> Run:
    return lambda: tensors[0].sum()


_PRODUCT = (product, contiguous_product)
_SWIGLU = (torch_npu_swiglu, eager_swiglu, swiglu_of_joined_halves)
_RMS, _ROTARY = (torch_npu_rms_norm, eager_rms_norm), (torch_npu_rotary_mul, eager_rotary)
WAYS: dict[str, tuple[Callable[[Tensors, list[int]], Run], ...]] = {
    **dict.fromkeys(
        ("MatMul", "MatMulV2", "MatMulV3", "MatMulCommon", "BatchMatMul", "BatchMatMulV2",
         "BatchMatMulV3", "aten::mm", "aten::bmm", "aten::matmul"),
        _PRODUCT,
    ),
    "Add": (add,), "AddV2": (add,), "aten::add": (add,), "Mul": (mul,), "aten::mul": (mul,),
    "Sub": (sub,), "aten::sub": (sub,), "Div": (div,), "RealDiv": (div,), "aten::div": (div,),
    "Exp": (exp,), "Cos": (cos,), "Sin": (sin,), "Relu": (relu,), "Gelu": (gelu,),
    "GeluV2": (gelu,), "TensorMove": (copy,), "ViewCopy": (copy,), "aten::clone": (copy,),
    "Cast": (to_float16, to_float32), "ZerosLike": (zeros,), "SoftmaxV2": (softmax,),
    "aten::_softmax": (softmax,), "LogSoftmaxV2": (log_softmax,),
    "Swish": (silu, written_out_silu), "Silu": (silu, written_out_silu),
    "LayerNormV3": (layer_norm,), "LayerNormV4": (layer_norm,), "RmsNorm": _RMS,
    "SwiGlu": _SWIGLU, "RotaryPositionEmbedding": _ROTARY, "RotaryMul": _ROTARY,
    "FlashAttentionScore": (torch_npu_fusion_attention, attention), "ConcatD": (join,),
    "Conv2D": (convolution,), "ReduceSum": (summed,), "ReduceSumD": (summed,),
}  # fmt: skip
