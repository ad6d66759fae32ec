"""What the rules about optimizers ask of a site, and the settings that they are tried with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition

if TYPE_CHECKING:
    from npufix.rules.substitution import Draw, Site


def _params(draw: Draw) -> dict[str, Any]:
    import torch

    several: list[list[tuple[int, ...]]] = [[(4, 3), (3,)], [(2, 5)], [(3,), (2, 2, 2), (6, 1)]]
    shapes = draw.choice(several)
    return {
        "params": [draw.floats(*shape, dtype=torch.float32) for shape in shapes],
        # Steps as large as the parameters cancel out, and then rounding is all that is left.
        "lr": draw.choice([1e-3, 0.02]),
        "weight_decay": draw.choice([0, 1e-2, 0.3]),
        "literal_foreach": draw.choice([None, False, True]),
    }


def adam_inputs(draw: Draw) -> dict[str, Any]:
    """Return parameters, and settings so large that a forgotten one shows."""
    return {
        **_params(draw),
        "betas": draw.choice([(0.9, 0.999), (0.5, 0.8)]),
        "eps": draw.choice([1e-8, 0.1]),
        "amsgrad": draw.choice([False, True]),
    }


def adamw_inputs(draw: Draw) -> dict[str, Any]:
    """Return those of Adam; AdamW may also be fused where it goes uphill."""
    return {**adam_inputs(draw), "literal_maximize": draw.choice([False, True])}


def inputs_without_decay(draw: Draw) -> dict[str, Any]:
    """Return those of an AdamW that lets nothing decay."""
    return {name: value for name, value in adamw_inputs(draw).items() if name != "weight_decay"}


def sgd_inputs(draw: Draw) -> dict[str, Any]:
    """Return parameters and every combination that SGD takes."""
    momentum = draw.choice([0, 0.9])
    nesterov = momentum > 0 and draw.choice([False, True])
    dampening = 0 if nesterov else draw.choice([0, 0.3])
    settings = {"momentum": momentum, "nesterov": nesterov, "dampening": dampening}
    return {**_params(draw), **settings}


def adadelta_inputs(draw: Draw) -> dict[str, Any]:
    """Return parameters and settings of Adadelta."""
    settings = {"rho": draw.choice([0.9, 0.5]), "eps": draw.choice([1e-6, 0.1])}
    return {**_params(draw), **settings}


def rmsprop_inputs(draw: Draw) -> dict[str, Any]:
    """Return parameters and settings of RMSprop."""
    return {
        **_params(draw),
        "alpha": draw.choice([0.99, 0.5]),
        "eps": draw.choice([1e-8, 0.1]),
        "momentum": draw.choice([0, 0.9]),
        "centered": draw.choice([False, True]),
    }


_SCALERS = ("GradScaler", "grad_scaler", "scaler", "loss_scaler", "fp16_scaler")
_MODEL = re.compile(
    r"(?i)(^|[._])(model|network|\w*net|actor|critic|policy|(en|de)coder|generator|discriminator)$"
)
"""Whose ``zero_grad()`` sets gradients to None: ``self.online_net``."""
_TENSORS = frozenset({"chain", "filter", "itertools.chain", "parameters"})
"""Whose results are tensors one by one, no groups of them."""
_CANCELS = ("cancel_gradients_last_layer", "cancel_last_layer_gradients")
"""What DINO and its kind take the gradients away with."""
_SHARDED = (
    "DeepSpeed", "FSDP", "FullyShardedDataParallel", "ZeroRedundancyOptimizer", "deepspeed",
    "fsdp", "fully_shard",
)  # fmt: skip


_PREPARES = ("Accelerator", "accelerator", "Fabric", "fabric", "engine")
"""What may shard parameters as it is configured elsewhere."""
_OF_DTYPE = (
    "bfloat16", "bf16", "dtype", "float64", "double", "from_pretrained", "half", "precision",
    "torch_dtype",
)  # fmt: skip


def _steps_unscaled(site: Site) -> bool | None:
    """Tell whether no GradScaler steps; only the module that calls ``backward`` can tell."""
    if site.mentions(*_SCALERS):
        return False
    return True if site.arguments("backward") and site.arguments("step") else None


def _trains_alone(site: Site) -> bool:
    """Tell whether the module takes the steps itself, and nothing in it shards what it trains."""
    steps = bool(site.arguments("backward") and site.arguments("step"))
    return steps and not site.mentions(*_SHARDED, *_PREPARES)


def _has_single_parameters(site: Site) -> bool | None:
    """Tell whether parameters have the dtype that torch gives them: nothing names another one."""
    return True if _trains_alone(site) and not site.mentions(*_OF_DTYPE) else None


def _are_whole(site: Site) -> bool | None:
    if site.mentions(*_SHARDED):
        return False
    return True if _trains_alone(site) else None


def _keeps_gradients(site: Site) -> bool | None:
    """Tell whether gradients are set to zero, by the optimizer, everywhere in the module."""
    if site.mentions(*_CANCELS):
        return False
    calls = site.arguments("zero_grad")
    if any(call.get("set_to_none") == "True" for call in calls):
        return False
    if any(_MODEL.search(call[""]) and call.get("set_to_none") != "False" for call in calls):
        return False
    kept = [call for call in calls if "optim" in call[""] or call[""] in {"opt", "self.opt"}]
    plain = all(set(call) == {""} or call.get("set_to_none") == "False" for call in kept)
    return True if calls and len(kept) == len(calls) and plain else None


def _lets_nothing_decay(site: Site) -> bool | None:
    """Tell whether no group has a decay: ``[{"params": weights, "weight_decay": 0.1}, ...]``.

    ``net.parameters()`` are tensors, not groups; what is handed in may be anything.
    """
    if not _TENSORS.isdisjoint(site.called("params")[:1]) or site.brings_no_decay():
        return True
    return False if site.mentions("weight_decay") else None


NUMBER_LR = Condition(
    "number-learning-rate",
    "the learning rate is a Python number, not a tensor",
    # It is a tensor only where somebody makes it one, and then the step raises at once.
    lambda site: not site.is_tensor("lr"),
)
NO_SCALER = Condition(
    "no-grad-scaler",
    "no GradScaler steps this optimizer: torch_npu's fused AdamW ignores scale and found_inf",
    _steps_unscaled,
)
NO_DECAY = Condition(
    "no-decay",
    "no group of parameters brings a weight_decay of its own: Adam adds it to gradients",
    _lets_nothing_decay,
)
ON_NPU = Condition(
    "parameters-on-npu",
    "the parameters are on the NPU when the optimizer is made",
    lambda _: None,
)
HALF_OR_SINGLE = Condition(
    "float32-or-float16-parameters",
    "all parameters are float32 or float16: bfloat16 raises a TypeError",
    _has_single_parameters,
)
KEPT_GRADIENTS = Condition(
    "kept-gradients",
    "gradients are set to zero, never to None: no zero_grad(set_to_none=True), which raises a "
    "ValueError, no zero_grad() of the model, no p.grad = None",
    _keeps_gradients,
)
KEPT_PARAMETERS = Condition(
    "kept-parameters",
    "parameters keep their memory: no .cpu() or .to() of the model and no p.data = from here on",
    lambda _: None,
)
ALL_GRADIENTS = Condition(
    "gradients-for-all-parameters",
    "every parameter gets a gradient that is not sparse, in every step",
    lambda _: None,
)
UNSHARDED = Condition(
    "unsharded-parameters",
    "no FSDP, DeepSpeed or ZeRO shards parameters or states",
    _are_whole,
)
_FEW = 4
_ONE_NUMBER = re.compile(r"temperature|log_alpha|entropy_coef|^Scalar$")
SEVERAL = Condition(
    "several-parameters",
    "it updates a model, not one number or two: for those nothing is gained",
    lambda site: (
        (site.listed("params") or _FEW) >= _FEW
        and not any(map(_ONE_NUMBER.search, site.called("params")))
    ),
    time_alone=True,
)
COMBINED = (
    SEVERAL,
    NUMBER_LR,
    HALF_OR_SINGLE,
    KEPT_GRADIENTS,
    KEPT_PARAMETERS,
    ALL_GRADIENTS,
    UNSHARDED,
)
