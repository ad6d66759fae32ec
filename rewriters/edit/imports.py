"""Adding ``import torch_npu`` and the like to a module, once and where its imports are."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import module_names, source_lines
from npufix.rewriters.graph.modules.syntax import root_name, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.graph.modules.names import ModuleNames

_GUARDED = """try:
{unit}{statement}
except ImportError:  # not on an NPU machine
{unit}{bound} = None
"""
_SET_UP = frozenset({"logging", "matplotlib", "os", "sys", "warnings"})
"""Modules that are set up between imports, and call nothing of this file."""


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """``import module`` or ``from module import name``."""

    module: str
    name: str = ""

    @property
    def bound(self) -> str:
        """Return the name that it binds."""
        return self.name or self.module.partition(".")[0]

    @property
    def full(self) -> str:
        """Return what that name stands for."""
        return f"{self.module}.{self.name}" if self.name else self.bound

    @property
    def statement(self) -> str:
        """Return its text."""
        if self.name:
            return f"from {self.module} import {self.name}"
        return f"import {self.module}"


def imports_torch_npu(tree: ast.Module, *, unconditionally: bool = False) -> bool:
    """Tell whether a module imports torch_npu at its top level."""
    nodes = tree.body if unconditionally else list(walk(tree))
    imported = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    return any(name.split(".")[0] == "torch_npu" for name in imported)


def _below_docstring(tree: ast.Module) -> int:
    """Return how many lines come before the code of a module: comments and the docstring."""
    first = tree.body[0]
    if ast.get_docstring(tree, clean=False) is not None:
        return first.end_lineno or first.lineno
    decorators: list[ast.expr] = getattr(first, "decorator_list", [])
    return min([first.lineno, *(d.lineno for d in decorators)]) - 1


def add_import(source: str, needed: Import, *, guarded: bool, unit: str = "    ") -> str:
    """Return the source with a module imported; unchanged if it already is.

    A plain import goes below ``import torch``; a guarded one is a block of its own and goes
    below the last import, or in a script below the last one before anything is called.
    """
    lines = source_lines(source)
    names = module_names(ast.parse(source))
    at, block = insertion(names, lines, needed, guarded=guarded, unit=unit)
    return "".join([*lines[:at], *block, *lines[at:]])


def insertion(
    names: ModuleNames, lines: Sequence[str], needed: Import, *, guarded: bool, unit: str = "    "
) -> tuple[int, list[str]]:
    """Return below how many lines an import goes, and its lines: none if it is there already."""
    tree = names.tree
    assert tree is not None  # noqa: S101 - `module_names` reads one
    if names.imports.get(needed.bound) == needed.full and _has(tree, needed):
        return 0, []
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    if guarded:
        text = _GUARDED.format(statement=needed.statement, bound=needed.bound, unit=unit)
        block = [newline, *(f"{line}{newline}" for line in text.splitlines())]
        used = next((n.lineno for n in tree.body if _may_use(n)), len(lines) + 1)
        return _below([n for n in imports if n.lineno < used][-1:], tree), block
    torch = [n for n in imports if _is_of_torch(n)]
    if needed.module == "torch" and torch:
        return torch[0].lineno - 1, [f"{needed.statement}{newline}"]
    plain = [n for n in torch if isinstance(n, ast.Import)]
    if needed.name and len(plain) < len(torch):  # as isort has it: mindspeed before torch
        first = next(n for n in torch if isinstance(n, ast.ImportFrom))
        return first.lineno - 1, [f"{needed.statement}{newline}"]
    return _below(plain[-1:] or imports[-1:], tree), [f"{needed.statement}{newline}"]


def _may_use(node: ast.stmt) -> bool:
    """Tell whether a statement of a script may need what is imported: it calls something.

    What sets the interpreter up, ``sys.path.append("core")``, comes before other imports.
    """
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return False
        case ast.Expr(ast.Call(ast.Attribute() as called)) if root_name(called) in _SET_UP:
            return False
    return any(isinstance(part, ast.Call) for part in ast.walk(node))


def _below(place: Sequence[ast.stmt], tree: ast.Module) -> int:
    return (place[0].end_lineno or place[0].lineno) if place else _below_docstring(tree)


def _is_of_torch(node: ast.Import | ast.ImportFrom) -> bool:
    module = node.names[0].name if isinstance(node, ast.Import) else node.module or ""
    return module.partition(".")[0] == "torch" and not getattr(node, "level", 0)


def _has(tree: ast.Module, needed: Import) -> bool:
    """Tell whether a module imports ``a.b.c`` under this very name, guarded or not."""
    return bool(needed.name or "." not in needed.module) or any(
        alias.name == needed.module and alias.asname is None
        for node in walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    )
