"""GeGLU written out in eager operators.

What: ``gelu`` of one half of a projection, multiplied by the other half.

Why it is slow on the NPU: two slices (or a split), Gelu and Mul write the gate, the activated gate
and the product to memory; ``npu_geglu`` reads the projection once.

Safety: which half is activated is an argument of the operator, and so is the approximation: its
default is the tanh form, ``F.gelu`` means the exact one (note that on the NPU ``F.gelu`` runs the
tanh form for both; the fused operator does what the code says). Computed in float32 and rounded
once. The second result, the activated half, is kept for the backward pass. Where the two factors
are tensors of their own, they are joined first, which is a copy of both (``joining-pays``).
``npu_gelu_mul`` computes the same without a gradient: it is not used here.

References: torch_npu.npu_geglu in the API reference of Ascend Extension for PyTorch; GLU Variants
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
    is_activation,
)
from npufix.rules.substitutions.eager_geglu_examples import REWRITTEN
from npufix.rules.substitutions.eager_swiglu import JOINING_PAYS, SAME_SHAPE, projection_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor


def right(x: Tensor, dim: int) -> Tensor:
    """Activate the second half (diffusers)."""
    hidden, gate = x.chunk(2, dim=dim)
    return hidden * F.gelu(gate)


def left(x: Tensor, dim: int) -> Tensor:
    """Activate the first half (ModernBERT)."""
    hidden, gate = x.chunk(2, dim=dim)
    return F.gelu(hidden) * gate


def right_tanh(x: Tensor, dim: int) -> Tensor:
    """Activate the second half, approximated."""
    hidden, gate = x.chunk(2, dim=dim)
    return hidden * F.gelu(gate, approximate="tanh")


def left_tanh(x: Tensor, dim: int) -> Tensor:
    """Activate the first half, approximated."""
    hidden, gate = x.chunk(2, dim=dim)
    return F.gelu(hidden, approximate="tanh") * gate


def right_of_mode(x: Tensor, mode: str, dim: int) -> Tensor:
    """Activate the second half, approximated or not as a setting says."""
    hidden, gate = x.chunk(2, dim=dim)
    return hidden * F.gelu(gate, approximate=mode)


def left_of_mode(x: Tensor, mode: str, dim: int) -> Tensor:
    """Activate the first half, approximated or not as a setting says (vLLM, SGLang)."""
    hidden, gate = x.chunk(2, dim=dim)
    return F.gelu(hidden, approximate=mode) * gate


def selected_right(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Activate the second half with a function that the configuration selects."""
    hidden, gate = x.chunk(2, dim=dim)
    return hidden * act(gate)


def selected_left(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Activate the first half with a function that the configuration selects."""
    hidden, gate = x.chunk(2, dim=dim)
    return act(hidden) * gate


def projections(gate: Tensor, up: Tensor) -> Tensor:
    """Activate one of two projections."""
    return F.gelu(gate) * up


def projections_tanh(gate: Tensor, up: Tensor) -> Tensor:
    """Activate one of two projections, approximated."""
    return F.gelu(gate, approximate="tanh") * up


def selected_projections(gate: Tensor, up: Tensor, act: Activation) -> Tensor:
    """Activate one of two projections with a function that the configuration selects (T5)."""
    return act(gate) * up


def fused_right(x: Tensor, dim: int) -> Tensor:
    """Activate the second half and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=0)[0]


def fused_left(x: Tensor, dim: int) -> Tensor:
    """Activate the first half and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=0, activate_left=True)[0]


def fused_right_tanh(x: Tensor, dim: int) -> Tensor:
    """Activate the second half, approximated, and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=1)[0]


def fused_left_tanh(x: Tensor, dim: int) -> Tensor:
    """Activate the first half, approximated, and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=1, activate_left=True)[0]


def fused_right_of_mode(x: Tensor, mode: str, dim: int) -> Tensor:
    """Activate the second half as the setting says and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=int(mode == "tanh"))[0]


def fused_left_of_mode(x: Tensor, mode: str, dim: int) -> Tensor:
    """Activate the first half as the setting says and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=int(mode == "tanh"), activate_left=True)[0]


def fused_selected_right(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Activate the second half and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=0)[0]


def fused_selected_left(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Activate the first half and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=0, activate_left=True)[0]


def fused_tanh_right(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Activate the second half, approximated, and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=1)[0]


def fused_tanh_left(x: Tensor, act: Activation, dim: int) -> Tensor:
    """Activate the first half, approximated, and multiply with one kernel."""
    return torch_npu.npu_geglu(x, dim=dim, approximate=1, activate_left=True)[0]


def joined(gate: Tensor, up: Tensor) -> Tensor:
    """Join the projections, then activate and multiply with one kernel."""
    return torch_npu.npu_geglu(
        torch.cat((gate, up), dim=-1), dim=-1, approximate=0, activate_left=True
    )[0]


def joined_tanh(gate: Tensor, up: Tensor) -> Tensor:
    """Join the projections, then activate and multiply with one kernel, approximated."""
    return torch_npu.npu_geglu(
        torch.cat((gate, up), dim=-1), dim=-1, approximate=1, activate_left=True
    )[0]


def joined_selected(gate: Tensor, up: Tensor, act: Activation) -> Tensor:
    """Join the projections, then activate and multiply with one kernel."""
    return torch_npu.npu_geglu(
        torch.cat((gate, up), dim=-1), dim=-1, approximate=0, activate_left=True
    )[0]


def joined_selected_tanh(gate: Tensor, up: Tensor, act: Activation) -> Tensor:
    """Join the projections, then activate and multiply with one kernel, approximated."""
    return torch_npu.npu_geglu(
        torch.cat((gate, up), dim=-1), dim=-1, approximate=1, activate_left=True
    )[0]


def exact(x: Tensor) -> Tensor:
    """Return GELU by the error function: what ``ACT2FN["gelu"]`` is."""
    import torch

    return torch.nn.functional.gelu(x)


def approximated(x: Tensor) -> Tensor:
    """Return the tanh form of GELU: what ``ACT2FN["gelu_new"]`` is."""
    import torch

    return torch.nn.functional.gelu(x, approximate="tanh")


def inputs(draw: Draw) -> dict[str, Any]:
    """Return projections of one to four dimensions, halved along any of them."""
    import torch

    shape = draw.choice([(8,), (3, 6), (2, 3, 8), (2, 4, 2, 6)])
    dims = [dim for dim in range(-len(shape), len(shape)) if shape[dim] % 2 == 0]
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {"x": draw.floats(*shape, dtype=dtype) * 2, "dim": draw.choice(dims)}


def mode_inputs(draw: Draw) -> dict[str, Any]:
    """Return projections and either form of the activation by its name."""
    return {**inputs(draw), "mode": draw.choice(["none", "tanh"])}


def exact_inputs(draw: Draw) -> dict[str, Any]:
    """Return projections and the exact activation."""
    return {**inputs(draw), "act": exact}


def tanh_inputs(draw: Draw) -> dict[str, Any]:
    """Return projections and the tanh form of the activation."""
    return {**inputs(draw), "act": approximated}


def exact_projection_inputs(draw: Draw) -> dict[str, Any]:
    """Return two projections and the exact activation."""
    return {**projection_inputs(draw), "act": exact}


def tanh_projection_inputs(draw: Draw) -> dict[str, Any]:
    """Return two projections and the tanh form of the activation."""
    return {**projection_inputs(draw), "act": approximated}


_TANH_NAMES = ("gelu_tanh", "gelu_new")


def _is(*names: str) -> Callable[[Site], bool | None]:
    return lambda site: is_activation(site, "act", *names)


OF_SETTING = Condition(
    "approximate-is-setting",
    "the name of the form is a setting, none that is written there",
    lambda site: not isinstance(site.literal("mode"), str),
    time_alone=True,
)
IS_GELU = Condition(
    "activation-is-gelu",
    "the activation that the configuration selects is the exact GELU",
    _is("gelu"),
)
IS_TANH = Condition(
    "activation-is-gelu-tanh",
    "the activation that the configuration selects is the tanh form of GELU",
    # What no configuration names is SiLU far more often: a set of assumptions may grant this one.
    lambda site: (
        False if site.activation("act") is None else is_activation(site, "act", *_TANH_NAMES)
    ),
)
APART = (SAME_SHAPE, JOINING_PAYS)

SMALL_KERNELS = (
    "ConcatD", "Gelu", "GeluGrad", "GeluV2", "GeluGradV2", "Mul", "Slice", "SliceD", "SplitD",
    "SplitV", "StridedSlice",
)  # fmt: skip

_JOINED = (8.0, 8.0)
"""Of gate or up: joining reads two and writes two, the operator reads two and writes the product
and the activated gate. Its gradient moves six; what uses the halves of that may copy them."""


RULE = Substitution(
    id="NPU110",
    name="eager-geglu",
    summary="GeGLU written out in eager operators",
    table="fusion",
    forms=(
        Form(right, fused_right, inputs),
        Form(left, fused_left, inputs),
        Form(right_tanh, fused_right_tanh, inputs),
        Form(left_tanh, fused_left_tanh, inputs),
        Form(right_of_mode, fused_right_of_mode, mode_inputs, (OF_SETTING,)),
        Form(left_of_mode, fused_left_of_mode, mode_inputs, (OF_SETTING,)),
        Form(selected_right, fused_selected_right, exact_inputs, (IS_GELU,)),
        Form(selected_left, fused_selected_left, exact_inputs, (IS_GELU,)),
        Form(selected_right, fused_tanh_right, tanh_inputs, (IS_TANH,)),
        Form(selected_left, fused_tanh_left, tanh_inputs, (IS_TANH,)),
        Form(projections, joined, projection_inputs, APART, _JOINED, (2, 2)),
        Form(projections_tanh, joined_tanh, projection_inputs, APART, _JOINED, (2, 2)),
        Form(
            selected_projections,
            joined_selected,
            exact_projection_inputs,
            (IS_GELU, *APART),
            _JOINED,
            (2, 2),
        ),
        Form(
            selected_projections,
            joined_selected_tanh,
            tanh_projection_inputs,
            (IS_TANH, *APART),
            _JOINED,
            (2, 2),
        ),
    ),
    replaces=SMALL_KERNELS,
    becomes=("GeGluV2", "GeGluGradV2"),
    passes=(2, 3),
    requires="torch_npu>=2.1; CANN>=8.0",
    valid=(
        # SwiGLU
        """
def f(x: torch.Tensor):
    hidden, gate = x.chunk(2, dim=-1)
    return hidden * torch.sigmoid(gate) * gate
""",
        # another approximation
        """
def f(x: torch.Tensor):
    hidden, gate = x.chunk(2, dim=-1)
    return hidden * (gate * torch.sigmoid(1.8 * gate))
""",
        # an offset
        """
def f(x: torch.Tensor):
    hidden, gate = x.chunk(2, dim=-1)
    return (hidden + 1) * F.gelu(gate)
""",
        # a mask
        """
def f(x: torch.Tensor, mask: torch.Tensor):
    return F.gelu(x) * mask.unsqueeze(-1)
""",
        # for an NPU already: diffusers
        """
def f(x: torch.Tensor):
    if is_torch_npu_available():
        return torch_npu.npu_geglu(x, dim=-1, approximate=1)[0]
    hidden, gate = x.chunk(2, dim=-1)
    return hidden * F.gelu(gate)
""",
        # the activated half is used again
        """
def f(x: torch.Tensor):
    hidden, gate = x.chunk(2, dim=-1)
    gate = F.gelu(gate)
    return hidden * gate, gate
""",
    ),
    rewritten=REWRITTEN,
)
