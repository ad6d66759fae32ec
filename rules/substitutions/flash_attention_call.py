"""A call of flash_attn or xformers, packages of kernels for GPUs.

What: ``flash_attn_func(q, k, v)``, ``flash_attn_varlen_func(...)`` and their packed relatives;
``xformers.ops.memory_efficient_attention(q, k, v)``.

Why it is slow on the NPU: the packages have no kernels for it. Code that falls back to attention
written out writes the scores of all queries and keys to memory; FlashAttentionScore never does.

Use instead: ``torch_npu.npu_fusion_attention`` in the layout BSND, or TND with the ends of the rows of
each sequence, which is the same memory. Its scale is 1 unless it is given; flash_attn's is one over
the root of the size of a head. Causal attention of flash_attn counts from the end of the keys: that
is ``sparse_mode=3`` with the compressed mask of 2048 x 2048.

Safety: written where every argument has a counterpart, else advice; compared with a function of ours
that computes what the documentation of flash_attn says. Dropout draws other random numbers
(condition ``other-random-numbers``), and queries of xformers may have three dimensions, without one for
the heads (``four-dimensional``): where the functions around say so it is one head of ``"BSH"``. The ends of sequences are numbers on the host: read once per
forward, they should be handed down to all layers.
``alibi_slopes``, ``softcap`` and returned probabilities have no counterpart here, and are
not reported; a cache of pages is advice (npu_fused_infer_attention_score); a window is
``sparse_mode=4`` with pre_tockens and next_tockens, and is advice.

References: torch_npu.npu_fusion_attention in the API reference of Ascend Extension for PyTorch;
npu_flash_attention of transformers; SparseDrive in Ascend DrivingSDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import RANDOM_NUMBERS
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch_npu
    from torch import Tensor


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend as flash_attn_func does: batch, length, heads, size; keys may have fewer heads."""
    k, v = (t.repeat_interleave(q.shape[2] // k.shape[2], 2) for t in (k, v))
    scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * q.shape[-1] ** -0.5
    return (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)


def efficient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend as memory_efficient_attention of xformers does: batch, length, heads, size."""
    return dense(q, k, v)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in one kernel."""
    return torch_npu.npu_fusion_attention(q, k, v, q.shape[2], "BSND", scale=q.shape[-1] ** -0.5)[0]


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend as memory_efficient_attention does where the batch holds the heads as well."""
    return dense(q[:, :, None], k[:, :, None], v[:, :, None])[:, :, 0]


def fused_as_one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in one kernel, with one head."""
    return torch_npu.npu_fusion_attention(q, k, v, 1, "BSH", scale=q.shape[-1] ** -0.5)[0]


def inputs(draw: Draw) -> dict[str, Any]:
    """Return queries, keys and values."""
    import torch

    shape = (2, draw.integer(1, 4), draw.choice([1, 2]), 16)
    q, k, v = (draw.floats(*shape, dtype=torch.float32) for _ in range(3))
    return {"q": q, "k": k, "v": v}


def grouped(draw: Draw) -> dict[str, Any]:
    """Return keys and values with a head for one or for several of the queries."""
    import torch

    drawn = inputs(draw)
    drawn["q"] = draw.floats(2, draw.integer(1, 4), draw.choice([2, 4]), 16, dtype=torch.float32)
    return drawn


def inputs_of_one_head(draw: Draw) -> dict[str, Any]:
    """Return queries, keys and values without a dimension for the heads."""
    return {name: x[:, :, 0] for name, x in inputs(draw).items()}


WITH_HEADS = Condition(
    "four-dimensional",
    "query, key and value have four dimensions, the third that of the heads",
    lambda _site: None,
)
ONE_HEAD = Condition(
    "one-head-per-batch",
    "query, key and value have three dimensions: the batch holds the heads as well",
    lambda _site: None,
)

_WINDOW = """
from flash_attn import flash_attn_func


def attend(q, k, v):
    return flash_attn_func(q, k, v, causal=True, window_size=(256, 0))
"""
_OF_XFORMERS = """
import xformers.ops as xops


def attend(q, k, v):
    return xops.memory_efficient_attention(q, k, v)
"""
_CAUSAL = """
import xformers.ops as xops


def attend(q, k, v):
    return xops.memory_efficient_attention(q, k, v, xops.LowerTriangularMask())
"""
_ADDED = """
import xformers.ops as xops


def attend(q, k, v, hidden=None):
    bias = None
    if hidden is not None:
        bias = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
        bias.masked_fill_(hidden, float("-inf"))
    return xops.memory_efficient_attention(q, k, v, attn_bias=bias)
"""
_BLOCKS = """
import xformers.ops as xops


def attend(q, k, v, lengths):
    mask = xops.fmha.BlockDiagonalMask.from_seqlens(lengths)
    return xops.memory_efficient_attention(q, k, v, attn_bias=mask)
"""
_FOLDED = """
import xformers.ops as xops


class Attention(nn.Module):
    def fold(self, x):
        batch, length, dim = x.shape
        x = x.reshape(batch, length, self.heads, dim // self.heads).permute(0, 2, 1, 3)
        return x.reshape(batch * self.heads, length, dim // self.heads)

    def attend(self, q, k, v):
        q = q.contiguous()
        return xops.memory_efficient_attention(q, k, v)

    def forward(self, x):
        return self.attend(self.fold(self.q(x)), self.fold(self.k(x)), self.fold(self.v(x)))
"""

RULE = Substitution(
    id="NPU170",
    name="flash-attention-call",
    summary="a call of flash_attn or xformers, which have no kernels for the NPU",
    table="fusion",
    forms=(
        Form(dense, fused, grouped, (RANDOM_NUMBERS,)),
        Form(efficient, fused, inputs, (RANDOM_NUMBERS, WITH_HEADS)),
        Form(folded, fused_as_one_head, inputs_of_one_head, (RANDOM_NUMBERS, ONE_HEAD)),
    ),
    search="flash-attention",
    replaces=("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Mul", "SoftmaxV2"),
    becomes=("FlashAttentionScore", "FlashAttentionScoreGrad"),
    passes=(0.5, 1),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # a bias that may be anything
        _OF_XFORMERS.replace("k, v)", "k, v, bias)"),
        # another function of the package
        """
from flash_attn.bert_padding import unpad_input


def pad(x, mask):
    return unpad_input(x, mask)
""",
        # slopes
        """
from flash_attn import flash_attn_func


def attend(q, k, v, slopes):
    return flash_attn_func(q, k, v, alibi_slopes=slopes)
""",
        # on CUDA alone, beside what torch has for all devices
        """
from flash_attn import flash_attn_func


def attend(q, k, v):
    if q.device.type == "cuda" and q.dtype == torch.float16:
        return flash_attn_func(q, k, v)
    return F.scaled_dot_product_attention(q, k, v)
""",
        # a pair, as that for Hopper returned one, and what asks for the package
        """
import flash_attn
from flash_attn_interface import flash_attn_func


def attend(q, k, v):
    first = flash_attn_func(q, k, v)[0]
    second, lse = flash_attn_func(q, k, v)
    assert flash_attn is not None
    return first + second, flash_attn.flash_attn_func(q, k, v)
""",
        # one of two functions, of which a third takes the one that can run
        """
from flash_attn import flash_attn_func


def flash(q, k, v):
    return flash_attn_func(q, k, v)


def plain(q, k, v):
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def attend(q, k, v):
    if HAS_FLASH and q.is_cuda:
        return flash(q, k, v)
    return plain(q, k, v)
""",
        # a function of one's own
        """
def flash_attn_func(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def attend(q, k, v):
    return flash_attn_func(q, k, v)
""",
    ),
    rewritten=(
        Rewritten(
            """
from flash_attn import flash_attn_func, flash_attn_varlen_kvpacked_func


def attend(q, k, v, scale):
    return flash_attn_func(q, k, v, softmax_scale=scale)
""",
            """
from flash_attn import flash_attn_func, flash_attn_varlen_kvpacked_func


def attend(q, k, v, scale):
    return torch_npu.npu_fusion_attention(
        q,
        k,
        v,
        q.shape[2],
        "BSND",
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
    )[0]
""",
        ),
        Rewritten(
            """
from flash_attn import flash_attn_func, flash_attn_varlen_kvpacked_func


def attend(q, kv, starts, longest):
    return flash_attn_varlen_kvpacked_func(q, kv, starts, starts, longest, longest, causal=True)
""",
            """
from flash_attn import flash_attn_func, flash_attn_varlen_kvpacked_func


def attend(q, kv, starts, longest):
    return torch_npu.npu_fusion_attention(
        q,
        kv[:, 0],
        kv[:, 1],
        q.shape[1],
        "TND",
        scale=q.shape[-1] ** -0.5,
        atten_mask=torch.triu(
            torch.ones(2048, 2048, dtype=torch.bool, device=q.device), diagonal=1
        ),
        sparse_mode=3,
        actual_seq_qlen=starts[1:].tolist(),
        actual_seq_kvlen=starts[1:].tolist(),
    )[0]
""",
        ),
        Rewritten(_WINDOW, _WINDOW),
        Rewritten(_CAUSAL, _CAUSAL),
        Rewritten(
            _OF_XFORMERS.replace("v)\n", "v, None, 0.1, op=op)\n"),
            _OF_XFORMERS.replace(
                "xops.memory_efficient_attention(q, k, v)",
                """torch_npu.npu_fusion_attention(
        q,
        k,
        v,
        q.shape[2],
        "BSND",
        scale=q.shape[-1] ** -0.5,
        keep_prob=1.0 - 0.1,
    )[0]""",
            ),
        ),
        Rewritten(
            _FOLDED,
            _FOLDED.replace(
                "xops.memory_efficient_attention(q, k, v)",
                """torch_npu.npu_fusion_attention(
            q,
            k,
            v,
            1,
            "BSH",
            scale=q.shape[-1] ** -0.5,
        )[0]""",
            ),
        ),
        Rewritten(_BLOCKS, _BLOCKS),
        Rewritten(_ADDED, _ADDED),
    ),
)
