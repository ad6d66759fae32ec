"""RMSNorm written as rows of length one that are scaled.

What: ``F.normalize(x, dim=-1) * scale * gamma``, or the division by ``torch.norm`` written out, with
a trained gain: RMSNorm of many diffusion and audio models, ScaleNorm (one gain for all elements).

Why it is slow on the NPU: four to six kernels, each of which reads or writes the whole activation
(LpNormV2, ClampMin, Div, Muls, Mul), and about twice as many in the backward pass. ``npu_rms_norm``
reads it once and writes it once: the length of a row is the root of its mean square times the root
of the number of its elements, which goes into the weight.

Safety: the fused kernel computes in float32 and rounds once. It returns the dtype of ``x`` (condition
``same-dtype``). Rows whose length is about eps come out up to 30 % shorter (condition
``no-short-rows``, which 1e-12, the default of ``F.normalize``, meets); longer ones and rows of zeros
are the same. The kernel has a backward formula but no double backward.

References: torch_npu.npu_rms_norm in the API reference of Ascend Extension for PyTorch; RMSNorm
(Zhang and Sennrich, 2019); ScaleNorm (Nguyen and Salazar, 2019).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import ONE_DIMENSIONAL, PLAIN_EPS, SAME_DTYPE
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution, either
from npufix.rules.substitutions.rms_norm_without_weight import LONG_ROWS, NUMBER

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor

    from npufix.rules.substitution import Site


def length(x: Tensor) -> Tensor:
    """Return the length of each row."""
    return either(
        torch.norm(x, dim=-1, keepdim=True),
        torch.norm(x, p=2, dim=-1, keepdim=True),
        torch.linalg.vector_norm(x, dim=-1, keepdim=True),
        torch.linalg.norm(x, dim=-1, keepdim=True),
    )


def unit(x: Tensor, eps: float) -> Tensor:
    """Divide each row by its length."""
    return either(
        F.normalize(x, 2.0, -1, eps),
        x / length(x).clamp(min=eps),
        x / length(x).clamp_min(eps),
    )


def scaled(x: Tensor, weight: Tensor, scale: float, eps: float) -> Tensor:
    """Multiply by a number and by a gain for each element."""
    return either(
        unit(x, eps) * scale * weight,
        unit(x, eps) * weight * scale,
        unit(x, eps) * (weight * scale),
    )


def weighted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Multiply by a gain for each element, or by one for all (ScaleNorm)."""
    return unit(x, eps) * weight


def below(x: Tensor, weight: Tensor, scale: float, eps: float) -> Tensor:
    """Divide by the length times a number, the root of the number of elements mostly."""
    scaled = length(x) * scale
    return x / either(scaled.clamp(min=eps), scaled.clamp_min(eps)) * weight


def fused(x: Tensor, weight: Tensor, scale: float, eps: float) -> Tensor:
    """Normalise with one kernel; the weight makes up for the mean."""
    return torch_npu.npu_rms_norm(
        x, weight * (scale * x.shape[-1] ** -0.5), epsilon=eps**2 / x.shape[-1]
    )[0]


def fused_by_root(x: Tensor, weight: Tensor, scale: float, eps: float) -> Tensor:
    """Normalise with one kernel, whose mean takes the number that is the root of their length."""
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps**2 / x.shape[-1])[0]


def fused_below_root(x: Tensor, weight: Tensor, scale: float, eps: float) -> Tensor:
    """Normalise with one kernel, whose root of the mean is the length times the number."""
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps**2)[0]


def fused_weighted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise with one kernel, and a gain for each element."""
    return torch_npu.npu_rms_norm(
        x,
        (weight * x.shape[-1] ** -0.5).expand(x.shape[-1]),
        epsilon=eps**2 / x.shape[-1],
    )[0]


def fused_below(x: Tensor, weight: Tensor, scale: float, eps: float) -> Tensor:
    """Normalise with one kernel; the weight makes up for the mean and the number."""
    return torch_npu.npu_rms_norm(
        x,
        weight * (x.shape[-1] ** -0.5 / scale),
        epsilon=(eps / scale) ** 2 / x.shape[-1],
    )[0]


def inputs(draw: Draw) -> dict[str, Any]:
    """Return rows that are zero, or longer than eps, and a gain for each element."""
    import torch

    shape = draw.choice([(3, 8), (2, 5, 24), (2, 1, 3, 16)])
    dtype = draw.choice([torch.float32, torch.bfloat16])
    x = torch.where(draw.booleans(*shape), 0.75, -1.25) * draw.choice([1.0, 1.0, 0.0])
    return {
        "x": x.to(dtype),
        "weight": draw.floats(shape[-1], dtype=dtype),
        "scale": draw.choice([shape[-1] ** 0.5, 0.5]),
        "eps": draw.choice([1e-12, 1e-6]),
    }


def lower(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` with an eps as code that writes the length out has it."""
    return {**inputs(draw), "eps": draw.choice([1e-8, 1e-6])}


def by_root(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` with the root of the number of elements."""
    given = inputs(draw)
    return {**given, "scale": given["x"].shape[-1] ** 0.5}


def below_root(draw: Draw) -> dict[str, Any]:
    """Return ``lower`` with one by the root of the number of elements."""
    given = lower(draw)
    return {**given, "scale": given["x"].shape[-1] ** -0.5}


def gains(draw: Draw) -> dict[str, Any]:
    """Return rows, and a gain for each element or one for all."""
    given = inputs(draw)
    del given["scale"]
    return {**given, "weight": given["weight"][: draw.choice([1, None])]}


_OF_ROWS = frozenset(
    {
        "amax",
        "bmm",
        "dot",
        "einsum",
        "inner",
        "linalg.vecdot",
        "matmul",
        "mean",
        "mm",
        "norm",
        "sum",
    }
)
"""What computes how long a row is, or how far it goes along another: a projection."""


def _is_one_or_each(site: Site) -> bool | None:
    if site.is_scalar("weight") or site.operator("weight") in _OF_ROWS:
        return False  # no gain that is learned: ``self.scale = dim**0.5``, and one for each row
    ndim = site.ndim("weight")
    return None if ndim is None else ndim == 1


ONE_OR_EACH = Condition(
    ONE_DIMENSIONAL.name,
    "the weight has one dimension, of one element or as many as the last one of the activation",
    _is_one_or_each,
    meaning="one-or-each",
)
_OF_LENGTH = "the number is the root of the length of the weight, or one by it, in one method"
ROOT = Condition(
    "root-of-length", _OF_LENGTH, lambda site: site.is_power_of_length("scale", "weight", 0.5)
)
BY_ROOT = Condition(
    "root-of-length",
    _OF_LENGTH,
    lambda site: site.is_power_of_length("scale", "weight", -0.5),
)
_ALWAYS = (SAME_DTYPE, LONG_ROWS, PLAIN_EPS)

_IMAGE = """
class ChanNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.gamma = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.scale * self.gamma
"""
_SCALE_NORM = """
class ScaleNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.g = nn.Parameter(torch.ones(1) * (dim ** -0.5))

    def forward(self, x):
        norm = torch.norm(x, dim=-1, keepdim=True)
        return x / norm.clamp(min=self.eps) * self.g
"""
_RMS_NORM = """
class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.gamma
"""
_BELOW = """
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.scale = dim ** -0.5
        self.eps = eps
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        norm = torch.norm(x, dim=-1, keepdim=True) * self.scale
        return x / norm.clamp(min=self.eps) * self.g
"""
_OTHER_LENGTH = _BELOW.replace("dim,", "dim,size,").replace("ones(dim)", "ones(size)")

RULE = Substitution(
    id="NPU183",
    name="scaled-unit-rows",
    summary="RMSNorm written as rows of length one that are scaled",
    table="fusion",
    forms=(
        Form(scaled, fused_by_root, by_root, (ROOT, ONE_DIMENSIONAL, *_ALWAYS)),
        Form(below, fused_below_root, below_root, (BY_ROOT, ONE_DIMENSIONAL, *_ALWAYS)),
        Form(scaled, fused, inputs, (NUMBER, ONE_DIMENSIONAL, *_ALWAYS)),
        Form(below, fused_below, lower, (NUMBER, ONE_DIMENSIONAL, *_ALWAYS)),
        Form(weighted, fused_weighted, gains, (ONE_OR_EACH, *_ALWAYS)),
    ),
    replaces=("ClampMin", "Div", "LpNormV2", "Mul", "Muls", "RealDiv"),
    becomes=("RmsNorm", "RmsNormGrad"),
    passes=(2, 3),
    requires="torch_npu>=2.1",
    valid=(
        # how far one row goes along another
        """
def project(x, d):
    unit = F.normalize(d, dim=-1)
    return unit * torch.dot(x, unit), unit * torch.einsum("bd,bd->b", x, unit)[:, None]
""",
        # along the channels of an image
        _IMAGE,
        # no gain, and one for all elements beside a number
        """
class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale
""",
        """
class Norm(nn.Module):
    def __init__(self, dim, offset=True):
        super().__init__()
        self.offset = offset
        self.scale = dim ** 0.5
        self.g = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * (self.g + float(self.offset))
""",
        # a temperature
        """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(10.0))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.temperature
""",
        # a gain for each image, computed from a condition
        """
class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.to_gamma = nn.Linear(dim, dim)

    def forward(self, x, condition):
        return F.normalize(x, dim=-1) * self.scale * (self.to_gamma(condition) + 1)
""",
        # the same by a layer of the file's own
        """
OwnLinear = functools.partial(nn.Linear, bias=False)

class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.to_gamma = OwnLinear(dim, dim)

    def forward(self, x, condition):
        return F.normalize(x, dim=-1) * self.scale * (1 + self.to_gamma(condition))
""",
        # a gain for each head
        """
class Norm(nn.Module):
    def __init__(self, heads, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.gamma = nn.Parameter(torch.ones(heads, 1, dim))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.gamma
""",
        # another length
        """
class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x / torch.norm(x, p=1, dim=-1, keepdim=True).clamp(min=1e-6) * self.gamma
""",
        # eps is added
        """
class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x / (torch.norm(x, dim=-1, keepdim=True) + 1e-2) * self.gamma
""",
    ),
    rewritten=(
        Rewritten(
            _SCALE_NORM,
            _SCALE_NORM.partition("        norm =")[0]
            + """        return torch_npu.npu_rms_norm(
            x,
            (self.g * x.shape[-1] ** (-0.5)).expand(x.shape[-1]),
            epsilon=self.eps ** 2 / x.shape[-1],
        )[0]
""",
        ),
        Rewritten(
            _RMS_NORM,
            _RMS_NORM.partition("        return")[0]
            + """        return torch_npu.npu_rms_norm(
            x, self.gamma, epsilon=1e-12 ** 2 / x.shape[-1]
        )[0]
""",
        ),
        Rewritten(
            _BELOW,
            _BELOW.partition("        norm =")[0]
            + """        return torch_npu.npu_rms_norm(x, self.g, epsilon=self.eps ** 2)[0]
""",
        ),
        # a number, or a length, that is another one
        Rewritten(
            _RMS_NORM.replace("dim ** 0.5", "dim ** 0.25"),
            _RMS_NORM.replace("dim ** 0.5", "dim ** 0.25").partition("        return")[0]
            + """        return torch_npu.npu_rms_norm(
            x,
            self.gamma * (self.scale * x.shape[-1] ** (-0.5)),
            epsilon=1e-12 ** 2 / x.shape[-1],
        )[0]
""",
        ),
        Rewritten(
            _OTHER_LENGTH,
            _OTHER_LENGTH.partition("        norm =")[0]
            + """        return torch_npu.npu_rms_norm(
            x,
            self.g * (x.shape[-1] ** (-0.5) / self.scale),
            epsilon=(self.eps / self.scale) ** 2 / x.shape[-1],
        )[0]
""",
        ),
    ),
)
