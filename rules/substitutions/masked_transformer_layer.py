"""A transformer layer of ``torch.nn`` that is called with a mask.

What: ``nn.TransformerEncoderLayer``, ``nn.TransformerDecoderLayer`` or ``nn.Transformer`` in a class that
passes ``src_key_padding_mask``, ``attn_mask`` and the like.

Why it is slow on the NPU: the layer turns a bool mask into one of floating point before it calls
``F.scaled_dot_product_attention``, and with such a mask the call stays in small operators, which
write the scores of all queries and keys to memory. Without a mask it is FlashAttentionScore already.

Use instead: a layer of one's own with the same parameters around ``torch_npu.npu_fusion_attention``,
which takes the bool mask: True where a key is hidden.

Safety: advice; it is a module to write. A query whose keys are all hidden gets NaN from the layer and
zeros or a mean from the fused operator; dropout draws other random numbers.

References: torch.nn.TransformerEncoderLayer; the lowering of scaled_dot_product_attention in op-plugin
since 6.0.0; GameFormer in Ascend DrivingSDK, whose port fuses these layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def in_small_operators(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """Attend as the layer does with a mask: (batch, heads, length, size), (batch, 1, length, length)."""
    bias = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias, -1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """Attend in one kernel."""
    return torch_npu.npu_fusion_attention(
        q, k, v, q.shape[1], "BNSD", atten_mask=hidden, scale=q.shape[-1] ** -0.5
    )[0]  # fmt: skip


def inputs(draw: Draw) -> dict[str, Any]:
    """Return queries, keys, values, and which keys are hidden: never all of them."""
    import torch

    length = draw.integer(2, 5)
    shape = (2, draw.choice([1, 2]), length, 16)
    q, k, v = (draw.floats(*shape, dtype=torch.float32) for _ in range(3))
    hidden = draw.booleans(2, 1, length, length)
    hidden[..., 0] = False
    return {"q": q, "k": k, "v": v, "hidden": hidden}


_ENCODER = """
class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6)

    def forward(self, x, mask):
        return self.encoder(x, src_key_padding_mask=mask)
"""

_OF_ANY_NAME = """
from .blocks import *


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, 8)
        self.mix = nn.TransformerEncoder(layer, 6)

    def forward(self, x, pad):
        return self.mix(x, src_key_padding_mask=pad)
"""

RULE = Substitution(
    id="NPU177",
    name="masked-transformer-layer",
    summary="a transformer layer of torch.nn that is called with a mask",
    table="fusion",
    forms=(Form(in_small_operators, fused, inputs),),
    search="masked-layers",
    replaces=("Add", "BatchMatMulV2", "Mul", "SoftmaxV2"),
    becomes=("FlashAttentionScore",),
    passes=(0.5, 1),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # without a mask the layer is fused already
        """
class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 8), 6)

    def forward(self, x):
        return self.encoder(x, src_key_padding_mask=None)
""",
        # another module takes the mask
        """
class Net(nn.Module):
    def __init__(self, dim, pool):
        super().__init__()
        self.mix = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 8), 6)
        self.pool = pool

    def forward(self, x, pad):
        return self.pool(self.mix(x), key_padding_mask=pad)
""",
        # a mask of something else
        """
class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(dim, 8)

    def forward(self, x, mask):
        return self.layer(x) * mask
""",
    ),
    rewritten=(Rewritten(_ENCODER, _ENCODER), Rewritten(_OF_ANY_NAME, _OF_ANY_NAME)),
)
