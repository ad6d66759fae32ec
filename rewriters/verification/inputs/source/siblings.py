"""What docstrings of other functions say of arguments that are passed on as they came.

``_loss(self, out0, out1)`` without a docstring is called as ``self._loss(out0, out1)`` by
``forward``, which says that both are (batch, width); a method that overrides one of a base class
takes what that says. And what callers pass: whole numbers in ``self.bucket(memory - context)``
of two ``arange``, though the method that is called takes others too.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

import torch

from npufix.rewriters.graph.modules.syntax import last_name, list_handed, root_name, walk
from npufix.rewriters.verification.inputs.source.operands import list_keys_by_default, list_places
from npufix.rewriters.verification.inputs.source.training.losses import list_measured
from npufix.rewriters.verification.inputs.source.usage import (
    OF_TENSORS,
    Function,
    Use,
    find_function,
    find_last_line,
    find_uses,
    list_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


_KEEPS = frozenset(
    ["unsqueeze", "squeeze", "view", "reshape", "expand", "transpose", "t", "abs", "flatten"]
) | {"contiguous", "repeat", "permute", "clone", "flip", "neg"}
"""Methods after which whole numbers are whole."""
_WHOLE_TYPES = frozenset(["long", "int", "int64", "int32"])
_DEEPEST = 8
"""Names that stand for others."""
_WHOLE = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


class Sibling(NamedTuple):
    """A function of the same module, with the names that it has for arguments of another."""

    text: str
    """What it says, beside its class."""
    names: dict[str, str]
    """Its own names, by those of the other."""
    arguments: list[str]
    """All of its own, of which its text speaks."""


def list_siblings(tree: ast.Module, function: Function, qualname: str) -> Iterator[Sibling]:
    """Yield the functions that hand their arguments on to one, and those that it overrides."""
    own = [arg.arg for arg in list_arguments(function)]
    owner = qualname.rpartition(".")[0]
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    held = classes.get(owner)
    for base in held.bases if held is not None else ():
        above = classes.get(ast.unparse(base).rpartition(".")[2])
        for other in above.body if above is not None else ():
            if isinstance(other, ast.FunctionDef) and other.name == function.name:
                shared = [arg.arg for arg in list_arguments(other)]
                yield Sibling(_text(other, above), {n: n for n in own if n in shared}, shared)
    scopes: list[ast.ClassDef | ast.Module] = [tree] if held is None else [held, tree]
    for scope in (*scopes, *(classes.values() if held is None else ())):
        for other in scope.body:
            if not isinstance(other, ast.FunctionDef | ast.AsyncFunctionDef) or other is function:
                continue
            names = _handed_on(other, function, method=scope is held)
            if names:
                every = [arg.arg for arg in list_arguments(other)]
                yield Sibling(_text(other, scope), names, every)


def _text(function: Function, scope: ast.ClassDef | ast.Module | None) -> str:
    said = ast.get_docstring(function) or ""
    calls = function.name in {"forward", "__call__"} and isinstance(scope, ast.ClassDef)
    return f"{said}\n{ast.get_docstring(scope) or ''}" if calls and scope is not None else said


def _handed_on(caller: Function, function: Function, *, method: bool) -> dict[str, str]:
    """Return the caller's names for the arguments that it passes on as they came."""
    last = {arg.arg: find_last_line(caller, arg.arg) for arg in list_arguments(caller)}
    for node in walk(caller):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        bound = isinstance(called, ast.Attribute) and ast.unparse(called.value) in {"self", "cls"}
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name != function.name or bound is not method:
            continue
        found = {
            n: v.id
            for n, v in list_handed(function.args, node).items()
            if isinstance(v, ast.Name) and node.lineno <= last.get(v.id, 0)
        }
        if found:
            return found
    return {}


def read_uses(
    tree: ast.Module, function: Function, qualname: str, init: ast.AST | None
) -> dict[str, Use]:
    """Return what is done with each argument, in the function and by what goes with it."""
    uses = dict(find_uses(function))
    for name in find_passed_whole(tree, function, qualname) & uses.keys():
        uses[name].numbers = True
    for name, measured in list_measured(function, init):
        if name in uses:
            uses[name].measured = measured
    for name, keys in list_keys_by_default(function, init).items():
        if name in uses:
            uses[name].keys = list(dict.fromkeys([*uses[name].keys, *keys]))
    for name in _list_unpacked_places(function) & uses.keys():
        uses[name].numbers = True
    for name, dims in _list_dims_of_helpers(tree, function, qualname):
        one = uses[name]
        one.dims |= set() if one.dims or one.tested or one.keys or one.looped else dims
    for name, parts in _find_tensors_in_lists(function, uses):
        uses[name].keys, uses[name].listed = parts, True
    return uses


def _list_dims_of_helpers(
    tree: ast.Module, function: Function, qualname: str
) -> Iterator[tuple[str, set[int]]]:
    """Yield how many dimensions arguments have by what they are handed to as they came.

    By what runs whatever is passed: ``logits = self._logits(x, y)``, below no test.
    """
    owner = qualname.rpartition(".")[0]
    until = {arg.arg: find_last_line(function, arg.arg) for arg in list_arguments(function)}
    plain = (s for s in function.body if isinstance(s, ast.Assign | ast.Return | ast.Expr))
    for call in (s.value for s in plain if isinstance(s.value, ast.Call)):
        own = root_name(call.func) == "self"
        name = last_name(call.func)
        helper = find_function(tree, f"{owner}.{name}" if own and owner else name)
        if helper is None or helper is function or not (own or isinstance(call.func, ast.Name)):
            continue
        names = [arg.arg for arg in list_arguments(helper)]
        names = names[1:] if names[:1] == ["self"] else names
        uses = find_uses(helper)
        given = [*zip(names, call.args, strict=False)]
        given += [(str(word.arg), word.value) for word in call.keywords if word.arg in uses]
        for theirs, value in given:
            mine = getattr(value, "id", "")
            if call.lineno <= until.get(mine, -1) and not uses[theirs].tested:
                yield mine, uses[theirs].dims


def _list_unpacked_places(function: Function) -> set[str]:
    """Return the arguments that hold what others are indexed by: ``x[j]`` for ``j = edges[1]``."""
    nodes = list(walk(function))
    parts = {
        node.targets[0].id: node.value.value.id
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
        and isinstance(node.value.value, ast.Name)
        and isinstance(node.value.slice, ast.Constant)
    }
    places = (n.slice for n in nodes if isinstance(n, ast.Subscript))
    return {
        parts[place.id] for place in places if isinstance(place, ast.Name) and place.id in parts
    }


def _find_tensors_in_lists(
    function: Function, names: Collection[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield arguments that are unpacked into tensors: ``tokens, pooled = inputs``.

    Not ``h, w = size``, of which none is used as a tensor is.
    """
    nodes = list(walk(function))
    for node in nodes:
        match node:
            case ast.Assign([ast.Tuple(parts) | ast.List(parts)], ast.Name(name)) if name in names:
                own = [part.id for part in parts if isinstance(part, ast.Name)]
                if len(own) == len(parts) and any(_is_of_tensor(n, own) for n in nodes):
                    yield name, own


def _is_of_tensor(node: ast.AST, names: Collection[str]) -> bool:
    match node:
        case ast.Attribute(ast.Name(name), part):
            return name in names and part in OF_TENSORS
        case ast.Call(called, [ast.Name(name), *_]):
            of_tensor = hasattr(torch.Tensor, last_name(called))  # unlike ``torch.zeros``
            return name in names and of_tensor and root_name(called) in {"torch", "F"}
    return False


def find_passed_whole(tree: ast.Module, function: Function, qualname: str) -> frozenset[str]:
    """Return the arguments for which every call in the module passes a tensor of whole numbers.

    And those that go on to a function of the module which places or picks by them.
    """
    owner = qualname.rpartition(".")[0]
    held = next((n for n in tree.body if getattr(n, "name", "") == owner and owner), None)
    whole: dict[str, bool] = {}
    for caller in walk(tree if held is None else held):
        if not isinstance(caller, ast.FunctionDef | ast.AsyncFunctionDef) or caller is function:
            continue
        values = _Values(caller)
        for given in _list_calls(caller, function, method=held is not None):
            for name, value in given.items():
                whole[name] = whole.get(name, True) and values.are_whole(value)
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    scopes += [held] if isinstance(held, ast.ClassDef) else []
    for scope in scopes:
        for other in scope.body:
            if isinstance(other, ast.FunctionDef) and other is not function:
                own = _handed_on(function, other, method=scope is held)
                whole |= {own[name]: True for name, _ in list_places(other) if name in own}
    return frozenset(name for name, always in whole.items() if always)


def _list_calls(
    caller: Function, function: Function, *, method: bool
) -> Iterator[dict[str, ast.expr]]:
    """Yield what each call passes, by the names of the arguments."""
    called = {f"self.{function.name}", f"cls.{function.name}"} if method else {function.name}
    for node in walk(caller):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in called:
            yield list_handed(function.args, node)


class _Values:
    """What the expressions of a function are, as far as that is written out."""

    def __init__(self, function: Function) -> None:
        self._made: dict[str, list[ast.expr | None]] = {}
        self._numbers = {
            a.arg
            for a in list_arguments(function)
            if a.annotation is not None and ast.unparse(a.annotation) == "int"
        }
        for node in walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._note(target, node.value)
            elif isinstance(node, ast.AugAssign | ast.For | ast.AnnAssign | ast.NamedExpr):
                self._note(node.target, getattr(node, "value", None))
        arguments = {arg.arg for arg in list_arguments(function)} - self._made.keys()
        self._numbers &= arguments

    def _note(self, target: ast.expr, value: ast.expr | None) -> None:
        alone = isinstance(target, ast.Name)
        for node in walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._made.setdefault(node.id, []).append(value if alone else None)

    def _find(self, name: str) -> ast.expr | None:
        """Return what a name stands for, if it is set once, and not to something of itself."""
        values = self._made.get(name, [])
        value = values[0] if len(values) == 1 else None
        itself = value is not None and any(getattr(n, "id", "") == name for n in walk(value))
        return None if itself else value

    def are_whole(self, node: ast.expr, depth: int = 0) -> bool:  # noqa: PLR0911 - one each
        """Say whether this is a tensor of whole numbers."""
        if depth > _DEEPEST:
            return False
        match node:
            case ast.Name(id=name):
                value = self._find(name)
                return value is not None and self.are_whole(value, depth + 1)
            case ast.Subscript(value=value) | ast.UnaryOp(op=ast.USub(), operand=value):
                return self.are_whole(value, depth + 1)
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _WHOLE):
                whole = [self.are_whole(side, depth + 1) for side in (left, right)]
                sides = zip((left, right), whole, strict=True)
                return any(whole) and all(w or self._is_number(s, depth) for s, w in sides)
            case ast.Call(func=ast.Attribute(attr="arange"), args=given, keywords=named):
                types = [ast.unparse(k.value).rpartition(".")[2] for k in named if k.arg == "dtype"]
                numbers = all(self._is_number(n, depth) for n in given)
                return bool(given) and numbers and _WHOLE_TYPES.issuperset(types)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=given):
                moved = name == "to" and all(ast.unparse(a).endswith("device") for a in given)
                kept = (name in _KEEPS or moved) and self.are_whole(value, depth + 1)
                return kept or (name in {"long", "int"} and not given)
        return False

    def _is_number(self, node: ast.expr, depth: int) -> bool:  # noqa: PLR0911 - one each
        """Say whether this is a whole number: a size, or a count."""
        match node:
            case ast.Constant(value=value):
                return type(value) is int
            case ast.Name(id=name):
                value = self._find(name)
                if value is None or depth > _DEEPEST:
                    return name in self._numbers
                return self._is_number(value, depth + 1)
            case ast.Subscript(value=ast.Attribute(attr="shape")):
                return True
            case ast.Call(func=ast.Attribute(attr="size"), args=[_]):
                return True
            case ast.Call(func=ast.Name(id="len" | "int")):
                return True
            case ast.UnaryOp(op=ast.USub(), operand=value):
                return self._is_number(value, depth)
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _WHOLE):
                return self._is_number(left, depth) and self._is_number(right, depth)
        return False
