"""Rotary position embedding written out in eager operators.

What: a query or key is multiplied by ``cos``, a copy of it with its halves (or its neighbours)
exchanged and one of them negated is multiplied by ``sin``, and the two products are added. Which
of the two layouts it is follows from the code that is executed, never from a name:
``torch.cat((-x2, x1), -1)`` of the two halves is the mode ``half``, ``torch.stack((-x2, x1), -1)``
of every other element is the mode ``interleave``.

Why it is slow on the NPU: two slices, Neg, ConcatD, two Mul and one Add, each of which reads and
writes the whole query, for the query and for the key of every layer; the strided slices of the
interleaved layout are slower still. ``npu_rotary_mul`` reads and writes it once.

Safety: the operator casts ``cos`` and ``sin`` to the dtype of ``x`` and returns that dtype: where
eager code promotes to float32, the result would lose its precision (condition ``same-dtype``, or
``table-dtype`` where ``x`` is cast to the dtype of the tables, as under autocast). It
takes four dimensions and an even length below 896 (``rotary-limits``), and the mode ``interleave``
takes one table of cosines for the whole batch (``interleave-limits``). It is documented for
``|cos| <= 1``: YaRN and LongRoPE scale the cosines (``cosines-within-one``). Code that rotates
``x.float()`` keeps its float32 operands. For half precision the operator rounds once, eager code
three times. Where ``cos`` is half as wide as ``x``, the halves are joined first: one more kernel
on a table that is much smaller than the query.

References: torch_npu.npu_rotary_mul in the API reference of Ascend Extension for PyTorch; RoFormer
(Su et al., 2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Site, Substitution, either
from npufix.rules.substitutions.eager_rotary_embedding_examples import REWRITTEN
from npufix.rules.substitutions.eager_rotary_embedding_forms import (
    either_way,
    flagged,
    fused_either_way,
    fused_either_way_promoted,
    fused_pairs_to_halves,
    pairs_to_halves,
)

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor

_MAX_HEAD_SIZE = 896
_MAX_LENGTH = 1000
_DIMENSIONS = 4


def halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first half against the second one (GPT-NeoX, Llama and most others)."""
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-x2, x1), dim=-1) * sin


def halves_then_cast(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As ``halves``, in float32, with the cast after the exchange (diffusers)."""
    x1, x2 = x.chunk(2, dim=-1)
    rotated = torch.cat((-x2, x1), dim=-1)
    return x.to(torch.float32) * cos + rotated.to(torch.float32) * sin


def halves_apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each half with a table of half the width and join the results (GPT-OSS)."""
    x1, x2 = x.chunk(2, dim=-1)
    first, second = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    return either(torch.cat((first, second), dim=-1), torch.cat((first, second), dim=3))


def halves_back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As ``halves_apart``, by the negative angle (modded-nanogpt)."""
    x1, x2 = x.chunk(2, dim=-1)
    first = x1 * cos + x2 * sin
    second = either(x2 * cos - x1 * sin, x1 * (-sin) + x2 * cos)
    return either(torch.cat((first, second), dim=-1), torch.cat((first, second), dim=3))


def pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each element against its neighbour (GPT-J, GLM, Cohere)."""
    x1 = either(x[..., ::2], x[:, :, :, ::2])
    x2 = either(x[..., 1::2], x[:, :, :, 1::2])
    rotated = torch.stack((-x2, x1), dim=-1)
    return x * cos + either(rotated.flatten(-2), rotated.flatten(3)) * sin


def pairs_then_cast(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As ``pairs``, in float32, with the cast after the exchange (Flux)."""
    rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1)
    exchanged = either(rotated.flatten(-2), rotated.flatten(3))
    return x.to(torch.float32) * cos + exchanged.to(torch.float32) * sin


def pairs_apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the elements of each pair with a table of half the width (torchtune)."""
    x1, x2 = x[..., ::2], x[..., 1::2]
    rotated = torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
    return either(rotated.flatten(-2), rotated.flatten(3))


def halves_apart_cast(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As ``halves_apart``, with each half cast back from the dtype of the tables."""
    x1, x2 = x.chunk(2, dim=-1)
    first, second = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    return torch.cat((first.to(x.dtype), second.to(x.dtype)), dim=-1)


def pairs_apart_cast(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As ``pairs_apart``, with each half cast back from the dtype of the tables (Mochi)."""
    x1, x2 = x[..., ::2], x[..., 1::2]
    first, second = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    rotated = torch.stack((first.to(x.dtype), second.to(x.dtype)), dim=-1)
    return either(rotated.flatten(-2), rotated.flatten(3))


def halves_scaled(x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor | float) -> Tensor:
    """As ``halves``, with both products scaled (xPos)."""
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos * scale + torch.cat((-x2, x1), dim=-1) * sin * scale


def pairs_scaled(x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor | float) -> Tensor:
    """As ``pairs``, with both products scaled (x-transformers)."""
    rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1)
    return x * cos * scale + either(rotated.flatten(-2), rotated.flatten(3)) * sin * scale


def fused(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves with one kernel."""
    return torch_npu.npu_rotary_mul(x, cos, sin)


def fused_promoted(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves with one kernel, in the dtype that eager code promotes to."""
    return torch_npu.npu_rotary_mul(x.to(cos.dtype), cos, sin)


def fused_32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves with one kernel that reads float32."""
    return torch_npu.npu_rotary_mul(x.float(), cos, sin)


def fused_apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves with one kernel and tables of the full width."""
    return torch_npu.npu_rotary_mul(x, torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1))


def fused_back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves back with one kernel."""
    return torch_npu.npu_rotary_mul(
        x, torch.cat((cos, cos), dim=-1), -torch.cat((sin, sin), dim=-1)
    )


def fused_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs with one kernel."""
    return torch_npu.npu_rotary_mul(x, cos, sin, rotary_mode="interleave")


def fused_pairs_promoted(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs with one kernel, in the dtype that eager code promotes to."""
    return torch_npu.npu_rotary_mul(x.to(cos.dtype), cos, sin, rotary_mode="interleave")


def fused_pairs_32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs with one kernel that reads float32."""
    return torch_npu.npu_rotary_mul(x.float(), cos, sin, rotary_mode="interleave")


def fused_scaled(x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor | float) -> Tensor:
    """Rotate halves with one kernel, and scale them."""
    return torch_npu.npu_rotary_mul(x, cos, sin) * scale


def fused_pairs_scaled(x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor | float) -> Tensor:
    """Rotate pairs with one kernel, and scale them."""
    return torch_npu.npu_rotary_mul(x, cos, sin, rotary_mode="interleave") * scale


def fused_pairs_apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs with one kernel and tables of the full width."""
    return torch_npu.npu_rotary_mul(
        x,
        torch.stack((cos, cos), dim=-1).flatten(-2),
        torch.stack((sin, sin), dim=-1).flatten(-2),
        rotary_mode="interleave",
    )


def fused_apart_cast(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves with one kernel in the dtype of the tables, then cast back."""
    return torch_npu.npu_rotary_mul(
        x.to(cos.dtype), torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    ).to(x.dtype)


def fused_pairs_apart_cast(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs with one kernel in the dtype of the tables, then cast back."""
    return torch_npu.npu_rotary_mul(
        x.to(cos.dtype),
        torch.stack((cos, cos), dim=-1).flatten(-2),
        torch.stack((sin, sin), dim=-1).flatten(-2),
        rotary_mode="interleave",
    ).to(x.dtype)


def _inputs(draw: Draw, width: int, *, one_sequence: bool, wide: bool = False) -> dict[str, Any]:
    """Return a query, and cosines and sines of any angles: no two elements share one."""
    import torch

    batch, heads, length = draw.integer(1, 3), draw.integer(1, 3), draw.integer(1, 4)
    size = draw.choice([2, 8, 16])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    tables = (1 if one_sequence else draw.choice([1, batch]), 1, length, size // width)
    angles = draw.floats(*tables, dtype=torch.float32) * 2
    table_dtype = torch.float32 if wide else dtype
    return {
        "x": draw.floats(batch, heads, length, size, dtype=dtype),
        "cos": angles.cos().to(table_dtype),
        "sin": angles.sin().to(table_dtype),
    }


def inputs(draw: Draw) -> dict[str, Any]:
    """Return tables as wide as the query, with a batch of their own now and then."""
    return _inputs(draw, 1, one_sequence=False)


def wide_inputs(draw: Draw) -> dict[str, Any]:
    """Return a query of any dtype and tables in float32."""
    return _inputs(draw, 1, one_sequence=False, wide=True)


def promoting_inputs(draw: Draw) -> dict[str, Any]:
    """Return tables in the dtype of the query or in float32."""
    return draw.choice([inputs, wide_inputs])(draw)


def narrow_inputs(draw: Draw) -> dict[str, Any]:
    """Return tables half as wide as the query."""
    return _inputs(draw, 2, one_sequence=False)


def pair_inputs(draw: Draw) -> dict[str, Any]:
    """Return one sequence of cosines for the whole batch."""
    return _inputs(draw, 1, one_sequence=True)


def scaled_inputs(draw: Draw) -> dict[str, Any]:
    """Return what scales the products besides, a number or one for each position."""
    return {**inputs(draw), "scale": draw.choice([1.0, 0.7])}


def flagged_inputs(draw: Draw) -> dict[str, Any]:
    """Return a flag for the layout besides."""
    return flagged(pair_inputs(draw), draw)


def promoting_flagged_inputs(draw: Draw) -> dict[str, Any]:
    """Return such a flag, and cosines in the dtype of the query or in float32."""
    return flagged(promoting_pair_inputs(draw), draw)


def scaled_pair_inputs(draw: Draw) -> dict[str, Any]:
    """Return what scales them besides one sequence of cosines."""
    return {**pair_inputs(draw), "scale": draw.choice([1.0, 0.7])}


def wide_pair_inputs(draw: Draw) -> dict[str, Any]:
    """Return one sequence of cosines in float32 for a query of any dtype."""
    return _inputs(draw, 1, one_sequence=True, wide=True)


def promoting_pair_inputs(draw: Draw) -> dict[str, Any]:
    """Return one sequence of cosines in the dtype of the query or in float32."""
    return draw.choice([pair_inputs, wide_pair_inputs])(draw)


def promoting_narrow_inputs(draw: Draw) -> dict[str, Any]:
    """Return tables half as wide as the query, in its dtype or in float32."""
    return _inputs(draw, 2, one_sequence=False, wide=draw.choice([False, True]))


def promoting_narrow_pair_inputs(draw: Draw) -> dict[str, Any]:
    """Return one sequence of such cosines."""
    return _inputs(draw, 2, one_sequence=True, wide=draw.choice([False, True]))


def narrow_pair_inputs(draw: Draw) -> dict[str, Any]:
    """Return one sequence of cosines, half as wide as the query."""
    return _inputs(draw, 2, one_sequence=True)


def _same_dtype(site: Site) -> bool | None:
    if site.is_cast_back("x"):
        return False  # which its author would not do if all had one dtype: OLMo 2
    answers = {site.same_dtype("x", "cos"), site.same_dtype("x", "sin")}
    return False if False in answers else True if answers == {True} else None


def _tables_in_float32(site: Site) -> bool | None:
    answers = {site.dtype("cos"), site.dtype("sin")}
    if "float64" in answers:
        return False
    return True if answers <= {"float32", "float16", "bfloat16"} else None


def _table_dtype(site: Site) -> bool | None:
    tables = {site.dtype("cos"), site.dtype("sin")}
    if tables == {"float32"} and site.dtype("x") != "float64":
        return True
    return True if _same_dtype(site) else None


def _within_limits(site: Site) -> bool | None:
    ndim, width = site.ndim("x"), site.size("x", -1)
    if ndim is not None and ndim not in {3, _DIMENSIONS}:  # three: newer versions take them
        return False
    if width is not None and (width % 2 or width >= _MAX_HEAD_SIZE):
        return False
    lengths = [site.size("x", dim) for dim in range(-_DIMENSIONS, -1)]
    if ndim != _DIMENSIONS or width is None or site.ndim("cos") != _DIMENSIONS:
        return None
    return True if all(n is not None and n < _MAX_LENGTH for n in lengths) else None


def _one_sequence(site: Site) -> bool | None:
    return None if site.size("cos", 0) in {None, 1} else False


SAME_DTYPE = Condition("same-dtype", "x, cos and sin have the same dtype", _same_dtype)
FLOAT32_TABLES = Condition(
    "same-dtype",
    "cos and sin are not float64: the rotation is computed in float32",
    _tables_in_float32,
)
TABLE_DTYPE = Condition(
    "table-dtype",
    "cos and sin have one dtype: that of x, or float32, to which x is promoted",
    _table_dtype,
)
LIMITS = Condition(
    "rotary-limits",
    "x, cos and sin have four dimensions, the last one even and below 896; batch and heads of x"
    " are below 1000; cos and sin broadcast over heads, and over the batch if need be",
    _within_limits,
)
WITHIN_ONE = Condition(
    "cosines-within-one",
    "cos and sin lie between -1 and 1: no YaRN, LongRoPE or xPos scale in them",
    lambda site: site.is_sinusoid("cos") and site.is_sinusoid("sin"),
)
INTERLEAVE = Condition(
    "interleave-limits",
    "cos and sin hold one sequence for the whole batch, batch times heads is below 1000, and"
    " torch_npu has rotary_mode (2.4.0 has not)",
    _one_sequence,
)

HALF = (SAME_DTYPE, LIMITS, WITHIN_ONE)
PROMOTED = (TABLE_DTYPE, LIMITS, WITHIN_ONE)
HALF_32 = (FLOAT32_TABLES, LIMITS, WITHIN_ONE)

SMALL_KERNELS = (
    "Add", "AsStrided", "Cast", "ConcatD", "Mul", "Muls", "Neg", "Pack", "Slice", "SliceD",
    "SplitD", "SplitV", "StridedSlice", "StridedSliceD", "Sub",
)  # fmt: skip

FUSED_KERNELS = (
    "RotaryMul", "RotaryMulGrad", "RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad",
)  # fmt: skip

RULE = Substitution(
    id="NPU102",
    name="eager-rotary-embedding",
    summary="rotary position embedding written out in eager operators",
    table="fusion",
    forms=(
        Form(halves, fused, inputs, HALF),
        Form(halves, fused_promoted, promoting_inputs, PROMOTED),
        Form(halves_then_cast, fused_32, wide_inputs, HALF_32),
        Form(halves_apart, fused_apart, narrow_inputs, HALF),
        Form(halves_back, fused_back, narrow_inputs, HALF),
        Form(pairs_to_halves, fused_pairs_to_halves, narrow_inputs, HALF),
        Form(pairs, fused_pairs, pair_inputs, (*HALF, INTERLEAVE)),
        Form(pairs, fused_pairs_promoted, promoting_pair_inputs, (*PROMOTED, INTERLEAVE)),
        Form(pairs_then_cast, fused_pairs_32, wide_pair_inputs, (*HALF_32, INTERLEAVE)),
        Form(pairs_apart, fused_pairs_apart, narrow_pair_inputs, (*HALF, INTERLEAVE)),
        Form(halves_apart_cast, fused_apart_cast, promoting_narrow_inputs, PROMOTED),
        Form(
            pairs_apart_cast,
            fused_pairs_apart_cast,
            promoting_narrow_pair_inputs,
            (*PROMOTED, INTERLEAVE),
        ),
        Form(either_way, fused_either_way, flagged_inputs, (*HALF, INTERLEAVE)),
        Form(
            either_way,
            fused_either_way_promoted,
            promoting_flagged_inputs,
            (*PROMOTED, INTERLEAVE),
        ),
        Form(halves_scaled, fused_scaled, scaled_inputs, HALF),
        Form(pairs_scaled, fused_pairs_scaled, scaled_pair_inputs, (*HALF, INTERLEAVE)),
    ),
    replaces=SMALL_KERNELS,
    becomes=FUSED_KERNELS,
    passes=(2, 2),
    requires="torch_npu>=2.1",
    valid=(
        # the halves are exchanged, but the wrong one is negated
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat((x2, -x1), dim=-1) * sin
""",
        # every other element, put into halves
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    x1, x2 = x[..., ::2], x[..., 1::2]
    return x * cos + torch.cat((-x2, x1), dim=-1) * sin
""",
        # pairs, put into halves of which one has the wrong sign
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.cat((x1 * cos - x2 * sin, x1 * sin - x2 * cos), dim=-1)
""",
        # each half is cast, and one of them has the wrong sign
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    x1, x2 = x[..., ::2], x[..., 1::2]
    first = (x1 * cos - x2 * sin).type_as(x)
    second = (x1 * sin - x2 * cos).type_as(x)
    return torch.stack((first, second), dim=-1).flatten(-2)
""",
        # complex multiplication
        """
def apply_rotary(x: torch.Tensor, freqs: torch.Tensor):
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs).flatten(3).type_as(x)
""",
        # a flag decides about the layout, and one way lacks its sign
        """
def rotate_half(x, interleaved):
    if not interleaved:
        x1, x2 = torch.chunk(x, 2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((x2, x1), dim=-1).flatten(-2)


def apply_rotary(x, cos, sin, interleaved):
    return x * cos + rotate_half(x, interleaved) * sin
""",
        # the rotated copy is returned as well
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    x1, x2 = x.chunk(2, dim=-1)
    rotated = torch.cat((-x2, x1), dim=-1)
    return x * cos + rotated * sin, rotated
""",
        # five dimensions
        """
def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    batch, groups, heads, length, size = x.shape
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-x2, x1), dim=-1) * sin
""",
        # one of the products is scaled
        """
def apply_rotary(t, freqs, scale):
    t1, t2 = t.chunk(2, dim=-1)
    return (t * freqs.cos() * scale) + (torch.cat((-t2, t1), dim=-1) * freqs.sin())
""",
    ),
    rewritten=REWRITTEN,
)
