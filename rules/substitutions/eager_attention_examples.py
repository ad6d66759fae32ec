"""Examples of attention that is written out, and of code that only looks like it."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

REWRITTEN = (
    # pixels as columns
    Rewritten(
        """
class Attention(nn.Module):
    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.to_qkv(x).chunk(3, dim=1)
        q, k, v = map(lambda t: rearrange(t, "b (h c) x y -> b h c (x y)", h=self.heads), qkv)
        q = q * 0.125
        sim = torch.einsum("b h d i, b h d j -> b h i j", q, k)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b h i j, b h d j -> b h i d", attn, v)
        return rearrange(out, "b h (x y) d -> b (h d) x y", x=h, y=w)
""",
        """
class Attention(nn.Module):
    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.to_qkv(x).chunk(3, dim=1)
        q, k, v = map(lambda t: rearrange(t, "b (h c) x y -> b h c (x y)", h=self.heads), qkv)
        q = q * 0.125
        out = F.scaled_dot_product_attention(
            q.transpose(-2, -1), k.transpose(-2, -1), v.transpose(-2, -1), scale=1.0
        )
        return rearrange(out, "b h (x y) d -> b (h d) x y", x=h, y=w)
""",
    ),
    # a vision transformer
    Rewritten(
        """
class Attention(nn.Module):
    def __init__(self, dim, num_heads=8, attn_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)
""",
        """
class Attention(nn.Module):
    def __init__(self, dim, num_heads=8, attn_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = (
            F.scaled_dot_product_attention(
                q,
                k,
                v,
                dropout_p=self.attn_drop.p if self.attn_drop.training else 0.0,
                scale=self.scale,
            )
            .transpose(1, 2)
            .reshape(B, N, C)
        )
        return self.proj(x)
""",
    ),
    # minGPT
    Rewritten(
        """
import math


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.attn_pdrop)
        self.register_buffer("bias", torch.tril(torch.ones(config.block_size, config.block_size))
                                     .view(1, 1, config.block_size, config.block_size))
        self.n_head = config.n_head
        self.n_embd = config.n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
""",
        """
import math


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.attn_pdrop)
        self.register_buffer("bias", torch.tril(torch.ones(config.block_size, config.block_size))
                                     .view(1, 1, config.block_size, config.block_size))
        self.n_head = config.n_head
        self.n_embd = config.n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=self.bias[:, :, :T, :T] != 0,
            dropout_p=self.attn_dropout.p if self.attn_dropout.training else 0.0,
            scale=1.0 / math.sqrt(k.size(-1)),
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
""",
    ),
    # a function
    Rewritten(
        """
import math


def attention(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(dim=-1)
    return torch.matmul(weights, v)
""",
        """
import math


def attention(q, k, v, mask=None):
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if mask is None else mask != 0,
        scale=1.0 / math.sqrt(q.size(-1)),
    )
""",
    ),
    # a part of the mask, in a branch
    Rewritten(
        """
import math


def attention(q, k, v, mask, p: float, training: bool):
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
    if mask is not None:
        causal_mask = mask[:, :, :, : k.shape[-2]]
        scores = scores + causal_mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    weights = F.dropout(weights, p=p, training=training)
    return torch.matmul(weights, v)
""",
        """
import math


def attention(q, k, v, mask, p: float, training: bool):
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if mask is None else mask[:, :, :, : k.shape[-2]] == 0,
        dropout_p=p if training else 0.0,
        scale=1.0 / math.sqrt(q.shape[-1]),
    )
""",
    ),
    # no scale: T5 without its bias
    Rewritten(
        """
def attention(q, k, v, dropout: float, training: bool):
    scores = torch.matmul(q, k.transpose(3, 2))
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    weights = F.dropout(weights, p=dropout, training=training)
    return torch.matmul(weights, v)
""",
        """
def attention(q, k, v, dropout: float, training: bool):
    return F.scaled_dot_product_attention(
        q, k, v, dropout_p=dropout if training else 0.0, scale=1.0
    )
""",
    ),
    # two masks, either of which may not be there: lucidrains
    Rewritten(
        """
class Attention(nn.Module):
    def forward(self, q, k, v, scale: float, pad=None):
        n = q.shape[2]
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * scale
        if pad is not None:
            sim = sim.masked_fill(~pad[:, None, None, :], -torch.finfo(sim.dtype).max)
        if self.causal:
            later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
            sim = sim.masked_fill(later, -torch.finfo(sim.dtype).max)
        return torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
""",
        """
class Attention(nn.Module):
    def forward(self, q, k, v, scale: float, pad=None):
        n = q.shape[2]
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=(
                None
                if pad is None and (not self.causal)
                else ~(
                    (False if pad is None else ~pad[:, None, None, :])
                    | (
                        torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
                        if self.causal
                        else False
                    )
                )
            ),
            scale=scale,
        )
""",
    ),
    # both are there
    Rewritten(
        """
def attention(q, k, v, padding, later, scale: float):
    scores = (q @ k.transpose(-2, -1)) * scale
    scores = scores.masked_fill(padding == 0, -1e9)
    scores = scores.masked_fill(later, -1e9)
    return scores.softmax(-1) @ v
""",
        """
def attention(q, k, v, padding, later, scale: float):
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=~((padding == 0) | later), scale=scale
    )
""",
    ),
    # hidden by a mask, then by what is added: GPT-2
    Rewritten(
        """
class Attention(nn.Module):
    def forward(self, q, k, v, n, mask=None):
        scores = torch.matmul(q, k.transpose(-1, -2)) / v.size(-1) ** 0.5
        scores = torch.where(self.shown[:n, :n].bool(), scores, torch.finfo(scores.dtype).min)
        if mask is not None:
            scores = scores + mask
        return torch.matmul(scores.softmax(dim=-1), v)
""",
        """
class Attention(nn.Module):
    def forward(self, q, k, v, n, mask=None):
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=self.shown[:n, :n].bool() & (True if mask is None else mask == 0),
            scale=v.size(-1) ** (-0.5),
        )
""",
    ),
    Rewritten(
        """
def attention(q, k, v, padding, hidden, scale: float):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    if padding is not None:
        scores = scores.masked_fill(padding[:, None, None], float("-inf"))
    if hidden is not None:
        scores = scores.masked_fill(hidden[None, None], float("-inf"))
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)
""",
        """
def attention(q, k, v, padding, hidden, scale: float):
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=(
            None
            if padding is None and hidden is None
            else ~(
                (False if padding is None else padding[:, None, None])
                | (False if hidden is None else hidden[None, None])
            )
        ),
        scale=scale,
    )
""",
    ),
    # one key for all heads
    Rewritten(
        """
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float):
    weights = (torch.einsum("bhid,bjd->bhij", q, k) * scale).softmax(dim=-1)
    return torch.einsum("bhij,bjd->bhid", weights, v)
""",
        """
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float):
    return F.scaled_dot_product_attention(
        q,
        k.unsqueeze(1).expand(-1, q.shape[1], -1, -1),
        v.unsqueeze(1).expand(-1, q.shape[1], -1, -1),
        scale=scale,
    )
""",
    ),
)

LEFT_ALONE = (
    # a key for each head, the same for all batches
    """
def attention(q, k, v, scale: float):
    weights = (torch.einsum("bhid,hjd->bhij", q, k) * scale).softmax(dim=-1)
    return torch.einsum("bhij,hjd->bhid", weights, v)
""",
    # the weights are a result as well
    """
def attention(q, k, v, scale: float):
    weights = (q @ k.transpose(-2, -1) * scale).softmax(-1)
    return weights @ v, weights
""",
    # the weights are kept for a plot
    """
import math


class DotProductAttention(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        self.attention_weights = scores.softmax(-1)
        return self.attention_weights @ v
""",
    # a part of the mask that is needed once more
    """
def attention(q, k, v, mask, scale: float):
    scores = q @ k.transpose(-2, -1) * scale
    if mask is not None:
        part = mask[:, :, :, : k.shape[-2]]
        scores = scores + part
    out = scores.softmax(-1) @ v
    return out, part
""",
    # three dimensions: only for those who say that it pays
    """
def attention(q, k, v, b: int, h: int):
    q, k, v = (q.view(b * h, -1, 64), k.view(b * h, -1, 64), v.view(b * h, -1, 64))
    return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1), v)
""",
    # heads too large for the fused kernel
    """
def attention(q, k, v, b: int):
    q, k, v = (q.view(b, -1, 1024), k.view(b, -1, 1024), v.view(b, -1, 1024))
    return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1), v)
""",
    # the values are not turned, the weights are
    """
def attention(q, k, v):
    weights = torch.bmm(q, k).softmax(2)
    return torch.bmm(v, weights)
""",
    # softmax over the queries
    """
def attention(q, k, v):
    return torch.bmm(torch.bmm(q, k).softmax(1), v)
""",
    # the other letters
    """
def attention(q, k, v):
    weights = torch.einsum("bnhd,bmhd->bhnm", q, k).softmax(-1)
    return torch.einsum("bhmn,bmhd->bnhd", weights, v)
""",
    # without an arrow the letters sort the result
    """
def attention(q, k, v):
    weights = torch.einsum("bnhd,bmhd", q, k).softmax(-1)
    return torch.einsum("bhnm,bmhd->bnhd", weights, v)
""",
    # the weights of some heads are switched off
    """
def attention(q, k, v, head_mask, scale: float):
    weights = (q @ k.transpose(-2, -1) * scale).softmax(-1)
    weights = weights * head_mask
    return weights @ v
""",
    # a bias of the position: T5
    """
def attention(q, k, v, position_bias):
    scores = torch.matmul(q, k.transpose(3, 2))
    scores = scores + position_bias
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    return torch.matmul(weights, v)
""",
    # Bloom adds its slopes in the product
    """
def attention(q, k, v, alibi, beta: float, inv_norm_factor: float):
    scores = alibi.baddbmm(batch1=q, batch2=k, beta=beta, alpha=inv_norm_factor)
    return torch.bmm(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)
""",
    # capped scores: Gemma 2
    """
def attention(q, k, v, scale: float, cap: float):
    scores = q @ k.transpose(-2, -1) * scale
    scores = torch.tanh(scores / cap) * cap
    return scores.softmax(-1) @ v
""",
    # over the queries: slots
    """
def attention(q, k, v, scale: float):
    return (q @ k.transpose(-2, -1) * scale).softmax(dim=1) @ v
""",
    # a column that takes what no key wants: gpt-oss
    """
def attention(q, k, v, sinks, scale: float):
    scores = torch.cat([q @ k.transpose(-2, -1) * scale, sinks], dim=-1)
    return scores.softmax(-1)[..., :-1] @ v
""",
    # hidden keys keep a score that counts
    """
def attention(q, k, v, mask, scale: float):
    scores = q @ k.transpose(-2, -1) * scale
    scores = scores.masked_fill(mask == 0, 0.0)
    return scores.softmax(-1) @ v
""",
    # hidden keys are set to 0 after the softmax: DeBERTa
    """
def attention(q, k, v, mask, scale: float):
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(mask, float("-inf"))
    return scores.softmax(-1).masked_fill(mask, 0) @ v
""",
    # a trained temperature
    """
class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, q, k, v):
        return ((q @ k.transpose(-2, -1)) * self.temperature).softmax(-1) @ v
""",
    # fused already where it can be
    """
class Attention(nn.Module):
    def forward(self, q, k, v, scale: float):
        if self.fused_attn:
            return F.scaled_dot_product_attention(q, k, v, scale=scale)
        return (q @ k.transpose(-2, -1) * scale).softmax(-1) @ v
""",
    # the mask of padding is an argument: a row may be hidden as a whole
    """
def attention(q, k, v, padding: torch.Tensor, scale: float):
    b, h, n, d = q.shape
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(padding, -1e4)
    return scores.softmax(-1) @ v
""",
)
