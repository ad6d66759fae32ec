"""SwiGLU written out in eager operators.

What: ``silu(gate) * up``, where ``gate`` and ``up`` are the two halves of one projection, or two
projections of their own.

Why it is slow on the NPU: two slices (or a split), Swish and Mul write the gate, the activated
gate and the product to memory, and keep two of them for the backward pass; ``npu_swiglu`` reads
the projection once and writes the product.

Safety: the operator activates the first half; where the code activates the second one, the halves
are exchanged first, by a copy (condition ``joining-pays``; none is needed if the rows of the weight
are exchanged when it is loaded). Computed in float32 and rounded once, where eager
code rounds the activated gate: at most one unit in the last place in half precision. A dimension
of odd length raises an error, as the product of its two parts does (unless their lengths are one
and two). Where gate and up are tensors of their own, they are joined first: that is a copy of
both, so the change moves seven tensors forward instead of five, and between five and nine
backward instead of nine (condition ``joining-pays``). One layer in place of the two projections,
with their weights joined when they are loaded, needs no copy at all.

References: torch_npu.npu_swiglu in the API reference of Ascend Extension for PyTorch; GLU Variants
Improve Transformer (Shazeer, 2020).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import (
    Activation,
    Condition,
    Draw,
    Form,
    Site,
    Substitution,
    either,
    is_activation,
)
from npufix.rules.substitutions.eager_swiglu_examples import REWRITTEN

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor


def halves(x: Tensor, dim: int) -> Tensor:
    """Activate the first half of a projection."""
    gate, up = x.chunk(2, dim=dim)
    return either(
        F.silu(gate) * up,
        gate * (torch.sigmoid(gate) * up),
        gate * torch.sigmoid(gate) * up,
        F.silu(gate.to(torch.float32)).to(gate.dtype) * up,
    )


def selected_halves(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Activate the first half with a function that the configuration selects."""
    gate, up = x.chunk(2, dim=dim)
    return act(gate) * up


def halves_turned(x: Tensor, dim: int) -> Tensor:
    """Activate the second half of a projection (PaLM, AlphaFold 3)."""
    up, gate = x.chunk(2, dim=dim)
    return either(
        F.silu(gate) * up,
        gate * torch.sigmoid(gate) * up,
        F.silu(gate.to(torch.float32)).to(gate.dtype) * up,
    )


def selected_halves_turned(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Activate the second half with a function that the configuration selects."""
    up, gate = x.chunk(2, dim=dim)
    return act(gate) * up


def projections(gate: Tensor, up: Tensor) -> Tensor:
    """Activate one of two projections (Mixtral, litgpt)."""
    return either(
        F.silu(gate) * up,
        gate * torch.sigmoid(gate) * up,
        F.silu(gate.to(torch.float32)).to(gate.dtype) * up,
    )


def selected_projections(gate: Tensor, up: Tensor, act: Activation) -> Tensor:
    """Activate one of two projections with a function that the configuration selects (Llama)."""
    return act(gate) * up


def stacked(x: Tensor) -> Tensor:
    """Activate the first of two rows (``x.unflatten(-1, (2, -1))``)."""
    return F.silu(x[..., 0, :]) * x[..., 1, :]


def selected_stacked(x: Tensor, act: Activation) -> Tensor:
    """Activate the first of two rows with a function that the configuration selects."""
    return act(x[..., 0, :]) * x[..., 1, :]


def fused_selected_stacked(x: Tensor, act: Activation) -> Tensor:
    """Lay the rows behind each other, which is a view, and activate and multiply them."""
    return torch_npu.npu_swiglu(x.flatten(-2), dim=-1)


def fused_stacked(x: Tensor) -> Tensor:
    """Lay the rows behind each other, which is a view, and activate and multiply them."""
    return torch_npu.npu_swiglu(x.flatten(-2), dim=-1)


def fused(x: Tensor, dim: int) -> Tensor:
    """Activate and multiply with one kernel."""
    return torch_npu.npu_swiglu(x, dim=dim)


def fused_selected(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Activate and multiply with one kernel."""
    return torch_npu.npu_swiglu(x, dim=dim)


def fused_turned(x: Tensor, dim: int) -> Tensor:
    """Exchange the halves, then activate and multiply with one kernel."""
    return torch_npu.npu_swiglu(torch.cat(x.chunk(2, dim=dim)[::-1], dim=dim), dim=dim)


def fused_selected_turned(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Exchange the halves, then activate and multiply with one kernel."""
    return torch_npu.npu_swiglu(torch.cat(x.chunk(2, dim=dim)[::-1], dim=dim), dim=dim)


def joined(gate: Tensor, up: Tensor) -> Tensor:
    """Join the projections, then activate and multiply with one kernel."""
    return torch_npu.npu_swiglu(torch.cat((gate, up), dim=-1), dim=-1)


def joined_selected(gate: Tensor, up: Tensor, act: Activation) -> Tensor:
    """Join the projections, then activate and multiply with one kernel."""
    return torch_npu.npu_swiglu(torch.cat((gate, up), dim=-1), dim=-1)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return projections of one to four dimensions, halved along any of them."""
    import torch

    shape = draw.choice([(8,), (3, 6), (2, 3, 8), (2, 4, 2, 6)])
    dims = [dim for dim in range(-len(shape), len(shape)) if shape[dim] % 2 == 0]
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {
        "x": draw.floats(*shape, dtype=dtype) * draw.choice([1.0, 8.0]),
        "dim": draw.choice(dims),
    }


def stacked_inputs(draw: Draw) -> dict[str, Any]:
    """Return two rows, of each of several tokens or none."""
    import torch

    shape = draw.choice([(2, 4), (3, 2, 5), (2, 3, 2, 8)])
    return {"x": draw.floats(*shape, dtype=draw.choice([torch.float32, torch.bfloat16]))}


def selected_stacked_inputs(draw: Draw) -> dict[str, Any]:
    """Return two rows and the activation."""
    import torch

    return {**stacked_inputs(draw), "act": torch.nn.functional.silu}


def selected_inputs(draw: Draw) -> dict[str, Any]:
    """Return projections and the activation."""
    import torch

    return {**inputs(draw), "act": torch.nn.functional.silu}


def projection_inputs(draw: Draw) -> dict[str, Any]:
    """Return two projections of one shape."""
    import torch

    shape = draw.choice([(4,), (3, 5), (2, 3, 4)])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {
        "gate": draw.floats(*shape, dtype=dtype) * draw.choice([1.0, 8.0]),
        "up": draw.floats(*shape, dtype=dtype),
    }


def selected_projection_inputs(draw: Draw) -> dict[str, Any]:
    """Return two projections and the activation."""
    import torch

    return {**projection_inputs(draw), "act": torch.nn.functional.silu}


def _is_silu(site: Site) -> bool | None:
    return is_activation(site, "act", "silu")


def _same_shape(site: Site) -> bool | None:
    if False in {site.is_tensor("gate"), site.is_tensor("up")}:
        return False
    if site.dtype("gate") == "float32":  # a gate computed in float32 is no half of a projection
        return False
    return site.same_projection("gate", "up")


IS_SILU = Condition(
    "activation-is-silu", "the activation that the configuration selects is SiLU", _is_silu
)
TWO_ROWS = Condition(
    "two-rows",
    "there are two rows, no third one that is left out",
    lambda site: None if (rows := site.size("x", -2)) is None else rows == 2,  # noqa: PLR2004 - gate and up
)
SAME_SHAPE = Condition(
    "same-shape",
    "gate and up have the same shape and dtype: neither is broadcast or promoted",
    _same_shape,
)
JOINING_PAYS = Condition(
    "joining-pays",
    "copying gate and up into one tensor costs less than the fused kernel saves (rarely so without"
    " a backward pass)",
    lambda site: None,  # noqa: ARG005 - no source tells how long something takes
    time_alone=True,
)

SMALL_KERNELS = (
    "ConcatD", "Mul", "Sigmoid", "SigmoidGrad", "Silu", "SiluGrad", "Slice", "SliceD", "SplitD",
    "SplitV", "StridedSlice", "Swish", "SwishGrad",
)  # fmt: skip

_JOINED = (7.0, 7.0)
"""Of gate or up: joining reads two and writes two, the operator reads two and writes one. Its
gradient moves five; what uses the halves of that may have to copy them: none, or four more."""


RULE = Substitution(
    id="NPU103",
    name="eager-swiglu",
    summary="SwiGLU written out in eager operators",
    table="fusion",
    forms=(
        Form(halves, fused, inputs),
        Form(selected_halves, fused_selected, selected_inputs, (IS_SILU,)),
        Form(stacked, fused_stacked, stacked_inputs, (TWO_ROWS,)),
        Form(
            selected_stacked, fused_selected_stacked, selected_stacked_inputs, (IS_SILU, TWO_ROWS)
        ),
        Form(halves_turned, fused_turned, inputs, (JOINING_PAYS,), _JOINED, (2, 2)),
        Form(
            selected_halves_turned,
            fused_selected_turned,
            selected_inputs,
            (IS_SILU, JOINING_PAYS),
            _JOINED,
            (2, 2),
        ),
        Form(projections, joined, projection_inputs, (SAME_SHAPE, JOINING_PAYS), _JOINED, (2, 2)),
        Form(
            selected_projections,
            joined_selected,
            selected_projection_inputs,
            (IS_SILU, SAME_SHAPE, JOINING_PAYS),
            _JOINED,
            (2, 2),
        ),
    ),
    replaces=SMALL_KERNELS,
    becomes=("SwiGlu", "SwiGluGrad"),
    passes=(1.5, 2.5),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # the second half is activated, and the other one too
        """
def f(x: torch.Tensor):
    up, gate = x.chunk(2, dim=-1)
    return F.silu(gate) * torch.sigmoid(up)
""",
        # ReGLU
        """
def f(x: torch.Tensor):
    gate, up = x.chunk(2, dim=-1)
    return F.relu(gate) * up
""",
        # ReGLU, out of a table
        """
class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.act_fn = ACT2FN["relu"]
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.act_fn(gate) * up
""",
        # GPT-OSS: clamped, with a factor and an offset
        """
def f(x: torch.Tensor, alpha: float, limit: float):
    gate, up = x.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))
""",
        # one tensor: SiLU
        """
def f(x: torch.Tensor):
    return F.silu(x)
""",
        # halves of two tensors
        """
def f(x: torch.Tensor, y: torch.Tensor):
    return F.silu(x.chunk(2, dim=-1)[0]) * y.chunk(2, dim=-1)[1]
""",
        # the same half twice
        """
def f(x: torch.Tensor):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * gate
""",
        # rows of three
        """
def f(x: torch.Tensor):
    x = x.view(-1, 3, 64)
    return F.silu(x[..., 0, :]) * x[..., 1, :]
""",
        # three parts
        """
def f(x: torch.Tensor):
    gate, up, rest = x.chunk(3, dim=-1)
    return F.silu(gate) * up, rest
""",
        # the activated gate is used again
        """
def f(x: torch.Tensor):
    gate, up = x.chunk(2, dim=-1)
    gate = F.silu(gate)
    return gate * up, gate
""",
        # one probability for a whole expert
        """
def f(x: torch.Tensor, scores: torch.Tensor):
    return F.silu(x) * scores.unsqueeze(-1)
""",
        # a gate in float32 over a normalised tensor
        """
def f(x: torch.Tensor, gate: torch.Tensor):
    return x * F.silu(gate.to(torch.float32))
""",
        # a factor
        """
def f(x: torch.Tensor, factor: float):
    return F.silu(x) * factor
""",
        # by hand, backward
        """
class SwiGLUFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
""",
    ),
    rewritten=REWRITTEN,
)
