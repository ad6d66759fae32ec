"""A stand-in for ``torch_npu.optim``: its fused optimisers, and everything that they refuse.

Parameters and gradients are combined at the first step. From then on only those gradient
tensors count: a gradient that is set to None and made anew is not seen any more, and neither is
a parameter that had none.
"""

from __future__ import annotations

import importlib.machinery
import types
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification.kernels.common import NoReferenceKernelError, note_kernel
from npufix.rewriters.verification.reference.fused_updates import (
    adam_p,
    bert_adam,
    lamb,
    rms_prop_tf,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

_DTYPES = (torch.float32, torch.float16)
_BETAS = (0.9, 0.999)


def _takes(**options: Any) -> Signature:  # noqa: ANN401 - defaults of any type
    """Return the signature of an optimiser: its parameters, then ``options`` by place or name."""
    names = {"params": Parameter.empty, **options}
    return Signature(
        [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=d) for n, d in names.items()]
    )


class _Fused(torch.optim.Optimizer):
    """What all of them refuse, and what only they have."""

    _combined: dict[Tensor, Tensor] | None = None
    is_fused_optimizer = True
    __signature__: Signature

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 - what the signature says
        bound = self.__signature__.bind(*given, **named)
        bound.apply_defaults()
        if bound.arguments.pop("use_global_grad_norm", False):
            raise NoReferenceKernelError(
                "there is no reference for NpuFusedLamb with a global norm"
            )
        super().__init__(**bound.arguments, foreach=False)  # type: ignore[call-arg] # those of the class behind

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - what the closure returns
        """Update with the gradients that were combined, whatever ``p.grad`` is by now."""
        note_kernel(type(self).__name__)
        loss = None if closure is None else closure()
        combined = self._combine()
        now = {p: p.grad for p in self._parameters()}
        for p in now:
            p.grad = combined.get(p)
        try:
            super().step()
        finally:
            for p, gradient in now.items():
                p.grad = gradient
        return loss

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = False) -> None:  # noqa: FBT001, FBT002 - its signature
        """Fill the combined gradients with zeros; they cannot be None."""
        if set_to_none:
            raise ValueError("set_to_none is not supported in fused optimizers")
        combined = self._combine()
        for gradient in combined.values():
            gradient.zero_()
        if not combined:
            super().zero_grad(set_to_none=False)

    @torch.no_grad()
    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2) -> Tensor:
        """Scale all gradients together, as ``torch.nn.utils.clip_grad_norm_`` does."""
        note_kernel("clip_grad_norm_fused_")
        gradients = list(self._combine().values())
        if not gradients:
            return torch.tensor(0.0)
        flat = torch.cat([gradient.float().flatten() for gradient in gradients])
        total: Tensor = torch.linalg.vector_norm(flat, float(norm_type))
        factor = float(max_norm) / (total + 1e-6)
        if factor < 1:
            for gradient in gradients:
                gradient.mul_(factor)
        return total

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _combine(self) -> dict[Tensor, Tensor]:
        if self._combined:
            return self._combined
        found = {p: p.grad for p in self._parameters() if p.grad is not None}
        for p, gradient in found.items():
            if gradient.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            if p.dtype not in _DTYPES:
                raise TypeError(
                    "Fused optimizer's parameters must be either float32 or float16, "
                    f"but received {p.dtype}"
                )
        self._combined = found
        return found


class NpuFusedSGD(_Fused, torch.optim.SGD):
    """SGD with momentum."""

    __signature__ = _takes(
        lr=Parameter.empty, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False
    )


class NpuFusedAdam(_Fused, torch.optim.Adam):
    """Adam."""

    __signature__ = _takes(lr=1e-3, betas=_BETAS, eps=1e-8, weight_decay=0, amsgrad=False)


class NpuFusedAdamW(_Fused, torch.optim.AdamW):
    """Adam with decoupled weight decay."""

    __signature__ = _takes(lr=1e-3, betas=_BETAS, eps=1e-8, weight_decay=1e-2, amsgrad=False)


class NpuFusedAdadelta(_Fused, torch.optim.Adadelta):
    """Adadelta."""

    __signature__ = _takes(lr=1.0, rho=0.9, eps=1e-6, weight_decay=0)


class NpuFusedRMSprop(_Fused, torch.optim.RMSprop):
    """RMSprop."""

    __signature__ = _takes(
        lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False
    )


class _Updates(torch.optim.Optimizer):
    """An algorithm that torch does not have: one function that updates a group."""

    update: Callable[[dict[str, Any], dict[Tensor, Any]], None]

    def __init__(self, params: Iterable[Any], *, foreach: bool, **options: Any) -> None:  # noqa: ARG002, ANN401 - as those of torch
        super().__init__(params, options)

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every group."""
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            self.update({**group, "params": given}, self.state)


class NpuFusedRMSpropTF(_Fused, _Updates):
    """RMSprop as TensorFlow computes it: eps under the root, averages start at one."""

    update = staticmethod(rms_prop_tf)
    __signature__ = _takes(
        lr=1e-2, alpha=0.9, eps=1e-10, weight_decay=0, momentum=0.0, centered=False,
        decoupled_decay=False, lr_in_momentum=True,
    )  # fmt: skip


class NpuFusedLamb(_Fused, _Updates):
    """LAMB, without bias correction and with weight norms clipped to ten."""

    update = staticmethod(lamb)
    __signature__ = _takes(
        lr=1e-3, betas=_BETAS, eps=1e-6, weight_decay=0, adam=False, use_global_grad_norm=False
    )


class NpuFusedAdamP(_Fused, _Updates):
    """AdamP: Adam without the part of the step that only lengthens the weights."""

    update = staticmethod(adam_p)
    __signature__ = _takes(
        lr=1e-3, betas=_BETAS, eps=1e-8, weight_decay=0, delta=0.1, wd_ratio=0.1, nesterov=False
    )


class NpuFusedBertAdam(_Fused, _Updates):
    """BERT's Adam; gradients are clipped by the norm of a whole group, not of a parameter."""

    update = staticmethod(bert_adam)
    __signature__ = _takes(
        lr=Parameter.empty, warmup=-1, t_total=-1, schedule="warmup_linear", b1=0.9, b2=0.999,
        e=1e-6, weight_decay=0.01, max_grad_norm=1.0,
    )  # fmt: skip


_OPTIMIZERS = (
    NpuFusedSGD,
    NpuFusedAdam,
    NpuFusedAdamW,
    NpuFusedAdadelta,
    NpuFusedRMSprop,
    NpuFusedRMSpropTF,
    NpuFusedLamb,
    NpuFusedAdamP,
    NpuFusedBertAdam,
)


def module() -> types.ModuleType:
    """Return the stand-in for ``torch_npu.optim``."""
    made = types.ModuleType("torch_npu.optim", "A stand-in by npufix: optimisers on CPU.")
    made.__spec__ = importlib.machinery.ModuleSpec("torch_npu.optim", None)
    made.__dict__.update({kind.__name__: kind for kind in _OPTIMIZERS})
    return made
