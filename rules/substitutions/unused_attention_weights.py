"""An ``nn.MultiheadAttention`` that computes weights which nobody reads.

What: ``y, _ = self.attn(q, k, v)`` or ``self.attn(q, k, v)[0]``: by default the module returns the
weights of all queries and keys as well, averaged over the heads.

Why it is slow on the NPU: with weights, scores, softmax and both products are operators of their
own, which write the scores of all queries and keys to memory, and the weights are averaged on top.
With ``need_weights=False`` the module calls ``F.scaled_dot_product_attention``, which launches
FlashAttentionScore on Atlas A2 and newer where no mask is given.

Safety: the result is the same up to rounding. Only calls are changed whose second result has no
reader. In training, the weights that dropout drops are others of the same distribution (condition
``other-random-numbers``). A mask becomes one of floating point in the module, with which attention
stays in small operators and little is gained (condition ``no-mask``), and for a query that sees no key
the weights are NaN (``no-fully-masked-row``).

References: torch.nn.MultiheadAttention; the lowering of scaled_dot_product_attention in op-plugin
since 6.0.0; GameFormer, DETR and VAD in Ascend DrivingSDK, whose ports fuse this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.attention import LEAVES_A_KEY
from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from torch import Tensor, nn


def with_weights(attn: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend, and compute weights."""
    return attn(q, k, v)[0]


def without_weights(attn: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend alone."""
    return attn(  # no slip: need_weights=False is left out
        q, k, v, need_weights=False  # no slip: False is True (it computes more)
    )[0]  # fmt: skip


def inputs(draw: Draw) -> dict[str, Any]:
    """Return an attention and what it is called with."""
    import torch

    attn = torch.nn.MultiheadAttention(8, draw.choice([1, 2]), batch_first=True)
    lengths = [draw.integer(1, 4)] * 2
    q, k, v = (draw.floats(2, n, 8, dtype=torch.float32) for n in (draw.integer(1, 4), *lengths))
    return {"attn": attn, "q": q, "k": k, "v": v}


NO_MASK = Condition(
    "no-mask",
    "no mask is passed: with one, attention stays in small operators",
    unknown,
    time_alone=True,
)
RANDOM_NUMBERS = Condition(
    "other-random-numbers",
    "in training the fused operator may drop other elements than torch does from the same seed",
    unknown,
)

RULE = Substitution(
    id="NPU165",
    name="unused-attention-weights",
    summary="an nn.MultiheadAttention computes weights that nobody reads",
    table="fusion",
    forms=(Form(with_weights, without_weights, inputs, (RANDOM_NUMBERS, NO_MASK, LEAVES_A_KEY)),),
    search="attention-weights",
    replaces=(
        "Add",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Mul",
        "ReduceMean",
        "SoftmaxV2",
    ),
    becomes=("FlashAttentionScore", "FlashAttentionScoreGrad"),
    passes=(0.5, 1),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # the weights are returned
        """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8)

    def forward(self, x):
        y, weights = self.attn(x, x, x)
        return y, weights
""",
        # the whole result goes on
        """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8)

    def forward(self, x):
        return self.attn(x, x, x)
""",
        # an attention of another kind
        """
class Block(nn.Module):
    def __init__(self, dim, attention):
        super().__init__()
        self.attn = attention(dim, 8)

    def forward(self, x):
        y, _ = self.attn(x, x, x)
        return y
""",
        # a mask, with which attention stays in small operators
        """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8)

    def forward(self, x, seen):
        hidden = 1 - seen.float()
        y, _ = self.attn(x, x, x, attn_mask=hidden)
        return y
""",
        # asked for, or asked for once more
        """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8)

    def forward(self, x, wanted):
        found = self.attn(x, x, x, need_weights=wanted)
        y = found[0]
        return self.attn(y, y, y, need_weights=False)[0]
""",
    ),
    rewritten=(
        Rewritten(
            """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, 8, batch_first=True)

    def forward(self, x):
        y, _ = self.self_attn(x, x, x)
        return x + y
""",
            """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, 8, batch_first=True)

    def forward(self, x):
        y, _ = self.self_attn(x, x, x, need_weights=False)
        return x + y
""",
        ),
        # taken in the next statement
        Rewritten(
            """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8)

    def forward(self, x):
        residual = x
        x = self.attn(x, x, x)
        x = x[0]
        return x + residual
""",
            """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8)

    def forward(self, x):
        residual = x
        x = self.attn(x, x, x, need_weights=False)
        x = x[0]
        return x + residual
""",
        ),
        Rewritten(
            """
class Decoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.cross_attn = nn.MultiheadAttention(dim, 8, dropout=0.1)

    def forward(self, query, memory, mask):
        return self.cross_attn(
            query=query,
            key=memory,
            value=memory,
            key_padding_mask=mask,
        )[0]
""",
            """
class Decoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.cross_attn = nn.MultiheadAttention(dim, 8, dropout=0.1)

    def forward(self, query, memory, mask):
        return self.cross_attn(
            query=query,
            key=memory,
            value=memory,
            key_padding_mask=mask,
            need_weights=False,
        )[0]
""",
        ),
    ),
)
