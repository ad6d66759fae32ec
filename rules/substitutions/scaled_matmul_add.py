"""A matrix product that is scaled and added to a scaled matrix.

What: ``beta * c + alpha * (a @ b)``.

Why it is slow on the NPU: the product is written, scaled, and read once more for the sum: MatMul, two
Mul and an Add. ``torch.addmm`` scales and adds where the product is made.

Safety: the product is no longer rounded before it is scaled and added. ``a`` and ``b`` must be
matrices, and ``c`` at most as large as the product (a larger one would repeat it). With a ``beta`` of
0 ``addmm`` does not look at ``c`` at all, so NaN in it would vanish: a literal 0 is left alone.

References: fusion rules of the advisor of msprof-analyze (CANN 8.0.RC1 and newer); torch.addmm.
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
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MATRIX = 2


def both_scaled(a: Tensor, b: Tensor, c: Tensor, alpha: float, literal_beta: float) -> Tensor:
    """Scale, then add."""
    return literal_beta * c + alpha * (a @ b)


def product_scaled(a: Tensor, b: Tensor, c: Tensor, alpha: float) -> Tensor:
    """Scale the product, then add."""
    return c + alpha * (a @ b)


def addend_scaled(a: Tensor, b: Tensor, c: Tensor, literal_beta: float) -> Tensor:
    """Scale the matrix, then add."""
    return literal_beta * c + a @ b


def factor_scaled(a: Tensor, b: Tensor, c: Tensor, literal_alpha: float) -> Tensor:
    """Scale one factor of the product, then add."""
    return c + (literal_alpha * a) @ b


def both_by_factor(
    a: Tensor, b: Tensor, c: Tensor, literal_alpha: float, literal_beta: float
) -> Tensor:
    """Scale the matrix and one factor of the product, then add."""
    return literal_beta * c + (literal_alpha * a) @ b


def addmm_factor(a: Tensor, b: Tensor, c: Tensor, literal_alpha: float) -> Tensor:
    """Scale and add where the product is made."""
    return torch.addmm(c, a, b, alpha=literal_alpha)


def addmm_factors(
    a: Tensor, b: Tensor, c: Tensor, literal_alpha: float, literal_beta: float
) -> Tensor:
    """Scale and add where the product is made."""
    return torch.addmm(c, a, b, beta=literal_beta, alpha=literal_alpha)


def addmm(a: Tensor, b: Tensor, c: Tensor, alpha: float, literal_beta: float) -> Tensor:
    """Scale and add where the product is made."""
    return torch.addmm(c, a, b, beta=literal_beta, alpha=alpha)


def addmm_alpha(a: Tensor, b: Tensor, c: Tensor, alpha: float) -> Tensor:
    """Scale and add where the product is made."""
    return torch.addmm(c, a, b, alpha=alpha)


def addmm_beta(a: Tensor, b: Tensor, c: Tensor, literal_beta: float) -> Tensor:
    """Add where the product is made."""
    return torch.addmm(c, a, b, beta=literal_beta)


def _matrices(draw: Draw) -> dict[str, Any]:
    import torch

    rows, depth, columns = draw.integer(2, 5), draw.integer(2, 6), draw.integer(3, 5)
    dtype = draw.choice([torch.float32, torch.bfloat16])
    return {
        "a": draw.floats(rows, depth, dtype=dtype),
        "b": draw.floats(depth, columns, dtype=dtype),
        # So large that the sum does not cancel out: then rounding would be all that is left.
        "c": draw.floats(*draw.choice([(rows, columns), (columns,), (1, columns)]), dtype=dtype)
        + 8,
    }


def alpha_inputs(draw: Draw) -> dict[str, Any]:
    """Return matrices, a matrix or row to add, and a factor of either sign."""
    return {**_matrices(draw), "alpha": draw.choice([0.5, -2.0, 1])}


def beta_inputs(draw: Draw) -> dict[str, Any]:
    """Return matrices, a matrix or row to add, and its factor."""
    return {**_matrices(draw), "literal_beta": draw.choice([0.75, -1.5, 2])}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return matrices, a matrix or row to add, and both factors."""
    return {**alpha_inputs(draw), "literal_beta": draw.choice([0.75, -1.5, 2])}


def factor_inputs(draw: Draw) -> dict[str, Any]:
    """Return matrices, a matrix or row to add, and a factor of either sign."""
    return {**_matrices(draw), "literal_alpha": draw.choice([0.5, -2.0, 1.5])}


def factors_inputs(draw: Draw) -> dict[str, Any]:
    """Return matrices, a matrix or row to add, and both factors."""
    return {**factor_inputs(draw), "literal_beta": draw.choice([0.75, -1.5, 2])}


def _are_matrices(site: Site) -> bool | None:
    ranks = site.ndim("a"), site.ndim("b")
    if None in ranks and any(map(site.may_be_batch, "ab")):
        return False
    if max(map(site.least_ndim, "ab")) > _MATRIX:
        return False
    return all_hold(None if rank is None else rank == _MATRIX for rank in ranks)


def _fits(site: Site) -> bool | None:
    """Tell whether the sum is as large as the product."""
    ndim = site.ndim("c")
    if site.is_tensor("c") is False or (ndim is not None and ndim > _MATRIX):
        return False
    own, product = site.size("c", -1), site.size("b", 1)
    if ndim is None or own is None or product is None or own != product:
        return None
    rows = site.size("a", 0)
    return True if ndim == 1 or (rows is not None and site.size("c", 0) in {1, rows}) else None


def _one_dtype(site: Site) -> bool | None:
    return all_hold([site.same_dtype("a", "b"), site.same_dtype("a", "c")])


def _is_factor(site: Site) -> bool | None:
    return (
        False if site.literal("alpha") == 0 or site.is_tensor("alpha") else site.is_number("alpha")
    )


def _is_plain_alpha(site: Site) -> bool:
    alpha = site.literal("literal_alpha")
    return isinstance(alpha, (int, float)) and not isinstance(alpha, bool) and alpha != 0


def _is_plain_beta(site: Site) -> bool:
    # Of ``x * y`` only a literal tells which one is the factor.
    beta = site.literal("literal_beta")
    return isinstance(beta, (int, float)) and not isinstance(beta, bool) and beta != 0


CONDITIONS = (
    Condition("matrix-factors", "both factors of the product are matrices", _are_matrices),
    Condition("addend-fits", "what is added is at most as large as the product", _fits),
    # Under autocast the product is in half precision and the sum in float32.
    Condition("same-dtype", "all three tensors have the same dtype", _one_dtype),
)
ALPHA = Condition("number-alpha", "alpha is a Python number and not 0", _is_factor)
FACTOR = Condition("number-alpha", "alpha is a literal number and not 0", _is_plain_alpha)
BETA = Condition("number-beta", "beta is a literal number and not 0", _is_plain_beta)

RULE = Substitution(
    id="NPU115",
    name="scaled-matmul-add",
    summary="a matrix product that is scaled and added in kernels of their own",
    table="fusion",
    forms=(
        Form(both_by_factor, addmm_factors, factors_inputs, (*CONDITIONS, FACTOR, BETA)),
        Form(factor_scaled, addmm_factor, factor_inputs, (*CONDITIONS, FACTOR)),
        Form(both_scaled, addmm, inputs, (*CONDITIONS, ALPHA, BETA)),
        Form(product_scaled, addmm_alpha, alpha_inputs, (*CONDITIONS, ALPHA)),
        Form(addend_scaled, addmm_beta, beta_inputs, (*CONDITIONS, BETA)),
    ),
    replaces=("Add", "Axpy", "MatMul", "MatMulV2", "MatMulV3", "Mul", "Muls"),
    becomes=("MatMulV2", "MatMulV3"),
    passes=(1, 1),
    needs_whole=True,
    requires="torch_npu>=2.1",
    valid=(
        # no product of matrices
        """
def f(a, b, c, alpha: float, literal_beta: float):
    return literal_beta * c + alpha * (a * b)
""",
        # batches
        """
def f(a, b, c):
    n, k, m = a.shape
    return 0.5 * c + 2.0 * (a @ b)
""",
        # an addend of four dimensions
        """
def f(a, n: int):
    ones = torch.eye(n, dtype=a.dtype, device=a.device).unsqueeze(0).unsqueeze(0)
    return a.transpose(-2, -1) @ a + 1e-6 * ones
""",
        # batches, as the code counts its dimensions from the end
        """
def orthogonalise(x):
    a = x @ x.mT
    return 2.0 * a + 0.5 * (a @ a)


def project(a, b, c):
    if a.size(-2) > a.size(-1):
        c = c * 2
    return 2.0 * c + a @ b
""",
        # a transpose of the second dimension and the third
        """
def likelihood(z, s, c):
    return c + torch.matmul(-0.5 * (z**2).transpose(1, 2), s)
""",
        # NaN in c would vanish
        """
def f(a, b, c):
    return 0.0 * c + a @ b
""",
        # a factor per row
        """
def f(a, b, c, scale: torch.Tensor):
    return c + scale * (a @ b)
""",
    ),
    rewritten=(
        Rewritten(
            """
def update(weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float):
    return weight + scale * (up @ down)
""",
            """
def update(weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float):
    return torch.addmm(weight, up, down, alpha=scale)
""",
        ),
        Rewritten(
            """
def polynomial(x: torch.Tensor):
    rows, columns = x.shape
    a = x @ x
    return 2.5 * a + 0.5 * a @ x
""",
            """
def polynomial(x: torch.Tensor):
    rows, columns = x.shape
    a = x @ x
    return torch.addmm(a, a, x, beta=2.5, alpha=0.5)
""",
        ),
        Rewritten(
            """
def mixed(a, b, c):
    product = torch.mm(a, b)
    return 0.9 * c + 0.1 * product
""",
            """
def mixed(a, b, c):
    return torch.addmm(c, a, b, beta=0.9, alpha=0.1)
""",
        ),
    ),
)
