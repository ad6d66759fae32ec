"""A modulation, or a gated residual, as a product and a sum of their own.

What: ``x * (1 + scale) + shift``, the adaptive norm of diffusion transformers, and
``x + gate * y`` behind their attention and their feed-forward.

Why it is slow on the NPU: Mul writes a tensor as large as the activations, which Add reads at
once. ``torch.addcmul`` does both in one kernel and rounds once.

Safety: equal up to one rounding; broadcasting is the same, gradients are those of a product and a
sum. All three must be tensors (``is-tensor``: a number raises a TypeError) of one dtype
(``same-dtype``): torch promotes mixed ones, what torch_npu does with them is not documented.

References: torch.addcmul; aclnnAddcmul in the operator library of CANN; Scalable Diffusion Models
with Transformers (Peebles and Xie, 2023).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution, all_hold

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Scale what a norm returns, then move it."""
    return x * (1 + scale) + shift


def modulated_once(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Scale and move in one kernel."""
    return torch.addcmul(shift, x, 1 + scale)


def gated(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """Add as much of a branch as its gate says."""
    return x + gate * y


def gated_once(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """Multiply and add in one kernel."""
    return torch.addcmul(x, gate, y)  # no slip: gate and y are swapped (a product)


def modulated_inputs(draw: Draw) -> dict[str, Any]:
    """Return activations with one scale and shift for each of the batch, or each token."""
    import torch

    batch, tokens, size = draw.integer(1, 3), draw.integer(2, 4), draw.integer(2, 5)
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    rows = draw.choice([1, tokens])
    return {
        "x": draw.floats(batch, tokens, size, dtype=dtype),
        "scale": draw.floats(batch, rows, size, dtype=dtype),
        "shift": draw.floats(batch, rows, size, dtype=dtype),
    }


def gated_inputs(draw: Draw) -> dict[str, Any]:
    """Return two activations and a gate for each of the batch, or each token."""
    given = modulated_inputs(draw)
    return {"x": given["x"], "gate": given["scale"], "y": given["x"].flip(0) * 0.5 + 1}


_SCALE = re.compile(r"(?i)(^|_)(scale|gamma|mod)s?(_|\d|$)")
_SHIFT = re.compile(r"(?i)(^|_)(shift|beta|bias|mod)s?(_|\d|$)")
_GATE = re.compile(r"(?i)(^|_)gate(s|d)?(_(?!.*(loss|weight|coef|factor|ratio))|\d|$)")


_PARTS = frozenset({"add", "div", "mul", "neg", "pow", "sub"})


def _is_called(site: Site, name: str, kind: re.Pattern[str]) -> bool:
    """Tell whether a value has such a name, or is a tensor that no formula stands for."""
    if any(map(kind.search, site.called(name))):
        return True
    return site.is_tensor(name) is True and site.operator(name) not in _PARTS


def _is_modulation(site: Site) -> bool:
    """Lengths look like it, ``rows * (1 + columns) + first``, and so do polynomials."""
    return _is_called(site, "scale", _SCALE) and _is_called(site, "shift", _SHIFT)


def _is_gate(site: Site) -> bool:
    """Any sum of a product looks like it: the author must have called it a gate."""
    return any(map(_GATE.search, site.called("gate")))


def _is_tensor(site: Site, name: str) -> bool | None:
    if site.operator(name) == "attr" and site.is_plain(name):  # ``self.gate = 0.5``
        return False
    return site.is_tensor(name)


def _same_dtype(site: Site, first: str, second: str) -> bool | None:
    is_mask = site.is_bool_tensor(first) or site.is_bool_tensor(second)
    return False if is_mask else site.same_dtype(first, second)


def _all_tensors(*names: str) -> Condition:
    return Condition(
        "is-tensor",
        "all that is multiplied and added are torch tensors, none is a number",
        lambda site: all_hold(_is_tensor(site, name) for name in names),
    )


def _one_dtype(first: str, *names: str) -> Condition:
    return Condition(
        "same-dtype",
        "all that is multiplied and added has one dtype (under autocast a norm may return float32)",
        lambda site: all_hold(_same_dtype(site, first, name) for name in names),
    )


MODULATION = Condition(
    "is-modulation",
    "what one is added to is called a scale, and what is added a shift, or both are tensors",
    _is_modulation,
)
GATE = Condition("is-gate", "what is multiplied is called a gate", _is_gate)

RULE = Substitution(
    id="NPU185",
    name="modulated",
    summary="a modulation or a gated residual is a product and a sum of their own",
    table="fusion",
    forms=(
        Form(
            modulated,
            modulated_once,
            modulated_inputs,
            (
                MODULATION,
                _all_tensors("x", "scale", "shift"),
                _one_dtype("x", "scale", "shift"),
            ),
        ),
        Form(
            gated,
            gated_once,
            gated_inputs,
            (
                GATE,
                _all_tensors("x", "gate", "y"),
                _one_dtype("x", "gate", "y"),
            ),
            passes=(3, 6),
        ),
    ),
    replaces=("Add", "Mul"),
    becomes=("Addcmul",),
    passes=(2, 7),
    requires="torch_npu>=2.1",
    needs_whole=True,
    valid=(
        # a number is no tensor
        """
def f(x: torch.Tensor, shift: torch.Tensor):
    return x * (1 + 0.5) + shift
""",
        # lengths
        """
def f(x: torch.Tensor, rows, columns, first):
    return x[rows * (1 + columns) + first]
""",
        # a polynomial
        """
def cubic(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor):
    a, b = x.abs(), x.abs() ** 3
    return (1.5 * b - 2.5 * a + 1) * low + (4 * b - a) * high
""",
        # without a shift
        """
def f(x: torch.Tensor, scale: torch.Tensor):
    return x * (1 + scale.unsqueeze(1))
""",
        # two instead of one
        """
def f(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor):
    return x * (2 + scale) + shift
""",
        # positions are multiplied with fractions
        """
def between(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor):
    first = x.argmax(0).clamp(max=10)
    gate = (x - low) / (high - low)
    return (1 - gate) * first + gate * (first + 1)
""",
        # one factor is a mask
        """
def std(x: torch.Tensor, eps: float):
    below = torch.exp(x) * (x <= 0)
    above = (torch.log1p(x) + 1.0) * (x > 0)
    return below + above
""",
        # subtracted
        """
def f(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor):
    return x * (1 + scale) - shift
""",
        # no gate
        """
def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor):
    return x + y * z
""",
        # a gate that is a number in one branch
        """
class Block(nn.Module):
    def __init__(self, gated):
        super().__init__()
        self.gated = gated
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        gate = self.gate.tanh() if self.gated else 1
        return x + gate * y
""",
        # the product is needed besides
        """
def f(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor):
    scaled = x * (1 + scale)
    return scaled, scaled + shift
""",
        # one kernel already
        """
def f(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor):
    return shift.addcmul(x, 1 + scale)
""",
    ),
    rewritten=(
        Rewritten(
            """
def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
""",
            """
def modulate(x, shift, scale):
    return torch.addcmul(shift.unsqueeze(1), x, 1 + scale.unsqueeze(1))
""",
        ),
        Rewritten(
            """
def f(x: torch.Tensor, gate_msa: torch.Tensor, y: torch.Tensor):
    x = x + gate_msa.unsqueeze(1) * y
    return x
""",
            """
def f(x: torch.Tensor, gate_msa: torch.Tensor, y: torch.Tensor):
    x = torch.addcmul(x, gate_msa.unsqueeze(1), y)
    return x
""",
        ),
    ),
)
