"""Functions that nobody changes: compiled ones, backward passes by hand, patterns of a graph."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.scopes import scopes
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of, walk

if TYPE_CHECKING:
    from npufix.rewriters.graph.modules.names import ModuleNames
    from npufix.rewriters.graph.modules.scopes import Scope

# Code that is compiled, or whose backward pass is written by hand, is not ours to change.
_COMPILED = re.compile(
    r"\b(jit\.(script|trace|ignore)\w*|(triton|numba)\.jit|njit|jit_fuser|custom_op)\b"
)
_REGISTERS = frozenset({"register_replacement", "replace_pattern", "replace_pattern_with_filters"})
"""What takes a function to seek in a graph, and one to write in its place."""
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


@lru_cache(maxsize=4)
def _graph_patterns(tree: ast.Module) -> frozenset[str]:
    """Return the names of functions that a compiler compares its graph with: what users write.

    ``register_replacement(search, write, ...)`` names them; a class of two methods, ``pattern``
    and ``replacement``, is handed to what registers it.
    """
    known = {scope.qualname for scope in scopes(tree)}
    calls = (n for n in nodes_of(tree) if isinstance(n, ast.Call))
    registers = (n for n in calls if last_name(n.func) in _REGISTERS)
    given = {last_name(a) for n in registers for a in (*n.args, *(k.value for k in n.keywords))}
    paired = {name for name in known if f"{name.removesuffix('pattern')}replacement" in known}
    return frozenset(
        name
        for name in known
        if (last := name.rpartition(".")[2]) in given or (last == "pattern" and name in paired)
    )


def off_limits(scope: Scope, names: ModuleNames) -> str:
    """Return why nothing in a function is changed, "" if it may be."""
    for decorator in map(ast.unparse, scope.function.decorator_list):
        if _COMPILED.search(decorator):
            return f"it is compiled: @{decorator}"
    if scope.cls is None and names.tree and scope.function.name in _compiled_along(names.tree):
        return "it is compiled with a function that calls it"
    patterns = _graph_patterns(names.tree) if names.tree else ()
    if any(f"{scope.qualname}.".startswith(f"{name}.") for name in patterns):
        return "a compiler compares its graph with what users write: nothing would match it"
    bases = [names.dotted(b) or ast.unparse(b) for b in scope.cls.bases] if scope.cls else []
    if any(base.endswith("autograd.Function") for base in bases):
        return BY_HAND
    if any(base.endswith("ScriptModule") for base in bases):
        return "it belongs to a ScriptModule, which is compiled"
    return ""
