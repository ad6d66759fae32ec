"""The attributes of ``self`` that methods read, and what each is, by what is done with it."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_S = 5.0
_CHANGING = frozenset(
    [
        *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove"),
        *("clear", "update", "setdefault", "add", "discard", "put", "put_nowait"),
    ]
)
"""What changes lists, dictionaries, sets and queues."""


def list_attributes_read(owner: type, method: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a method and what it calls of the class read, and what each is."""
    for tree in _trees(owner, method):
        yield from classify_attributes(tree)


def list_attributes_written(owner: type, method: str) -> set[str]:
    """Return the attributes that a method, or what it calls of the class, sets or changes.

    ``self.n += 1``, ``self.rows[i] = row``, ``self.items.append(x)``, ``self.mean.lerp_(x, 0.1)``.
    """
    found: set[str] = set()
    for node in (node for tree in _trees(owner, method) for node in walk(tree)):
        changed: list[ast.expr] = []
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed = [node]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            in_place = name.endswith("_") and not name.startswith("_")
            changed = [node.func.value] if in_place or name in _CHANGING else []
        found |= {name for part in changed if (name := _of_self(part))}
    return found


def _of_self(node: ast.expr) -> str:
    """Return ``rows`` for ``self.rows[i].data``; empty for what is of no ``self``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        inner = node.value
        if isinstance(node, ast.Attribute) and isinstance(inner, ast.Name) and inner.id == "self":
            return node.attr
        node = inner
    return ""


def _trees(owner: type, method: str) -> Iterator[ast.AST]:
    """Yield the syntax of a method or property, and of those that it reads of the class."""
    queue, seen = [method], set[str]()
    while queue:
        name = queue.pop()
        function = inspect.getattr_static(owner, name, None)
        function = function.fget if isinstance(function, property) else function
        if name in seen or not inspect.isfunction(function):
            continue
        seen.add(name)
        source = try_call(lambda f=function: inspect.getsource(f), _READ_S).value  # type: ignore[misc] # a default binds it
        if not isinstance(source, str):
            continue
        # not ``dedent``, which a comment or a docstring at the first column stops
        tree = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
        queue += [name for name, _ in classify_attributes(tree)]
        yield tree


def classify_attributes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the attributes of ``self`` that code reads, and what each is."""
    called = {id(node.func) for node in walk(tree) if isinstance(node, ast.Call)}
    for node in walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        if node.value.id != "self" or not isinstance(node.ctx, ast.Load):
            continue
        is_tensor = re.search(r"weight|gamma|scale$|^g$|beta$|bias$", node.attr)
        yield node.attr, "call" if id(node) in called else "tensor" if is_tensor else "number"


def read_attributes(owner: type, method: str) -> dict[str, str]:
    """Return what ``method`` reads from ``self``: as a tensor, a callable or a number."""
    found: dict[str, str] = {}
    for name, what in list_attributes_read(owner, method):
        if hasattr(owner, name):
            continue
        if what == "number":
            found.setdefault(name, what)
        else:
            found[name] = what
    return found
