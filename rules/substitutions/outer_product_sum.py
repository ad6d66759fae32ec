"""A matrix product written as a broadcast product and a sum.

What: ``(a[..., None] * b[:, None]).sum(dim=2)`` multiplies every entry of a batch of matrices ``a``
by every row of ``b`` and adds up: ``torch.matmul(a, b)``. So does ``(a[:, :, None] * b[:, None]).sum(-1)``
with every row of both: ``torch.matmul(a, b.transpose(1, 2))``.

Why it is slow on the NPU: the product of every row with every column is written to memory, as large
as both matrices multiplied, read again for the sum, and kept for the backward pass. The Cube unit
multiplies the matrices without it.

Safety: the same sum in another order; in half precision the Cube unit adds up in float32, where the
products were rounded first. Both operands have one dtype (condition ``same-dtype``): the product
would promote them, ``matmul`` does not. Broadcasting would let a row of one entry stand for many
(condition ``matrices-that-fit``).

References: SparseDrive in Ascend DrivingSDK, whose port multiplies matrices; torch.matmul.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Rewritten,
    Site,
    Substitution,
    all_hold,
    either,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def batches(a: Tensor, b: Tensor) -> Tensor:
    """Multiply entries of batches of matrices by rows of others."""
    return either(
        (a[..., None] * b[:, None]).sum(either(2, -2)),
        (a.unsqueeze(-1) * b.unsqueeze(1)).sum(either(2, -2)),
        (a.unsqueeze(3) * b.unsqueeze(1)).sum(either(2, -2)),
        (a[:, :, :, None] * b[:, None]).sum(either(2, -2)),
        (a[:, :, :, None] * b[:, None, :, :]).sum(either(2, -2)),
    )


def matrices(a: Tensor, b: Tensor) -> Tensor:
    """Multiply entries of a matrix by rows of another."""
    return either(
        (a[..., None] * b[None]).sum(either(1, -2)),
        (a[:, :, None] * b[None]).sum(either(1, -2)),
        (a[:, :, None] * b[None, :, :]).sum(either(1, -2)),
        (a.unsqueeze(-1) * b.unsqueeze(0)).sum(either(1, -2)),
        (a.unsqueeze(2) * b.unsqueeze(0)).sum(either(1, -2)),
    )


def rows(a: Tensor, b: Tensor) -> Tensor:
    """Multiply rows of batches of matrices by rows of others."""
    return either(
        (a.unsqueeze(2) * b.unsqueeze(1)).sum(either(3, -1)),
        (a.unsqueeze(-2) * b.unsqueeze(1)).sum(either(3, -1)),
        (a.unsqueeze(2) * b[:, None, :, :]).sum(either(3, -1)),
        (a[:, :, None, :] * b[:, None, :, :]).sum(either(3, -1)),
    )


def product_of_rows(a: Tensor, b: Tensor) -> Tensor:
    """Multiply by the matrices lying the other way."""
    return torch.matmul(a, b.transpose(1, 2))


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply the matrices."""
    return torch.matmul(a, b)


def product_of_mask(a: Tensor, b: Tensor) -> Tensor:
    """Multiply the matrices; a mask, which the left one may be, counts as zeros and ones."""
    return torch.matmul(a.to(b.dtype), b)


def mask_inputs(draw: Draw) -> dict[str, Any]:
    """Return batches of masks and of matrices that fit."""
    drawn = batch_inputs(draw)
    return {**drawn, "a": draw.booleans(*drawn["a"].shape)}


def mask_matrix_inputs(draw: Draw) -> dict[str, Any]:
    """Return a mask and a matrix that fit."""
    drawn = mask_inputs(draw)
    return {name: value[0] for name, value in drawn.items()}


def batch_inputs(draw: Draw) -> dict[str, Any]:
    """Return two batches of matrices that fit."""
    import torch

    batch, rows, depth, columns = (draw.integer(2, 4) for _ in range(4))
    return {
        "a": draw.floats(batch, rows, depth, dtype=torch.float32).abs(),
        "b": draw.floats(batch, depth, columns, dtype=torch.float32).abs(),
    }


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return two batches of rows of one length."""
    drawn = batch_inputs(draw)
    return {**drawn, "b": drawn["b"].transpose(1, 2).contiguous()}


def matrix_inputs(draw: Draw) -> dict[str, Any]:
    """Return two matrices that fit."""
    drawn = batch_inputs(draw)
    return {name: value[0] for name, value in drawn.items()}


def _are(ndim: int, site: Site) -> bool | None:
    found = site.ndim("a"), site.ndim("b")
    return all_hold(None if rank is None else rank == ndim for rank in found)


def _is_mask(site: Site) -> bool | None:
    if site.is_bool_tensor("a") or site.same_dtype("a", "b"):
        return True
    return False if {site.dtype("a"), site.dtype("b")} - {None} else None


BATCHES = Condition(
    "batches-of-matrices",
    "both operands have three dimensions",
    lambda site: _are(3, site),
)
MATRICES = Condition("matrix-factors", "both operands are matrices", lambda site: _are(2, site))
FIT = Condition(
    "matrices-that-fit",
    "the left matrices have as many columns as the right ones rows: nothing is broadcast",
    lambda site: None,  # noqa: ARG005 - a source does not tell
)
FIT_ROWS = Condition(
    "matrices-that-fit",
    "the rows of both operands are of one length: nothing is broadcast",
    lambda site: None,  # noqa: ARG005 - a source does not tell
)
SAME_DTYPE = Condition(
    "same-dtype",
    "both operands are floating point tensors of one dtype",
    lambda site: site.same_dtype("a", "b") or False,
)
MASK = Condition(
    "mask-or-same-dtype",
    "the left operand is a tensor of dtype bool, or has the dtype of the right one",
    _is_mask,
)

RULE = Substitution(
    id="NPU266",
    name="outer-product-sum",
    summary="a matrix product written as a broadcast product and a sum",
    table="affinity",
    forms=(
        Form(batches, product, batch_inputs, (BATCHES, FIT, SAME_DTYPE)),
        Form(matrices, product, matrix_inputs, (MATRICES, FIT, SAME_DTYPE)),
        Form(rows, product_of_rows, row_inputs, (BATCHES, FIT_ROWS, SAME_DTYPE)),
        Form(batches, product_of_mask, mask_inputs, (MASK, BATCHES, FIT)),
        Form(matrices, product_of_mask, mask_matrix_inputs, (MASK, MATRICES, FIT)),
    ),
    replaces=("Mul", "ReduceSum", "BroadcastTo"),
    becomes=("BatchMatMulV2", "BatchMatMulV3", "MatMulV2", "MatMulV3"),
    passes=(0.5, 1),
    requires="torch_npu>=2.1",
    floats_only=True,
    valid=(
        # more dimensions
        """
def f(a: torch.Tensor, b: torch.Tensor):
    a, b = a.view(2, 3, 4, 5), b.view(2, 5, 6)
    return (a[..., None] * b[:, None]).sum(dim=2)
""",
        # summed over the rows
        """
def f(a: torch.Tensor, b: torch.Tensor):
    return (a[..., None] * b[:, None]).sum(dim=1)
""",
        # a sum of sums
        """
def f(a: torch.Tensor, b: torch.Tensor):
    return (a[..., None] + b[:, None]).sum(dim=2)
""",
        # the products are needed
        """
def f(a: torch.Tensor, b: torch.Tensor):
    outer = a[..., None] * b[:, None]
    return outer.sum(dim=2), outer
""",
    ),
    rewritten=(
        Rewritten(
            """
def similarity(queries: torch.Tensor, keys: torch.Tensor):
    keys = keys.to(queries.dtype)
    return (queries[:, :, None] * keys[:, None]).sum(-1)
""",
            """
def similarity(queries: torch.Tensor, keys: torch.Tensor):
    keys = keys.to(queries.dtype)
    return torch.matmul(queries, keys.transpose(1, 2))
""",
        ),
        Rewritten(
            """
def match(logits: torch.Tensor, values: torch.Tensor):
    weights = logits.to(values.dtype)
    return (weights[..., None] * values[:, None]).sum(dim=2)
""",
            """
def match(logits: torch.Tensor, values: torch.Tensor):
    weights = logits.to(values.dtype)
    return torch.matmul(weights, values)
""",
        ),
        Rewritten(
            """
def carry(ids: torch.Tensor, others: torch.Tensor, features: torch.Tensor):
    match = ids[..., None] == others[:, None]
    return (match[..., None] * features[:, None]).sum(dim=2)
""",
            """
def carry(ids: torch.Tensor, others: torch.Tensor, features: torch.Tensor):
    match = ids[..., None] == others[:, None]
    return torch.matmul(match.to(features.dtype), features)
""",
        ),
        Rewritten(
            """
def mix(a: torch.Tensor, b: torch.Tensor):
    mixed = torch.sum(a.unsqueeze(-1) * b.unsqueeze(0), dim=1)
    return mixed
""",
            """
def mix(a: torch.Tensor, b: torch.Tensor):
    mixed = torch.matmul(a.to(b.dtype), b)
    return mixed
""",
        ),
    ),
)
