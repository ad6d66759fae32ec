"""Code that ``eager-rotary-embedding`` changes, and what it becomes."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

REWRITTEN = (
    # a flag decides about the layout, and a part is rotated: flash-attn
    Rewritten(
        """
from einops import rearrange, repeat


def rotate_half(x, interleaved=False):
    if not interleaved:
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)
    else:
        x1, x2 = x[..., ::2], x[..., 1::2]
        return rearrange(torch.stack((-x2, x1), dim=-1), "... d two -> ... (d two)", two=2)


def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    ro_dim = cos.shape[-1] * 2
    cos = repeat(cos, "s d -> s 1 (2 d)")
    sin = repeat(sin, "s d -> s 1 (2 d)")
    return torch.cat(
        [
            x[..., :ro_dim] * cos + rotate_half(x[..., :ro_dim], interleaved) * sin,
            x[..., ro_dim:],
        ],
        dim=-1,
    )
""",
        """
from einops import rearrange, repeat


def rotate_half(x, interleaved=False):
    if not interleaved:
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)
    else:
        x1, x2 = x[..., ::2], x[..., 1::2]
        return rearrange(torch.stack((-x2, x1), dim=-1), "... d two -> ... (d two)", two=2)


def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    ro_dim = cos.shape[-1] * 2
    cos = repeat(cos, "s d -> s 1 (2 d)")
    sin = repeat(sin, "s d -> s 1 (2 d)")
    return torch.cat(
        [
            torch_npu.npu_rotary_mul(
                x[..., :ro_dim],
                cos,
                sin,
                rotary_mode="interleave" if interleaved else "half",
            ),
            x[..., ro_dim:],
        ],
        dim=-1,
    )
""",
    ),
    # xPos
    Rewritten(
        """
def apply_rotary(t, freqs, scale):
    t1, t2 = t.chunk(2, dim=-1)
    return (t * freqs.cos() * scale) + (torch.cat((-t2, t1), dim=-1) * freqs.sin() * scale)
""",
        """
def apply_rotary(t, freqs, scale):
    return torch_npu.npu_rotary_mul(t, freqs.cos(), freqs.sin()) * scale
""",
    ),
    # a static method by the name of its class
    Rewritten(
        """
class Rotary(nn.Module):
    @staticmethod
    def rotate_half(x):
        x1 = x[..., : x.shape[-1] // 2]
        x2 = x[..., x.shape[-1] // 2 :]
        return torch.cat((-x2, x1), dim=-1)

    @staticmethod
    def apply(q, cos, sin):
        return q * cos + Rotary.rotate_half(q) * sin
""",
        """
class Rotary(nn.Module):
    @staticmethod
    def rotate_half(x):
        x1 = x[..., : x.shape[-1] // 2]
        x2 = x[..., x.shape[-1] // 2 :]
        return torch.cat((-x2, x1), dim=-1)

    @staticmethod
    def apply(q, cos, sin):
        return torch_npu.npu_rotary_mul(q, cos, sin)
""",
    ),
    # Llama
    Rewritten(
        """
def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, cos, sin, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    return q_embed
""",
        """
def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, cos, sin, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = torch_npu.npu_rotary_mul(q, cos, sin)
    return q_embed
""",
    ),
    # OLMo 2: what float32 tables have promoted is cast back
    Rewritten(
        """
def apply_rotary_pos_emb(q, cos, sin):
    q_type = q.dtype
    q1, q2 = q.chunk(2, dim=-1)
    q_embed = (q * cos) + (torch.cat((-q2, q1), dim=-1) * sin)
    return q_embed.to(q_type)
""",
        """
def apply_rotary_pos_emb(q, cos, sin):
    q_type = q.dtype
    q_embed = torch_npu.npu_rotary_mul(q.to(cos.dtype), cos, sin)
    return q_embed.to(q_type)
""",
    ),
    # partial, in float32: the halves of the first part of each head
    Rewritten(
        """
def apply_rotary(q, cos, sin, rotary_dim: int):
    rot, rest = q[..., :rotary_dim].float(), q[..., rotary_dim:]
    x1, x2 = rot.chunk(2, dim=-1)
    rot = rot * cos.float() + torch.cat((-x2, x1), dim=-1) * sin.float()
    return torch.cat((rot.to(q.dtype), rest), dim=-1)
""",
        """
def apply_rotary(q, cos, sin, rotary_dim: int):
    rot, rest = q[..., :rotary_dim].float(), q[..., rotary_dim:]
    rot = torch_npu.npu_rotary_mul(rot, cos.float(), sin.float())
    return torch.cat((rot.to(q.dtype), rest), dim=-1)
""",
    ),
    # diffusers: pairs, cast after the exchange
    Rewritten(
        """
def apply_rotary_emb(x, cos, sin):
    x_real, x_imag = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    x_rotated = torch.stack([-x_imag, x_real], dim=-1).flatten(3)
    out = (x.float() * cos + x_rotated.float() * sin).to(x.dtype)
    return out
""",
        """
def apply_rotary_emb(x, cos, sin):
    out = torch_npu.npu_rotary_mul(
        x.float(), cos, sin, rotary_mode="interleave"
    ).to(x.dtype)
    return out
""",
    ),
    # GPT-OSS: cosines of half the width
    Rewritten(
        """
def apply_rotary_emb(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    first_half, second_half = torch.chunk(x, 2, dim=-1)
    first_ = first_half * cos - second_half * sin
    second_ = second_half * cos + first_half * sin
    return torch.cat((first_, second_), dim=-1)
""",
        """
def apply_rotary_emb(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    return torch_npu.npu_rotary_mul(
        x, torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    )
""",
    ),
    # torchtune
    Rewritten(
        """
def apply_rotary(x: torch.Tensor, rope_cache: torch.Tensor):
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    out = torch.stack(
        [
            pairs[..., 0] * rope_cache[..., 0] - pairs[..., 1] * rope_cache[..., 1],
            pairs[..., 1] * rope_cache[..., 0] + pairs[..., 0] * rope_cache[..., 1],
        ],
        -1,
    )
    return out.flatten(3).type_as(x)
""",
        """
def apply_rotary(x: torch.Tensor, rope_cache: torch.Tensor):
    cos = rope_cache[..., 0]
    sin = rope_cache[..., 1]
    return torch_npu.npu_rotary_mul(
        x.float(),
        torch.stack((cos, cos), dim=-1).flatten(-2),
        torch.stack((sin, sin), dim=-1).flatten(-2),
        rotary_mode="interleave",
    ).type_as(x)
""",
    ),
    # Mochi: the tables are float32, each half is cast back
    Rewritten(
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    even, odd = x[..., 0::2], x[..., 1::2]
    first = (even * cos - odd * sin).type_as(x)
    second = (even * sin + odd * cos).type_as(x)
    return torch.stack([first, second], dim=-1).flatten(-2)
""",
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    return torch_npu.npu_rotary_mul(
        x.to(cos.dtype),
        torch.stack((cos, cos), dim=-1).flatten(-2),
        torch.stack((sin, sin), dim=-1).flatten(-2),
        rotary_mode="interleave",
    ).to(x.dtype)
""",
    ),
    Rewritten(
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    x1, x2 = x.chunk(2, dim=-1)
    first, second = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    return torch.cat((first.to(x.dtype), second.to(x.dtype)), dim=-1)
""",
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    return torch_npu.npu_rotary_mul(
        x.to(cos.dtype),
        torch.cat((cos, cos), dim=-1),
        torch.cat((sin, sin), dim=-1),
    ).to(x.dtype)
""",
    ),
    # nanochat
    Rewritten(
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    d = x.shape[-1] // 2
    x1, x2 = x[..., :d], x[..., d:]
    y1 = x1 * cos + x2 * sin
    y2 = x1 * (-sin) + x2 * cos
    return torch.cat([y1, y2], 3)
""",
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    return torch_npu.npu_rotary_mul(
        x, torch.cat((cos, cos), dim=-1), -torch.cat((sin, sin), dim=-1)
    )
""",
    ),
    # transformers reads the pairs of DeepSeek so
    Rewritten(
        """
def apply_rotary(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    q1, q2 = q[..., 0::2], q[..., 1::2]
    return torch.cat([q1 * cos - q2 * sin, q2 * cos + q1 * sin], dim=-1)
""",
        """
def apply_rotary(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    return torch_npu.npu_rotary_mul(
        q.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2),
        torch.cat((cos, cos), dim=-1),
        torch.cat((sin, sin), dim=-1),
    )
""",
    ),
    # a part of each head, in front
    Rewritten(
        """
class Rotary(nn.Module):
    def turn(self, x):
        half = self.d // 2
        return torch.cat([-x[..., half:], x[..., :half]], dim=-1)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        front, rest = x[..., : self.d], x[..., self.d :]
        front = front * cos + self.turn(front) * sin
        return torch.cat((front, rest), dim=-1)
""",
        """
class Rotary(nn.Module):
    def turn(self, x):
        half = self.d // 2
        return torch.cat([-x[..., half:], x[..., :half]], dim=-1)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        front, rest = x[..., : self.d], x[..., self.d :]
        front = torch_npu.npu_rotary_mul(front, cos, sin)
        return torch.cat((front, rest), dim=-1)
""",
    ),
)
