"""Which function ``ACT2FN[config.hidden_act]`` is: by default that of the config class."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.neighbours import neighbour
from npufix.rewriters.graph.modules.syntax import list_defaults
from npufix.rewriters.graph.special import Op
from npufix.rewriters.graph.submodules import find_default_activation, submodule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.nodes import Node

# Several names of one function in the tables of transformers and others.
_SAME = {"swish": "silu", "gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}

_OF_GEMMA = "hidden_activation"
"""What the configurations of Gemma and its relatives call it, and nobody else's."""


def activation(flow: FunctionFlow, node: Node) -> str | None:
    """Return the name of an activation, ``None`` if the package does not say which one it is.

    ``silu?`` is what ``__init__`` makes of a parameter that nothing was passed for, and what a
    configuration selects unless it is told otherwise.
    """
    if flow.cls is None or node.op != Op.ATTR or node.args[0].value != "self":
        return None
    attribute = str(node.value)
    made = submodule(flow.names, flow.cls, attribute)
    if made is None:
        return None
    if made.kind == "function":
        return made.name
    found = {
        _find_selected(value, method, flow.names)
        for method, value in list_assigned(flow.names, flow.cls, attribute)
    }
    only = found.pop() if len(found) == 1 else None
    if only is None:
        return None
    name = only.removesuffix("?")
    return f"{_SAME.get(name, name)}{only[len(name) :]}"


def _find_selected(value: ast.expr | None, method: FunctionNode, names: ModuleNames) -> str | None:
    """Return the key under which an activation is looked up."""
    default = None if value is None else find_default_activation(value, method, names)
    if default is not None:
        return f"{default.name}?"
    match value:
        case ast.Subscript(_, key) | ast.Call(_, [key]):
            return _text(key, method, names)
        case ast.IfExp(_, body, orelse):
            keys = [_find_selected(arm, method, names) for arm in (body, orelse)]
            return next((key for key in keys if key is not None), None)
    return None


def _text(key: ast.expr, method: FunctionNode, names: ModuleNames) -> str | None:
    match key:
        case ast.Constant(str(text)):
            return text
        case ast.Attribute(ast.Name(config), field):
            defaults = {
                default
                for cls in _config_classes(config, method, names)
                for default in (_default(cls, field),)
                if default is not None
            }
            # What a checkpoint sets instead is not in the program.
            if not defaults and field == _OF_GEMMA:
                return "gelu_pytorch_tanh?"
            return f"{defaults.pop()}?" if len(defaults) == 1 else None
    return None


def _config_classes(name: str, method: FunctionNode, names: ModuleNames) -> Iterator[ast.ClassDef]:
    """Yield the classes that a parameter may be an object of: its annotation, else all imported."""
    spec = method.args
    annotations = [
        ast.unparse(arg.annotation)
        for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)
        if arg.arg == name and arg.annotation is not None
    ]
    for local, own in names.classes.items():
        if local in annotations[0] if annotations else local.endswith("Config"):
            yield own
    for local, full in names.relative.items():
        wanted = local in annotations[0] if annotations else local.endswith("Config")
        module, _, original = full.rpartition(".")
        found = neighbour(names, module) if wanted else None
        if found is not None and original in found.classes:
            yield found.classes[original]


def _default(cls: ast.ClassDef, field: str) -> str | None:
    """Return the text that a config class sets a field to unless it is told otherwise."""
    for node in cls.body:
        match node:
            case ast.AnnAssign(ast.Name(name), _, ast.Constant(str(text))) if name == field:
                return text
            case ast.Assign([ast.Name(name)], ast.Constant(str(text))) if name == field:
                return text
            case ast.FunctionDef("__init__"):
                return _parameter_default(node, field)
    return None


def _parameter_default(method: FunctionNode, field: str) -> str | None:
    match list_defaults(method.args).get(field):
        case ast.Constant(str(text)):
            return text
    return None
