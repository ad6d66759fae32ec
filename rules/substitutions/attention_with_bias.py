"""Attention written out whose scores get a bias of the position.

What: ``softmax(q @ k.transpose(-2, -1) * scale + bias) @ v``, where ``bias`` comes out of a table of
relative positions (Swin, T5), of queries and positions (SAM, MViT) or is a slope of each head (ALiBi).

Why it is slow on the NPU: the scores of all queries and keys are written and read again by each
operator (BatchMatMul, Mul, Add, SoftmaxV2, DropOutDoMask, BatchMatMul), and again in the backward
pass. ``F.scaled_dot_product_attention`` stays in these operators where its mask is of floating point;
``torch_npu.npu_fusion_attention`` has a place of its own for the bias.

Use instead: ``torch_npu.npu_fusion_attention(q, k, v, heads, "BNSD", pse=bias)[0]`` with queries that
are scaled already: with a ``scale`` the kernel adds the bias before it multiplies by its scale. A mask
is another argument, ``atten_mask``, True where a key is hidden.

Safety: advice. A bias that is trained must get its gradient; whether the kernel returns it depends on
the CANN release. In inference the two are equal up to rounding.

References: torch_npu.npu_fusion_attention in the API reference of Ascend Extension for PyTorch; ports
of Swin and SAM for Ascend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def in_small_operators(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attend with a bias: (batch, heads, length, size), (1, heads, length, length)."""
    return torch.softmax(q @ k.transpose(-1, -2) + bias, -1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attend in one kernel."""
    return torch_npu.npu_fusion_attention(q, k, v, q.shape[1], "BNSD", pse=bias)[0]


def inputs(draw: Draw) -> dict[str, Any]:
    """Return queries, keys, values, and a bias for each head, which takes no gradient."""
    import torch

    length, heads = draw.integer(2, 5), draw.choice([1, 2])
    q, k, v = (draw.floats(2, heads, length, 16, dtype=torch.float32) for _ in range(3))
    bias = draw.integers(1, heads, length, length, low=-3, high=3).to(torch.float32)
    return {"q": q, "k": k, "v": v, "bias": bias}


_WINDOW = """
class WindowAttention(nn.Module):
    def forward(self, x, mask=None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.index.view(-1)].view(N, N, -1)
        attn = attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        if mask is not None:
            n = mask.shape[0]
            attn = attn.view(B // n, n, self.heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = self.softmax(attn.view(-1, self.heads, N, N))
        else:
            attn = self.softmax(attn)
        attn = self.attn_drop(attn)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)
        self.attn_drop = nn.Dropout(0.1)
"""
_DECOMPOSED = """
from .positions import add_decomposed_rel_pos


class Attention(nn.Module):
    def forward(self, q, k, v, size):
        attn = (q * self.scale) @ k.transpose(-2, -1)
        if self.use_rel_pos:
            attn = add_decomposed_rel_pos(attn, q, self.rel_pos_h, self.rel_pos_w, size, size)
        attn = attn.softmax(dim=-1)
        return attn @ v
"""
_OF_T5 = """
class Attention(nn.Module):
    def forward(self, q, k, v, position_bias):
        scores = torch.matmul(q, k.transpose(3, 2))
        scores += position_bias
        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.p, training=self.training)
        return torch.matmul(weights, v)
"""

RULE = Substitution(
    id="NPU182",
    name="attention-with-bias",
    summary="attention written out whose scores get a bias of the position",
    table="fusion",
    forms=(Form(in_small_operators, fused, inputs),),
    search="biased-attention",
    replaces=("Add", "BatchMatMulV2", "Mul", "SoftmaxV2"),
    becomes=("FlashAttentionScore",),
    passes=(0.5, 1),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # a mask, which eager-attention is about
        """
class Attention(nn.Module):
    def forward(self, q, k, v, mask, positions):
        q = q + positions
        return ((q @ k.transpose(-2, -1)) * self.scale + mask).softmax(-1) @ v
""",
        # the weights are a result as well
        """
class Attention(nn.Module):
    def forward(self, q, k, v, position_bias):
        weights = (q @ k.transpose(-2, -1) + position_bias).softmax(-1)
        return weights @ v, weights
""",
        # a layer with a bias, and a mixture
        """
class Mixture(nn.Module):
    def forward(self, x, experts):
        gates = (x @ self.weight + self.gate_bias).softmax(-1)
        return (gates.unsqueeze(-1) * experts).sum(-2)
""",
        # a mask hides weights that are cast before
        """
class Attention(nn.Module):
    def forward(self, q, k, v, rel_bias, mask=None):
        scores = q @ k.transpose(-2, -1) + rel_bias
        weights = scores.float().softmax(-1).type(scores.dtype)
        if mask is not None:
            weights = weights * mask
        return weights @ v
""",
        # the weights are multiplied once more
        """
class Attention(nn.Module):
    def forward(self, q, k, v, rel_bias, prior):
        weights = (q @ k.transpose(-2, -1) + rel_bias).softmax(-1)
        weights = weights * prior
        return weights @ v
""",
    ),
    rewritten=(
        Rewritten(_WINDOW, _WINDOW),
        Rewritten(_DECOMPOSED, _DECOMPOSED),
        Rewritten(_OF_T5, _OF_T5),
    ),
)
