"""The argument that a local table of cosines came from, through steps that keep its values.

A function gets one table for all layers and brings it into shape (``cos = cos.unsqueeze(1)``,
``cos = cos[position_ids]``). What comes out is another tensor at each call, whose values are some
of those that came in: so it is the argument that is asked about.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.graph.modules.names import FunctionNode

_PREFIX = "__npufix_given_"
GIVEN = "given_"
"""What the names of operands begin with that are arguments of the function."""
_TABLES = ("cos", "sin")
# Methods whose result holds the values of the tensor, some of them, or some of them rounded.
_KEEP = frozenset(
    {
        "bfloat16", "chunk", "clone", "contiguous", "detach", "expand", "expand_as", "flatten",
        "flip", "float", "gather", "half", "index_select", "movedim", "narrow", "permute", "repeat",
        "repeat_interleave", "reshape", "roll", "select", "split", "squeeze", "swapaxes", "t", "to",
        "transpose", "type_as", "unbind", "unflatten", "unsqueeze", "view", "view_as",
    }
)  # fmt: skip
_JOIN = frozenset({"cat", "concat", "stack"})
_MOST_NAMES = 16


def keep_given(function: FunctionNode, operands: Mapping[str, ast.expr]) -> Mapping[str, ast.expr]:
    """Return further operands: the arguments that the tables came from, where they came from one.

    An argument whose name the function gives to something else is put aside at its beginning.
    """
    found: dict[str, ast.expr] = {}
    for name in _TABLES:
        code = operands.get(name)
        if not isinstance(code, ast.Name):
            continue
        argument = _origin(function, code.id)
        if argument is None:
            continue
        if any(name == argument for name, _ in _bindings(function)):
            kept = f"{_PREFIX}{argument}"
            _put_aside(function, argument, kept)
            argument = kept
        found[f"{GIVEN}{name}"] = ast.Name(argument, ast.Load())
    # One alone would have no partner to be read with.
    return found if len(found) == len(_TABLES) else {}


def _put_aside(function: FunctionNode, argument: str, kept: str) -> None:
    at = 1 if ast.get_docstring(function, clean=False) is not None else 0
    made = ast.Assign([ast.Name(kept, ast.Store())], ast.Name(argument, ast.Load()))
    first = function.body[at : at + len(_TABLES)]
    if ast.dump(made) not in map(ast.dump, first):  # another place of the function may have done it
        function.body.insert(at, made)


def _origin(function: FunctionNode, name: str) -> str | None:
    """Return the argument that a local name gets its values from, ``None`` if it is not one."""
    spec = function.args
    arguments = {a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
    bindings = list(_bindings(function))
    roots: set[str] = set()
    waiting, seen = [name], {name}
    while waiting and len(seen) <= _MOST_NAMES:
        one = waiting.pop()
        values = [value for bound, value in bindings if bound == one]
        if one in arguments:
            roots.add(one)
        elif not values:
            return None
        for value in values:
            source = None if value is None else _root(value)
            if source is None:
                return None
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    if len(roots) != 1 or waiting or _is_written(function, seen):
        return None
    return roots.pop()


def _root(value: ast.expr) -> str | None:
    """Return the name whose values an expression holds, or some of them."""
    match value:
        case ast.Name(name):
            return name
        case ast.Subscript(inner):
            return _root(inner)
        case ast.Call(
            ast.Attribute(ast.Name("torch"), join), [ast.Tuple(parts) | ast.List(parts), *_]
        ):
            roots = {_root(part) for part in parts} if join in _JOIN else set()
            return roots.pop() if len(roots) == 1 else None
        case ast.Call(ast.Attribute(inner, method)):
            return _root(inner) if method in _KEEP else None
    return None


def _bindings(function: FunctionNode) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield every name that a function binds, with the value if that can be told."""
    plain: set[int] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            for name, value in _pairs(target, node.value):
                plain.add(id(name))
                yield name.id, value
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Load):
            continue
        if id(node) not in plain and not node.id.startswith(_PREFIX):
            yield node.id, None


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Name, ast.expr]]:
    match target, value:
        case ast.Name(), _:
            yield target, value
        case ast.Tuple(names), ast.Tuple(values) if len(names) == len(values):
            for name, one in zip(names, values, strict=True):
                yield from _pairs(name, one)
        case ast.Tuple(names), ast.Call():  # ``first, second = cos.chunk(2)``
            for name in names:
                if isinstance(name, ast.Name):
                    yield name, value


def _is_written(function: FunctionNode, names: set[str]) -> bool:
    """Tell whether a function writes into one of the tensors: ``cos.mul_(2)``, ``cos[0] = 1``."""
    for node in ast.walk(function):
        match node:
            case ast.Call(ast.Attribute(inner, method)) if method.endswith("_"):
                written: ast.expr = inner
            case ast.Subscript(inner, _, ast.Store() | ast.Del()):
                written = inner
            case ast.keyword("out", inner):
                written = inner
            case _:
                continue
        if any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(written)):
            return True
    return False
