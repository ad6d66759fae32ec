"""Adding ``import torch_npu`` to a module, once and where its imports are."""

from __future__ import annotations

import ast
import re

from npufix.rewriters.names import module_names, source_lines

_GUARDED = """try:
    import torch_npu
except ImportError:  # not on an NPU machine
    torch_npu = None
"""


def uses_torch_npu(text: str) -> bool:
    """Tell whether code calls an operator of torch_npu."""
    return re.search(r"\btorch_npu\.", text) is not None


def imports_torch_npu(tree: ast.Module, *, unconditionally: bool = False) -> bool:
    """Tell whether a module imports torch_npu at its top level."""
    nodes = tree.body if unconditionally else list(ast.walk(tree))
    imported = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    return any(name.split(".")[0] == "torch_npu" for name in imported)


def _is_torch(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] == "torch"


def _below_docstring(tree: ast.Module) -> int:
    """Return how many lines come before the code of a module: comments and the docstring."""
    first = tree.body[0]
    if ast.get_docstring(tree, clean=False) is not None:
        return first.end_lineno or first.lineno
    decorators: list[ast.expr] = getattr(first, "decorator_list", [])
    return min([first.lineno, *(d.lineno for d in decorators)]) - 1


def import_torch_npu(source: str, *, guarded: bool) -> str:
    """Return the module with torch_npu imported; unchanged if it already is.

    A plain import goes below ``import torch``; a guarded one is a block of its own and goes
    below the last import.
    """
    tree = ast.parse(source)
    if module_names(tree).imports.get("torch_npu") == "torch_npu":
        return source
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    torch = [n for n in imports if isinstance(n, ast.Import) and _is_torch(n.names[0].name)]
    lines = source_lines(source)
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    if imports:
        place = imports[-1] if guarded or not torch else torch[-1]
        at = place.end_lineno or place.lineno
    else:
        at = _below_docstring(tree)
    if guarded:
        block = [newline, *(f"{line}{newline}" for line in _GUARDED.splitlines())]
    else:
        block = [f"import torch_npu{newline}"]
    return "".join([*lines[:at], *block, *lines[at:]])
