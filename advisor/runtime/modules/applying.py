"""Every module of a model in turn: exchanged, or left as it is for a reason."""

from __future__ import annotations

import sys
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrize

from npufix.advisor.runtime.calls import at_run_time
from npufix.advisor.runtime.calls.tables import TABLES
from npufix.advisor.runtime.modules.classes import LOCK, Exchange, is_exchanged, original
from npufix.advisor.runtime.modules.facts import Facts
from npufix.advisor.runtime.modules.loaded import LoadedFiles
from npufix.advisor.runtime.modules.outcome import ChangedModel, Left, Replaced
from npufix.advisor.runtime.modules.planning import Planner
from npufix.advisor.runtime.process.applying import select, why_unavailable
from npufix.advisor.runtime.process.switches import from_environment
from npufix.advisor.runtime.source.selection import WITHOUT_ATTENTION
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from npufix.advisor.runtime.modules.planning import ClassPlan
    from npufix.advisor.runtime.process.switches import Switches
    from npufix.advisor.runtime.source.selection import RuleSelection

    Named = list[tuple[str, nn.Module]]

_ATTENTION = "NPU162"
_THROUGH = "scaled_dot_product_attention, for which torch_npu has one kernel"


class UnusableModelError(Exception):
    """The model as a whole cannot be changed: ``message`` and ``remedy``."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message = message
        self.remedy = remedy


def apply_to_model(model: object, said: Switches, on: str = "auto") -> ChangedModel:
    """Replace in place what matches a rule in a model; ``undo`` of the result takes it back.

    Raises:
        UnusableModelError: the model is compiled, or it is no ``torch.nn.Module``.
        SwitchError: a switch means nothing, or an NPU was asked for and there is none.

    """
    checked = check(model)
    off = said.off or from_environment().off
    why_not = "it is switched off" if off else why_unavailable(on)
    return ChangedModel(why_not) if why_not else change(checked, select(said, Path.cwd()))


def check(model: object) -> nn.Module:
    """Return a model that can be changed.

    Raises:
        UnusableModelError: it is compiled, or no module.

    """
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise UnusableModelError(f"{kind} is no torch.nn.Module", "pass the model itself")
    if isinstance(model, torch.jit.ScriptModule):
        raise UnusableModelError(
            "the model is a ScriptModule, whose code is compiled",
            "apply_fused_kernels comes before torch.jit.script and torch.jit.trace",
        )
    if _is_compiled(model):
        raise UnusableModelError(
            "the model is compiled by torch.compile", "apply_fused_kernels comes before it"
        )
    return model


def change(model: nn.Module, selection: RuleSelection) -> ChangedModel:
    """Replace in place what the selection wants in a model."""
    planner = Planner(LoadedFiles(selection, Facts(model)))
    TABLES.try_again()
    made = Exchange()
    replaced: list[Replaced] = []
    sdpa: list[str] = []
    with LOCK:
        usable, left = _modules(model)
        for cls, members in usable.items():
            plan = planner.plan(original(cls))
            names = tuple(name for name, _ in members)
            done = _put(made, plan, members, left) if plan.methods else ()
            if done:
                replaced += [Replaced(spot, cls.__qualname__, done) for spot in plan.replaced]
            for spot, why in plan.left.items():
                if spot.place.rule == _ATTENTION and not _calls_eager(members):
                    sdpa += [name for name in names if name not in sdpa]
                else:
                    left.append(Left(why, cls.__qualname__, names, spot))
    said = f"{format_count(len(sdpa), 'module')} of transformers: {_THROUGH}" if sdpa else ""
    if selection.is_without_attention and _is_of_transformers(model):
        said = WITHOUT_ATTENTION
    return ChangedModel("", tuple(replaced), tuple(left), said, made, dict(at_run_time.taken))


def _is_of_transformers(model: nn.Module) -> bool:
    return any(type(m).__module__.startswith("transformers") for m in model.modules())


def _calls_eager(members: Named) -> bool:
    """Tell whether modules of transformers compute attention by the function of their own file."""
    chosen = {
        getattr(getattr(module, "config", None), "_attn_implementation", None)
        for _, module in members
    }
    return chosen != {"sdpa"}


def _modules(model: nn.Module) -> tuple[dict[type, Named], list[Left]]:
    """Return the modules of a model by their class, and what is compiled, with all inside."""
    waiting, seen = [("", model)], {id(model)}
    usable: dict[type, Named] = {}
    left: list[Left] = []
    while waiting:
        name, module = waiting.pop(0)
        why = ""
        if isinstance(module, torch.jit.ScriptModule):
            why = "it is a ScriptModule, whose code is compiled"
        elif _is_compiled(module):
            why = "it is compiled by torch.compile"
        if why:
            left.append(Left(why, type(module).__qualname__, (name,)))
            continue
        usable.setdefault(type(module), []).append((name, module))
        for own, child in module.named_children():
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{name}.{own}" if name else own, child))
    return usable, left


def _is_compiled(module: nn.Module) -> bool:
    """Tell whether torch.compile has taken a module over: it would compile it anew."""
    frame = sys.modules.get("torch._dynamo.eval_frame")
    if frame is not None and isinstance(module, frame.OptimizedModule):
        return True
    return getattr(module, "_compiled_call_impl", None) is not None


def _put(made: Exchange, plan: ClassPlan, members: Named, left: list[Left]) -> tuple[str, ...]:
    """Exchange the modules of one class; return the names of those that could be."""
    done: list[str] = []
    problems: dict[str, list[str]] = {}
    for name, module in members:
        why = _why_not(module)
        if not why:
            try:
                made.put(module, plan.methods)
            except TypeError as error:
                why = f"Python cannot change its class: {error}"
        if why:
            problems.setdefault(why, []).append(name)
        else:
            done.append(name)
    cls = type(members[0][1]).__qualname__
    left += [Left(why, cls, tuple(names)) for why, names in problems.items()]
    return tuple(done)


def _why_not(module: nn.Module) -> str:
    """Return why a module must keep its class, "" if it need not."""
    cls = type(module)
    if is_exchanged(cls):
        return "it is on fused operators already"
    if parametrize.is_parametrized(module):
        return "it is parametrized: apply_fused_kernels comes before register_parametrization"
    sharded = sys.modules.get("torch.distributed.fsdp")
    if isinstance(module, getattr(sharded, "FSDPModule", ())):
        return "it is sharded: apply_fused_kernels comes before fully_shard"
    own = vars(module).get("forward")
    if own is not None and not _is_plain(own, module):
        name = getattr(own, "__qualname__", type(own).__name__)
        return f"its forward was replaced by {name}"
    return ""


def _is_plain(forward: object, module: nn.Module) -> bool:
    """Tell whether a module holds the ``forward`` of its class: somebody has put it back."""
    return (
        isinstance(forward, MethodType)
        and forward.__self__ is module
        and forward.__func__ is getattr(type(module), "forward", None)
    )
