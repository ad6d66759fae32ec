"""Modules that a package wraps: a function that makes a LayerNorm, a Dropout of its own."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames, inlinable, statements
from npufix.rewriters.graph.modules.neighbours import find_imported, neighbour
from npufix.rewriters.graph.modules.syntax import last_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Where a package is asked what it means by a name; others are not worth reading a module for.
_WORTH_IT = re.compile(
    r"\w*(LayerNorm|ropout|Swish|Si[Ll][Uu]|GE?[Ll][Uu]|Mish)\w*"
    r"|[Nn]ormali[sz](e|ation)|(\w+_)?(norm|normalization)(_layer)?|Group_?Norm\w*"
)
# Kernels for another device that compute what torch does, and have the same attributes.
_SAME_THING = re.compile(r"_?(Mixed)?Fused(LayerNorm|RMSNorm)")
NN = re.compile(r"torch\.nn(\.modules(\.\w+)?)?")
"""Where the classes of torch come from."""
_MOST_STEPS = 3


def may_wrap(name: str) -> bool:
    """Tell whether a class or a factory of this name is looked into."""
    return _WORTH_IT.match(name) is not None


def find_made_by_factory(call: ast.Call, names: ModuleNames) -> ast.Call | None:
    """Return ``nn.LayerNorm(size, eps)`` where a function of the package makes it by ``call``."""
    home, factory = _definition(call, names)
    if not isinstance(factory, ast.FunctionDef):
        return None
    given = _arguments(call, factory)
    made = [_construction(value, factory, home) for value in _list_returned(factory)]
    if given is None or factory.decorator_list or None in made:
        return None
    kinds = {_SAME_THING.sub(r"\2", last_name(m.func)) for m in made if m is not None}
    plain = [m for m in made if m is not None and NN.fullmatch(_module_of(m.func, home))]
    if len(kinds) != 1 or not plain:
        return None
    function = ast.Attribute(ast.Name("nn", ast.Load()), kinds.pop(), ast.Load())
    args = [_substitute(arg, given) for arg in plain[0].args]
    keywords = [ast.keyword(k.arg, _substitute(k.value, given)) for k in plain[0].keywords]
    return ast.copy_location(ast.Call(function, args, keywords), call)


def own_dropout(call: ast.Call, names: ModuleNames) -> tuple[ModuleNames, FunctionNode] | None:
    """Return the ``forward`` of a dropout that the package has a class of its own for."""
    home, cls = _definition(call, names)
    if not isinstance(cls, ast.ClassDef):
        return None
    if [home.dotted(base) for base in cls.bases] != ["torch.nn.Module"]:
        return None
    methods = [item for item in cls.body if isinstance(item, FunctionNode)]
    if any(method.name in {"__call__", "__getattr__", "train"} for method in methods):
        return None
    forward = [method for method in methods if method.name == "forward"]
    if len(forward) != 1 or forward[0].decorator_list or not inlinable(forward[0]):
        return None
    return home, forward[0]


def _definition(
    call: ast.Call, names: ModuleNames
) -> tuple[ModuleNames, FunctionNode | ast.ClassDef | None]:
    """Return what the package defines under the name that is called, re-exports followed."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    for _ in range(_MOST_STEPS if may_wrap(name) else 0):
        if name in names.unsure:
            break
        if name in names.functions:
            return names, names.functions[name]
        if name in names.classes:
            return names, names.classes[name]
        found = find_imported(names, name) or _from_package(names, name)
        if found is None:
            break
        names, name = found
    return names, None


def _from_package(names: ModuleNames, name: str) -> tuple[ModuleNames, str] | None:
    """Return the ``__init__`` of the package that a name is imported from."""
    full = names.relative.get(name) or names.imports.get(name) or ""
    module, _, original = full.rpartition(".")
    if not module.strip(".") or name in names.unsure or names.neighbour is None:
        return None
    found = neighbour(names, f"{module}.__init__")
    return None if found is None else (found, original)


def _list_returned(factory: ast.FunctionDef) -> Iterator[ast.expr]:
    for statement in statements(factory.body):
        if isinstance(statement, ast.Return) and statement.value is not None:
            yield statement.value


def _construction(value: ast.expr, factory: ast.FunctionDef, home: ModuleNames) -> ast.Call | None:
    """Return the call that makes what a factory returns, if it is of a class we know."""
    if isinstance(value, ast.Name):
        stored = [
            s.value
            for s in statements(factory.body)
            if isinstance(s, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == value.id for t in s.targets)
        ]
        value = stored[0] if len(stored) == 1 else value
    if not isinstance(value, ast.Call):
        return None
    known = NN.fullmatch(_module_of(value.func, home)) or _SAME_THING.fullmatch(
        last_name(value.func)
    )
    return value if known else None


def _arguments(call: ast.Call, factory: ast.FunctionDef) -> Mapping[str, ast.expr] | None:
    """Return what the parameters of a factory are in a call."""
    spec = factory.args
    if spec.vararg or spec.kwarg or any(k.arg is None for k in call.keywords):
        return None
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    params = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    given = dict(zip(params[::-1], spec.defaults[::-1], strict=False))
    given |= dict(zip(params, call.args, strict=False))
    given |= {str(k.arg): k.value for k in call.keywords}
    return given if set(given) >= set(params) else None


def _substitute(code: ast.expr, given: Mapping[str, ast.expr]) -> ast.expr:
    return given.get(code.id, code) if isinstance(code, ast.Name) else code


def _module_of(function: ast.expr, home: ModuleNames) -> str:
    return (home.dotted(function) or "").rpartition(".")[0]
