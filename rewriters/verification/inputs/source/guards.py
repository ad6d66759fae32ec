"""Sizes and bounds that code raises without: ``if y.shape != torch.Size([n]): raise``."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def list_refused(function: ast.AST) -> Iterator[tuple[str, int, tuple[str, ...] | None, str]]:
    """Yield what code raises for: the name, the line, the axes that it wants, a bound of numbers.

    ``("n",)`` of ``if y.shape != torch.Size([n]): raise``, ``"2"`` of ``if y.max() > 1: raise``.
    """
    for line, part, raises in list_guards(function):
        op, right = part.ops[0], part.comparators[0]
        name, asked = _asked(part.left)
        axes = _read_axes(right) if isinstance(op, ast.NotEq if raises else ast.Eq) else None
        if asked == "shape" and axes is not None:
            yield name, line, axes, ""
        elif asked in {"max", "amax"}:
            yield name, line, None, _bound_by(op, right, raises=raises)


def list_guards(function: ast.AST) -> Iterator[tuple[int, ast.Compare, bool]]:
    """Yield comparisons that lead on or raise: their line, what is compared, whether it raises."""
    for node in walk(function):
        match node:
            case ast.If(test=test, body=[*_, ast.Raise()]):
                raises = True
            case ast.Assert(test=test):
                raises = False
            case _:
                continue
        joined = isinstance(getattr(test, "op", None), ast.Or if raises else ast.And)
        for part in test.values if joined and isinstance(test, ast.BoolOp) else [test]:
            if isinstance(part, ast.Compare) and len(part.ops) == 1:
                yield node.lineno, part, raises


def _read_axes(node: ast.expr) -> tuple[str, ...] | None:
    """Return ``("n", "3")`` for ``(n, 3)`` and ``torch.Size([n, 3])``."""
    if isinstance(node, ast.Call) and last_name(node.func) == "Size" and node.args:
        node = node.args[0]
    if not isinstance(node, ast.Tuple | ast.List):
        return None
    starred = any(isinstance(n, ast.Starred) for n in node.elts)
    return None if starred else tuple(map(ast.unparse, node.elts))


def _asked(node: ast.expr) -> tuple[str, str]:
    """Return ``("y", "max")`` for ``y.max().item()`` and ``torch.max(y)``, and of ``y.shape``."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("torch"), asked), [ast.Name(name)], []):
            return name, asked
        case ast.Attribute(ast.Name(name), "shape") | ast.Call(
            ast.Attribute(ast.Name(name), "size"), [], []
        ):
            return name, "shape"
        case ast.Call(ast.Attribute(ast.Name(name), asked), [], []):
            return name, asked
        case ast.Call(ast.Attribute(inner, "item"), [], []):
            return _asked(inner)
    return "", ""


def _bound_by(op: ast.cmpop, right: ast.expr, *, raises: bool) -> str:
    """Return what numbers are less than: ``n`` for ``>= n``, 2 for ``> 1`` where that raises."""
    match right:
        case ast.Constant(int(most)) if isinstance(op, ast.Gt if raises else ast.LtE):
            return str(most + 1)
        case ast.Constant(int(most)) if isinstance(op, ast.GtE if raises else ast.Lt):
            return str(most)
        case ast.Name(most) | ast.Attribute(ast.Name("self"), most) if isinstance(
            op, ast.GtE if raises else ast.Lt
        ):
            return most
    return ""


_LEAST = {
    "grid_sample": 4, "interpolate": 3, "pixel_shuffle": 3, "pixel_unshuffle": 3, "upsample": 3,
}  # fmt: skip
"""How many dimensions what a function takes first has at least, whatever its mode."""
_BY_MODE = {"bilinear": 4, "bicubic": 4, "trilinear": 5}
_ADD_AXIS = frozenset({"stack", "unsqueeze"})
_MODULES = frozenset({"F", "functional", "np", "torch"})
_AS_MANY = operators.SAME_SHAPE | {"repeat_interleave"}


def find_least_axes(function: ast.AST, until: Mapping[str, int]) -> dict[str, int]:
    """Return how many dimensions arguments have at least, where an operator names an axis.

    3 of ``x.sum(dim=-3)``, and of ``x`` and ``y`` in ``torch.cat([x, y.float()], 2)``; nothing is
    said of one alone, which any tensor has. ``until`` is the last line that a name is one on.
    """
    found = dict.fromkeys(until, 0)
    calls = [node for node in walk(function) if isinstance(node, ast.Call)]
    joined = [node for node in calls if last_name(node.func) in {"cat", "concat", "stack"}]
    for node in (*calls, *joined):  # those that are joined have as many, each of them
        called, given = last_name(node.func), list(node.args)
        match node.func:
            case ast.Attribute(owner) if ast.unparse(owner).rpartition(".")[2] not in _MODULES:
                given.insert(0, owner)
        known = [*(operators.parameters(called) or ())]
        named = dict(zip(known, given, strict=False)) | {k.arg: k.value for k in node.keywords}
        axes = _list_whole(named.get("dim", named.get("axis")))
        mode = str(getattr(named.get("mode"), "value", ""))
        wanted = [_LEAST.get(called, 0), _BY_MODE.get(mode, 0)]
        least = max([*wanted, *(n + 1 if n >= 0 else -n for n in axes)])
        held = given[:1]
        if node in joined:  # what one name stands for is a list, and no tensor
            held = [part for one in held for part in getattr(one, "elts", ())]
        names = [n for n in map(_name_with_axes_of, held) if node.lineno <= until.get(n, 0)]
        least = max([least - (called in _ADD_AXIS), *(found[n] for n in names)])
        found |= dict.fromkeys(names, least)
    return {name: least for name, least in found.items() if least > 1}


def _name_with_axes_of(code: ast.expr) -> str:
    """Return ``x`` of ``x.float().softmax(-1)``, "" where there may be other axes."""
    while isinstance(code, ast.Call) and last_name(code.func) in _AS_MANY:
        match code.func:
            case ast.Attribute(owner) if ast.unparse(owner).rpartition(".")[2] not in _MODULES:
                code = owner
            case _:
                code = code.args[0] if code.args else ast.Constant(None)
    return code.id if isinstance(code, ast.Name) else ""


def _list_whole(code: ast.expr | None) -> list[int]:
    with suppress(ValueError):
        value = ast.literal_eval(code) if code is not None else ()
        values = value if isinstance(value, tuple | list) else [value]
        return [n for n in values if type(n) is int]
    return []
