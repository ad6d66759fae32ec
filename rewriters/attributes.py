"""What ``__init__`` proves about ``self.weight`` and ``self.num_heads``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.names import FunctionNode, ModuleNames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.dataflow import FunctionFlow
    from npufix.rewriters.nodes import Node

_FILLED = {"torch.ones", "torch.zeros", "torch.empty", "torch.randn", "torch.rand", "torch.Tensor"}
_INT_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def _self_attribute(node: Node) -> str | None:
    if node.op == "attr" and node.args[0].op == "param" and node.args[0].value == "self":
        return str(node.value)
    return None


def parameter_shape(flow: FunctionFlow, node: Node) -> tuple[int | None, ...] | None:
    """Return the shape that ``__init__`` gives to ``self.name``, ``None`` if it is not clear."""
    name = _self_attribute(node)
    if name is None or flow.cls is None:
        return None
    shapes = [
        _shape(value, flow.names, _locals(method))
        for method, value in _assignments(flow.cls, flow.names, name)
    ]
    if not shapes or any(shape is None or len(shape) != len(shapes[0] or ()) for shape in shapes):
        return None
    return shapes[0]


def is_int_attribute(flow: FunctionFlow, node: Node) -> bool | None:
    """Tell whether every assignment to ``self.name`` is an int."""
    name = _self_attribute(node)
    if name is None or flow.cls is None:
        return None
    found = [_is_int(value, method) for method, value in _assignments(flow.cls, flow.names, name)]
    return True if found and all(found) else None


def _assignments(
    cls: ast.ClassDef, names: ModuleNames, attribute: str
) -> Iterator[tuple[FunctionNode, ast.expr]]:
    """Yield every value that a method of the class or its bases gives to ``self.attribute``."""
    for base in names.bases(cls):
        for method in base.body:
            if not isinstance(method, FunctionNode):
                continue
            for node in ast.walk(method):
                match node:
                    case ast.Assign([ast.Attribute(ast.Name("self"), attr)], value) if (
                        attr == attribute
                    ):
                        yield method, value
                    case ast.AnnAssign(ast.Attribute(ast.Name("self"), attr), _, value) if (
                        attr == attribute and value is not None
                    ):
                        yield method, value
                    case ast.Call(
                        ast.Attribute(ast.Name("self"), "register_buffer"),
                        [ast.Constant(attr), value, *_],
                    ) if attr == attribute:
                        yield method, value


def _locals(method: FunctionNode) -> dict[str, ast.expr]:
    """Return the local names of a method that are assigned once."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(method):
        match node:
            case ast.Assign([ast.Name(name)], value):
                found.setdefault(name, []).append(value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _shape(
    value: ast.expr, names: ModuleNames, local: dict[str, ast.expr]
) -> tuple[int | None, ...] | None:
    match value:
        case ast.Name(name) if name in local:
            return _shape(local[name], names, {})
        case ast.Call(function, [inner, *_]) if names.dotted(function) in {
            "torch.nn.Parameter",
            "torch.nn.parameter.Parameter",
        }:
            return _shape(inner, names, local)
        case ast.Call(function, args) if names.dotted(function) in _FILLED:
            return _sizes(args)
        case ast.Call(function, [size, *_]) if names.dotted(function) == "torch.full":
            return _sizes([size])
    return None


def _sizes(args: list[ast.expr]) -> tuple[int | None, ...] | None:
    """Return ``torch.ones(a, 1)`` as ``(None, 1)``; a lone name is one length.

    A lone name could be a tuple of lengths: ``torch.ones(shape)``. Names that say so are not
    taken for a length.
    """
    if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
        args = list(args[0].elts)
    elif len(args) == 1 and "shape" in ast.unparse(args[0]):
        return None
    if not args or any(isinstance(arg, ast.Starred) for arg in args):
        return None
    return tuple(
        arg.value if isinstance(arg, ast.Constant) and isinstance(arg.value, int) else None
        for arg in args
    )


def _is_int(value: ast.expr, method: FunctionNode) -> bool:
    match value:
        case ast.Constant(number):
            return isinstance(number, int) and not isinstance(number, bool)
        case ast.Name(name):
            spec = method.args
            return any(
                arg.arg == name
                and isinstance(arg.annotation, ast.Name)
                and arg.annotation.id == "int"
                for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)
            )
        case ast.Call(ast.Name("int" | "len")):
            return True
        case ast.BinOp(left, op, right):
            return (
                isinstance(op, _INT_OPERATORS) and _is_int(left, method) and _is_int(right, method)
            )
    return False
