"""A table that every layer computes anew from what all layers are handed.

What: cosines and sines of frequencies, positions that a mask marks (``nonzero``), sums of lengths,
causal masks and the like, which the ``forward`` of a layer, or a function for rotary embeddings,
computes from its masks, positions, lengths or frequencies alone.

Why it is slow on the NPU: what does not depend on the hidden states is the same in each of some
dozens of layers. All launch the same kernels for it, and where the shape of the result depends on
values, as with ``nonzero``, the host waits in every layer.

Safety: advice. That all layers are handed the same is seen where they are called, often in another
file. Where the model is recomputed in the backward pass, tables that are handed down are not; they
take memory for as long as the model runs, once instead of once a layer.

References: vllm-ascend #6448 and #7104 (lengths once before the blocks of a vision model: time to the
first token -7 %), #1890; DrivingSDK VAD and UniAD (indices of a mask over six layers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from torch import Tensor


def in_layers(x: Tensor, freqs: Tensor, layers: int) -> Tensor:
    """Make the table in every layer."""
    for _ in range(layers):
        x = x * freqs.cos() + 1
    return x


def handed_down(x: Tensor, freqs: Tensor, layers: int) -> Tensor:
    """Make it once."""
    cos = freqs.cos()
    for _ in range(layers):
        x = x * cos + 1
    return x


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, angles and a number of layers."""
    import torch

    n = draw.integer(1, 4)
    x, freqs = (draw.floats(n, dtype=torch.float32) for _ in range(2))
    return {"x": x, "freqs": freqs, "layers": draw.integer(0, 3)}


_ROPE = """
def apply_rope(q: torch.Tensor, freqs: torch.Tensor):
    cos = freqs.cos().unsqueeze(1)
    return q * cos
"""
_INDICES = """
class CrossAttention(nn.Module):
    def forward(self, query, value, bev_mask):
        found = []
        for mask in bev_mask:
            at = mask[0].sum(-1).nonzero().squeeze(-1)
            found.append(at)
        return self.attend(query, value, found)
"""
_LONGEST = """
class VisionAttention(nn.Module):
    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor):
        longest = (cu_seqlens[1:] - cu_seqlens[:-1]).max().item()
        return self.attend(x, cu_seqlens, longest)
"""
_PIECES = """
def apply_multimodal_rotary_pos_emb(q: torch.Tensor, cos: torch.Tensor, mrope_section):
    cos = torch.cat([m[i % 3] for i, m in enumerate(cos.split(mrope_section, -1))], -1)
    return q * cos
"""
_ON_HOST = """
class VisionAttention(nn.Module):
    def forward_npu(self, x: torch.Tensor, cu_seqlens: torch.Tensor | None = None):
        if cu_seqlens is None:
            cu_seqlens = torch.arange(0, x.shape[0] + 1, x.shape[1], device=x.device)
        lengths = torch.diff(cu_seqlens).to("cpu")
        return self.attend(x, lengths)
"""

_TURNED = """
class Attention(nn.Module):
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor):
        q, k, v = self.project(x)
        cos, sin = self.rotary_emb(v, position_ids)
        return self.attend(turn(q, cos, sin), turn(k, cos, sin), v)
"""

RULE = Substitution(
    id="NPU321",
    name="computed-in-every-layer",
    summary="a table that every layer computes anew from what all layers are handed",
    table="affinity",
    forms=(Form(in_layers, handed_down, inputs),),
    search="handed-in",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(
        # the hidden states take part
        """
class Layer(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        order = (x.sum(-1) * mask).argsort()
        return x[order]
""",
        # once, where the layers are called
        """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor, freqs: torch.Tensor):
        cos = freqs.cos()
        for layer in self.layers:
            x = layer(x, cos)
        return x
""",
        # the hidden states are read
        """
class Layer(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        longest = (x.sum(-1) > lengths).sum().item()
        return self.attend(x, longest)
""",
        # its pieces are computed with, by weights of the layer
        """
def apply_rotary(q: torch.Tensor, cos: torch.Tensor, mix):
    cos = torch.cat([mix(m) for m in cos.split(8, dim=-1)], dim=-1)
    return q * cos
""",
        # as long as the hidden states of this layer
        """
class Layer(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        x = torch.cat([x, self.extra(x)])
        mask = torch.cat([mask, mask.new_ones(x.shape[0] - self.extra(x).sum().long())])
        return self.attend(x, mask)
""",
        # a step calls one of them
        """
class PredictorLayer(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        ends = lengths.cumsum(0)
        return x[ends]

class Predictor(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.ModuleDict({str(i): PredictorLayer() for i in range(n)})

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, step: int):
        return self.layers[str(step)](x, lengths)
""",
        # as cheap as handing it down
        """
def apply_rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    c = cos.unsqueeze(1)
    s = sin.unsqueeze(1)
    return q * c + q.roll(1, -1) * s
""",
    ),
    rewritten=(
        Rewritten(_ROPE, _ROPE),
        Rewritten(_INDICES, _INDICES),
        Rewritten(_LONGEST, _LONGEST),
        Rewritten(_PIECES, _PIECES),
        Rewritten(_ON_HOST, _ON_HOST),
        Rewritten(_TURNED, _TURNED),
    ),
)
