"""What a class calls when it calls ``self.act_fn(x)`` or ``self.norm(x)``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.syntax import last_name, list_defaults, nodes_of
from npufix.rewriters.graph.modules.wrapped_modules import NN, find_made_by_factory, own_dropout

if TYPE_CHECKING:
    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.nodes import Node

# Modules that are one function without parameters: class -> operator and its keywords.
FUNCTIONS = {
    "SiLU": "silu", "GELU": "gelu", "ReLU": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh",
    "Softmax": "softmax", "Mish": "mish", "Hardswish": "hardswish", "ReLU6": "relu6",
    "Softplus": "softplus", "LogSoftmax": "log_softmax", "Flatten": "", "Identity": "",
}  # fmt: skip
LOSSES = {
    "BCELoss": "binary_cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "CrossEntropyLoss": "cross_entropy", "HuberLoss": "huber_loss", "L1Loss": "l1_loss",
    "MSELoss": "mse_loss", "NLLLoss": "nll_loss", "SmoothL1Loss": "smooth_l1_loss",
}  # fmt: skip
"""The same of two tensors, made with settings that have names."""
ACTIVATIONS = frozenset({"silu", "gelu", "relu", "sigmoid", "tanh", "mish", "hardswish", "relu6"})
"""Those of them that an activation may be."""
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
_MAKES = frozenset(
    {
        "Bilinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
        "ConvTranspose3d", "GroupNorm", "LayerNorm", "Linear", "RMSNorm",
    }
)  # fmt: skip
"""Those of them whose result is always a new tensor."""
# Whatever ``**kwargs`` say, calling them computes a value and changes nothing.
_WITHOUT_OPTIONS = frozenset({"Conv1d", "Conv2d", "Conv3d", "Linear"})
_LINEAR = re.compile(r"\w*Linear(Base|Layer|NoBias)?\d?(bit)?\w{0,4}")
_TABLE = re.compile(r"(ACT\w*|ACTIVATION\w*|activations?|act_fns?)", re.IGNORECASE)
_LOOKUP = re.compile(r"_?(get|build|make|create)_(hidden_)?act(ivation)?(_fn|_func|_function)?")
_GIVEN = re.compile(r"\w*act(ivation)?(_fn|_func|_function)?")
"""What a parameter is called that is an activation."""
_FUNCTION_MODULES = ("torch.nn.functional", "torch")


@dataclass(frozen=True, slots=True)
class Submodule:
    """What an attribute of a module does when it is called."""

    kind: str
    """``module`` of torch.nn, its ``function`` or ``loss``, ``activation`` of a table, ``own``."""
    name: str
    """``LayerNorm``, ``silu``; for an activation the text of the expression that selects it."""
    call: ast.Call | None = None
    """How it is made."""
    forward: tuple[ModuleNames, FunctionNode] | None = None
    """What a class of the package does when it is called, and the module it is in."""


def submodule(names: ModuleNames, cls: ast.ClassDef, attribute: str) -> Submodule | None:
    """Return what ``self.attribute`` is, ``None`` if the class does not prove it."""
    key = (f"{cls.name}:{cls.lineno}", attribute)
    if key not in names.submodules:
        found = [
            None
            if value is None
            else find_default_activation(value, method, names) or _find_made(value, names)
            for method, value in list_assigned(names, cls, attribute)
        ]
        same = bool(found) and all(
            f is not None and found[0] is not None and _is_same(f, found[0]) for f in found
        )
        names.submodules[key] = found[0] if same else None
    known: Submodule | None = names.submodules[key]
    return known


def find_default_activation(
    value: ast.expr, method: FunctionNode, names: ModuleNames
) -> Submodule | None:
    """Return what ``act_layer()`` makes unless ``__init__`` is told otherwise: an activation.

    Also the function that ``self.act = act_fn`` is by default.
    """
    match value:
        case ast.Name(name) if _GIVEN.fullmatch(name):
            default = list_defaults(method.args).get(name)
            known = (
                _handed_in(name, method, names) if default is None else _find_made(default, names)
            )
            if known is not None and known.name in ACTIVATIONS:
                return Submodule("activation", known.name)
        case ast.Call(ast.Name(name), [], []):
            default = list_defaults(method.args).get(name)
            made = (
                None
                if default is None
                else read_construction(ast.Call(default, [], []), default, names)
            )
            if made is not None and made.kind == "function" and made.name in ACTIVATIONS:
                return Submodule("activation", made.name)
    return None


def _handed_in(parameter: str, method: FunctionNode, names: ModuleNames) -> Submodule | None:
    """Return what all calls of this file that make the class hand in: ``GLU(dim, nn.SiLU())``."""
    cls = next((c for c in names.classes.values() if method in c.body), None)
    order = [a.arg for a in (*method.args.posonlyargs, *method.args.args)][1:]
    found: list[Submodule | None] = []
    if cls is None or names.tree is None:
        return None
    for function in nodes_of(names.tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in nodes_of(function):
            match node:
                case ast.Call(ast.Name(made)) if made == cls.name:
                    given = dict(zip(order, node.args, strict=False))
                    given |= {k.arg or "": k.value for k in node.keywords}
                    found.append(_find_bound(given.get(parameter), function, names))
    first = found[0] if found else None
    alike = all(f is not None and f.name == getattr(first, "name", "") for f in found)
    return None if first is None or not alike or any(writes(f) for f in found if f) else first


def _find_bound(
    value: ast.expr | None, function: FunctionNode, names: ModuleNames
) -> Submodule | None:
    """Return what an expression makes, or a name that a function binds once."""
    if not isinstance(value, ast.Name):
        return None if value is None else _find_made(value, names)
    nodes = nodes_of(function)
    stores = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    if [n.id for n in stores].count(value.id) > 1:
        return None
    for node in nodes:
        match node:
            case ast.Assign([ast.Name(name)], made) if name == value.id:
                return _find_made(made, names)
    return _find_made(value, names)


def _is_same(one: Submodule, other: Submodule) -> bool:
    """Tell whether two objects do the same; a function is made with its settings."""
    if (one.kind, one.name) != (other.kind, other.name):
        return False
    if one.kind not in {"function", "loss"}:
        return True
    made = [ast.dump(m.call).partition("args=")[2] if m.call else "" for m in (one, other)]
    return made[0] == made[1]


def _find_made(value: ast.expr, names: ModuleNames) -> Submodule | None:
    if _is_looked_up(value, names):
        return Submodule("activation", ast.unparse(value))
    match value:
        case ast.Call(function):
            return read_construction(value, function, names)
        case ast.IfExp(_, body, orelse):
            # ``ACT2FN[x] if isinstance(x, str) else x``: a function of the caller's choice
            arms = [_find_made(arm, names) for arm in (body, orelse)]
            if any(a is not None and a.kind == "activation" for a in arms):
                return Submodule("activation", ast.unparse(value))
            first, second = arms
            return first if first and second and _is_same(first, second) else None
    module, _, name = (names.dotted(value) or "").rpartition(".")
    if module in _FUNCTION_MODULES and name in FUNCTIONS.values():
        return Submodule("function", name)
    return None


def _is_looked_up(value: ast.expr, names: ModuleNames) -> bool:
    """Tell whether an activation is taken out of a table, or out of torch by its name."""
    match value:
        case ast.Subscript(ast.Dict(values=values)):
            made = [_find_made(v, names) for v in values]
            return all(m is not None and m.name in ACTIVATIONS for m in made)
        case ast.Subscript(table):
            return _TABLE.fullmatch(last_name(table)) is not None
        case ast.Call(ast.Call(ast.Name("getattr"), [module, _]), [], []):
            return NN.fullmatch(names.dotted(module) or "") is not None
        case ast.Call(ast.Name("getattr"), [module, _]):
            return names.dotted(module) == "torch.nn.functional"
    return False


def read_construction(  # noqa: PLR0911 - one case a kind of class
    call: ast.Call, function: ast.expr, names: ModuleNames
) -> Submodule | None:
    """Return what the object does that ``nn.Softmax(dim=-1)`` makes."""
    dotted = names.dotted(function) or ""
    name = last_name(function)
    keywords = {k.arg: k.value for k in call.keywords}
    if not isinstance(keywords.get("inplace"), ast.Constant | None):
        return None
    if None in keywords and name not in _WITHOUT_OPTIONS:
        return None
    if NN.fullmatch(dotted.rpartition(".")[0]):
        if FUNCTIONS.get(name):
            return _function(name, call)
        if name in LOSSES:
            return None if call.args else Submodule("loss", LOSSES[name], call)
        # The second argument of a dropout is ``inplace``; such an embedding changes its weight.
        if "max_norm" in keywords or (name == "Dropout" and len(call.args) > 1):
            return None
        return Submodule("module", name, call) if name in _PURE else None
    if _LOOKUP.fullmatch(name):
        changes = getattr(keywords.get("inplace"), "value", False) is not False
        return None if changes else Submodule("activation", ast.unparse(call))
    if _LINEAR.fullmatch(name) and name != "NonDynamicallyQuantizableLinear":
        return Submodule("module", f"{name} of {dotted or 'this file'}", call)
    made = find_made_by_factory(call, names)
    if made is not None:
        return (
            Submodule("module", last_name(made.func), made)
            if last_name(made.func) in _PURE
            else None
        )
    forward = own_dropout(call, names)
    return None if forward is None else Submodule("own", name, call, forward)


def writes(made: Submodule) -> bool:
    """Tell whether an activation changes its argument: ``nn.SiLU(inplace=True)``."""
    given = made.call.keywords if made.call is not None and made.kind == "function" else []
    return any(k.arg == "inplace" and getattr(k.value, "value", None) is not False for k in given)


def is_made(node: Node) -> bool:
    """Tell whether a value is a new tensor."""
    module = node.op.removeprefix("module:")
    return node.op in operators.NEW or (module != node.op and module in _MAKES)


def _function(name: str, call: ast.Call) -> Submodule | None:
    """Return a module without parameters as the function it is."""
    positional = list(call.args)
    if name in {"SiLU", "ReLU", "Mish", "Hardswish", "ReLU6"}:
        return None if positional else Submodule("function", FUNCTIONS[name], call)
    return Submodule("function", FUNCTIONS[name], call)
