"""A stand-in for ``torch_npu.optim``: its fused optimisers, and everything that they refuse.

Parameters and gradients are combined at the first step. From then on only those gradient
tensors count: a gradient that is set to None and made anew is not seen any more, and neither is
a parameter that had none.
"""

from __future__ import annotations

import importlib.machinery
import types
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


class _Fused(torch.optim.Optimizer):
    """What all of them refuse, and what only they have."""

    _combined: dict[Tensor, Tensor] | None = None
    is_fused_optimizer = True

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

    def __init__(  # noqa: PLR0913, PLR0917 - torch_npu's signature
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
    ) -> None:
        torch.optim.SGD.__init__(
            self, params, lr, momentum, dampening, weight_decay, nesterov, foreach=False
        )


class NpuFusedAdam(_Fused, torch.optim.Adam):
    """Adam."""

    def __init__(  # noqa: PLR0913, PLR0917 - torch_npu's signature
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
    ) -> None:
        torch.optim.Adam.__init__(
            self, params, lr, betas, eps, weight_decay, amsgrad, foreach=False
        )


class NpuFusedAdamW(_Fused, torch.optim.AdamW):
    """Adam with decoupled weight decay."""

    def __init__(  # noqa: PLR0913, PLR0917 - torch_npu's signature
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
    ) -> None:
        torch.optim.AdamW.__init__(
            self, params, lr, betas, eps, weight_decay, amsgrad, foreach=False
        )


class NpuFusedAdadelta(_Fused, torch.optim.Adadelta):
    """Adadelta."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
    ) -> None:
        torch.optim.Adadelta.__init__(self, params, lr, rho, eps, weight_decay, foreach=False)


class NpuFusedRMSprop(_Fused, torch.optim.RMSprop):
    """RMSprop."""

    def __init__(  # noqa: PLR0913, PLR0917 - torch_npu's signature
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
    ) -> None:
        torch.optim.RMSprop.__init__(
            self, params, lr, alpha, eps, weight_decay, momentum, centered, foreach=False
        )


class _Updates(torch.optim.Optimizer):
    """An algorithm that torch does not have: one function that updates a group."""

    update: Callable[[dict[str, Any], dict[Tensor, Any]], None]

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every group."""
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            self.update({**group, "params": given}, self.state)


class NpuFusedRMSpropTF(_Fused, _Updates):
    """RMSprop as TensorFlow computes it: eps under the root, averages start at one."""

    update = staticmethod(rms_prop_tf)

    def __init__(  # noqa: PLR0913, PLR0917 - torch_npu's signature
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.9,
        eps: float = 1e-10,
        weight_decay: float = 0,
        momentum: float = 0.0,
        centered: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
        decoupled_decay: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
        lr_in_momentum: bool = True,  # noqa: FBT001, FBT002 - torch_npu's signature
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
                "decoupled_decay": decoupled_decay,
                "lr_in_momentum": lr_in_momentum,
            },
        )


class NpuFusedLamb(_Fused, _Updates):
    """LAMB, without bias correction and with weight norms clipped to ten."""

    update = staticmethod(lamb)

    def __init__(  # noqa: PLR0913, PLR0917 - torch_npu's signature
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0,
        adam: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
        use_global_grad_norm: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
    ) -> None:
        if use_global_grad_norm:
            raise NoReferenceKernelError(
                "there is no reference for NpuFusedLamb with a global norm"
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "adam": adam})


class NpuFusedAdamP(_Fused, _Updates):
    """AdamP: Adam without the part of the step that only lengthens the weights."""

    update = staticmethod(adam_p)

    def __init__(  # noqa: PLR0913, PLR0917 - torch_npu's signature
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, {**defaults, "delta": delta, "wd_ratio": wd_ratio, "nesterov": nesterov}
        )


class NpuFusedBertAdam(_Fused, _Updates):
    """BERT's Adam; gradients are clipped by the norm of a whole group, not of a parameter."""

    update = staticmethod(bert_adam)

    def __init__(  # noqa: PLR0913, PLR0917 - torch_npu's signature
        self,
        params: Iterable[Any],
        lr: float,
        warmup: float = -1,
        t_total: int = -1,
        schedule: str = "warmup_linear",
        b1: float = 0.9,
        b2: float = 0.999,
        e: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
    ) -> None:
        schedules = {"schedule": schedule, "warmup": warmup, "t_total": t_total}
        decay = {"weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        super().__init__(params, {"lr": lr, **schedules, "b1": b1, "b2": b2, "e": e, **decay})


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
