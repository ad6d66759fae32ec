"""Rotary position embedding written out as a product of complex numbers.

What: neighbours in a query or key are taken as the two parts of complex numbers, which are multiplied
by a table of ``torch.polar``: ``view_as_real(view_as_complex(x) * freqs).flatten(3)``, as in the
reference code of Llama and in many video models, or the two halves are, as in that of Gemma; or they
are multiplied by matrices two by two, ``freqs[..., 0] * x[..., 0] + freqs[..., 1] * x[..., 1]``, as in
FLUX and what came after it, or ``(x * freqs).sum(-1)``, as in Meta Lingua.

Why it is slow on the NPU: products of complex numbers have no kernel of the vector core: they run on
the AI CPU or not at all, and casts and copies stand around them. ``npu_rotary_mul`` turns real
numbers in one kernel. The parts of the table are spread to the width of the query first, kernels on
a table that is much smaller; where it is made, ``cos`` and ``sin`` can be kept instead, once for all.

Safety: the query is rotated in float32, as it is in the code. The operator takes four dimensions and
an even length below 896 (``rotary-limits``), one table for the whole batch (``interleave-limits``),
and is documented for tables that do not scale (``cosines-within-one``). Matrices must be rotations
(``table-of-rotations``): their first columns say all. A table gets no gradient.

References: torch_npu.npu_rotary_mul in the API reference of Ascend Extension for PyTorch;
https://github.com/meta-llama/llama, apply_rotary_emb.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import (
    Buffer,
    Condition,
    Draw,
    Form,
    Rewritten,
    Site,
    Substitution,
    either,
)

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor

_DIMENSIONS = 4
_TABLE = re.compile(r"(?i)freq|cis|rope|rot|pos|emb|table|pe$")


def complex_pairs(x: Tensor, freqs: Buffer) -> Tensor:
    """Turn pairs of neighbours as complex numbers."""
    pairs = either(
        x.to(torch.float32).reshape(*x.shape[:-1], -1, 2),
        x.to(torch.float32).reshape(*x.shape[:-1], x.shape[-1] // 2, 2),
        x.to(torch.float32).view(*x.shape[:-1], -1, 2),
        x.to(torch.float32).unflatten(-1, (-1, 2)),  # type: ignore[no-untyped-call]  # torch's own
        x.reshape(*x.shape[:-1], -1, 2).to(torch.float32),
        x.to(torch.float32).reshape(x.shape[0], x.shape[1], x.shape[2], -1, 2),
        x.to(torch.float32).view(x.shape[0], x.shape[1], x.shape[2], -1, 2),
    )
    turned = torch.view_as_real(torch.view_as_complex(pairs) * freqs)
    return either(turned.flatten(3), turned.flatten(-2))


def complex_numbers(z: Tensor, freqs: Buffer) -> Tensor:
    """Turn complex numbers that somebody else needs as well: to give a table their dimensions."""
    turned = torch.view_as_real(z * freqs)
    return either(turned.flatten(3), turned.flatten(-2))


def fused_numbers(z: Tensor, freqs: Buffer) -> Tensor:
    """Turn the parts, which are neighbours in memory already."""
    return torch_npu.npu_rotary_mul(
        torch.view_as_real(z).flatten(-2),
        freqs.real.repeat_interleave(2, -1),
        freqs.imag.repeat_interleave(2, -1),
        rotary_mode="interleave",
    )


def fused(x: Tensor, freqs: Buffer) -> Tensor:
    """Turn pairs of neighbours with one kernel and the parts of the table."""
    return torch_npu.npu_rotary_mul(
        x.float(),
        freqs.real.repeat_interleave(2, -1),
        freqs.imag.repeat_interleave(2, -1),
        rotary_mode="interleave",
    )


def turned_by_matrices(x: Tensor, freqs: Buffer) -> Tensor:
    """Turn pairs of neighbours by a table of matrices, two by two."""
    pairs = either(
        x.to(torch.float32).reshape(*x.shape[:-1], -1, 1, 2),
        x.to(torch.float32).view(*x.shape[:-1], -1, 1, 2),
    )
    turned = freqs[..., 0] * pairs[..., 0] + freqs[..., 1] * pairs[..., 1]
    return either(
        turned.reshape(*x.shape), turned.reshape(x.shape), turned.view(*x.shape), turned.flatten(-2)
    )


def summed_matrices(x: Tensor, freqs: Buffer) -> Tensor:
    """Turn pairs of neighbours by such a table, and add up what each row makes of them."""
    pairs = either(
        x.reshape(*x.shape[:-1], -1, 1, 2),
        x.view(*x.shape[:-1], -1, 1, 2),
        x.to(torch.float32).reshape(*x.shape[:-1], -1, 1, 2),
    )
    turned = either((pairs * freqs).sum(-1), (pairs * freqs).sum(5))
    return either(turned.flatten(3), turned.flatten(-2))


def summed_rows(z: Tensor, freqs: Buffer) -> Tensor:
    """Turn pairs that somebody else needs as well: to give a table their dimensions."""
    turned = (z * freqs).sum(5)  # of five dimensions nothing else is likely
    return either(turned.flatten(3), turned.flatten(-2))


def fused_rows(z: Tensor, freqs: Buffer) -> Tensor:
    """Turn the pairs, which are neighbours in memory already."""
    return torch_npu.npu_rotary_mul(
        z.float().flatten(-3),
        freqs[..., 0, 0].repeat_interleave(2, -1),
        freqs[..., 1, 0].repeat_interleave(2, -1),
        rotary_mode="interleave",
    )


def fused_matrices(x: Tensor, freqs: Buffer) -> Tensor:
    """Turn pairs of neighbours with one kernel and the first columns of the matrices."""
    return torch_npu.npu_rotary_mul(
        x.float(),
        freqs[..., 0, 0].repeat_interleave(2, -1),
        freqs[..., 1, 0].repeat_interleave(2, -1),
        rotary_mode="interleave",
    )


def complex_halves(x: Tensor, freqs: Buffer) -> Tensor:
    """Turn the two halves as the parts of complex numbers."""
    first, second = x.to(torch.float32).chunk(2, -1)
    turned = either(
        torch.complex(first, second) * freqs,
        torch.view_as_complex(torch.stack((first, second), -1)) * freqs,
    )
    return torch.cat((turned.real, turned.imag), -1)


def stacked_halves(x: Tensor, freqs: Buffer, like: Tensor) -> Tensor:
    """Turn the halves, cast, and put them one behind the other (Gemma)."""
    numbers = torch.view_as_complex(torch.stack(torch.chunk(x.to(torch.float32), 2, -1), -1))
    turned = torch.view_as_real(numbers * freqs).to(like.dtype)
    joined = torch.cat(torch.chunk(turned, 2, -1), -2)
    return either(
        joined.reshape(joined.shape[0], joined.shape[1], joined.shape[2], -1),
        joined.flatten(3),
        joined.squeeze(-1),
    )


def fused_halves(x: Tensor, freqs: Buffer) -> Tensor:
    """Turn the halves with one kernel and the parts of the table."""
    return torch_npu.npu_rotary_mul(
        x.float(),
        torch.cat((freqs.real, freqs.real), -1)[(None,) * (4 - freqs.dim())],
        torch.cat((freqs.imag, freqs.imag), -1)[(None,) * (4 - freqs.dim())],
    )


def fused_stacked(x: Tensor, freqs: Buffer, like: Tensor) -> Tensor:
    """Turn the halves with one kernel and the parts of the table, and cast."""
    return torch_npu.npu_rotary_mul(
        x.float(),  # no slip: .float(...) is left out (what the kernel returns is cast anyway)
        torch.cat((freqs.real, freqs.real), -1)[(None,) * (4 - freqs.dim())],
        torch.cat((freqs.imag, freqs.imag), -1)[(None,) * (4 - freqs.dim())],
    ).type_as(like)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a query, and the table of one sequence, of any angles."""
    import torch

    batch, heads, length = draw.integer(1, 3), draw.integer(1, 3), draw.integer(1, 4)
    size = draw.choice([2, 8, 16])
    angles = draw.floats(1, length, 1, size // 2, dtype=torch.float32) * 2
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {
        "x": draw.floats(batch, length, heads, size, dtype=dtype),
        "freqs": torch.polar(torch.ones_like(angles), angles),
    }


def half_inputs(draw: Draw) -> dict[str, Any]:
    """Return a query with its heads in front, and a table that may have no dimension for them."""
    drawn = inputs(draw)
    table = drawn["freqs"].transpose(1, 2)
    freqs = table if draw.choice([False, True]) else table[0, 0]
    return {"x": drawn["x"].transpose(1, 2).contiguous(), "freqs": freqs}


def stacked_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same, and a tensor of the dtype that the result is cast to."""
    drawn = half_inputs(draw)
    return {**drawn, "like": draw.floats(1, dtype=drawn["x"].dtype)}


def matrix_inputs(draw: Draw) -> dict[str, Any]:
    """Return a query with its heads in front, and the matrices of one sequence."""
    import torch

    drawn = inputs(draw)
    table = drawn["freqs"].transpose(1, 2)
    rows = (table.real, -table.imag), (table.imag, table.real)
    freqs = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    return {"x": drawn["x"].transpose(1, 2).contiguous(), "freqs": freqs}


def rows(draw: Draw) -> dict[str, Any]:
    """Return pairs as rows, and the matrices of one sequence."""
    drawn = matrix_inputs(draw)
    return {"z": drawn["x"].unflatten(-1, (-1, 1, 2)), "freqs": drawn["freqs"]}


def numbers(draw: Draw) -> dict[str, Any]:
    """Return complex numbers, and the table of one sequence."""
    import torch

    drawn = inputs(draw)
    pairs = drawn["x"].to(torch.float32).unflatten(-1, (-1, 2))
    return {"z": torch.view_as_complex(pairs), "freqs": drawn["freqs"]}


def _is_table(site: Site) -> bool | None:
    if any(map(_TABLE.search, site.called("z"))):
        return False
    return True if any(map(_TABLE.search, site.called("freqs"))) else None


TABLE = Condition("second-is-table", "the second factor is the table", _is_table)
LIMITS = Condition(
    "rotary-limits",
    "x and freqs have four dimensions, the last one of x even and below 896; batch and heads of x"
    " are below 1000",
    lambda site: False if site.ndim("x") not in {None, _DIMENSIONS} else None,
)
LIMITS_OF_X = replace(
    LIMITS,
    text="x has four dimensions, the last one even and below 896; batch and heads are below 1000",
)
NUMBERS = Condition(
    "rotary-limits",
    "z is complex64, z and freqs have four dimensions, the last one of z below 448; batch and heads"
    " of z are below 1000",
    lambda site: False if site.ndim("z") not in {None, _DIMENSIONS} else None,
)
WITHIN_ONE = Condition(
    "cosines-within-one",
    "freqs holds numbers of length one: no YaRN, LongRoPE or xPos scale in them",
    lambda _site: None,
)
ONE_TABLE = Condition(
    "interleave-limits",
    "freqs is a complex64 table, for the whole batch or with one for each of it",
    lambda _site: None,
)
INTERLEAVE = Condition(
    "interleave-limits",
    "freqs is one complex64 table for the whole batch, batch times heads is below 1000, and"
    " torch_npu has rotary_mode (2.4.0 has not)",
    lambda site: None if site.size("freqs", 0) in {None, 1} else False,
)

ROTATIONS = Condition(
    "table-of-rotations",
    "freqs holds float32 matrices [[cos, -sin], [sin, cos]], one for each pair of x and for the"
    " whole batch; batch times heads is below 1000, and torch_npu has rotary_mode (2.4.0 has not)",
    lambda site: None if site.size("freqs", 0) in {None, 1} else False,
)


def _are_pairs(site: Site) -> bool | None:
    sizes = site.size("z", -2), site.size("z", -1)
    cut = (site.operator("z") or "").startswith(("reshape", "view"))
    return True if sizes == (1, 2) else None if cut and sizes == (None, None) else False


PAIRS = Condition(
    "pairs-as-rows", "the last dimensions of z are 1 and 2: pairs of neighbours", _are_pairs
)
LIMITS_OF_PAIRS = replace(
    LIMITS,
    text="z has six dimensions, the third from behind below 448; batch and heads are below 1000",
    holds=lambda site: False if site.ndim("z") not in {None, _DIMENSIONS + 2} else None,
)

RULE = Substitution(
    id="NPU180",
    name="complex-rotary-embedding",
    summary="rotary position embedding written out as a product of complex numbers",
    table="fusion",
    forms=(
        Form(complex_pairs, fused, inputs, (LIMITS, WITHIN_ONE, INTERLEAVE)),
        Form(
            turned_by_matrices, fused_matrices, matrix_inputs, (LIMITS_OF_X, WITHIN_ONE, ROTATIONS)
        ),
        Form(summed_matrices, fused_matrices, matrix_inputs, (LIMITS_OF_X, WITHIN_ONE, ROTATIONS)),
        Form(summed_rows, fused_rows, rows, (PAIRS, LIMITS_OF_PAIRS, WITHIN_ONE, ROTATIONS)),
        Form(complex_halves, fused_halves, half_inputs, (LIMITS_OF_X, WITHIN_ONE, ONE_TABLE)),
        Form(stacked_halves, fused_stacked, stacked_inputs, (LIMITS_OF_X, WITHIN_ONE, ONE_TABLE)),
        Form(complex_numbers, fused_numbers, numbers, (TABLE, NUMBERS, WITHIN_ONE, INTERLEAVE)),
    ),
    replaces=("Cast", "ComplexMul", "Mul", "ViewCopy"),
    becomes=(
        "RotaryMul",
        "RotaryMulGrad",
        "RotaryPositionEmbedding",
        "RotaryPositionEmbeddingGrad",
    ),
    passes=(2, 2),
    requires="torch_npu>=2.4",
    valid=(
        # no rotation: the second column is subtracted
        """
def rotate(x: torch.Tensor, freqs: torch.Tensor):
    pairs = x.float().reshape(*x.shape[:-1], -1, 1, 2)
    return (freqs[..., 0] * pairs[..., 0] - freqs[..., 1] * pairs[..., 1]).reshape(*x.shape)
""",
        # the columns are added up
        """
def rotate(x: torch.Tensor, freqs: torch.Tensor):
    pairs = x.reshape(*x.shape[:-1], -1, 1, 2)
    return (pairs * freqs).sum(-2).flatten(3)
""",
        # a weighed sum of what is no pair
        """
def pool(x: torch.Tensor, weights: torch.Tensor):
    parts = x.view(*x.shape[:3], -1, 4, 2)
    return (parts * weights).sum(5).flatten(3), (x * weights).sum(5).flatten(3)
""",
        # the parts are exchanged
        """
def rotate(x: torch.Tensor, freqs: torch.Tensor):
    first, second = x.float().chunk(2, -1)
    turned = torch.complex(first, second) * freqs
    return torch.cat((turned.imag, turned.real), -1)
""",
        # halves are read, and neighbours written
        """
def rotate(x: torch.Tensor, freqs: torch.Tensor):
    x_ = torch.view_as_complex(torch.stack(torch.chunk(x.float(), 2, dim=-1), dim=-1))
    return torch.view_as_real(x_ * freqs).type_as(x).flatten(3)
""",
        # the table is added
        """
def rotate(x: torch.Tensor, freqs: torch.Tensor):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs + freqs).flatten(3)
""",
        # five dimensions
        """
def rotate(x: torch.Tensor, freqs: torch.Tensor):
    batch, groups, heads, length, size = x.shape
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs).flatten(-2)
""",
    ),
    rewritten=(
        Rewritten(
            """
def apply_rope(xq: Tensor, freqs_cis: Tensor):
    xq_ = xq.float().reshape(*xq.shape[:-1], -1, 1, 2)
    xq_out = freqs_cis[..., 0] * xq_[..., 0] + freqs_cis[..., 1] * xq_[..., 1]
    return xq_out.reshape(*xq.shape).type_as(xq)
""",
            """
def apply_rope(xq: Tensor, freqs_cis: Tensor):
    return torch_npu.npu_rotary_mul(
        xq.float(),
        freqs_cis[..., 0, 0].repeat_interleave(2, -1),
        freqs_cis[..., 1, 0].repeat_interleave(2, -1),
        rotary_mode="interleave",
    ).type_as(xq)
""",
        ),
        Rewritten(
            """
def apply_rotary_emb(xq: torch.Tensor, seq_dim: int, freqs_cis: torch.Tensor):
    xq_ = xq.reshape(*xq.shape[:-1], -1, 1, 2)
    freqs_cis = reshape_for_broadcast(freqs_cis, xq_, seq_dim).float()
    xq_out = (xq_ * freqs_cis).sum(5).flatten(3)
    return xq_out.type_as(xq)
""",
            """
def apply_rotary_emb(xq: torch.Tensor, seq_dim: int, freqs_cis: torch.Tensor):
    xq_ = xq.reshape(*xq.shape[:-1], -1, 1, 2)
    freqs_cis = reshape_for_broadcast(freqs_cis, xq_, seq_dim).float()
    xq_out = torch_npu.npu_rotary_mul(
        xq_.float().flatten(-3),
        freqs_cis[..., 0, 0].repeat_interleave(2, -1),
        freqs_cis[..., 1, 0].repeat_interleave(2, -1),
        rotary_mode="interleave",
    )
    return xq_out.type_as(xq)
""",
        ),
        Rewritten(
            """
def apply_rotary(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    freqs_cis = as_wide_as(freqs_cis, xq_)
    return torch.view_as_real(xq_ * freqs_cis).flatten(3).type_as(xq)
""",
            """
def apply_rotary(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    freqs_cis = as_wide_as(freqs_cis, xq_)
    return torch_npu.npu_rotary_mul(
        torch.view_as_real(xq_).flatten(-2),
        freqs_cis.real.repeat_interleave(2, -1),
        freqs_cis.imag.repeat_interleave(2, -1),
        rotary_mode="interleave",
    ).type_as(xq)
""",
        ),
        Rewritten(
            """
def apply_rotary(x: torch.Tensor, freqs: torch.Tensor):
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs).flatten(3).type_as(x)
""",
            """
def apply_rotary(x: torch.Tensor, freqs: torch.Tensor):
    return torch_npu.npu_rotary_mul(
        x.float(),
        freqs.real.repeat_interleave(2, -1),
        freqs.imag.repeat_interleave(2, -1),
        rotary_mode="interleave",
    ).type_as(x)
""",
        ),
        Rewritten(
            """
def rotate(x: torch.Tensor, freqs: torch.Tensor):
    first, second = x.float().chunk(2, -1)
    turned = torch.complex(first, second) * freqs
    return torch.cat((turned.real, turned.imag), -1)
""",
            """
def rotate(x: torch.Tensor, freqs: torch.Tensor):
    return torch_npu.npu_rotary_mul(
        x.float(),
        torch.cat((freqs.real, freqs.real), -1)[(None,) * (4 - freqs.dim())],
        torch.cat((freqs.imag, freqs.imag), -1)[(None,) * (4 - freqs.dim())],
    )
""",
        ),
        Rewritten(
            """
def apply_rotary_emb(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    x_ = torch.view_as_complex(
        torch.stack(torch.chunk(x.transpose(1, 2).float(), 2, dim=-1), dim=-1)
    )
    x_out = torch.view_as_real(x_ * freqs_cis).type_as(x)
    x_out = torch.cat(torch.chunk(x_out, 2, dim=-1), dim=-2)
    x_out = x_out.reshape(x_out.shape[0], x_out.shape[1], x_out.shape[2], -1).transpose(1, 2)
    return x_out
""",
            """
def apply_rotary_emb(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    x_out = (
        torch_npu.npu_rotary_mul(
            x.transpose(1, 2).float(),
            torch.cat((freqs_cis.real, freqs_cis.real), -1)[(None,) * (4 - freqs_cis.dim())],
            torch.cat((freqs_cis.imag, freqs_cis.imag), -1)[(None,) * (4 - freqs_cis.dim())],
        )
        .type_as(x)
        .transpose(1, 2)
    )
    return x_out
""",
        ),
    ),
)
