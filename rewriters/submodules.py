"""What a class calls when it calls ``self.act_fn(x)`` or ``self.norm(x)``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.attributes import assigned_values

if TYPE_CHECKING:
    from npufix.rewriters.names import ModuleNames

# Modules that are one function without parameters: class -> operator and its keywords.
FUNCTIONS = {
    "SiLU": "silu", "GELU": "gelu", "ReLU": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh",
    "Softmax": "softmax", "Mish": "mish", "Hardswish": "hardswish", "ReLU6": "relu6",
    "Softplus": "softplus", "LogSoftmax": "log_softmax", "Flatten": "", "Identity": "",
}  # fmt: skip
# Their result depends on their arguments, parameters and mode alone, and they change nothing.
_PURE = frozenset(
    {
        "AvgPool1d", "AvgPool2d", "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "Bilinear",
        "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
        "Dropout", "Embedding", "EmbeddingBag", "Flatten", "GroupNorm", "Identity", "LayerNorm",
        "Linear", "LocalResponseNorm", "MaxPool1d", "MaxPool2d", "MaxPool3d", "PixelShuffle",
        "RMSNorm", "Unflatten", "Upsample", "ZeroPad2d",
    }
)  # fmt: skip
_LINEAR = re.compile(r"\w*Linear(Base|Layer|NoBias)?\d?(bit)?\w{0,4}")
_TABLE = re.compile(r"(ACT\w*|ACTIVATION\w*|activations?|act_fns?)", re.IGNORECASE)
_LOOKUP = re.compile(r"_?get_(hidden_)?act(ivation)?(_fn|_func|_function)?")
_FUNCTION_MODULES = ("torch.nn.functional", "torch")


@dataclass(frozen=True, slots=True)
class Submodule:
    """What an attribute of a module does when it is called."""

    kind: str
    """``module`` of torch.nn, ``function`` of torch, or ``activation`` out of a table."""
    name: str
    """``LayerNorm``, ``silu``; for an activation the text of the expression that selects it."""
    call: ast.Call | None = None
    """How it is made."""


def submodule(names: ModuleNames, cls: ast.ClassDef, attribute: str) -> Submodule | None:
    """Return what ``self.attribute`` is, ``None`` if the class does not prove it."""
    key = (f"{cls.name}:{cls.lineno}", attribute)
    if key not in names.submodules:
        found = [
            None if value is None else _made(value, names)
            for method, value in assigned_values(names, cls, attribute)
        ]
        same = bool(found) and all(
            f is not None and found[0] is not None and _is_same(f, found[0]) for f in found
        )
        names.submodules[key] = found[0] if same else None
    known: Submodule | None = names.submodules[key]
    return known


def _is_same(one: Submodule, other: Submodule) -> bool:
    """Tell whether two objects do the same; a function is made with its settings."""
    if (one.kind, one.name) != (other.kind, other.name):
        return False
    if one.kind != "function":
        return True
    made = [ast.dump(m.call).partition("args=")[2] if m.call else "" for m in (one, other)]
    return made[0] == made[1]


def _made(value: ast.expr, names: ModuleNames) -> Submodule | None:
    match value:
        case ast.Call(function):
            return made_by(value, function, names)
        case ast.Subscript(table) if _TABLE.fullmatch(_last(table)):
            return Submodule("activation", ast.unparse(value))
        case ast.IfExp(_, body, orelse):
            # ``ACT2FN[x] if isinstance(x, str) else x``: a function of the caller's choice
            arms = [_made(arm, names) for arm in (body, orelse)]
            if any(a is not None and a.kind == "activation" for a in arms):
                return Submodule("activation", ast.unparse(value))
            first, second = arms
            return first if first and second and _is_same(first, second) else None
    module, _, name = (names.dotted(value) or "").rpartition(".")
    if module in _FUNCTION_MODULES and name in FUNCTIONS.values():
        return Submodule("function", name)
    return None


def made_by(  # noqa: PLR0911 - one case a kind of class
    call: ast.Call, function: ast.expr, names: ModuleNames
) -> Submodule | None:
    """Return what the object does that ``nn.Softmax(dim=-1)`` makes."""
    dotted = names.dotted(function) or ""
    name = _last(function)
    keywords = {k.arg: k.value for k in call.keywords}
    if "inplace" in keywords or None in keywords:
        inplace = keywords.get("inplace")
        if not (isinstance(inplace, ast.Constant) and inplace.value is False):
            return None
    if dotted.rpartition(".")[0] in {"torch.nn", "torch.nn.modules"}:
        if FUNCTIONS.get(name):
            return _function(name, call)
        # The second argument of a dropout is ``inplace``; such an embedding changes its weight.
        if "max_norm" in keywords or (name == "Dropout" and len(call.args) > 1):
            return None
        return Submodule("module", name, call) if name in _PURE else None
    if _LOOKUP.fullmatch(name):
        return Submodule("activation", ast.unparse(call))
    if _LINEAR.fullmatch(name) and name != "NonDynamicallyQuantizableLinear":
        return Submodule("module", f"{name} of {dotted or 'this file'}", call)
    return None


def _function(name: str, call: ast.Call) -> Submodule | None:
    """Return a module without parameters as the function it is."""
    positional = list(call.args)
    if name in {"SiLU", "ReLU", "Mish", "Hardswish", "ReLU6"}:
        return None if positional else Submodule("function", FUNCTIONS[name], call)
    return Submodule("function", FUNCTIONS[name], call)


def _last(code: ast.expr) -> str:
    return (
        code.attr
        if isinstance(code, ast.Attribute)
        else code.id
        if isinstance(code, ast.Name)
        else ""
    )
