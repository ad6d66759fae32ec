"""Functions that nobody changes: what is compiled, or has a backward pass written by hand."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from npufix.rewriters.graph.modules.names import ModuleNames
    from npufix.rewriters.graph.modules.scopes import Scope

# Code that is compiled, or whose backward pass is written by hand, is not ours to change.
_COMPILED = re.compile(
    r"\b(jit\.(script|trace|ignore)\w*|(triton|numba)\.jit|njit|jit_fuser|custom_op)\b"
)
BY_HAND = "it belongs to a torch.autograd.Function, whose backward pass is written by hand"
"""Why no formula is changed; what the host waits for is nothing that a gradient goes through."""


@lru_cache(maxsize=4)
def _compiled_along(tree: ast.Module) -> frozenset[str]:
    """Return the names that functions and classes below ``@torch.jit.script`` call."""
    inside = [
        n
        for n in tree.body
        if isinstance(n, (ast.FunctionDef, ast.ClassDef))
        if any(ast.unparse(d).endswith("jit.script") for d in n.decorator_list)
    ]
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    found: set[str] = set()
    for code in inside:  # grows
        calls = (n.func for n in walk(code) if isinstance(n, ast.Call))
        called = {func.id for func in calls if isinstance(func, ast.Name)} - found
        inside += (functions[name] for name in called & functions.keys())
        found |= called
    return frozenset(found)


def off_limits(scope: Scope, names: ModuleNames) -> str:
    """Return why nothing in a function is changed, "" if it may be."""
    for decorator in map(ast.unparse, scope.function.decorator_list):
        if _COMPILED.search(decorator):
            return f"it is compiled: @{decorator}"
    if scope.cls is None and names.tree and scope.function.name in _compiled_along(names.tree):
        return "it is compiled with a function that calls it"
    bases = [names.dotted(b) or ast.unparse(b) for b in scope.cls.bases] if scope.cls else []
    if any(base.endswith("autograd.Function") for base in bases):
        return BY_HAND
    if any(base.endswith("ScriptModule") for base in bases):
        return "it belongs to a ScriptModule, which is compiled"
    return ""
