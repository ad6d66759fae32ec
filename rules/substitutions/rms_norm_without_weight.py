"""RMSNorm without a weight, and rows divided by their length, in eager operators.

What: ``x * rsqrt(mean(x^2) + eps)`` with no weight behind it, as in queries and keys of attention
(QK norm) and in diffusion models; ``F.normalize(x, dim=-1)`` and ``x * rsqrt(sum(x^2) + eps)``, as
in linear attention.

Why it is slow on the NPU: four to six kernels, each of which reads or writes the whole activation
(Pow, ReduceMean, Add, Rsqrt, Mul, with casts around them), and about twice as many in the backward
pass. ``npu_rms_norm`` reads it once and writes it once; it wants a weight, for which a vector of
ones, as long as one row, is made.

Safety: the fused kernel computes in float32 and rounds once. It returns the dtype of ``x``, as the
code does. Rows of ``F.normalize`` whose length is about its eps come out up to 30 % shorter
(condition ``no-short-rows``, which 1e-12, the default, meets); longer ones and rows of zeros are the
same, in float32 (condition ``single-precision``). The kernel has a backward formula but no double backward.

References: torch_npu.npu_rms_norm in the API reference of Ascend Extension for PyTorch; RMSNorm
(Zhang and Sennrich, 2019).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import PLAIN_EPS, inputs
from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Rewritten,
    Site,
    Substitution,
)

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor


_SMALLEST = 1e-12
"""The default of ``F.normalize``: no row of a model is as short."""


def cast_back(x: Tensor, eps: float) -> Tensor:
    """Normalise in float32 and cast back."""
    x32 = x.to(torch.float32)
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def plain(x: Tensor, eps: float) -> Tensor:
    """Normalise in the dtype of the activation."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def promoted(x: Tensor, eps: float) -> Tensor:
    """Divide an activation of any dtype by a root in float32, which the result is (PaliGemma)."""
    return x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + eps)


def fused_promoted(x: Tensor, eps: float) -> Tensor:
    """Normalise with one kernel, in the dtype of the root."""
    return torch_npu.npu_rms_norm(
        x.float(), x.new_ones(x.shape[-1], dtype=torch.float32), epsilon=eps
    )[0]


def fused(x: Tensor, eps: float) -> Tensor:
    """Normalise with one kernel, and a weight of ones."""
    return torch_npu.npu_rms_norm(x, x.new_ones(x.shape[-1]), epsilon=eps)[0]


def unit_rows(x: Tensor, eps: float) -> Tensor:
    """Divide each row by its length."""
    return F.normalize(x, 2.0, -1, eps)


def fused_unit_rows(x: Tensor, eps: float) -> Tensor:
    """Normalise with one kernel; the weight makes one of the root of the number of elements."""
    return torch_npu.npu_rms_norm(
        x, x.new_full((x.shape[-1],), x.shape[-1] ** -0.5), epsilon=eps**2 / x.shape[-1]
    )[0]


def scaled_unit_rows(x: Tensor, scale: float, eps: float) -> Tensor:
    """Divide each row by its length, and multiply by a number (adaptive norms)."""
    return F.normalize(x, 2.0, -1, eps) * scale


def fused_scaled_unit_rows(x: Tensor, scale: float, eps: float) -> Tensor:
    """Normalise with one kernel; the weight holds the number as well."""
    return torch_npu.npu_rms_norm(
        x,
        x.new_full((x.shape[-1],), scale * x.shape[-1] ** -0.5),
        epsilon=eps**2 / x.shape[-1],
    )[0]


def root_of_sum(x: Tensor, dim: int, eps: float) -> Tensor:
    """Divide each row by its length, with ``eps`` below the root (Qwen3-Next, FLA)."""
    return x * torch.rsqrt(x.pow(2).sum(dim, keepdim=True) + eps)


def fused_root_of_sum(x: Tensor, dim: int, eps: float) -> Tensor:
    """Normalise with one kernel: a sum is the mean times the number of elements."""
    return torch_npu.npu_rms_norm(
        x, x.new_full((x.shape[-1],), x.shape[-1] ** -0.5), epsilon=eps / x.shape[-1]
    )[0]


def rows(draw: Draw) -> dict[str, Any]:
    """Return rows in float32 that are zero, or longer than eps."""
    import torch

    shape = draw.choice([(3, 8), (2, 5, 24), (2, 1, 3, 16)])
    x = torch.where(draw.booleans(*shape), 0.75, -1.25) * draw.choice([1.0, 1.0, 0.0])
    return {"x": x, "eps": draw.choice([1e-12, 1e-6])}


def scaled_rows(draw: Draw) -> dict[str, Any]:
    """Return such rows, and a number."""
    given = rows(draw)
    return {**given, "scale": draw.choice([given["x"].shape[-1] ** 0.5, 0.5])}


def sums(draw: Draw) -> dict[str, Any]:
    """Return rows in float32, some so small that a forgotten ``eps`` shows."""
    import torch

    x = draw.floats(*draw.choice([(3, 8), (2, 5, 24), (2, 1, 3, 16)]), dtype=torch.float32)
    return {"x": x * draw.choice([1.0, 1e-3]), "dim": -1, "eps": draw.choice([1e-5, 1e-6])}


def _stands_alone(site: Site) -> bool | None:
    if site.is_centred("x"):
        return False
    return not site.is_scaled()


def activations(draw: Draw) -> dict[str, Any]:
    """Return activations with rows so small that a forgotten ``eps`` shows."""
    drawn = inputs(draw)
    return {"x": drawn["x"], "eps": drawn["eps"]}


NO_WEIGHT = Condition(
    "no-wider-fusion",
    "no weight is multiplied to the rows, and no mean was taken off: one kernel does that as well",
    _stands_alone,
    time_alone=True,
)

SINGLE_PRECISION = Condition(
    "single-precision",
    "the rows are float32: in half precision the weight would be rounded",
    lambda site: None if (dtype := site.dtype("x")) is None else dtype == "float32",
)

# Queries and keys are normalised in each layer; the one vector that a model makes of an image or a
# sentence, once, in less time than the host takes to launch the kernels.
_IN_LAYERS = re.compile(r"^(q|k|query|key|queries|keys)(_|\d|$)|_(q|k|query|key)$")


def _is_in_layers(site: Site) -> bool:
    return any(map(_IN_LAYERS.search, site.called("x")))


MANY_ROWS = Condition(
    "many-rows",
    "there are many rows: queries or keys, in each layer",
    _is_in_layers,
    time_alone=True,
)

LONG_ROWS = Condition(
    "no-short-rows",
    "no row is about as short as eps: such rows come out up to 30 % shorter",
    lambda site: True if site.number("eps") in {0, _SMALLEST} else None,
)

LAST = Condition(
    "last-dimension",
    "the rows go along the last dimension",
    lambda site: site.literal("dim") == -1,  # else its calls say which
)

NUMBER = Condition(
    "number-scale",
    "the scale is a Python number, not a tensor or a trained parameter",
    lambda site: site.is_scalar("scale"),
)

# A number behind them speaks for a norm of a layer, which may call its rows as it likes.
MAYBE_MANY_ROWS = Condition(
    MANY_ROWS.name,
    MANY_ROWS.text,
    lambda site: _is_in_layers(site) or None,
    time_alone=True,
)

_UNIT = (LONG_ROWS, SINGLE_PRECISION, PLAIN_EPS)

RULE = Substitution(
    id="NPU168",
    name="rms-norm-without-weight",
    summary="RMSNorm without a weight, written out in eager operators",
    table="fusion",
    forms=(
        Form(cast_back, fused, activations, (NO_WEIGHT, PLAIN_EPS)),
        Form(plain, fused, activations, (NO_WEIGHT, PLAIN_EPS)),
        Form(promoted, fused_promoted, activations, (NO_WEIGHT, PLAIN_EPS)),
        Form(root_of_sum, fused_root_of_sum, sums, (NO_WEIGHT, LAST, SINGLE_PRECISION, PLAIN_EPS)),
        Form(unit_rows, fused_unit_rows, rows, (MANY_ROWS, *_UNIT)),
        Form(
            scaled_unit_rows, fused_scaled_unit_rows, scaled_rows, (NUMBER, MAYBE_MANY_ROWS, *_UNIT)
        ),
    ),
    replaces=(
        "Add",
        "Adds",
        "Cast",
        "ClampMin",
        "Div",
        "LpNormV2",
        "Mul",
        "Pow",
        "Pows",
        "ReduceMean",
        "Rsqrt",
        "RsqrtGrad",
        "Square",
    ),
    becomes=("RmsNorm", "RmsNormGrad", "Fill"),
    passes=(2, 3),
    requires="torch_npu>=2.1",
    valid=(
        # the mean of a group of channels
        """
def f(x: torch.Tensor, eps: float):
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + eps)
""",
        # one vector of each image
        """
class Clip(nn.Module):
    def forward(self, images: torch.Tensor):
        return F.normalize(self.proj(images).float(), dim=-1)
""",
        # another length, and another dimension
        """
def f(x: torch.Tensor):
    x = x.float()
    return F.normalize(x, p=1, dim=-1), F.normalize(x)
""",
        # a temperature that is learned
        """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: torch.Tensor):
        return F.normalize(x.float(), dim=-1) * self.temperature
""",
        # the sum of a group of channels
        """
def f(x: torch.Tensor, eps: float):
    return x * torch.rsqrt(x.pow(2).sum(1, keepdim=True) + eps)
""",
        # the root alone
        """
def f(x: torch.Tensor, eps: float):
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
""",
    ),
    rewritten=(
        # a gain for each row, of what the layer is conditioned on
        Rewritten(
            """
class AdaRMSNorm(nn.Module):
    def __init__(self, dim, emb_dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Linear(emb_dim, dim)

    def forward(self, x, c):
        output = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (output * self.weight(c).float()).type_as(x)
""",
            """
class AdaRMSNorm(nn.Module):
    def __init__(self, dim, emb_dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Linear(emb_dim, dim)

    def forward(self, x, c):
        output = x.float()
        output = torch_npu.npu_rms_norm(
            output, output.new_ones(output.shape[-1]), epsilon=self.eps
        )[0]
        return (output * self.weight(c).float()).type_as(x)
""",
        ),
        Rewritten(
            """
def unit(q: torch.Tensor):
    q = q.float()
    return F.normalize(q, p=2, dim=-1)
""",
            """
def unit(q: torch.Tensor):
    q = q.float()
    return torch_npu.npu_rms_norm(
        q,
        q.new_full((q.shape[-1],), q.shape[-1] ** (-0.5)),
        epsilon=1e-12 ** 2 / q.shape[-1],
    )[0]
""",
        ),
        # what it is multiplied by besides is of each sample
        Rewritten(
            """
class AdaptiveNorm(nn.Module):
    def __init__(self, dim, cond_dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.to_gamma = nn.Linear(cond_dim, dim)

    def forward(self, q: torch.Tensor, cond: torch.Tensor):
        q = q.float()
        normed = F.normalize(q, dim=-1) * self.scale
        return normed * self.to_gamma(cond)[:, None]
""",
            """
class AdaptiveNorm(nn.Module):
    def __init__(self, dim, cond_dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.to_gamma = nn.Linear(cond_dim, dim)

    def forward(self, q: torch.Tensor, cond: torch.Tensor):
        q = q.float()
        normed = torch_npu.npu_rms_norm(
            q,
            q.new_full((q.shape[-1],), self.scale * q.shape[-1] ** (-0.5)),
            epsilon=1e-12 ** 2 / q.shape[-1],
        )[0]
        return normed * self.to_gamma(cond)[:, None]
""",
        ),
        Rewritten(
            """
def l2norm(x: torch.FloatTensor, dim: int = -1, eps: float = 1e-6):
    inv_norm = torch.rsqrt((x * x).sum(dim=dim, keepdim=True) + eps)
    return x * inv_norm


def delta_rule(query: torch.Tensor):
    query = query.float()
    return l2norm(query, dim=-1, eps=1e-6)
""",
            """
def l2norm(x: torch.FloatTensor, dim: int = -1, eps: float = 1e-6):
    inv_norm = torch.rsqrt((x * x).sum(dim=dim, keepdim=True) + eps)
    return x * inv_norm


def delta_rule(query: torch.Tensor):
    query = query.float()
    return torch_npu.npu_rms_norm(
        query,
        query.new_full((query.shape[-1],), query.shape[-1] ** (-0.5)),
        epsilon=1e-6 / query.shape[-1],
    )[0]
""",
        ),
        Rewritten(
            """
class AdaptiveNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, shift):
        var = torch.mean(torch.square(x.float()), dim=-1, keepdim=True)
        normed = x * torch.rsqrt(var + self.eps)
        if shift is None:
            return normed.to(x.dtype)
        return (normed + shift).to(x.dtype)
""",
            """
class AdaptiveNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, shift):
        normed = torch_npu.npu_rms_norm(
            x.float(),
            x.new_ones(x.shape[-1], dtype=torch.float32),
            epsilon=self.eps,
        )[0]
        if shift is None:
            return normed.to(x.dtype)
        return (normed + shift).to(x.dtype)
""",
        ),
        Rewritten(
            """
class QKNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, hidden_states):
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x.type_as(hidden_states)
""",
            """
class QKNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, hidden_states):
        return torch_npu.npu_rms_norm(
            hidden_states,
            hidden_states.new_ones(hidden_states.shape[-1]),
            epsilon=self.eps,
        )[0]
""",
        ),
    ),
)
