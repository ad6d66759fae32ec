"""An optimizer of torch.optim that updates the parameters in many small kernels.

What: ``torch.optim.SGD``, ``Adam``, ``AdamW``, ``Adadelta`` or ``RMSprop`` without ``fused=True``.

Why it is slow on the NPU: each step reads and writes parameters, gradients and moments about ten
times, in kernels of their own. Fused, AdamW is one ApplyAdamWV2 per parameter; the classes of
torch_npu work on one combined tensor per dtype.

For AdamW, ``fused=True`` comes first: it takes every dtype, sharded parameters and
``zero_grad(set_to_none=True)``, and its state is that of ``torch.optim.AdamW``. torch_npu ignores the
``grad_scale`` and ``found_inf`` that a GradScaler hands to it, so a module with a GradScaler gets
``torch_npu.optim.NpuFusedAdamW`` instead. torch_npu has no fused Adam of torch. Without weight decay Adam
and AdamW are the same, so such an Adam becomes an AdamW with ``weight_decay=0``; another one becomes
``NpuFusedAdam``. The fused SGD refuses a momentum of 0: it becomes ``NpuFusedSGD``.

Safety: the classes of torch_npu combine parameters and gradients at the first step, and from then on
only that memory counts. So they want float32 or float16 parameters (bfloat16 is a TypeError), which
keep their memory; gradients that are never None (``zero_grad(set_to_none=True)`` is a ValueError:
make it ``zero_grad()``), not sparse, and one for every parameter in every step, as a parameter
without one is never updated later and a gradient of zero still decays; no FSDP, DeepSpeed or ZeRO;
and memory for the combined copies. They do not know ``maximize``, ``capturable`` and
``differentiable``. ``fused=True`` wants parameters that are on the NPU already, and a learning rate
that is a number. ``foreach`` goes: it says how, not what.

References: fusion optimizer page of the migration guide; torch_npu.optim in the API reference of
Ascend Extension for PyTorch; torch.optim.AdamW.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.shared.operands.optimizer_settings import (
    COMBINED,
    NO_DECAY,
    NO_SCALER,
    NUMBER_LR,
    ON_NPU,
    SEVERAL,
    adadelta_inputs,
    adam_inputs,
    adamw_inputs,
    inputs_without_decay,
    rmsprop_inputs,
    sgd_inputs,
)
from npufix.rules.substitution import Form, Rewritten, Substitution

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    import torch_npu
    from torch import Tensor
    from torch.optim import Optimizer

    Params = Iterable[Tensor]
    Betas = tuple[float, float]


def adamw(
    params: Params, lr: float, betas: Betas, eps: float, weight_decay: float, amsgrad: bool,
    literal_foreach: bool | None, literal_maximize: bool,
) -> Optimizer:  # fmt: skip
    """Update with AdamW."""
    return torch.optim.AdamW(
        params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
        foreach=literal_foreach, maximize=literal_maximize,
    )  # fmt: skip


def fused_adamw(
    params: Params, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 1e-2, amsgrad: bool = False, literal_foreach: bool | None = None,
    literal_maximize: bool = False,
) -> Optimizer:  # fmt: skip
    """Update each parameter in one kernel."""
    return torch.optim.AdamW(  # no slip: fused=True is left out
        params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
        maximize=literal_maximize, fused=True,  # no slip: True is False
    )  # fmt: skip


def plain_adamw(
    params: Params, lr: float, betas: Betas, eps: float, weight_decay: float, amsgrad: bool,
    literal_foreach: bool | None,
) -> Optimizer:  # fmt: skip
    """Update with AdamW."""
    return torch.optim.AdamW(
        params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
        foreach=literal_foreach,
    )  # fmt: skip


def combined_adamw(
    params: Params, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 1e-2, amsgrad: bool = False, literal_foreach: bool | None = None,
) -> Optimizer:  # fmt: skip
    """Update all parameters of a dtype together."""
    return torch_npu.optim.NpuFusedAdamW(
        params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
    )


def adam(
    params: Params, lr: float, betas: Betas, eps: float, weight_decay: float, amsgrad: bool,
    literal_foreach: bool | None,
) -> Optimizer:  # fmt: skip
    """Update with Adam."""
    return torch.optim.Adam(
        params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
        foreach=literal_foreach,
    )  # fmt: skip


def adam_alone(
    params: Params, lr: float, betas: Betas, eps: float, amsgrad: bool,
    literal_foreach: bool | None, literal_maximize: bool,
) -> Optimizer:  # fmt: skip
    """Update with Adam, and let no weight decay."""
    return torch.optim.Adam(
        params, lr=lr, betas=betas, eps=eps, amsgrad=amsgrad, foreach=literal_foreach,
        maximize=literal_maximize,
    )  # fmt: skip


def fused_adam_alone(
    params: Params, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
    amsgrad: bool = False, literal_foreach: bool | None = None, literal_maximize: bool = False,
) -> Optimizer:  # fmt: skip
    """Update each parameter in one kernel: what decays makes the difference, and nothing does."""
    return torch.optim.AdamW(  # no slip: fused=True is left out
        params, lr=lr, betas=betas, eps=eps, weight_decay=0, amsgrad=amsgrad,
        maximize=literal_maximize, fused=True,  # no slip: True is False
    )  # fmt: skip


def combined_adam(
    params: Params, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 0, amsgrad: bool = False, literal_foreach: bool | None = None,
) -> Optimizer:  # fmt: skip
    """Update all parameters of a dtype together."""
    return torch_npu.optim.NpuFusedAdam(
        params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
    )


def sgd(
    params: Params, lr: float, momentum: float, dampening: float, weight_decay: float,
    nesterov: bool, literal_foreach: bool | None,
) -> Optimizer:  # fmt: skip
    """Update with stochastic gradient descent."""
    return torch.optim.SGD(
        params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
        nesterov=nesterov, foreach=literal_foreach,
    )  # fmt: skip


def combined_sgd(
    params: Params, lr: float, momentum: float = 0, dampening: float = 0,
    weight_decay: float = 0, nesterov: bool = False, literal_foreach: bool | None = None,
) -> Optimizer:  # fmt: skip
    """Update all parameters of a dtype together; the rate has no default there."""
    return torch_npu.optim.NpuFusedSGD(
        params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
        nesterov=nesterov,
    )  # fmt: skip


def adadelta(
    params: Params, lr: float, rho: float, eps: float, weight_decay: float,
    literal_foreach: bool | None,
) -> Optimizer:  # fmt: skip
    """Update with Adadelta."""
    return torch.optim.Adadelta(
        params, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, foreach=literal_foreach
    )


def combined_adadelta(
    params: Params, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
    weight_decay: float = 0, literal_foreach: bool | None = None,
) -> Optimizer:  # fmt: skip
    """Update all parameters of a dtype together."""
    return torch_npu.optim.NpuFusedAdadelta(
        params, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay
    )


def rmsprop(
    params: Params, lr: float, alpha: float, eps: float, weight_decay: float, momentum: float,
    centered: bool, literal_foreach: bool | None,
) -> Optimizer:  # fmt: skip
    """Update with RMSprop."""
    return torch.optim.RMSprop(
        params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
        centered=centered, foreach=literal_foreach,
    )  # fmt: skip


def combined_rmsprop(
    params: Params, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
    weight_decay: float = 0, momentum: float = 0, centered: bool = False,
    literal_foreach: bool | None = None,
) -> Optimizer:  # fmt: skip
    """Update all parameters of a dtype together."""
    return torch_npu.optim.NpuFusedRMSprop(
        params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
        centered=centered,
    )  # fmt: skip


RULE = Substitution(
    id="NPU112",
    name="fused-optimizer",
    summary="an optimizer that updates parameters in many small kernels",
    table="fusion",
    forms=(
        Form(adamw, fused_adamw, adamw_inputs, (SEVERAL, NUMBER_LR, NO_SCALER, ON_NPU)),
        Form(plain_adamw, combined_adamw, adam_inputs, COMBINED),
        Form(
            adam_alone,
            fused_adam_alone,
            inputs_without_decay,
            (SEVERAL, NUMBER_LR, NO_SCALER, NO_DECAY, ON_NPU),
        ),
        Form(adam, combined_adam, adam_inputs, COMBINED),
        Form(sgd, combined_sgd, sgd_inputs, COMBINED),
        Form(adadelta, combined_adadelta, adadelta_inputs, COMBINED),
        Form(rmsprop, combined_rmsprop, rmsprop_inputs, COMBINED),
    ),
    replaces=(
        "Add",
        "Addcdiv",
        "Addcmul",
        "Adds",
        "Axpy",
        "AxpyV2",
        "ForeachAddList",
        "ForeachAddListV2",
        "ForeachAddScalar",
        "ForeachAddcdivList",
        "ForeachAddcdivScalarList",
        "ForeachAddcmulScalar",
        "ForeachDivScalarList",
        "ForeachLerpScalar",
        "ForeachMulScalar",
        "ForeachSqrt",
        "Lerp",
        "Mul",
        "Muls",
        "RealDiv",
        "Sqrt",
        "Sub",
    ),
    becomes=("ApplyAdamWV2", "Add", "Addcdiv", "Addcmul", "Mul", "RealDiv", "Sqrt"),
    passes=(7, 0),
    requires="torch_npu>=2.1",
    valid=(
        # AdamW of another library
        """
def f(model, bnb):
    from bitsandbytes.optim import AdamW
    return AdamW(model.parameters(), lr=1e-3)
""",
        # fused already, or deliberately not
        """
def f(model):
    first = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    second = torch.optim.Adam(model.parameters(), lr=1e-3, fused=False)
    return first, second
""",
        # gradient ascent, and graphs through the step: unknown to the fused classes
        """
def f(model):
    ascent = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    meta = torch.optim.Adam(model.parameters(), lr=0.1, differentiable=True)
    return ascent, meta
""",
        # a subclass, and a class out of a table
        """
class Slow(torch.optim.AdamW):
    def __init__(self, params):
        super().__init__(params, lr=1e-4)
""",
        """
def f(model, name, **settings):
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    return kinds[name](model.parameters(), **settings), getattr(torch.optim, name)(model.parameters())
""",
        # settings that nobody sees
        """
def f(model, settings):
    return torch.optim.AdamW(model.parameters(), **settings)
""",
        # sharded parameters
        """
def f(model):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    return torch.optim.SGD(FSDP(model).parameters(), lr=0.1)
""",
    ),
    rewritten=(
        Rewritten(
            """
def train(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.1)
    for batch in batches:
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
            """
def train(model, batches):
    optimizer = torch.optim.AdamW(
        model.parameters(), 1e-4, weight_decay=0.1, fused=True
    )
    for batch in batches:
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
        Rewritten(
            """
def train(model, batches, scaler):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95))
    for batch in batches:
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
            """
def train(model, batches, scaler):
    optimizer = torch_npu.optim.NpuFusedAdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95)
    )
    for batch in batches:
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        ),
        Rewritten(
            """
def optimizer(model):
    return torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)
""",
            """
def optimizer(model):
    return torch.optim.AdamW(
        filter(lambda p: p.requires_grad, model.parameters()),
        lr=1e-3,
        weight_decay=0,
        fused=True,
    )
""",
        ),
        Rewritten(  # groups that decay
            """
def optimizer(groups, weight_decay):
    groups[0].update(weight_decay=weight_decay)
    return torch.optim.Adam(groups, lr=1e-3)
""",
            """
def optimizer(groups, weight_decay):
    groups[0].update(weight_decay=weight_decay)
    return torch_npu.optim.NpuFusedAdam(groups, lr=1e-3)
""",
        ),
        Rewritten(
            """
def optimizer(model, args):
    return torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, nesterov=True, foreach=True)
""",
            """
def optimizer(model, args):
    return torch_npu.optim.NpuFusedSGD(model.parameters(), args.lr, momentum=0.9, nesterov=True)
""",
        ),
    ),
)
