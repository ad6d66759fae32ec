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


def list_attributes_read(owner: type, method: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a method and what it calls of the class read, and what each is."""
    queue, seen = [method], set[str]()
    while queue:
        name = queue.pop()
        function = inspect.getattr_static(owner, name, None)
        if name in seen or not inspect.isfunction(function):
            continue
        seen.add(name)
        source = try_call(lambda f=function: inspect.getsource(f), _READ_S).value  # type: ignore[misc] # a default binds it
        if not isinstance(source, str):
            continue
        # not ``dedent``, which a comment or a docstring at the first column stops
        tree = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
        for name, what in classify_attributes(tree):
            queue.append(name)
            yield name, what


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
