"""What the new code asks at each call: whether the fused operator may stand in for these operands.

The source alone cannot tell whether a weight has the dtype of the activations. The call can, from
what tensors know about themselves: no value is read, so nothing waits for the device. The one
exception are tables of cosines, which are read once (``tables``). Where the answer is no, the
user's own code runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from npufix.advisor.runtime.calls.origins import GIVEN
from npufix.advisor.runtime.calls.questions import WITHIN_ONE
from npufix.advisor.runtime.calls.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Operands = Mapping[str, Any]

_FLOATS = frozenset({"torch.float32", "torch.float16", "torch.bfloat16"})
_ROTARY_WIDTH, _ROTARY_LENGTH, _ROTARY_DIMS = 896, 1000, 4

taken: Counter[str] = Counter()
"""How often the new code ran, by place."""
refused: Counter[tuple[str, str]] = Counter()
"""How often the old code ran on an NPU, by place and condition."""


class Switched:
    """Whether the new code runs at all: ``npufix run --measure`` runs the old code first."""

    on = True


def holds(place: str, conditions: tuple[str, ...], asked: object, /, **operands: object) -> bool:
    """Tell whether the new code may run: ``asked`` is on an NPU, and the conditions hold.

    Code that torch compiles, traces or transforms keeps what the user wrote.
    """
    if must_stay(asked):
        return False
    if not all(map(_is_plain, (asked, *operands.values()))):
        refused[place, "tensors of a kind of their own"] += 1
        return False
    broken = next((b for c in conditions if (b := _find_broken(place, c, operands))), "")
    if broken:
        refused[place, broken] += 1
        return False
    taken[place] += 1
    return True


def must_stay(*asked: object) -> bool:
    """Tell whether a call is none of ours: not on an NPU, or compiled, traced or transformed."""
    if _is_compiling() or not Switched.on:
        return True
    if not all(isinstance(one, torch.Tensor) and one.device.type == "npu" for one in asked):
        return True
    return _is_transformed()


def _find_broken(place: str, condition: str, operands: Operands) -> str:
    """Return "" if a condition holds, otherwise what does not.

    Operands of a kind that nobody thought of do not meet it.
    """
    try:
        if condition == WITHIN_ONE:
            return _tables_broken(place, operands)
        return "" if _CHECKS[condition](operands) else condition
    except Exception:  # noqa: BLE001 - the user's code runs, as it did before
        return condition


def _tables_broken(place: str, operands: Operands) -> str:
    """Ask about the tables, of those that the function was given if they came from there."""
    cos, sin = (operands.get(f"{GIVEN}{name}", operands[name]) for name in ("cos", "sin"))
    if not all(isinstance(t, torch.Tensor) and t.is_floating_point() for t in (cos, sin)):
        return WITHIN_ONE
    return TABLES.within_one(place, cos, sin)


def _is_compiling() -> bool:
    known = getattr(torch.compiler, "is_compiling", None)  # since torch 2.3
    return bool(known() if known is not None else torch._utils.is_compiling())  # type: ignore[no-untyped-call, attr-defined, unused-ignore]  # noqa: SLF001 - what it was before


def _is_transformed() -> bool:
    """Tell whether vmap, grad or the like of torch.func is at work: it has no rule for these."""
    peek = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)  # noqa: SLF001 - nothing public tells
    if peek is not None and peek() is not None:
        return True
    forward = sys.modules.get("torch.autograd.forward_ad")
    return forward is not None and getattr(forward, "_current_level", -1) >= 0


def _is_plain(value: object) -> bool:
    """Tell whether a tensor is no subclass, such as a sharded one, which have their own rules."""
    if not isinstance(value, torch.Tensor):
        return True
    return type(value) in {torch.Tensor, nn.Parameter}


def _tensors(operands: Operands, *names: str) -> list[Any]:
    found: list[Any] = []
    for name in names or tuple(operands):
        value = operands.get(name)
        if isinstance(value, nn.Module):
            found += value.parameters()
        elif isinstance(value, torch.Tensor):
            found.append(value)
    return found


def _same_dtype(operands: Operands) -> bool:
    dtypes = {str(t.dtype) for t in _tensors(operands)}
    return len(dtypes) == 1 and dtypes <= _FLOATS


def _table_dtype(operands: Operands) -> bool:
    found = _tensors(operands, "x", "cos", "sin")
    if len(found) < 3:  # noqa: PLR2004 - all three
        return False
    x, cos, sin = (str(t.dtype) for t in found)
    return cos == sin and cos in {x, "torch.float32"} and {x, cos} <= _FLOATS


def _vector_weight(operands: Operands) -> bool:
    x, weight = operands["x"], operands["weight"]
    return len(_tensors(operands, "x", "weight")) == 2 and weight.shape == x.shape[-1:]  # noqa: PLR2004 - both


def _inference(operands: Operands) -> bool:
    if not torch.is_grad_enabled():
        return True
    return not any(t.requires_grad for t in _tensors(operands))


def _same_shape(operands: Operands) -> bool:
    wide = [operands[name] for name in ("gate", "up", "x", "residual") if name in operands]
    if len(_tensors(operands)) < len(wide):
        return False
    return len({(t.shape, t.dtype) for t in wide}) == 1


def _rotary_limits(operands: Operands) -> bool:
    found = _tensors(operands, "x", "cos", "sin")
    if len(found) < 3 or any(t.dim() != _ROTARY_DIMS for t in found):  # noqa: PLR2004 - all three
        return False
    x, cos, sin = found
    width, table = x.shape[-1], cos.shape
    if width % 2 or width >= _ROTARY_WIDTH or sin.shape != table:
        return False
    if table[-1] not in {width, width // 2} or table[-1] < 2:  # noqa: PLR2004 - one is broadcast
        return False
    heads = 1 if table[1] == 1 else 2
    length = 3 - heads
    if table[heads] != 1 or table[length] != x.shape[length] or table[0] not in {1, x.shape[0]}:
        return False
    return bool(x.shape[0] < _ROTARY_LENGTH and x.shape[heads] < _ROTARY_LENGTH)


def _interleave_limits(operands: Operands) -> bool:
    found = _tensors(operands, "x", "cos", "sin")
    if len(found) < 3 or any(t.dim() != _ROTARY_DIMS for t in found):  # noqa: PLR2004 - all three
        return False
    x, cos, sin = found
    heads = 1 if cos.shape[1] == 1 else 2
    if x.shape[0] * x.shape[heads] >= _ROTARY_LENGTH or cos.shape[0] != 1 or sin.shape[0] != 1:
        return False
    known = getattr(getattr(torch.ops, "npu", None), "npu_rotary_mul", None)
    schema = getattr(getattr(known, "default", None), "_schema", None)
    return any(a.name == "rotary_mode" for a in getattr(schema, "arguments", ()))


def _four_dimensional(operands: Operands) -> bool:
    found = _tensors(operands, "q", "k", "v")
    return len(found) == 3 and all(t.dim() == 4 for t in found)  # noqa: PLR2004 - by its name


def _same_heads(heads: int) -> Callable[[Operands], bool]:
    def holds(operands: Operands) -> bool:
        if not _four_dimensional(operands):
            return False
        found = _tensors(operands, "q", "k", "v")
        return len({(t.shape[0], t.shape[heads], t.shape[3]) for t in found}) == 1

    return holds


def _is_activation(wanted: str) -> Callable[[Operands], bool]:
    return lambda operands: _function_of(operands["act"]) == wanted


def _function_of(act: object) -> str:
    """Return which function an activation is, "" if that cannot be told from its type."""
    if isinstance(act, nn.Module):
        if "forward" in vars(act) or act._forward_hooks or act._forward_pre_hooks:  # noqa: SLF001 - they would not run
            return ""
        return _function_of_module(act)
    if isinstance(act, partial) and act.func is functional.gelu and not act.args:
        return _GELU.get(act.keywords.get("approximate", "none"), "")
    names = {functional.silu: "silu", functional.gelu: "gelu"}
    return next((name for one, name in names.items() if act is one), "")


def _function_of_module(act: nn.Module) -> str:
    kind = type(act)
    if kind is nn.SiLU:
        return "silu"
    if kind is nn.GELU:
        return _GELU.get(getattr(act, "approximate", ""), "")
    if kind.__module__ != "transformers.activations":
        return ""
    inner = getattr(act, "act", None)
    return _OF_TRANSFORMERS.get(kind.__name__, "") if inner is None else _function_of(inner)


_GELU = {"none": "gelu", "tanh": "gelu-tanh"}
_OF_TRANSFORMERS = {
    "NewGELUActivation": "gelu-tanh",
    "PytorchGELUTanh": "gelu-tanh",
    "SiLUActivation": "silu",
}
_CHECKS: Mapping[str, Callable[[Operands], bool]] = {
    "activation-is-gelu": _is_activation("gelu"),
    "activation-is-gelu-tanh": _is_activation("gelu-tanh"),
    "activation-is-silu": _is_activation("silu"),
    "four-dimensional": _four_dimensional,
    "inference": _inference,
    "int-repeats": lambda operands: type(operands["repeats"]) is int,
    "interleave-limits": _interleave_limits,
    "number-eps": lambda operands: type(operands["eps"]) in {int, float},
    "one-dimensional-weight": _vector_weight,
    "rotary-limits": _rotary_limits,
    "same-dtype": _same_dtype,
    "same-heads": _same_heads(1),
    "same-heads-third": _same_heads(2),
    "same-shape": _same_shape,
    "table-dtype": _table_dtype,
    "weight-given": lambda operands: len(_tensors(operands, "weight")) == 1,
}
