"""Attention written out in a way that no pattern has.

What: ``softmax`` over products of queries and keys, and a product with the values: with masks in
branches or in a loop, with dimensions in an order of its own, with probabilities that are a result, or
with scores that another method hands in.

Why it is slow on the NPU: the scores of all queries and keys are written to memory and read again by
each operator (BatchMatMul, Mul, MaskedFill, SoftmaxV2, DropOutDoMask, BatchMatMul), and again in the
backward pass. FlashAttentionScore never writes them.

Use instead: ``F.scaled_dot_product_attention``, on Atlas A2 and newer one kernel for operands of
(batch, heads, length, size) and a mask that is bool or None; ``torch_npu.npu_fusion_attention`` where
something else than a mask is added to the scores.

Safety: advice. What hides keys has to become one mask, and probabilities that somebody reads are not
there any more. A module that mentions a fused attention has chosen already and is left alone.

References: torch.nn.functional; torch_npu.npu_fusion_attention in the API reference of Ascend
Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor


def in_small_operators(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, far: Tensor) -> Tensor:
    """Hide keys in two steps."""
    scores = (q @ k.transpose(-1, -2)).masked_fill(hidden, -1e9)
    return torch.softmax(scores.masked_fill(far, -1e9), -1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, far: Tensor) -> Tensor:
    """Attend in one kernel."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~(hidden | far), scale=1.0)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return queries, keys, values, and two masks that leave every query two keys."""
    import torch

    length, heads = draw.integer(3, 5), draw.choice([1, 2])
    q, k, v = (draw.floats(2, heads, length, 16, dtype=torch.float32) * 0.5 for _ in range(3))
    hidden, far = draw.booleans(2, 1, length, length), draw.booleans(length, length)
    hidden[..., :2] = far[..., :2] = False
    return {"q": q, "k": k, "v": v, "hidden": hidden, "far": far}


_COLUMNS = """
class ColumnAttention(nn.Module):
    def forward(self, x, padding=None):
        q = self.q_proj(x).view(*x.shape[:3], self.heads, self.size)
        k = self.k_proj(x).view(*x.shape[:3], self.heads, self.size)
        v = self.v_proj(x).view(*x.shape[:3], self.heads, self.size)
        q *= self.scaling
        scores = torch.einsum("icnhd,jcnhd->hcnij", q, k)
        if padding is not None:
            scores = scores.masked_fill(padding.permute(2, 0, 1)[None, :, :, None], -10000)
        probabilities = self.dropout(scores.softmax(-1))
        return torch.einsum("hcnij,jcnhd->icnhd", probabilities, v), probabilities
"""
_IN_A_LOOP = """
def own_softmax(scores, dim):
    return torch.softmax(scores.float(), dim).to(scores.dtype)


class TriangleAttention(nn.Module):
    def forward(self, query, key, value, biases: List[torch.Tensor]):
        scores = torch.matmul(query, key.transpose(-1, -2))
        for b in biases:
            scores += b
        scores = own_softmax(scores, -1)
        return torch.matmul(scores, value)
"""
_IN_A_SEQUENCE = """
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.attend = nn.Sequential(nn.Softmax(dim=-1), nn.Dropout(0.1))

    def forward(self, x, far=None):
        q, k, v = self.to_qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * self.scale
        if far is not None:
            scores = scores - far
        return self.attend(scores) @ v
"""
_WITH_SINKS = """
class Attention(nn.Module):
    def forward(self, q, k, v, mask):
        scores = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        if mask is not None:
            scores = scores + mask
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
        scores = torch.cat([scores, sinks], dim=-1)
        scores = scores - scores.max(dim=-1, keepdim=True).values
        weights = F.softmax(scores, dim=-1, dtype=scores.dtype)[..., :-1]
        return torch.matmul(self.dropout(weights), v).transpose(1, 2)
"""
_STARTS_WITH_MASK = """
class Attention(nn.Module):
    def forward(self, q, k, v, mask=None):
        q = q / self.norm_factor
        if mask is not None:
            scores = torch.baddbmm(mask, q, k.transpose(-2, -1))
        else:
            scores = torch.bmm(q, k.transpose(-2, -1))
        return torch.bmm(scores.softmax(dim=-1), v)
"""

_OF_AN_IMAGE = """
from einops import rearrange


class Attention(nn.Module):
    def forward(self, q, k, v):
        w = torch.bmm(q, k) * q.shape[-1] ** -0.5
        w = rearrange(F.softmax(w, dim=2), "b i j -> b j i")
        return torch.bmm(v, w)
"""
_HANDED_IN = """
class Attention(nn.Module):
    def attend(self, value, scores, mask):
        if mask is not None:
            hidden = mask.unsqueeze(1).eq(0)
            attn = torch.softmax(scores.masked_fill(hidden, -1e9), dim=-1).masked_fill(hidden, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)
        return torch.matmul(self.dropout(attn), value).transpose(1, 2)

    def forward(self, query, key, value, mask):
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        return self.attend(value, scores, mask)
"""

RULE = Substitution(
    id="NPU186",
    name="attention-in-pieces",
    summary="attention written out, with masks or dimensions that no pattern has",
    table="fusion",
    forms=(Form(in_small_operators, fused, inputs),),
    search="attention-in-pieces",
    replaces=("Add", "BatchMatMulV2", "MaskedFill", "Mul", "SoftmaxV2"),
    becomes=("FlashAttentionScore",),
    passes=(0.5, 1),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # a layer and a mixture
        """
class Mixture(nn.Module):
    def forward(self, x, experts):
        gates = torch.matmul(x, self.weight.t()).softmax(-1)
        return torch.matmul(gates.unsqueeze(1), experts)
""",
        # linear attention: the softmax is over what is projected
        """
class Attention(nn.Module):
    def forward(self, q, k, v):
        q, k = q.softmax(-2), k.softmax(-1)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        return torch.einsum("bhde,bhdn->bhen", context, q)
""",
        # what is handed in are no scores of queries and keys
        """
class Attention(nn.Module):
    def pool(self, x, logits):
        return torch.matmul(logits.softmax(-1), x)

    def forward(self, x):
        return self.pool(x, self.score(x).transpose(1, 2))
""",
        # between channels
        """
class ChannelAttention(nn.Module):
    def forward(self, q, k, v):
        scores = q.transpose(-1, -2) @ k
        scores = scores * self.temperature + self.prior
        return scores.softmax(-1) @ v.transpose(-1, -2)
""",
        # scores that are capped, which no kernel does
        """
class Attention(nn.Module):
    def forward(self, q, k, v):
        scores = torch.tanh(q @ k.transpose(-1, -2) / self.cap) * self.cap
        return scores.softmax(-1) @ v
""",
        # over the queries: slots
        """
class Attention(nn.Module):
    def forward(self, q, k, v, prior):
        return (torch.einsum("bnd,bmd->bnm", q, k) + prior).softmax(dim=1) @ v
""",
        # both are there
        """
class Attention(nn.Module):
    def forward(self, q, k, v, mask):
        if self.fast:
            return F.scaled_dot_product_attention(q, k, v)
        scores = q @ k.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9)
        return scores.softmax(-1) @ v
""",
        # the probabilities are factors of positions too, or others ask for them
        """
class Attention(nn.Module):
    def forward(self, q, k, v, mask):
        scores = (q @ k.transpose(-1, -2)).masked_fill(mask, -1e9)
        weights = self.drop(scores.softmax(-1))
        return weights @ v + self.turned(weights) @ self.positions

    def turned(self, x):
        return F.pad(x, (0, 1)).flatten(2)
""",
        """
class Attention(nn.Module):
    def forward(self, q, k, v, mask, block):
        weights = (q @ k.transpose(-1, -2)).masked_fill(mask, -1e9).softmax(-1)
        block.weights = weights
        return weights @ v

    def shown(self, block):
        return block.weights
""",
        # a loss over all classes
        """
class Loss(nn.Module):
    def forward(self, x, y, labels):
        logits = torch.matmul(x, y.t())
        return -(logits.log_softmax(-1) * labels).sum(-1).mean()
""",
    ),
    rewritten=(
        Rewritten(_COLUMNS, _COLUMNS),
        Rewritten(_IN_A_LOOP, _IN_A_LOOP),
        Rewritten(_IN_A_SEQUENCE, _IN_A_SEQUENCE),
        Rewritten(_WITH_SINKS, _WITH_SINKS),
        Rewritten(_STARTS_WITH_MASK, _STARTS_WITH_MASK),
        Rewritten(_HANDED_IN, _HANDED_IN),
        Rewritten(_OF_AN_IMAGE, _OF_AN_IMAGE),
    ),
)
