"""A cache of keys and values of fixed length that is written by an index, or read in pieces.

What: ``k_out[:, :, places] = k`` in ``KVCache.update``, with a vector of places; and attention written
out over ``self.k_cache[:n, :end]``, which is as long as the sequence is so far.

Why it is slow on the NPU: IndexPut computes the address of each element, for a dimension that is not
the first it transposes the whole cache, and some dtypes send it to the AI CPU; for rows at places in
a row ``index_copy_`` is one kernel. A slice that grows is a new shape for each token, for which
operators are prepared again and no graph can be captured.

Use instead: ``k_out.index_copy_(2, places, k)``, and attention over the whole cache that takes the
length: ``torch_npu.npu_fused_infer_attention_score`` with ``actual_seq_lengths_kv``. cann-recipes
measured 92 to 18 ms a token for gemma where pages, that operator and a graph replaced a cache that
grows.

Safety: the same values where the places are one vector of int64 of different places, and what is
written has the whole shape (``vector-of-places``): a number or a mask would mean something else. Not
where gradients flow through the cache. The operator of the attention has no gradient and takes
float16 and bfloat16; it is only named.

References: torch.Tensor.index_copy_; "AI CPU operator replacement samples" of msprof-analyze;
torch_npu.npu_fused_infer_attention_score in the API reference of Ascend Extension for PyTorch; gemma
in cann-recipes-infer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from torch import Tensor


def by_index(cache: Tensor, places: Tensor, new: Tensor) -> None:
    """Write the rows of a sequence at some places: (batch, heads, length, size)."""
    cache[:, :, places] = new


def by_copy(cache: Tensor, places: Tensor, new: Tensor) -> None:
    """Copy them there."""
    cache.index_copy_(2, places, new)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a cache, some places of it, and what is written there."""
    import torch

    batch, heads, length = draw.integer(1, 2), draw.integer(1, 3), draw.integer(2, 5)
    first = draw.integer(0, length - 1)
    places = torch.arange(first, length)
    return {
        "cache": draw.wild(batch, heads, length, 3, dtype=torch.float32),
        "places": places,
        "new": draw.wild(batch, heads, length - first, 3, dtype=torch.float32),
    }


PLACES = Condition(
    "vector-of-places",
    "the places are a vector of int64, no number and no mask, and what is written has its whole shape",
    unknown,
)
_READ_IN_PIECES = """
class Attention(nn.Module):
    def forward(self, q, k, v, start, end):
        self.k_cache[:, start:end] = k
        self.v_cache[:, start:end] = v
        scores = torch.einsum("bshd,bthd->bsht", q, self.k_cache[:, :end]) * self.scale
        return torch.einsum("bsht,bthd->bshd", scores.softmax(-1), self.v_cache[:, :end])
"""

RULE = Substitution(
    id="NPU324",
    name="static-cache",
    summary="a cache of fixed length is written by an index, or read in pieces that grow",
    table="affinity",
    forms=(Form(by_index, by_copy, inputs, (PLACES,)),),
    search="static-caches",
    replaces=("IndexPut", "IndexPutV2"),
    becomes=(),
    passes=(1, 0),
    requires="torch_npu>=2.1",
    valid=(
        # one place, by a number
        """
class Cache:
    def write(self, k):
        for step in range(4):
            self.k_cache[:, :, step] = k[:, :, step]
""",
        # a mask, and a place that may be left out
        """
class KVCache(nn.Module):
    def update(self, pos: torch.BoolTensor, cache_position: int | None, k):
        self.k_cache[:, :, pos] = k
        self.v_cache[:, :, cache_position] = k
""",
        # a place, a mask, a slice, a number that is written
        """
class KVCache(nn.Module):
    def update(self, scores: torch.Tensor, k: torch.Tensor, n: int, pos: int, slot, blank: float):
        places = scores.argmax()
        self.k_cache[:, :, places] = k
        slots = scores > 0
        self.k_cache[:, :, slots] = k
        index = slice(n, None)
        self.k_cache[:, :, index] = k
        self.k_cache[:, :, pos] = k
        self.k_cache[:, :, slot] = blank
        for position in range(n):
            self.k_cache[:, :, position] = k
        return self.k_cache
""",
        # rows in a row: a copy
        """
class KVCache(nn.Module):
    def update(self, k, start: int):
        self.k_cache[:, :, start : start + k.shape[2]] = k
        return self.k_cache
""",
        # two vectors: pairs of places
        """
class KVCache(nn.Module):
    def update(self, rows, places, k):
        self.k_cache[rows, places] = k
""",
        # no cache
        """
def scatter(x, places, y):
    x[:, places] = y
    return x
""",
        # a vector that counts as a number
        """
class KVCache(nn.Module):
    def fill(self, layer_idx: int, k):
        self.k_cache[layer_idx] = k
""",
    ),
    rewritten=(
        Rewritten(
            """
class KVCache(nn.Module):
    def update(self, input_pos, k_val, v_val):
        k_out = self.k_cache
        v_out = self.v_cache
        k_out[:, :, input_pos] = k_val
        v_out[:, :, input_pos] = v_val
        return k_out, v_out
""",
            """
class KVCache(nn.Module):
    def update(self, input_pos, k_val, v_val):
        k_out = self.k_cache
        v_out = self.v_cache
        k_out.index_copy_(2, input_pos, k_val)
        v_out.index_copy_(2, input_pos, v_val)
        return k_out, v_out
""",
        ),
        Rewritten(
            """
class Attention(nn.Module):
    def forward(self, k, cache_pos):
        self.k_cache[: len(k), :, cache_pos, :] = k
""",
            """
class Attention(nn.Module):
    def forward(self, k, cache_pos):
        self.k_cache[: len(k)].index_copy_(2, cache_pos, k)
""",
        ),
        Rewritten(_READ_IN_PIECES, _READ_IN_PIECES),
    ),
)
