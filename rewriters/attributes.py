"""What the methods of a class prove about ``self.weight`` and ``self.num_heads``."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.names import FunctionNode, ModuleNames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.dataflow import FunctionFlow
    from npufix.rewriters.nodes import Node

_FILLED = {"torch.ones", "torch.zeros", "torch.empty", "torch.randn", "torch.rand", "torch.Tensor"}
_RANGES = {"torch.arange", "torch.linspace", "torch.logspace"}
_INT_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
# What is called so is one length; ``size`` and ``normalized_shape`` may be tuples.
_ONE_LENGTH = re.compile(
    r"(^|_)(dims?|hidden|features?|channels?|width|d_model|embed\w*|inner|units|num|n|\w+_size)(_|$)"
)
_Value = tuple[FunctionNode, "ast.expr | None"]


def parameter_shape(flow: FunctionFlow, node: Node) -> tuple[int | None, ...] | None:
    """Return the shape that the class gives to ``self.name``, ``None`` if it is not clear."""
    values = _values(flow, node)
    shapes = [None if v is None else _shape(v, flow.names, method) for method, v in values]
    first = shapes[0] if shapes else None
    if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
        return None
    return first if len(set(shapes)) == 1 else (None,) * len(first)


def is_int_attribute(flow: FunctionFlow, node: Node) -> bool | None:
    """Tell whether every assignment to ``self.name`` is an int."""
    found = [v is not None and _is_int(v, method) for method, v in _values(flow, node)]
    return True if found and all(found) else None


def is_plain_attribute(flow: FunctionFlow, node: Node) -> bool | None:
    """Tell whether ``self.name`` is a setting: a literal, a parameter or a field of one."""
    found = [v is not None and _is_plain(v, method) for method, v in _values(flow, node)]
    return all(found) if found else None


def _values(flow: FunctionFlow, node: Node) -> list[_Value]:
    """Return what ``self.name`` is assigned anywhere in the class, its bases and subclasses.

    Subclasses within the module count because their objects run the same method.
    """
    is_own = node.op == "attr" and node.args[0].op == "param" and node.args[0].value == "self"
    if not is_own or flow.cls is None:
        return []
    family = {*flow.names.bases(flow.cls)}
    family |= {c for c in flow.names.classes.values() if flow.cls in flow.names.bases(c)}
    return [
        (method, value)
        for member in sorted(family, key=lambda c: c.lineno)
        for method in member.body
        if isinstance(method, FunctionNode)
        for part in ast.walk(method)
        for value in _given(part, str(node.value))
    ]


def _given(node: ast.AST, attribute: str) -> Iterator[ast.expr | None]:
    """Yield the value that a statement or call gives to ``self.attribute``; ``None`` if unclear."""
    match node:
        case ast.Assign([ast.Attribute(ast.Name("self"), attr)], value) if attr == attribute:
            yield value
        case ast.AnnAssign(ast.Attribute(ast.Name("self"), attr), _, value) if attr == attribute:
            if value is not None:
                yield value
        case ast.Call(
            ast.Attribute(ast.Name("self"), "register_buffer" | "register_parameter"),
            [ast.Constant(attr), value, *_],
        ) if attr == attribute:
            yield value
        case ast.Call(ast.Name("setattr"), [ast.Name("self"), ast.Constant(attr), *_]) if (
            attr == attribute
        ):
            yield None
        case ast.Assign(targets) | ast.Delete(targets):
            yield from (None for target in targets if _stores(target, attribute))
        case ast.AugAssign(target) | ast.For(target):
            yield from (None for _ in range(_stores(target, attribute)))


def _stores(target: ast.expr, attribute: str) -> bool:
    return any(
        isinstance(n, ast.Attribute)
        and n.attr == attribute
        and isinstance(n.value, ast.Name)
        and n.value.id == "self"
        and not isinstance(n.ctx, ast.Load)
        for n in ast.walk(target)
    )


def _locals(method: FunctionNode) -> dict[str, ast.expr]:
    """Return the local names of a method with what they are assigned, the last one counting."""
    return {
        name.id: node.value
        for node in ast.walk(method)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }


def _annotation(method: FunctionNode, name: str) -> str:
    spec = method.args
    for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
        if arg.arg == name and arg.annotation is not None:
            return ast.unparse(arg.annotation)
    return ""


def _shape(
    value: ast.expr, names: ModuleNames, method: FunctionNode
) -> tuple[int | None, ...] | None:
    if isinstance(value, ast.Name):
        value = _locals(method).get(value.id, value)
    match value:
        case ast.Call(function, [inner, *_]) if names.dotted(function) in {
            "torch.nn.Parameter",
            "torch.nn.parameter.Parameter",
        }:
            return _shape(inner, names, method)
        case ast.Call(function, args) if names.dotted(function) in _FILLED:
            return _sizes(args, method)
        case ast.Call(function, [ast.Tuple() | ast.List() as size, *_]) if (
            names.dotted(function) == "torch.full"
        ):
            return _sizes([size], method)
        case ast.Call(function) if names.dotted(function) in _RANGES:
            return (None,)
    return None


def _sizes(args: list[ast.expr], method: FunctionNode) -> tuple[int | None, ...] | None:
    """Return ``torch.ones(a, 1)`` as ``(None, 1)``; a lone name is one length if it says so."""
    if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
        args = list(args[0].elts)
    elif len(args) == 1 and not _is_one_length(args[0], method):
        return None
    if not args or any(isinstance(arg, ast.Starred) for arg in args):
        return None
    return tuple(
        arg.value if isinstance(arg, ast.Constant) and isinstance(arg.value, int) else None
        for arg in args
    )


def _is_one_length(size: ast.expr, method: FunctionNode) -> bool:
    match size:
        case ast.Name(name):
            return _annotation(method, name) == "int" or bool(_ONE_LENGTH.search(name))
        case ast.Attribute(_, name):
            return bool(_ONE_LENGTH.search(name))
        case ast.BinOp(left, op):
            return isinstance(op, _INT_OPERATORS) and _is_one_length(left, method)
    return isinstance(size, ast.Constant) and isinstance(size.value, int)


def _is_int(value: ast.expr, method: FunctionNode) -> bool:
    match value:
        case ast.Constant(number):
            return isinstance(number, int) and not isinstance(number, bool)
        case ast.Name(name):
            return _annotation(method, name) == "int" and name not in _locals(method)
        case ast.Call(ast.Name("int" | "len")):
            return True
        case ast.BinOp(left, op, right):
            return (
                isinstance(op, _INT_OPERATORS) and _is_int(left, method) and _is_int(right, method)
            )
    return False


def _is_plain(value: ast.expr, method: FunctionNode) -> bool:
    if isinstance(value, ast.Call) and ast.unparse(value.func) in {"float", "int"}:
        return True
    while isinstance(value, ast.Attribute):
        value = value.value
    if isinstance(value, ast.Name):
        return value.id not in _locals(method) and "Tensor" not in _annotation(method, value.id)
    return isinstance(value, ast.Constant)
