"""What a built model proves that its source leaves open.

The source says ``emb.cos() * self.attention_scaling``; the model says that the scaling is 1. So the
tables of cosines lie between -1 and 1, if nothing else in the file makes or scales one.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

WITHIN_ONE = "npu102:cosines-within-one"
_WAVES = frozenset({"cos", "sin"})
# What keeps every value, or leaves some out.
_KEEPS = frozenset(
    {
        "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "expand", "flatten", "float",
        "half", "reshape", "squeeze", "to", "transpose", "type_as", "unsqueeze", "view",
    }
)  # fmt: skip
_DESCRIBES = frozenset({"device", "dtype", "ndim", "shape"})


class Facts:
    """The modules of one model, by the file and the class that they come from."""

    def __init__(self, model: nn.Module) -> None:
        self._modules: dict[tuple[str, str], list[nn.Module]] = {}
        for module in model.modules():
            for cls in type(module).__mro__:
                self._modules.setdefault((cls.__module__, cls.__qualname__), []).append(module)

    def proven(self, module: str, tree: ast.Module) -> frozenset[str]:
        """Return the conditions of rules that hold in a module of Python for this model."""
        return frozenset({WITHIN_ONE}) if self._waves_are_plain(module, tree) else frozenset()

    def _waves_are_plain(self, module: str, tree: ast.Module) -> bool:
        """Tell whether every sine and cosine of a file is used as it is, and there are some."""
        left = {id(wave) for wave in _waves(tree)}
        if not left:
            return False
        found = 0
        for cls, function in _functions(tree):
            waves = _waves(function)
            left -= {id(wave) for wave in waves}
            modules = self._modules.get((module, cls), [])
            if not waves or (cls and not modules):  # a class that the model does not use
                continue
            if not _Uses(function, modules).are_plain(waves):
                return False
            found += len(waves)
        return found > 0 and not left


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the functions of a module and of its classes, with the name of the class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield "", node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield node.name, inner


def _waves(code: ast.AST) -> list[ast.AST]:
    called = {id(n.func) for n in ast.walk(code) if isinstance(n, ast.Call)}
    return [n for n in ast.walk(code) if _is_wave(n) and id(n) not in called]


def _is_wave(node: ast.AST) -> bool:
    """Tell whether a node is ``x.cos()``, ``torch.sin(x)`` or a table that is kept of them."""
    match node:
        case ast.Call(ast.Attribute(_, name) | ast.Name(name)):
            return name in _WAVES
        case ast.Attribute(_, name, ast.Load()):
            return name not in _WAVES and bool(_WAVES & set(name.split("_")))
    return False


def _is_kept(node: ast.AST) -> bool:
    """Tell whether a module keeps a value under a name, by which it is found again."""
    return isinstance(node, ast.Call) and (
        isinstance(node.func, ast.Attribute) and node.func.attr == "register_buffer"
    )


class _Uses:
    """What a function does with the waves that it computes."""

    def __init__(self, function: ast.AST, modules: list[nn.Module]) -> None:
        self._function = function
        self._modules = modules
        self._parents = {
            id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)
        }

    def are_plain(self, waves: list[ast.AST]) -> bool:
        """Tell whether none of them is scaled, but by factors of at most one."""
        names: set[str] = set()
        waiting: list[ast.AST] = list(waves)
        while waiting:
            node = waiting.pop()
            end = self._end(node)
            if end is None:
                return False
            for name in _names(end) - names:
                names.add(name)
                waiting += [
                    n
                    for n in ast.walk(self._function)
                    if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
                ]
        return True

    def _end(self, node: ast.AST) -> ast.AST | None:
        """Return the statement that a value ends up in as it is, ``None`` if it is changed."""
        while not isinstance(node, ast.stmt):
            parent = self._parents[id(node)]
            if not self._keeps(node, parent):
                return None
            if isinstance(parent, ast.Attribute) and parent.attr not in _KEEPS:
                return ast.Pass()  # its dtype, say
            if _is_kept(parent):
                return ast.Pass()
            node = parent
        return node

    def _keeps(self, node: ast.AST, parent: ast.AST) -> bool:
        """Tell whether the value of a node is that of its parent, or the parent leaves some out."""
        match parent:
            case ast.Attribute(_, name):
                return name in _KEEPS or name in _DESCRIBES
            case ast.Call(func):
                return func is node or _is_kept(parent)
            case ast.BinOp(left, ast.Mult(), right):
                return self._is_small(right if left is node else left)
            case ast.Subscript(value):
                return value is node
            case ast.Assign(targets):
                return isinstance(targets[0], ast.Name | ast.Tuple | ast.Attribute)
        return isinstance(parent, ast.Tuple | ast.Return)

    def _is_small(self, factor: ast.AST) -> bool:
        """Tell whether a factor is an attribute that is a number of at most one in every module."""
        match factor:
            case ast.Attribute(ast.Name("self"), name):
                values = [getattr(module, name, None) for module in self._modules]
                numbers = [v for v in values if isinstance(v, (int, float))]
                return 0 < len(values) == len(numbers) and all(abs(v) <= 1 for v in numbers)
        return False


def _names(statement: ast.AST) -> set[str]:
    """Return the local names that an assignment binds."""
    if not isinstance(statement, ast.Assign):
        return set()
    return {n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)} - {
        "self"
    }
