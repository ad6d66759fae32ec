"""What the methods of a class prove about ``self.weight`` and ``self.num_heads``."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames, statements
from npufix.rewriters.graph.modules.neighbours import foreign_bases
from npufix.rewriters.graph.modules.syntax import list_defaults, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Node

_FILLED = {"torch.ones", "torch.zeros", "torch.empty", "torch.randn", "torch.rand", "torch.Tensor"}
_SAME_SHAPE = operators.SAME_SHAPE | operators.CASTS.keys()
_SAME_SHAPE_IN_TORCH = frozenset(f"torch.{name}" for name in _SAME_SHAPE)
_RANGES = {"torch.arange", "torch.linspace", "torch.logspace"}
_OF_LENGTHS = {
    "torch.nn.Linear",
    "torch.nn.Embedding",
    "torch.nn.Conv1d",
    "torch.nn.Conv2d",
    "range",
}
"""Calls whose first two arguments are numbers."""
_INT_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
# What is called so is one length, as long as nobody passes a tuple; ``size`` may be one.
_ONE_LENGTH = re.compile(
    r"(^|_)(c|ch|chans?|d|dims?|hidden|features?|channels?|width|d_model|embed\w*|inner|units|num|n|\w+_size)(_|$)"
)
_ONE_INT = re.compile(r"int|Optional\[int\]|int \| None|typing\.Optional\[int\]")
# Words of settings that are one number; ``repeats`` and ``lengths`` may be one number per element.
COUNT = re.compile(r"^(n|num|nb)(_|$)|(^|_)(n_rep|heads|groups|kv_groups|per_kv|head_dim)$")
# Calls after which a submodule computes something else than its class says.
_HOOK = re.compile(r"register_\w*hook$|register_parametrization$|(weight|spectral)_norm$")
_PARAMETERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
_MATRIX_LAYERS = {"torch.nn.Embedding", "torch.nn.Linear"}
_Value = tuple[FunctionNode, "ast.expr | None"]


def parameter_shape(flow: FunctionFlow, node: Node) -> tuple[int | None, ...] | None:
    """Return the shape that the class gives to ``self.name``, ``None`` if it is not clear.

    Of ``self.embedding.weight`` how many dimensions it has.
    """
    if node.op == Op.ATTR and node.value == "weight":
        layers = [value for _, value in _values(flow, node.args[0])]
        made = {flow.names.dotted(v.func) if isinstance(v, ast.Call) else None for v in layers}
        return (None, None) if made and made <= _MATRIX_LAYERS else _own_shape(flow, node)
    return _own_shape(flow, node)


def _own_shape(flow: FunctionFlow, node: Node) -> tuple[int | None, ...] | None:
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


def is_buffer(flow: FunctionFlow, node: Node) -> bool | None:
    """Tell whether ``self.name`` is only ever a new tensor, no ``nn.Parameter``: no gradient."""
    found = [
        isinstance(v, ast.Call) and flow.names.dotted(v.func) in _FILLED
        for _, v in _values(flow, node)
    ]
    return True if found and all(found) else None


def is_plain_attribute(flow: FunctionFlow, node: Node) -> bool | None:
    """Tell whether ``self.name`` is a setting: a literal, a parameter or a field of one."""
    found = [v is not None and _is_plain(v, method) for method, v in _values(flow, node)]
    return all(found) if found else None


def _values(flow: FunctionFlow, node: Node) -> Sequence[_Value]:
    """Return what ``self.name`` is assigned, nothing if the node is something else."""
    is_own = node.op == Op.ATTR and node.args[0].op == Op.PARAM and node.args[0].value == "self"
    if not is_own or flow.cls is None:
        return []
    return list_assigned(flow.names, flow.cls, str(node.value))


def is_made_once(names: ModuleNames, cls: ast.ClassDef, attribute: str) -> bool:
    """Tell whether only ``__init__`` binds ``self.attribute``: it is one object from then on."""
    values = list_assigned(names, cls, attribute)
    return bool(values) and all(method.name == "__init__" for method, _ in values)


def list_assigned(names: ModuleNames, cls: ast.ClassDef, attribute: str) -> Sequence[_Value]:
    """Return what ``self.attribute`` is assigned anywhere in a class, its bases and subclasses.

    Subclasses within the module count because their objects run the same method; bases in other
    modules of the package do. A value is ``None`` where it is not clear.
    """
    key = f"{cls.name}:{cls.lineno}"  # there may be two of one name
    if key not in names.assigned:
        family = {*names.bases(cls)}
        family |= {c for c in names.classes.values() if cls in names.bases(c)}
        found: dict[str, list[_Value]] = {}
        for member in sorted(family, key=lambda c: c.lineno):
            for name, values in _values_in(member).items():
                found.setdefault(name, []).extend(values)
        for home, base in foreign_bases(names, cls):
            for name, values in _values_in(base).items():
                clear = [
                    (m, v if v is not None and _means_the_same(v, home, names) else None)
                    for m, v in values
                ]
                found.setdefault(name, []).extend(clear)
        names.assigned[key] = found
    known: dict[str, list[_Value]] = names.assigned[key]
    return known.get(attribute, [])


@lru_cache(maxsize=512)
def _values_in(cls: ast.ClassDef) -> Mapping[str, Sequence[_Value]]:
    """Return what the methods of one class assign to the attributes of ``self``."""
    found: dict[str, list[_Value]] = {}
    for method in cls.body:
        if isinstance(method, FunctionNode):
            for statement in statements(method.body, inner=True):
                for name, value in _list_given(statement):
                    found.setdefault(name, []).append((method, value))
    return found


def _means_the_same(value: ast.expr, home: ModuleNames, names: ModuleNames) -> bool:
    """Tell whether the names in a value mean in its own module what they mean in another."""
    used = {n.id for n in walk(value) if isinstance(n, ast.Name)}
    defined = (home.functions, home.classes, names.functions, names.classes)
    return all(
        home.imports.get(n) == names.imports.get(n) and not any(n in known for known in defined)
        for n in used
    )


def _list_given(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield each attribute of ``self`` that code sets, with ``None`` if it is unclear to what."""
    match node:
        case ast.Assign(targets, value):
            for target in targets:  # ``self.a = self.b = value``
                yield from _list_assigned_in(target, value)
            yield from _list_hooked(value)
        case ast.AnnAssign(ast.Attribute(ast.Name("self"), attr), _, value):
            if value is not None:
                yield attr, value
        case ast.Expr(ast.Call() as call):
            yield from _list_registered(call)
            yield from _list_hooked(call)
        case ast.Delete(targets):
            yield from ((name, None) for target in targets for name in _list_stored(target))
        case ast.AugAssign(target) | ast.For(target):
            yield from ((name, None) for name in _list_stored(target))
        case ast.With(items):
            targets = [i.optional_vars for i in items if i.optional_vars is not None]
            yield from ((name, None) for target in targets for name in _list_stored(target))


def _list_assigned_in(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr | None]]:
    match target, value:
        case ast.Attribute(ast.Name("self"), attr), _:
            yield attr, value
        case ast.Tuple(items), ast.Tuple(values) if len(items) == len(values) and not any(
            isinstance(part, ast.Starred) for part in (*items, *values)
        ):
            for item, part in zip(items, values, strict=True):
                yield from _list_assigned_in(item, part)
        case _:
            yield from ((name, None) for name in _list_stored(target))


def _list_hooked(value: ast.expr) -> Iterator[tuple[str, None]]:
    """Yield the submodules whose calls do more than their class says."""
    if not isinstance(value, ast.Call):
        return
    function = value.func
    how = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if _HOOK.search(how):
        owner = function.value if isinstance(function, ast.Attribute) else function
        for code in (owner, *value.args):
            if isinstance(code, ast.Attribute) and isinstance(code.value, ast.Name):
                yield code.attr, None


def _list_registered(call: ast.Call) -> Iterator[tuple[str, ast.expr | None]]:
    match call:
        case ast.Call(
            ast.Attribute(ast.Name("self"), "register_buffer" | "register_parameter"),
            [ast.Constant(str(attr)), value, *_],
        ):
            yield attr, value
        case ast.Call(
            ast.Attribute(ast.Name("self"), "add_module" | "register_module"),
            [ast.Constant(str(attr)), *_],
        ) | ast.Call(ast.Name("setattr"), [ast.Name("self"), ast.Constant(str(attr)), *_]):
            yield attr, None


def _list_stored(target: ast.expr) -> Iterator[str]:
    for n in walk(target):
        match n:
            case ast.Attribute(ast.Attribute(ast.Name("self"), attr), "forward"):
                yield attr  # another function for this one object
            case ast.Attribute(ast.Name("self"), attr) if not isinstance(n.ctx, ast.Load):
                yield attr


def _locals(method: FunctionNode) -> dict[str, ast.expr]:
    """Return the local names of a method with what they are assigned, the last one counting."""
    return {
        name.id: node.value
        for node in walk(method)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in walk(target)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }


def _annotation(method: FunctionNode, name: str) -> str:
    spec = method.args
    for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
        if arg.arg == name and arg.annotation is not None:
            return ast.unparse(arg.annotation)
    return ""


def _shape(  # noqa: PLR0911 - one case a spelling
    value: ast.expr, names: ModuleNames, method: FunctionNode
) -> tuple[int | None, ...] | None:
    if isinstance(value, ast.Name):
        value = _locals(method).get(value.id, value)
    match value:
        case ast.Call(function, [inner, *_]) if names.dotted(function) in _PARAMETERS:
            return _shape(inner, names, method)
        case ast.Call(function, args) if names.dotted(function) in _FILLED:
            return _sizes(args, method, names)
        case ast.Call(function, [ast.Tuple() | ast.List() as size, *_]) if (
            names.dotted(function) == "torch.full"
        ):
            return _sizes([size], method, names)
        case ast.Call(function) if names.dotted(function) in _RANGES:
            return (None,)
        case ast.Call(function, [inner, *_]) if names.dotted(function) in _SAME_SHAPE_IN_TORCH:
            return _shape(inner, names, method)
        case ast.Call(ast.Attribute(inner, name)) if name in _SAME_SHAPE:
            return _shape(inner, names, method)
        case ast.Call(ast.Attribute(inner, "view" | "reshape"), args, []) if _shape(
            inner, names, method
        ):
            return _sizes(args, method, names)
        case ast.Compare(inner, [_], [ast.Constant()]) | ast.UnaryOp(ast.Invert(), inner):
            return _shape(inner, names, method)
    return None


def _sizes(
    args: list[ast.expr], method: FunctionNode, names: ModuleNames
) -> tuple[int | None, ...] | None:
    """Return ``torch.ones(a, 1)`` as ``(None, 1)``; a lone name is one length if it says so."""
    if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
        args = list(args[0].elts)
    elif len(args) == 1 and not _is_one_length(args[0], method, names):
        return None
    if not args or any(isinstance(arg, ast.Starred) for arg in args):
        return None
    return tuple(
        arg.value if isinstance(arg, ast.Constant) and isinstance(arg.value, int) else None
        for arg in args
    )


def number_of_lengths(size: ast.expr, method: FunctionNode, names: ModuleNames) -> int | None:
    """Return of how many lengths a shape consists, 1 for a number; ``None`` if unclear."""
    sizes = _sizes([size], method, names)
    return None if sizes is None else len(sizes)


def _is_one_length(size: ast.expr, method: FunctionNode, names: ModuleNames) -> bool:
    match size:
        case ast.Name(name):
            declared = _annotation(method, name)
            if declared:
                return bool(_ONE_INT.fullmatch(declared))
            told = _ONE_LENGTH.search(name) or _is_used_as_int(name, method, names)
            return bool(told) and not _may_be_tuple(name, method, names)
        case ast.Attribute(_, name):
            return bool(_ONE_LENGTH.search(name))
        case ast.BinOp(left, op):
            return isinstance(op, _INT_OPERATORS) and _is_one_length(left, method, names)
    return isinstance(size, ast.Constant) and isinstance(size.value, int)


def _is_used_as_int(name: str, method: FunctionNode, names: ModuleNames) -> bool:
    """Tell whether a parameter has an int as default, or the method does with it what ints allow.

    ``d // heads`` and ``nn.Linear(d, d)`` fail where ``d`` is a tuple; ``2 * d`` does not.
    """
    default = list_defaults(method.args).get(name)
    if isinstance(default, ast.Constant):
        return type(default.value) is int
    for code in walk(method):
        match code:
            case ast.BinOp(left, ast.FloorDiv() | ast.Mod() | ast.Sub() | ast.Pow(), right):
                used = [left, right]
            case ast.Call(function, args) if names.dotted(function) in _OF_LENGTHS:
                used = args[:2]
            case _:
                continue
        if any(isinstance(one, ast.Name) and one.id == name for one in used):
            return True
    return False


def _may_be_tuple(name: str, method: FunctionNode, names: ModuleNames) -> bool:
    """Tell whether a class of this module makes an object with a tuple for a parameter."""
    params = [a.arg for a in method.args.args]
    owners = {cls.name for cls in names.classes.values() if method in cls.body}
    if method.name != "__init__" or name not in params or not owners:
        return False
    place = params.index(name) - 1  # without ``self``
    for cls in names.classes.values():
        values = [v for found in _values_in(cls).values() for _, v in found if v is not None]
        for call in (c for v in values for c in walk(v) if isinstance(c, ast.Call)):
            if not isinstance(call.func, ast.Name) or call.func.id not in owners:
                continue
            given = [*call.args[place : place + 1]]
            given += [k.value for k in call.keywords if k.arg == name]
            if any(isinstance(g, (ast.Tuple, ast.List, ast.Starred)) for g in given):
                return True
    return False


def _is_int(value: ast.expr, method: FunctionNode) -> bool:
    match value:
        case ast.Constant(number):
            return isinstance(number, int) and not isinstance(number, bool)
        case ast.Name(name):
            return _annotation(method, name) == "int" and name not in _locals(method)
        case ast.Call(ast.Name("int" | "len")):
            return True
        case ast.Attribute(_, name):
            return bool(COUNT.search(name)) and _is_plain(value, method)
        case ast.BinOp(left, op, right):
            return (
                isinstance(op, _INT_OPERATORS) and _is_int(left, method) and _is_int(right, method)
            )
    return False


def _is_plain(value: ast.expr, method: FunctionNode) -> bool:
    if isinstance(value, ast.Call) and ast.unparse(value.func) in {"float", "int"}:
        return True
    if isinstance(value, ast.UnaryOp):
        return _is_plain(value.operand, method)
    if isinstance(value, ast.BinOp):  # ``1 + margin``
        return _is_plain(value.left, method) and _is_plain(value.right, method)
    while isinstance(value, ast.Attribute):
        value = value.value
    if isinstance(value, ast.Name):
        return value.id not in _locals(method) and "Tensor" not in _annotation(method, value.id)
    return isinstance(value, ast.Constant)
