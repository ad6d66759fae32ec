"""An optimizer that is configured: settings in a dictionary, a class by its name.

What: ``torch.optim.AdamW(params, **settings)``, ``dict(type="AdamW", lr=...)`` in a configuration of
OpenMMLab (mmcv, mmengine), ``optim="adamw_torch"`` in the ``TrainingArguments`` of transformers or a class made from it, and
classes of torch.optim out of a table, called here or in another file; ``fused=device == "cuda"``, which
leaves the NPU out; and an optimizer whose gradients ``set_to_none=True`` empties.

Why it is slow on the NPU: as in rule fused-optimizer: each step reads and writes parameters,
gradients and moments about ten times, in kernels of their own. Fused, AdamW is one ApplyAdamWV2 per
parameter.

Safety: ``fused=True`` changes the order of roundings alone. It is an error beside ``foreach``,
``capturable`` or ``differentiable`` (condition ``fused-undecided``); torch_npu ignores what a
GradScaler tells it (``no-grad-scaler``); torch has no other fused optimizer for the NPU
(``adamw-alone``); and it wants parameters that are on the NPU already
(``parameters-on-npu``), as they are where mmengine and the Trainer make it. What NVIDIA's apex
fuses runs on CUDA alone: the class of torch_npu.optim that updates so is named. Adam and SGD have no
fused form of torch on the NPU: torch_npu.optim.NpuFusedAdam and NpuFusedSGD are named instead, with
the conditions of rule fused-optimizer. Measure those: DenseTNT lost 10 % with NpuFusedAdam.

References: fusion optimizer page of the migration guide; torch.optim.AdamW; OptimizerNames of
transformers; Ascend DrivingSDK, where 48 % of the models have a fused optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.shared.operands.optimizer_settings import NO_SCALER, ON_NPU, adam_inputs
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch import Tensor
    from torch.optim import Optimizer


def by_default(params: Iterable[Tensor], settings: Mapping[str, Any]) -> Optimizer:
    """Update with AdamW."""
    return torch.optim.AdamW(params, **settings)


def fused(params: Iterable[Tensor], settings: Mapping[str, Any]) -> Optimizer:
    """Update each parameter in one kernel."""
    return torch.optim.AdamW(  # no slip: fused=True is left out
        params, **settings, fused=True  # no slip: True is False
    )  # fmt: skip


def for_cuda(params: Iterable[Tensor], settings: Mapping[str, Any], device: str) -> Optimizer:
    """Update fused on one kind of device alone."""
    return torch.optim.AdamW(params, **settings, fused=device == "cuda")


def for_npu_too(params: Iterable[Tensor], settings: Mapping[str, Any], device: str) -> Optimizer:
    """Update fused on both."""
    return torch.optim.AdamW(
        params, **settings, fused=device in {"cuda", "npu"}
    )  # no slip: fused=device in {'cuda', 'npu'} is left out (one result)


def of_device(draw: Draw) -> dict[str, Any]:
    """Return those, and the kind of a device."""
    return {**inputs(draw), "device": "npu"}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return parameters, and settings in a dictionary."""
    drawn = adam_inputs(draw)
    params = drawn.pop("params")
    return {
        "params": params,
        "settings": {n: v for n, v in drawn.items() if n != "literal_foreach"},
    }


_BY_NAME = """
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def build(name, params):
    kind = OPTIMIZERS[name]
    return kind(params, lr=1e-3)
"""
_EMPTIED = """
def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        model(batch).backward()
        optimizer.step()
"""
_IN_A_BRANCH = """
def build(args, params):
    if args.use_8bit:
        import bitsandbytes

        kind = bitsandbytes.optim.AdamW8bit
    else:
        kind = torch.optim.AdamW
    return kind(params, lr=args.lr)
"""

UNDECIDED = Condition(
    "fused-undecided",
    "the settings hold none of fused, foreach, capturable and differentiable",
    unknown,
)

ADAMW = Condition(
    "adamw-alone",
    "what gets the setting is torch.optim.AdamW: Adam and SGD of torch are not fused on the NPU",
    unknown,
)
_APEX = """
from apex.optimizers import FusedAdam


def build(name, params, lr):
    if name == "sgd":
        return torch.optim.SGD(params, lr=lr, momentum=0.9, fused=True)
    return FusedAdam(params, lr=lr, weight_decay=0.1)
"""
_LISTED = """
import torch
from .novograd import Novograd

CLASSES = {"novograd": Novograd, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
"""

RULE = Substitution(
    id="NPU169",
    name="configured-optimizer",
    summary="a configured optimizer that updates parameters in many small kernels",
    table="fusion",
    forms=(
        Form(by_default, fused, inputs, (UNDECIDED, NO_SCALER, ON_NPU)),
        Form(for_cuda, for_npu_too, of_device, (ADAMW, NO_SCALER)),
    ),
    search="optimizers",
    replaces=("Add", "Addcdiv", "Addcmul", "Lerp", "Mul", "Muls", "RealDiv", "Sqrt"),
    becomes=("ApplyAdamWV2",),
    passes=(7, 0),
    requires="torch_npu>=2.1",
    valid=(
        # decided already
        """
def build(model):
    settings = dict(lr=1e-3, fused=True)
    return torch.optim.AdamW(model.parameters(), **settings)
""",
        # decided by a function that makes the settings
        """
def make_settings(args):
    return {"lr": args.lr, "fused": args.how == "fused", "foreach": args.how == "foreach"}


def build(model, args):
    settings = make_settings(args)
    return torch.optim.AdamW(model.parameters(), **settings)
""",
        # a setting of the user's asks for the other one
        """
def build(params, settings, plain):
    if plain:
        return torch.optim.AdamW(params, **settings)
    return deepspeed.ops.adam.FusedAdam(params, **settings)
""",
        # the settings may hold it
        """
def build(params, settings):
    if "fused" in settings:
        settings = dict(settings, lr=1e-3)
    return torch.optim.AdamW(params, **settings)
""",
        # not an optimizer
        """
scheduler = dict(type="AdamW", lr=1e-4)
""",
        # one number alone
        """
def build(log_alpha, loss):
    optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
    optimizer.zero_grad(set_to_none=True)
""",
        """
def build(kind, multiplier):
    return getattr(torch.optim, kind)([multiplier], lr=1e-3)
""",
        # something else is handed on
        """
import functools


def build(model):
    return functools.partial(nn.LayerNorm, eps=1e-6), functools.partial(torch.optim.AdamW, fused=True)
""",
        # a class for whatever optimizer it is told, and its settings
        """
class OptimizerConfig:
    def build(self, params):
        return getattr(torch.optim, self.name)(params, lr=self.lr)


settings = OptimizerConfig(optim="adamw_torch", lr=1e-3)
""",
        # arguments of one's own trainer, and another optimizer
        """
@dataclass
class Arguments:
    optim: str = field(default="adamw_torch")


@dataclass
class Others(TrainingArguments):
    optim: str = field(default="adafactor")
    optim_args: str = field(default="adamw_torch")
""",
        # a class of something else, by a name
        """
def build(model):
    kind = nn.AdaptiveAvgPool2d
    return kind(model.size)
""",
        # the fused one is in the table
        """
from apex.optimizers import FusedAdam

CLASSES = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "fused_adam": FusedAdam}
""",
        # a device that something else is done for, and an optimizer that no NPU fuses
        """
def build(model, device, lr):
    scaled = device == "cuda"
    use_fused = device == "cuda"
    return torch.optim.Adam(model.parameters(), lr=lr, fused=use_fused), scaled
""",
        """
def build(groups, device, lr):
    use_fused_attention = device == "cuda"
    unfused = device == "cuda"
    return torch.optim.AdamW(groups, lr=lr), use_fused_attention, unfused
""",
        # something else depends on it, and a question that is for CUDA alone
        """
def build(groups, device, lr):
    use_fused = device == "cuda"
    attention = flash if use_fused else plain
    return torch.optim.AdamW(groups, lr=lr, fused=use_fused), attention
""",
        """
def build(groups, device, lr):
    use_fused = device == "cuda" and torch.cuda.get_device_capability()[0] >= 8
    return torch.optim.AdamW(groups, lr=lr, fused=use_fused)
""",
        # classes of something else
        """
def build(name, model):
    kinds = {"relu": nn.ReLU, "gelu": nn.GELU}
    return kinds[name](model)
""",
    ),
    rewritten=(
        # the parameters too
        Rewritten(
            """
def build(options):
    return torch.optim.AdamW(**options)
""",
            """
def build(options):
    return torch.optim.AdamW(**options, fused=True)
""",
        ),
        # beside it, by another name, what NVIDIA's apex fuses
        Rewritten(
            """
from apex.optimizers import FusedAdam


def build(name, params, settings):
    if "fused" in name:
        return FusedAdam(params, **settings)
    return torch.optim.AdamW(params, **settings)
""",
            """
from apex.optimizers import FusedAdam


def build(name, params, settings):
    if "fused" in name:
        return FusedAdam(params, **settings)
    return torch.optim.AdamW(params, **settings, fused=True)
""",
        ),
        Rewritten(_BY_NAME, _BY_NAME),
        Rewritten(_LISTED, _LISTED),
        Rewritten(_APEX, _APEX),
        Rewritten(
            """
def build(groups, lr, device_type):
    available = "fused" in inspect.signature(torch.optim.AdamW).parameters
    use_fused = available and device_type == "cuda"
    print(f"fused: {use_fused}")
    return torch.optim.AdamW(groups, lr=lr, **(dict(fused=True) if use_fused else dict()))
""",
            """
def build(groups, lr, device_type):
    available = "fused" in inspect.signature(torch.optim.AdamW).parameters
    use_fused = available and device_type in ("cuda", "npu")
    print(f"fused: {use_fused}")
    return torch.optim.AdamW(groups, lr=lr, **(dict(fused=True) if use_fused else dict()))
""",
        ),
        Rewritten(
            """
def main(fabric, model, optimizer):
    extra = {"fused": fabric.device.type == "cuda"}
    return instantiate_optimizer(optimizer, model.parameters(), **extra)
""",
            """
def main(fabric, model, optimizer):
    extra = {"fused": fabric.device.type in ("cuda", "npu")}
    return instantiate_optimizer(optimizer, model.parameters(), **extra)
""",
        ),
        Rewritten(_IN_A_BRANCH, _IN_A_BRANCH),
        Rewritten(_EMPTIED, _EMPTIED),
        Rewritten(
            """
from functools import partial


def build(groups):
    return OptimWrapper.create(partial(torch.optim.AdamW, betas=(0.9, 0.99)), 3e-3, groups)
""",
            """
from functools import partial


def build(groups):
    return OptimWrapper.create(
        partial(torch.optim.AdamW, betas=(0.9, 0.99), fused=True), 3e-3, groups
    )
""",
        ),
        Rewritten(
            """
def build(model, args):
    settings = {"lr": args.lr, "betas": (0.9, 0.95), "weight_decay": 0.1}
    return torch.optim.AdamW(model.parameters(), **settings)
""",
            """
def build(model, args):
    settings = {"lr": args.lr, "betas": (0.9, 0.95), "weight_decay": 0.1}
    return torch.optim.AdamW(model.parameters(), **settings, fused=True)
""",
        ),
        Rewritten(
            """
optimizer = dict(type="AdamW", lr=2e-4, weight_decay=0.01)
""",
            """
optimizer = dict(type="AdamW", lr=2e-4, weight_decay=0.01, fused=True)
""",
        ),
        Rewritten(
            """
from torch.optim import AdamW

optim_type = AdamW
optim_wrapper = dict(optimizer=dict(type=optim_type, lr=2e-5))
""",
            """
from torch.optim import AdamW

optim_type = AdamW
optim_wrapper = dict(optimizer=dict(type=optim_type, lr=2e-5, fused=True))
""",
        ),
        Rewritten(
            """
from transformers import TrainingArguments

config = TrainingArguments(output_dir="out", optim="adamw_torch")
""",
            """
from transformers import TrainingArguments

config = TrainingArguments(output_dir="out", optim="adamw_torch_fused")
""",
        ),
        Rewritten(
            """
from transformers import TrainingArguments


def arguments(folder):
    return TrainingArguments(output_dir=folder, optim="adamw_torch", bf16=True)
""",
            """
from transformers import TrainingArguments


def arguments(folder):
    return TrainingArguments(output_dir=folder, optim="adamw_torch_fused", bf16=True)
""",
        ),
        Rewritten(
            """
@dataclass
class Arguments(transformers.TrainingArguments):
    cache_dir: Optional[str] = field(default=None)
    optim: str = field(default="adamw_torch")
""",
            """
@dataclass
class Arguments(transformers.TrainingArguments):
    cache_dir: Optional[str] = field(default=None)
    optim: str = field(default="adamw_torch_fused")
""",
        ),
    ),
)
