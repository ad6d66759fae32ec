"""The pieces of a module whose dataflow is followed: functions, methods and its top level."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import FunctionNode, inner_blocks, statements
from npufix.rewriters.graph.modules.syntax import names_bound_in, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MODULE = "<module>"


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A function, where it stands, and the class that its ``self`` belongs to."""

    function: FunctionNode
    cls: ast.ClassDef | None = None
    path: tuple[str, ...] = ()
    """Names of the classes and functions around it, ``<locals>`` after a function's."""
    hidden: frozenset[str] = frozenset()
    """Names of the functions around it: here they do not mean what the module imports."""
    sees_self: bool = False
    """Whether it stands in a method, whose ``self`` it sees."""
    number: int = 0
    """How many of the same name stand before it: overloads, branches of an ``if``."""

    @property
    def qualname(self) -> str:
        """Return ``Class.method`` or ``function.<locals>.inner``."""
        return ".".join([*self.path, self.function.name])

    @property
    def is_method(self) -> bool:
        """Tell whether it stands in a class itself, not in a function of one."""
        return bool(self.path) and self.path[-1] != "<locals>"


@lru_cache(maxsize=4)
def scopes(module: ast.Module) -> Sequence[Scope]:
    """Return every function of a module, inner ones after the one they stand in.

    For trees that nobody changes.
    """
    seen: Counter[str] = Counter()
    found: list[Scope] = []
    for scope in _within(module.body, Scope(_top_level(module)), is_function=False):
        name = scope.qualname
        found.append(replace(scope, number=seen[name]) if seen[name] else scope)
        seen[name] += 1
    return tuple(found)


def top_level(module: ast.Module) -> Scope:
    """Return the statements of a module as if they were the body of a function."""
    return Scope(_top_level(module))


def _top_level(module: ast.Module) -> ast.FunctionDef:
    last = max((node.end_lineno or node.lineno for node in module.body), default=1)
    passive = (FunctionNode, ast.ClassDef, ast.Import, ast.ImportFrom)
    return ast.FunctionDef(
        name=MODULE,
        args=ast.arguments([], [], None, [], [], None, []),
        body=[node for node in module.body if not isinstance(node, passive)],
        decorator_list=[],
        returns=None,
        lineno=1,
        end_lineno=last,
        col_offset=0,
        end_col_offset=0,
    )


def _within(body: list[ast.stmt], around: Scope, *, is_function: bool) -> Iterator[Scope]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                path = (*around.path, "<locals>") if is_function else around.path
                found = Scope(node, around.cls, path, around.hidden, around.sees_self)
                yield found
                if any(isinstance(n, (FunctionNode, ast.ClassDef)) for n in statements(node.body)):
                    hidden = around.hidden | list_bound_names(node)
                    sees = _hands_on_self(node, around, is_function=is_function)
                    inner = Scope(node, around.cls, (*path, node.name), hidden, sees)
                    yield from _within(node.body, inner, is_function=True)
            case ast.ClassDef():
                path = (*around.path, "<locals>") if is_function else around.path
                own = Scope(around.function, node, (*path, node.name), around.hidden)
                yield from _within(node.body, own, is_function=False)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                for block in inner_blocks(node):
                    yield from _within(block, around, is_function=is_function)


def _hands_on_self(function: FunctionNode, around: Scope, *, is_function: bool) -> bool:
    """Tell whether ``self`` is the object of the class in the functions inside of this one."""
    if is_function:
        return around.sees_self and "self" not in list_bound_names(function)
    first = [*function.args.posonlyargs, *function.args.args][:1]
    is_method = around.cls is not None and [arg.arg for arg in first] == ["self"]
    return is_method and "self" not in names_bound_in(function)


def list_bound_names(function: FunctionNode) -> frozenset[str]:
    """Return the names that a function binds: its parameters and what it assigns."""
    parameters = {n.arg for n in walk(function.args) if isinstance(n, ast.arg)}
    return frozenset(parameters | names_bound_in(function))
