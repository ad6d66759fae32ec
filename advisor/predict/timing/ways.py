"""Ways to run an operator again that take more than a call: copied into a program that times it.

A way takes the recorded tensors and the recorded shape of the result, prepares what is not to be
timed, and returns what is. ``calls`` says which operator has which; ``torch_npu`` in a name
is one that needs an NPU.
"""

# ruff: noqa: D103, N812, PLR2004, TC004 - short ways, all alike, which load nothing here

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    import torch.nn.functional as F
    import torch_npu

    Tensors = list[torch.Tensor]
    Run = Callable[[], object]
    Way = Callable[[Tensors, list[int]], Run]


def product(tensors: Tensors, out: list[int]) -> Run:
    """Multiply in the order that gives the recorded result."""
    return _multiply((tensors[0], tensors[0].mT), (tensors[1], tensors[1].mT), out)


def contiguous_product(tensors: Tensors, out: list[int]) -> Run:
    """Do the same with operands that are laid out as they are read."""
    first, second = ((t, t.mT.contiguous()) for t in tensors[:2])
    return _multiply(first, second, out)


def _multiply(lefts: Sequence[torch.Tensor], rights: Sequence[torch.Tensor], out: list[int]) -> Run:
    for left in lefts:
        for right in rights:
            if left.shape[-1] == right.shape[-2]:
                found = [*left.shape[:-1], right.shape[-1]]
                if found == out or not out:
                    return lambda: torch.matmul(left, right)
    raise ValueError("these shapes are no product of plain matrices: stored in blocks?")


def layer_norm(tensors: Tensors, _out: list[int]) -> Run:
    x, weight, bias = tensors[:3]
    return lambda: F.layer_norm(x, weight.shape, weight, bias)


def layer_norm_gradient(tensors: Tensors, _out: list[int]) -> Run:
    x, weight = tensors[1].requires_grad_(), tensors[-1].requires_grad_()
    y = F.layer_norm(x, weight.shape, weight)
    return lambda: torch.autograd.grad(y, (x, weight), tensors[0], retain_graph=True)


def rms_norm_gradient(tensors: Tensors, _out: list[int]) -> Run:
    x, weight = tensors[1].requires_grad_(), tensors[3].requires_grad_()
    y = weight * (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype))
    return lambda: torch.autograd.grad(y, (x, weight), tensors[0], retain_graph=True)


def swiglu_gradient(tensors: Tensors, _out: list[int]) -> Run:
    x = tensors[1].requires_grad_()
    gate, up = x.chunk(2, -1)
    y = F.silu(gate) * up
    return lambda: torch.autograd.grad(y, x, tensors[0], retain_graph=True)


def rotary_gradient(tensors: Tensors, _out: list[int]) -> Run:
    x, cos_of, sin_of = tensors[0].detach().clone().requires_grad_(), *tensors[1:3]
    left, right = x.chunk(2, -1)
    y = x * cos_of + torch.cat([-right, left], -1) * sin_of
    return lambda: torch.autograd.grad(y, x, tensors[0], retain_graph=True)


def join(tensors: Tensors, out: list[int]) -> Run:
    first = tensors[0].shape
    axes = [axis for axis in range(len(first)) if out and first[axis] != out[axis]]
    return lambda: torch.cat(tensors, axes[0] if axes else -1)


def cut(tensors: Tensors, out: list[int]) -> Run:
    """Copy the front of each dimension, as much of it as the result has."""
    x = tensors[0]
    for axis, length in enumerate(out):
        x = x.narrow(axis, 0, length)
    return lambda: x.clone(memory_format=torch.contiguous_format)


def transposed(tensors: Tensors, out: list[int]) -> Run:
    """Turn the dimensions as the result has them; where several ways do, the first that moves."""
    shape = tensors[0].shape
    ways = [p for p in itertools.permutations(range(len(shape))) if [shape[a] for a in p] == out]
    turned = [way for way in ways if list(way) != sorted(way)] or ways
    if not turned:
        raise ValueError("the result has other dimensions than what was turned")
    return lambda: tensors[0].permute(turned[0]).contiguous()


def axes_of(tensors: Tensors, out: list[int]) -> list[int]:
    """Return the dimensions that a result lacks, or has as 1."""
    shape, kept = list(tensors[0].shape), list(out)
    if len(out) == len(shape):
        return [axis for axis, size in enumerate(shape) if out[axis] != size] or [-1]
    found = []
    for axis in reversed(range(len(shape))):
        if kept and kept[-1] == shape[axis]:
            kept.pop()
        else:
            found.append(axis)
    return found


def halves(tensors: Tensors) -> list[Tensors]:
    """Return the two lists that a recording holds one behind the other."""
    count = len(tensors) // 2
    return [tensors[:count], tensors[count : 2 * count]]


def gradient(forward: Callable[[torch.Tensor], torch.Tensor], tensors: Tensors) -> Run:
    """Return the backward pass of an element-wise function, or of a softmax."""
    x = tensors[0].detach().clone().requires_grad_()
    y = forward(x)
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)


def looked_up(tensors: Tensors, _out: list[int]) -> Run:
    table, rows = tensors[:2]
    index = torch.randint(0, table.shape[0], rows.shape, device=table.device)
    return lambda: F.embedding(index, table)


def embedding_gradient(tensors: Tensors, out: list[int]) -> Run:
    grad = tensors[0].reshape(-1, tensors[0].shape[-1])
    index = torch.randint(0, out[0], grad.shape[:1], device=grad.device)
    return lambda: torch.ops.aten.embedding_dense_backward(
        grad, index, out[0], -1, scale_grad_by_freq=False
    )


def image(shape: list[int]) -> list[int]:
    """Return a plane as (N, C, H, W), however its channels are stored."""
    if len(shape) == 5:  # NC1HWC0
        return [shape[0], shape[1] * shape[4], shape[2], shape[3]]
    return list(shape)


def window(size: list[int], out: list[int], kernel: list[int]) -> tuple[list[int], list[int]]:
    """Return stride and padding of a window that leads from one size to the other."""
    found = []
    for length, result, width in zip(size, out, kernel, strict=True):
        fits = [
            (stride, pad)
            for stride in range(1, 17)
            for pad in range(width // 2 + 1)
            if (length + 2 * pad - width) // stride + 1 == result
        ]
        if not fits:
            raise ValueError("no stride and padding lead to this result")
        found.append(fits[0])
    return [stride for stride, _ in found], [pad for _, pad in found]


def kernel_of(weight: list[int], x: list[int], out: list[int]) -> list[int]:
    """Return a weight as (out, in of a group, height, width), also one that is stored in blocks."""
    if weight[0] == out[1] and x[1] % weight[1] == 0:
        return list(weight)
    width = round((weight[0] * weight[3] / x[1]) ** 0.5)  # FRACTAL_Z: C1HW, N1, N0, C0
    return [out[1], x[1], width, width]


def convolution(tensors: Tensors, out: list[int]) -> Run:
    x, weight, *bias = tensors
    shape, result = image(list(x.shape)), image(out)
    kernel = kernel_of(list(weight.shape), shape, result)
    stride, pad = window(shape[2:], result[2:], kernel[2:])
    x = torch.randn(shape, device=x.device).to(x.dtype)
    weight = torch.randn(kernel, device=x.device).to(x.dtype)
    groups = shape[1] // kernel[1]
    return lambda: F.conv2d(x, weight, bias[0] if bias else None, stride, pad, 1, groups)


def convolution_input_gradient(tensors: Tensors, out: list[int]) -> Run:
    weight, grad = [one for one in tensors if one.dim() > 3][:2]
    shape, result = image(out), image(list(grad.shape))
    kernel = kernel_of(list(weight.shape), shape, result)
    return convolution_backward((shape, result, kernel), grad, [True, False, False])


def convolution_weight_gradient(tensors: Tensors, out: list[int]) -> Run:
    x, grad = [one for one in tensors if one.dim() > 3][:2]
    shape, result = image(list(x.shape)), image(list(grad.shape))
    return convolution_backward(
        (shape, result, kernel_of(out, shape, result)), grad, [False, True, False]
    )


def convolution_backward(
    sizes: tuple[list[int], list[int], list[int]], like: torch.Tensor, wanted: list[bool]
) -> Run:
    """Return the gradients that are wanted, of input, weight and bias, as plain tensors."""
    x, grad, weight = (torch.randn(size, device=like.device).to(like.dtype) for size in sizes)
    shape, result, kernel = sizes
    stride, pad = window(shape[2:], result[2:], kernel[2:])
    groups = shape[1] // kernel[1]
    return lambda: torch.ops.aten.convolution_backward(
        grad, x, weight, None, stride, pad, [1, 1], transposed=False, output_padding=[0, 0],
        groups=groups, output_mask=wanted,
    )  # fmt: skip


def pool_of_disjoint_windows(tensors: Tensors, out: list[int]) -> Run:
    """Pool windows that do not overlap: how large they are the recording does not say."""
    shape, result = image(list(tensors[0].shape)), image(out)
    size = [length // new for length, new in zip(shape[2:], result[2:], strict=True)]
    x = torch.randn(shape, device=tensors[0].device).to(tensors[0].dtype)
    return lambda: F.max_pool2d(x, size)


def pool_gradient_of_disjoint_windows(tensors: Tensors, _out: list[int]) -> Run:
    """Pool so backward: the first tensor is what was pooled, the second what came of it."""
    shape, result = image(list(tensors[0].shape)), image(list(tensors[1].shape))
    size = [length // new for length, new in zip(shape[2:], result[2:], strict=True)]
    x = torch.randn(shape, device=tensors[0].device).to(tensors[0].dtype).requires_grad_()
    y = F.max_pool2d(x, size)
    return lambda: torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)


def negative_log_likelihood(tensors: Tensors, _out: list[int]) -> Run:
    scores = tensors[0]
    labels = torch.randint(0, scores.shape[-1], scores.shape[:1], device=scores.device)
    return lambda: F.nll_loss(scores, labels)


def negative_log_likelihood_gradient(tensors: Tensors, _out: list[int]) -> Run:
    scores = tensors[0].requires_grad_()
    labels = torch.randint(0, scores.shape[-1], scores.shape[:1], device=scores.device)
    loss = F.nll_loss(scores, labels)
    return lambda: torch.autograd.grad(loss, scores, retain_graph=True)


def fused_adamw(tensors: Tensors, _out: list[int]) -> Run:
    weight, first, second, grad = ([one] for one in tensors[:4])
    second[0].abs_()
    step = [torch.ones((), device=grad[0].device)]
    return lambda: torch._fused_adamw_(
        weight, grad, first, second, [], step, lr=1e-3, beta1=0.9, beta2=0.999,
        weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip


def adamw_in_small_kernels(tensors: Tensors, _out: list[int]) -> Run:
    weight, first, second, grad = tensors[:4]
    second.abs_()

    def run() -> object:
        weight.mul_(1 - 1e-5)
        first.lerp_(grad, 0.1)
        second.mul_(0.999).addcmul_(grad, grad, value=0.001)
        return weight.addcdiv_(first, second.sqrt().add_(1e-8), value=-1e-3)

    return run


def torch_npu_fusion_attention_gradient(tensors: Tensors, _out: list[int]) -> Run:
    """Attend backward; the softmax of the recording says how many heads there are."""
    softmax = next(one for one in tensors[4:] if one.shape[-1:] == (8,))
    heads, rows = softmax.shape[1], softmax.shape[2]
    layout = "BNSD"
    if tensors[0].dim() == 3:
        layout = "SBH" if tensors[0].shape[0] == rows else "BSH"
    own = [one.requires_grad_() for one in tensors[:3]]
    y = torch_npu.npu_fusion_attention(*own, heads, layout)[0]
    return lambda: torch.autograd.grad(y, own, torch.ones_like(y), retain_graph=True)


def attention_gradient(tensors: Tensors, _out: list[int]) -> Run:
    """Attend backward without a mask."""
    softmax = next(one for one in tensors[4:] if one.shape[-1:] == (8,))
    own = [one.requires_grad_() for one in heads_of(tensors, *softmax.shape[1:3])]
    query, key, value = own
    y = F.scaled_dot_product_attention(query, key, value)
    return lambda: torch.autograd.grad(y, own, torch.ones_like(y), retain_graph=True)


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


def heads_of(tensors: Tensors, heads: int, rows: int) -> Tensors:
    """Return query, key and value as (batch, heads, rows, size of a head)."""
    width = tensors[0].shape[-1] // (heads if tensors[0].dim() == 3 else 1)
    made = []
    for one in tensors[:3]:
        whole = one.reshape(*one.shape[:-1], -1, width) if one.dim() == 3 else one
        if tensors[0].dim() == 3:  # rows first, or samples
            whole = whole.permute((1, 2, 0, 3) if tensors[0].shape[0] == rows else (0, 2, 1, 3))
        made.append(whole.repeat_interleave(heads // whole.shape[1], 1).contiguous())
    return made


def attention(tensors: Tensors, out: list[int]) -> Run:
    """Attend without a mask; the softmax of the recording says how many heads there are."""
    query, key, value = heads_of(tensors, out[1], out[2])
    return lambda: F.scaled_dot_product_attention(query, key, value)


def torch_npu_fusion_attention(tensors: Tensors, out: list[int]) -> Run:
    layout = "BNSD"
    if tensors[0].dim() == 3:
        layout = "SBH" if tensors[0].shape[0] == out[2] else "BSH"
    return lambda: torch_npu.npu_fusion_attention(*tensors[:3], out[1], layout)


def rms_of(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * (wide * scale).to(x.dtype)


def geglu_of(x: torch.Tensor) -> torch.Tensor:
    value, gate = x.chunk(2, -1)
    return value * F.gelu(gate, approximate="tanh")


def clipped_swiglu_of(x: torch.Tensor) -> torch.Tensor:
    gate, up = x[..., ::2].clamp(max=7.0), x[..., 1::2].clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def groups_of(tensors: Tensors) -> int:
    """Return 32 groups of channels, or as many as there can be: the recording does not say."""
    return next(count for count in (32, 16, 8, 4, 2, 1) if tensors[0].shape[1] % count == 0)


def groups_in(tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, a matrix for each group, and where the rows of each end: groups are alike."""
    rows, weight = tensors[:2]
    if weight.dim() == 2:
        weight = torch.stack([one for one in tensors[1:] if one.shape == weight.shape])
    weight = weight if weight.shape[1] == rows.shape[-1] else weight.mT
    if rows.dim() != 2 or weight.dim() != 3 or weight.shape[1] != rows.shape[-1]:
        raise ValueError("these shapes are no rows in groups: a gradient, or stored in blocks?")
    count = len(weight)
    ends = torch.arange(1, count + 1, device=rows.device) * len(rows) // count
    return rows, weight, ends


def torch_npu_grouped_matmul(tensors: Tensors, _out: list[int]) -> Run:
    rows, weight, ends = groups_in(tensors)
    return lambda: torch_npu.npu_grouped_matmul(
        [rows], [weight], group_list=ends, split_item=3, group_type=0
    )


def product_of_each_group(tensors: Tensors, _out: list[int]) -> Run:
    rows, weight, ends = groups_in(tensors)
    begins = [0, *ends.tolist()[:-1]]
    own = [rows[first:last] for first, last in zip(begins, ends.tolist(), strict=True)]
    return lambda: torch.cat([one @ each for one, each in zip(own, weight, strict=True)])


def torch_npu_moe_token_unpermute(tensors: Tensors, _out: list[int]) -> Run:
    tokens, shares = tensors[0], tensors[2] if len(tensors) > 2 else None
    order = torch.randperm(len(tokens), device=tokens.device).to(torch.int32)
    return lambda: torch_npu.npu_moe_token_unpermute(tokens, order, shares)


def gathered_tokens(tensors: Tensors, out: list[int]) -> Run:
    tokens, count = tensors[0], out[0]
    order = torch.randperm(len(tokens), device=tokens.device)
    shares = tensors[2] if len(tensors) > 2 else tokens.new_ones(count, len(tokens) // count)
    return lambda: (tokens[order].view(count, -1, tokens.shape[-1]) * shares[..., None]).sum(1)


def labels_of(scores: torch.Tensor) -> torch.Tensor:
    return torch.randint(0, scores.shape[-1], scores.shape[:1], device=scores.device)
