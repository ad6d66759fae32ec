"""Backward operators whose reference is the derivative of the forward reference.

torch_npu's own autograd formulas call them; what they compute, autograd finds here.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npufix.rewriters.verification.virtual_npu.operators.autograd import record_gradients
from npufix.rewriters.verification.virtual_npu.operators.random_numbers import draw_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Derivative(NamedTuple):
    """How a backward operator follows from a forward one."""

    of: str
    gradient: str
    """Its argument that is the gradient of the first result."""
    wrt: tuple[str, ...]
    """The forward parameters whose gradients it returns, in order."""
    renamed: Mapping[str, str] = {}
    """Parameters of the forward operator under another name here."""
    random: bool = False


_ATTENTION = Derivative(
    "npu_fusion_attention",
    "dy",
    ("query", "key", "value", "pse"),
    {"scale": "scale_value"},
    random=True,
)
DERIVATIVES: Mapping[str, Derivative] = {
    "npu_fast_gelu_backward": Derivative("npu_fast_gelu", "grad", ("input",)),
    "npu_fusion_attention_grad": _ATTENTION,
    "npu_fusion_attention_grad_v3": _ATTENTION,
    "npu_fusion_attention_grad_v2": Derivative(
        "npu_fusion_attention_v2",
        "dy",
        ("query", "key", "value", "pse", "query_rope", "key_rope"),
        {"scale": "scale_value"},
        random=True,
    ),
    "npu_geglu_grad": Derivative("npu_geglu", "grad_output", ("input",)),
    "npu_gelu_backward": Derivative("npu_gelu", "grad_output", ("input",)),
    "npu_rotary_mul_backward": Derivative("npu_rotary_mul", "grad", ("input", "r1", "r2")),
    "npu_swiglu_backward": Derivative("npu_swiglu", "grad_output", ("input",)),
}


def derive(
    derivative: Derivative, forward: Callable[..., object], given: Mapping[str, object]
) -> object:
    """Return the gradients by running ``forward`` again."""
    arguments = {
        name: given[source]
        for name in inspect.signature(forward).parameters
        if (source := _source(derivative, name, given)) in given
    }
    inputs: dict[str, torch.Tensor] = {}
    for name in derivative.wrt:
        value = arguments.get(name)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            inputs[name] = arguments[name] = value.detach().requires_grad_()
    state = (_number(given.get("seed")), _number(given.get("offset")))
    gradient: Any = given[derivative.gradient]

    def differentiate() -> tuple[torch.Tensor | None, ...]:
        with draw_from(state if derivative.random else ()):
            results: Any = forward(**arguments)
        first = results[0] if isinstance(results, tuple) else results
        return torch.autograd.grad(first, list(inputs.values()), gradient, allow_unused=True)

    found = record_gradients(differentiate)
    gradients = dict(zip(inputs, found, strict=True))
    wanted = tuple(gradients.get(name) for name in derivative.wrt)
    return wanted if len(wanted) > 1 else wanted[0]


def _source(derivative: Derivative, name: str, given: Mapping[str, object]) -> str:
    """Return what the backward operator calls a parameter of the forward one."""
    known = derivative.renamed.get(name, name)
    return "self" if known == "input" and "input" not in given else known


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | torch.Tensor) else 0
