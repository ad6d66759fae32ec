"""``repeat_interleave`` with the same number of repeats for every element.

What: ``x.repeat_interleave(n)`` or ``x.repeat_interleave(n, dim)`` with a Python int ``n``.

Why it is slow on the NPU: RepeatInterleave copies element by element in the given order (its second
version, for A2 and larger outputs, is faster but still slower than a broadcast, and does not take
int8 or a vector with one number of repeats). The same result is a broadcast over a new dimension,
which BroadcastTo writes in one go; twice, as the tables of rotary embeddings are and images that
become twice as wide, it is a stack. (The other recipe of the guide, a tensor that holds the same
number of repeats for each element, selects the faster version, but is right for one length only.)

Safety: exact for an int, whatever its value; ``clone`` makes the copy that ``repeat_interleave``
would have made even for a single repeat or a single element, where ``reshape`` alone would return
a view of ``x`` that a later write in place would change. A tensor of repeats means something else
(condition ``int-repeats``). A dimension that is known only at run time is left alone: what would be
written for it is harder to read than what it gains.

Nothing is said of what runs once per call of a pipeline or of ``generate`` (condition
``runs-often``): it is no part of a step, and the longer code would be all that is gained. The same
goes for the first dimension outside of loops (condition ``more-than-once``): there a batch is made
wider, once, before all layers. Other dimensions take five lines in place of one, which pays for heads,
in each layer; of anything else somebody has to say so (``worth-its-length``).

References: case "affinity operator optimisation" (RepeatInterleave) of the MindStudio guide;
torch.repeat_interleave.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def flattened(x: Tensor, repeats: int) -> Tensor:
    """Repeat every element of the flattened tensor."""
    return x.repeat_interleave(repeats)


def along_first(x: Tensor, repeats: int) -> Tensor:
    """Repeat along the first dimension."""
    return x.repeat_interleave(repeats, 0)


def new_first(x: Tensor, repeats: int) -> Tensor:
    """Repeat all of a tensor along a new first dimension."""
    return torch.repeat_interleave(x.unsqueeze(0), repeats, dim=0)


def along_last(x: Tensor, repeats: int) -> Tensor:
    """Repeat along the last dimension."""
    return x.repeat_interleave(repeats, -1)


def twice_along_last(x: Tensor) -> Tensor:
    """Repeat twice along the last dimension."""
    return x.repeat_interleave(2, -1)


def twice(x: Tensor, literal_dim: int) -> Tensor:
    """Repeat twice along a dimension counted from the front."""
    return x.repeat_interleave(2, literal_dim)


def twice_from_the_end(x: Tensor, literal_dim: int) -> Tensor:
    """Repeat twice along a dimension counted from the end."""
    return x.repeat_interleave(2, literal_dim)


def along(x: Tensor, repeats: int, literal_dim: int) -> Tensor:
    """Repeat along a dimension counted from the front."""
    return x.repeat_interleave(repeats, literal_dim)


def along_from_the_end(x: Tensor, repeats: int, literal_dim: int) -> Tensor:
    """Repeat along a dimension counted from the end."""
    return x.repeat_interleave(repeats, literal_dim)


def broadcast_flat(x: Tensor, repeats: int) -> Tensor:
    """Broadcast, copy, then flatten."""
    return x.reshape(-1, 1).expand(-1, repeats).clone().reshape(-1)


def broadcast_first(x: Tensor, repeats: int) -> Tensor:
    """Broadcast over a new second dimension and merge it into the first."""
    return (
        x.unsqueeze(1)
        .expand(x.size(0), repeats, *x.shape[1:])
        .clone(memory_format=torch.contiguous_format)
        .flatten(0, 1)
    )


def broadcast_new(x: Tensor, repeats: int) -> Tensor:
    """Broadcast over a new first dimension, and copy."""
    return x.expand(repeats, *x.shape).clone(memory_format=torch.contiguous_format)


def broadcast_last(x: Tensor, repeats: int) -> Tensor:
    """Broadcast over a new last dimension and merge it into the one before."""
    return (
        x.unsqueeze(-1)
        .expand(*x.shape, repeats)
        .clone(memory_format=torch.contiguous_format)
        .flatten(-2)
    )


def stack_last(x: Tensor) -> Tensor:
    """Put each element twice into a new last dimension and merge it into the one before."""
    return torch.stack((x, x), dim=-1).flatten(-2)


def stack(x: Tensor, literal_dim: int) -> Tensor:
    """Put each slice twice into a new dimension and merge it into the one before."""
    return torch.stack((x, x), dim=literal_dim + 1).flatten(literal_dim, literal_dim + 1)


def stack_from_the_end(x: Tensor, literal_dim: int) -> Tensor:
    """Put each slice twice into a new dimension and merge it into the one before."""
    return torch.stack((x, x), dim=literal_dim).flatten(literal_dim - 1, literal_dim)


def broadcast(x: Tensor, repeats: int, literal_dim: int) -> Tensor:
    """Broadcast over a new dimension behind the one to repeat and merge the two."""
    return (
        x.unsqueeze(literal_dim + 1)
        .expand(*x.shape[: literal_dim + 1], repeats, *x.shape[literal_dim + 1 :])
        .clone(memory_format=torch.contiguous_format)
        .flatten(literal_dim, literal_dim + 1)
    )


def broadcast_from_the_end(x: Tensor, repeats: int, literal_dim: int) -> Tensor:
    """Broadcast over a new dimension behind the one to repeat and merge the two."""
    return (
        x.unsqueeze(literal_dim)
        .expand(*x.shape[: literal_dim + 1], repeats, *x.shape[literal_dim + 1 :])
        .clone(memory_format=torch.contiguous_format)
        .flatten(literal_dim - 1, literal_dim)
    )


def _tensor(draw: Draw, ndim: int) -> Tensor:
    import torch

    shape = [draw.integer(1, 4) for _ in range(ndim)]
    made = draw.floats(*shape, dtype=torch.float32)
    return made.transpose(0, -1) if draw.choice([False, True]) else made


def inputs(draw: Draw) -> dict[str, Any]:
    """Return tensors of one to three dimensions and repeats from none to some."""
    return {"x": _tensor(draw, draw.integer(1, 3)), "repeats": draw.integer(0, 4)}


def twice_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor of one to three dimensions."""
    return {"x": _tensor(draw, draw.integer(1, 3))}


def twice_dim_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a dimension of it but the first."""
    ndim = draw.integer(2, 4)
    return {"x": _tensor(draw, ndim), "literal_dim": draw.integer(1, ndim - 1)}


def twice_end_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a dimension of it but the last, counted from the end."""
    ndim = draw.integer(2, 4)
    return {"x": _tensor(draw, ndim), "literal_dim": draw.integer(-ndim, -2)}


def dim_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, repeats and a dimension of it but the first."""
    ndim = draw.integer(2, 4)
    return {
        "x": _tensor(draw, ndim),
        "repeats": draw.integer(0, 3),
        "literal_dim": draw.integer(1, ndim - 1),
    }


def end_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, repeats and a dimension of it but the last, counted from the end."""
    ndim = draw.integer(2, 4)
    return {
        "x": _tensor(draw, ndim),
        "repeats": draw.integer(0, 3),
        "literal_dim": draw.integer(-ndim, -2),
    }


# What has one number for each element is called so: ``seq_lens``, ``num_tokens_per_expert``.
_PER_ELEMENT = re.compile(
    r"(lens|lengths|counts|bincount|cnts|sizes|durations|splits|tensor|list|_per_(expert|image|seq|sample))$"
)
# What a call of ``generate`` is told, mostly 1: the batch is widened once, before all steps.
_PER_CALL = re.compile(r"per_prompt|num_return_sequences|expand_size|(num_)?beams?(_size)?$")


def _is_int(site: Site) -> bool | None:
    if site.is_tensor("repeats"):
        return False
    known = site.is_int("repeats")
    speaks_against = known is None and any(map(_PER_ELEMENT.search, site.called("repeats")))
    return False if speaks_against else known


# Heads are repeated in each layer, along whichever dimension.
_OF_HEADS = re.compile(r"heads|groups?$|n_?rep(eats?)?$|(^|_)kv(_|$)")


_HEADS = re.compile(r"(?i)(^|_)(q|k|v|kv|query|key|value)s?(_|$)|heads?(_|$)")


def _more_than_once(site: Site) -> bool:
    return site.runs_in_loop() or _repeats_heads(site)


def _repeats_heads(site: Site) -> bool:
    of_heads = any(map(_OF_HEADS.search, site.called("repeats")))
    return of_heads or any(map(_HEADS.search, site.called("x")))


def _runs_often(site: Site) -> bool:
    return site.runs_often() and not any(map(_PER_CALL.search, site.called("repeats")))


INT_REPEATS = Condition(
    "int-repeats", "the number of repeats is a Python int, not a tensor", _is_int
)
OFTEN = Condition(
    "runs-often",
    "it runs in every step, not once per call of a pipeline or of generate",
    _runs_often,
    time_alone=True,
)
OFTEN_ENOUGH = replace(
    OFTEN,
    # places that are counted anew, once a step: ``torch.arange(n).repeat_interleave(k)``
    holds=lambda site: (
        _runs_often(site) and (site.operator("x") != "arange" or site.runs_in_loop())
    ),
)
OFTEN_TWICE = replace(OFTEN, holds=lambda site: site.runs_often())
MORE_THAN_ONCE = Condition(
    "more-than-once",
    "it stands in a loop or repeats heads: a batch that is widened once takes no time",
    _more_than_once,
    time_alone=True,
)
WORTH_IT = Condition(
    "worth-its-length",
    "five lines pay in place of one: in each layer, as where heads are repeated",
    lambda site: _repeats_heads(site) or None,
    time_alone=True,
)
IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", lambda site: site.is_tensor("x"))
FROM_THE_FRONT = Condition(
    "dimension-from-the-front",
    "the dimension is a literal, not negative and not the first",
    lambda site: isinstance(dim := site.literal("literal_dim"), int) and dim > 0,
)

FROM_THE_END = Condition(
    "dimension-from-the-end",
    "the dimension is a literal below -1",
    lambda site: isinstance(dim := site.literal("literal_dim"), int) and dim < -1,
)
RULE = Substitution(
    id="NPU203",
    name="repeat-interleave-int",
    summary="repeat_interleave with one number of repeats for all elements",
    table="affinity",
    forms=(
        # a short vector of lengths or rewards, if nobody has to be asked about it
        Form(
            flattened,
            broadcast_flat,
            inputs,
            (OFTEN_ENOUGH, IS_TENSOR, INT_REPEATS),
            only_proven=True,
        ),
        Form(new_first, broadcast_new, inputs, (MORE_THAN_ONCE, OFTEN, IS_TENSOR, INT_REPEATS)),
        Form(along_first, broadcast_first, inputs, (MORE_THAN_ONCE, OFTEN, IS_TENSOR, INT_REPEATS)),
        Form(twice_along_last, stack_last, twice_inputs, (OFTEN_TWICE, IS_TENSOR)),
        Form(twice, stack, twice_dim_inputs, (FROM_THE_FRONT, OFTEN_TWICE, IS_TENSOR)),
        Form(
            twice_from_the_end,
            stack_from_the_end,
            twice_end_inputs,
            (FROM_THE_END, OFTEN_TWICE, IS_TENSOR),
        ),
        Form(along_last, broadcast_last, inputs, (OFTEN, IS_TENSOR, INT_REPEATS, WORTH_IT)),
        Form(
            along, broadcast, dim_inputs, (FROM_THE_FRONT, IS_TENSOR, INT_REPEATS, WORTH_IT, OFTEN)
        ),
        Form(
            along_from_the_end,
            broadcast_from_the_end,
            end_inputs,
            (FROM_THE_END, IS_TENSOR, INT_REPEATS, WORTH_IT, OFTEN),
        ),
    ),
    replaces=("RepeatInterleave", "RepeatInterleaveV2"),
    becomes=("BroadcastTo", "ConcatD", "Pack"),
    passes=(2, 2),
    requires="torch_npu>=2.1",
    valid=(
        # another class
        """
def f(data, n: int):
    assert isinstance(data, TensorDict)
    return data.repeat_interleave(n)
""",
        # one number of repeats per element
        """
def f(x: torch.Tensor, durations: torch.Tensor):
    return torch.repeat_interleave(x, durations, dim=0)
""",
        # the length of the result is given
        """
def f(x: torch.Tensor, n: int):
    return torch.repeat_interleave(x, n, dim=0, output_size=8)
""",
        # an attribute may hold one number per element
        """
class Expand(nn.Module):
    def __init__(self, repeats):
        super().__init__()
        self.repeats = repeats

    def forward(self, x: torch.Tensor):
        return x.repeat_interleave(self.repeats, dim=1)
""",
        # once per call of a pipeline, before its steps
        """
class ImagePipeline:
    def __call__(self, image: torch.Tensor, count: int):
        return self.denoise(image.repeat_interleave(count, dim=0))
""",
        # the batch is widened once
        """
class Denoiser(nn.Module):
    def forward(self, x: torch.Tensor, samples: int):
        return self.blocks(x.repeat_interleave(samples, 0))
""",
        # the batch is widened once, and is called so
        """
def f(prompt: torch.Tensor, num_images_per_prompt: int):
    return prompt.repeat_interleave(num_images_per_prompt, dim=0)
""",
        # one number for each element, by its name
        """
class Pack(nn.Module):
    def forward(self, x: torch.Tensor, batch):
        return x.repeat_interleave(batch.seq_lens, dim=0)
""",
        # the repeats alone
        """
def f(durations: torch.Tensor):
    return torch.repeat_interleave(durations)
""",
    ),
    rewritten=(
        Rewritten(
            """
def forward(freqs: torch.Tensor):
    cos = freqs.cos().repeat_interleave(2, dim=-1)
    return cos + 1
""",
            """
def forward(freqs: torch.Tensor):
    cos = freqs.cos()
    cos = torch.stack((cos, cos), dim=-1).flatten(-2)
    return cos + 1
""",
        ),
        # an image that becomes twice as high and twice as wide
        Rewritten(
            """
def f(luma: torch.Tensor, chroma: torch.Tensor):
    chroma = chroma.repeat_interleave(2, dim=-2)
    return luma + chroma
""",
            """
def f(luma: torch.Tensor, chroma: torch.Tensor):
    chroma = torch.stack((chroma, chroma), dim=-2).flatten(-3, -2)
    return luma + chroma
""",
        ),
        Rewritten(
            """
def f(valid_lens: torch.Tensor, X: torch.Tensor):
    shape = X.shape
    valid_lens = torch.repeat_interleave(valid_lens, shape[1])
    return valid_lens
""",
            """
def f(valid_lens: torch.Tensor, X: torch.Tensor):
    shape = X.shape
    valid_lens = (
        valid_lens.reshape(-1, 1).expand(-1, shape[1]).clone().reshape(-1)
    )
    return valid_lens
""",
        ),
        Rewritten(
            """
def repeat(x: torch.Tensor, n: int, layers):
    for layer in layers:
        x = layer(x.repeat_interleave(n, dim=0))
    return x
""",
            """
def repeat(x: torch.Tensor, n: int, layers):
    for layer in layers:
        x = layer(
            x.unsqueeze(1)
            .expand(x.size(0), n, *x.shape[1:])
            .clone(memory_format=torch.contiguous_format)
            .flatten(0, 1)
        )
    return x
""",
        ),
        Rewritten(
            """
def f(x: torch.Tensor):
    return x.repeat_interleave(2)
""",
            """
def f(x: torch.Tensor):
    return x.reshape(-1, 1).expand(-1, 2).clone().reshape(-1)
""",
        ),
        Rewritten(
            """
class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_rep = config.num_attention_heads // config.num_key_value_heads

    def forward(self, key: torch.Tensor):
        return key.repeat_interleave(self.n_rep, dim=-3)
""",
            """
class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_rep = config.num_attention_heads // config.num_key_value_heads

    def forward(self, key: torch.Tensor):
        return (
            key.unsqueeze(-3)
            .expand(*key.shape[:-2], self.n_rep, *key.shape[-2:])
            .clone(memory_format=torch.contiguous_format)
            .flatten(-4, -3)
        )
""",
        ),
    ),
)
