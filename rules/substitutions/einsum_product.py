"""A matrix product written as an einsum.

What: ``torch.einsum("bnqd,bnkd->bnqk", q, k)`` and any other equation of two operands with one index
that is added up, where each operand has an index of its own; one matrix for a whole batch, as in
graph convolutions; images whose channels are weighed, as in the masks of MaskFormer. Indices that lie
together everywhere count as one: ``sec,sm->ecm`` and ``sec,ecm->sm`` of tokens that go to experts and
back, ``bshc,btc->bsht`` of all heads and one key. Matrices times vectors (``bij,bj->bi``), and three
operands, ``bij,bjk,bkl->bil``, from left to right. Operands and results that lie the other way are
turned, as einsum turns them, and what only one operand has is added up first, as einsum does. The einsum of einops, whose equation comes last,
and ``contract`` of opt_einsum, too.

Why it is slow on the NPU: einsum turns and folds both operands in several calls of the host;
``matmul`` is one call. The device computes as much: one batched product, of one batch where a matrix
is shared by all. So it saves time of the host alone (condition ``host-bound``).

Safety: the same products and sums. einsum lets an index that is added up have the length one in one
operand and any in the other, which ``matmul`` refuses with an error (but two of them, taken as one,
where it is the first in one operand and the second in the other, of the same length).

References: torch.einsum; torch.matmul; ST-GCN; MaskFormer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def scores(a: Tensor, b: Tensor) -> Tensor:
    """Multiply rows by rows in batches."""
    return torch.einsum("bqd,bkd->bqk", a, b)


def rows_by_rows(a: Tensor, b: Tensor) -> Tensor:
    """Multiply by the matrices lying the other way."""
    return torch.matmul(a, b.transpose(-2, -1))


def masks(a: Tensor, b: Tensor) -> Tensor:
    """Weigh the channels of images."""
    return torch.einsum("bqc,bchw->bqhw", a, b)


def pixels_as_columns(a: Tensor, b: Tensor) -> Tensor:
    """Take the pixels as the columns of a matrix."""
    product = torch.matmul(a, b.flatten(2))
    return product.reshape(*product.shape[:2], *b.shape[2:])


def graph(a: Tensor, b: Tensor) -> Tensor:
    """Multiply all rows by one matrix."""
    return torch.einsum("nctv,vw->nctw", a, b)


def one_matrix(a: Tensor, b: Tensor) -> Tensor:
    """Multiply by the matrix."""
    return torch.matmul(a, b)


def _drawn(draw: Draw, first: str, second: str) -> dict[str, Any]:
    import torch

    lengths = {i: draw.integer(2, 4) for i in dict.fromkeys(first + second)}
    dtype = draw.choice([torch.float32, torch.bfloat16])
    a, b = ([lengths[i] for i in part] for part in (first, second))
    return {"a": draw.floats(*a, dtype=dtype).abs(), "b": draw.floats(*b, dtype=dtype).abs()}


def score_inputs(draw: Draw) -> dict[str, Any]:
    """Return two batches of rows."""
    return _drawn(draw, "bqd", "bkd")


def mask_inputs(draw: Draw) -> dict[str, Any]:
    """Return weights and images."""
    return _drawn(draw, "bqc", "bchw")


def graph_inputs(draw: Draw) -> dict[str, Any]:
    """Return features of the nodes of a graph, and its matrix."""
    return _drawn(draw, "nctv", "vw")


HOST_BOUND = Condition(
    "host-bound",
    "the calls of the host count here: einsum launches a product of the same size after them",
    unknown,
    time_alone=True,
)

RULE = Substitution(
    id="NPU265",
    name="einsum-product",
    summary="a matrix product written as an einsum",
    table="affinity",
    forms=(
        Form(scores, rows_by_rows, score_inputs, (HOST_BOUND,)),
        Form(masks, pixels_as_columns, mask_inputs, (HOST_BOUND,)),
        Form(graph, one_matrix, graph_inputs, (HOST_BOUND,)),
    ),
    search="einsum-products",
    replaces=("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Transpose"),
    becomes=("BatchMatMulV2", "BatchMatMulV3", "MatMulV2", "MatMulV3"),
    passes=(1, 1),
    requires="torch_npu>=2.1",
    valid=(
        # the fused kernel takes both
        """
class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale + bias
        return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)
""",
        # outer products, and sums of one operand
        """
def f(a: torch.Tensor, b: torch.Tensor):
    return torch.einsum("i,j->ij", a, b), torch.einsum("bii->b", a)
""",
        # all keys of a sequence would be copied for each query
        """
def f(q: torch.Tensor, k: torch.Tensor):
    return torch.einsum("sbhd,tbd->sbht", q, k)
""",
        # three operands that are no chain
        """
def f(a, b, c):
    return torch.einsum("bij,bij,bkl->bil", a, b, c)
""",
        # arrays
        """
import numpy as np
from opt_einsum import contract


def f(n):
    return contract("ij,jk->ik", np.ones((n, n)), np.ones((n, n)))
""",
        # of einops, axes of which the names say more
        """
from einops import einsum


def f(a, b):
    return einsum(a, b, "... (h i) d, ... d e -> ... (h i) e")
""",
        # complex numbers, going by what is done with them
        """
def f(x):
    return torch.einsum("bct,bet->bce", x, x.conj())
""",
        # nothing is added up
        """
def f(a, b):
    return torch.einsum("bchw,bc->bchw", a, b)
""",
        # a result that would be turned by a number of dimensions that nobody knows
        """
def f(weights: torch.Tensor, values: torch.Tensor):
    return torch.einsum("...hqk,...hkc->...qhc", weights, values)
""",
        # two that are added up, in another order in each batch
        """
def f(a, b):
    return torch.einsum("ngcp,gpcd->ngd", a, b)
""",
        # attention, which one kernel computes, and a result that would have to be turned
        """
def f(q, k, v):
    weights = torch.einsum("blhe,bshe->bhls", q, k).softmax(dim=-1)
    return torch.einsum("bhls,bshd->blhd", weights, v)
""",
        # turning an image would copy it
        """
def f(x, w):
    return torch.einsum("bchw,oc->bhwo", x, w)
""",
        # places of the experts that do not lie together in both
        """
def f(outputs: torch.Tensor, combine: torch.Tensor):
    return torch.einsum("becd,bnce->bnd", outputs, combine)
""",
    ),
    rewritten=(
        Rewritten(
            """
def scores(q: torch.Tensor, k: torch.Tensor):
    return torch.einsum("bnqd,bnkd->bnqk", q, k)
""",
            """
def scores(q: torch.Tensor, k: torch.Tensor):
    return torch.matmul(q, k.transpose(-2, -1))
""",
        ),
        Rewritten(
            """
def masks(mask_embed, mask_features):
    outputs = torch.einsum("bqc,bchw->bqhw", mask_embed, mask_features)
    return outputs
""",
            """
def masks(mask_embed, mask_features):
    outputs = torch.matmul(mask_embed, mask_features.flatten(2)).unflatten(
        2, mask_features.shape[2:]
    )
    return outputs
""",
        ),
        Rewritten(
            """
def mix(x, adjacency):
    return torch.einsum("nctv,vw->nctw", (x, adjacency)).contiguous()
""",
            """
def mix(x, adjacency):
    return torch.matmul(x, adjacency).contiguous()
""",
        ),
        # einops
        Rewritten(
            """
from einops import einsum


def context(keys: torch.Tensor, values: torch.Tensor):
    return einsum(keys, values, "b head n d, b head n e -> b head d e")
""",
            """
from einops import einsum


def context(keys: torch.Tensor, values: torch.Tensor):
    return torch.matmul(keys.transpose(-2, -1), values)
""",
        ),
        # dimensions that lie together: experts and their places, heads of one key
        Rewritten(
            """
def dispatch(x: torch.Tensor, to: torch.Tensor):
    return torch.einsum("sec,sm->ecm", to, x)
""",
            """
def dispatch(x: torch.Tensor, to: torch.Tensor):
    return torch.matmul(to.flatten(1).transpose(-2, -1), x).unflatten(0, to.shape[1:])
""",
        ),
        Rewritten(
            """
def combine(outputs: torch.Tensor, weights: torch.Tensor):
    return torch.einsum("sec,ecm->sm", weights, outputs)
""",
            """
def combine(outputs: torch.Tensor, weights: torch.Tensor):
    return torch.matmul(weights.flatten(1), outputs.flatten(0, 1))
""",
        ),
        Rewritten(
            """
def scores(q: torch.Tensor, k: torch.Tensor):
    return torch.einsum("bshc,btc->bsht", q, k)
""",
            """
def scores(q: torch.Tensor, k: torch.Tensor):
    return torch.matmul(q.flatten(1, 2), k.transpose(-2, -1)).unflatten(1, q.shape[1:3])
""",
        ),
        # vectors, three operands, and operands that einsum turns as well
        Rewritten(
            """
def place(weights: torch.Tensor, at: torch.Tensor):
    return torch.einsum("bi,bij->bj", weights, at)
""",
            """
def place(weights: torch.Tensor, at: torch.Tensor):
    return torch.matmul(weights.unsqueeze(-2), at).squeeze(-2)
""",
        ),
        Rewritten(
            """
from opt_einsum import contract


def frames(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
    return contract("brij,brjk,brkl->bril", a, b, c)
""",
            """
from opt_einsum import contract


def frames(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
    return torch.matmul(torch.matmul(a, b), c)
""",
        ),
        Rewritten(
            """
def state(keys: torch.Tensor, values: torch.Tensor):
    return torch.einsum("nbhm,nbhd->bhmd", keys, values)
""",
            """
def state(keys: torch.Tensor, values: torch.Tensor):
    return torch.matmul(keys.permute(1, 2, 3, 0), values.permute(1, 2, 0, 3))
""",
        ),
        # a batch in between, what only one operand has, and two that lie in another order
        Rewritten(
            """
def codes(x: torch.Tensor, books: torch.Tensor):
    return torch.einsum("btni,nij->btnj", x, books)
""",
            """
def codes(x: torch.Tensor, books: torch.Tensor):
    return (
        torch.matmul(x.flatten(0, 1).transpose(0, 1), books)
        .transpose(0, 1)
        .unflatten(0, x.shape[0:2])
    )
""",
        ),
        Rewritten(
            """
def read(weights: torch.Tensor, values: torch.Tensor):
    return torch.einsum("bhn,bnd->bd", weights, values)
""",
            """
def read(weights: torch.Tensor, values: torch.Tensor):
    return torch.matmul(weights.sum(1).unsqueeze(-2), values).squeeze(-2)
""",
        ),
        Rewritten(
            """
def mix(x: torch.Tensor, weight: torch.Tensor):
    return torch.einsum("ncp,pcd->nd", x, weight)
""",
            """
def mix(x: torch.Tensor, weight: torch.Tensor):
    return torch.matmul(x.flatten(1), weight.transpose(0, 1).flatten(0, 1))
""",
        ),
        # no result is named: what is there once, in the order of the alphabet
        Rewritten(
            """
def rotate(rotations: torch.Tensor, points: torch.Tensor):
    return torch.einsum("...ij,...j", rotations, points)
""",
            """
def rotate(rotations: torch.Tensor, points: torch.Tensor):
    return torch.matmul(rotations, points.unsqueeze(-1)).squeeze(-1)
""",
        ),
        # a result that einsum turns as well
        Rewritten(
            """
def outgoing(a: torch.Tensor, b: torch.Tensor):
    return torch.einsum("bikd,bjkd->bijd", a, b)
""",
            """
def outgoing(a: torch.Tensor, b: torch.Tensor):
    return torch.matmul(a.permute(0, 3, 1, 2), b.transpose(1, 3)).permute(0, 2, 3, 1)
""",
        ),
        # a batch of matrices that stands for all of a larger one; columns of two dimensions
        Rewritten(
            """
def positions(q: torch.Tensor, table: torch.Tensor):
    return torch.einsum("bhwc,hkc->bhwk", q, table)
""",
            """
def positions(q: torch.Tensor, table: torch.Tensor):
    return torch.matmul(q, table.transpose(-2, -1))
""",
        ),
        Rewritten(
            """
def heads(g: torch.Tensor, weight: torch.Tensor):
    return torch.einsum("ibh,hnd->ibnd", g, weight)
""",
            """
def heads(g: torch.Tensor, weight: torch.Tensor):
    return torch.matmul(g, weight.flatten(1)).unflatten(-1, weight.shape[1:])
""",
        ),
        # any number of dimensions in front of a matrix of several columns, and a matrix turned
        Rewritten(
            """
def to_cartesian(x: torch.Tensor, basis: torch.Tensor):
    return torch.einsum("ijk,...i->...jk", basis, x)
""",
            """
def to_cartesian(x: torch.Tensor, basis: torch.Tensor):
    return torch.matmul(x, basis.flatten(1)).unflatten(-1, basis.shape[1:])
""",
        ),
        Rewritten(
            """
def codes(x: torch.Tensor, books: torch.Tensor):
    return torch.einsum("bti,nij->btnj", x, books)
""",
            """
def codes(x: torch.Tensor, books: torch.Tensor):
    return torch.matmul(x, books.transpose(0, 1).flatten(1)).unflatten(
        -1, (books.shape[0], books.shape[2])
    )
""",
        ),
    ),
)
