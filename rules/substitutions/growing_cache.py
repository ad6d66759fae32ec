"""A cache of keys and values that grows by concatenation.

What: ``key = torch.cat([past_key_value[0], key], dim=1)`` where the result is the cache of the next
token: returned as ``(key, value)``, or bound to the same attribute again.

Why it is slow on the NPU: each token copies all keys and values so far, twice per layer, into memory
that is allocated anew; and each length is a shape of its own, for which operators are prepared again
and no graph can be captured.

Use instead: memory for the longest sequence, ``index_copy_`` of the new rows, and attention that takes
the length: ``torch_npu.npu_fused_infer_attention_score`` with ``actual_seq_lengths_kv``, with
``block_table`` for a paged cache. cann-recipes measured 92 to 18 ms a token for gemma with both.

Safety: advice; what calls the module hands the cache on, and has to know of it.

References: torch_npu.npu_fused_infer_attention_score in the API reference of Ascend Extension for
PyTorch; StaticCache of transformers; gemma in cann-recipes-infer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def grown(past: Tensor, key: Tensor) -> Tensor:
    """Copy all rows so far: (rows, size) each."""
    return torch.cat([past, key])


def written_in(past: Tensor, key: Tensor) -> Tensor:
    """Write the new rows into memory that was there before."""
    cache = torch.empty(len(past) + len(key), past.shape[1])
    cache[: len(past)] = past
    return cache.index_copy_(0, torch.arange(len(past), len(past) + len(key)), key)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return the rows of before, and a new one."""
    import torch

    past = draw.floats(draw.integer(1, 4), 3, dtype=torch.float32)
    return {"past": past, "key": draw.floats(1, 3, dtype=torch.float32)}


_RETURNED = """
class Attention(nn.Module):
    def forward(self, key, value, past_key_value=None):
        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        past_key_value = (key, value)
        return self.attend(key, value), past_key_value
"""
_BY_NAME = """
class Attention(nn.Module):
    def forward(self, q, k, v):
        if self.cache["k"] is not None:
            k = torch.cat([self.cache["k"], k], dim=1)
            v = torch.cat([self.cache["v"], v], dim=1)
        self.cache["k"] = k
        self.cache["v"] = v
        return self.attend(q, k, v)
"""
_OWN = """
class Attention(nn.Module):
    def forward(self, k):
        self.k_cache = torch.cat((self.k_cache, k), dim=1)
        return self.k_cache
"""

RULE = Substitution(
    id="NPU323",
    name="growing-cache",
    summary="keys and values of all tokens so far are copied for each new one",
    table="affinity",
    forms=(Form(grown, written_in, inputs),),
    search="growing-caches",
    replaces=(),
    becomes=(),
    passes=(1, 0),
    requires="torch_npu>=2.1",
    valid=(
        # states of two layers
        """
class Fuse(nn.Module):
    def forward(self, past, x):
        y = torch.cat([past, x], dim=-1)
        return self.proj(y)
""",
        # a prefix that stays as it is
        """
class Attention(nn.Module):
    def forward(self, k, v, prefix):
        k = torch.cat([prefix[0], k], dim=1)
        return k, v
""",
        # an encoder, unless it is made a decoder
        """
class Attention(nn.Module):
    def forward(self, k, v, past):
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        if self.is_decoder:
            past = (k, v)
        return self.attend(k, v), past
""",
        # written in place
        """
class Attention(nn.Module):
    def forward(self, k, at):
        self.k_cache.index_copy_(1, at, k)
        return self.k_cache
""",
    ),
    rewritten=(
        Rewritten(_RETURNED, _RETURNED),
        Rewritten(_OWN, _OWN),
        Rewritten(_BY_NAME, _BY_NAME),
    ),
)
