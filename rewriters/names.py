"""What the names of a module stand for: ``F.softmax`` is ``torch.nn.functional.softmax``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

# Short names of one thing; the graph knows only the right-hand side.
_CANONICAL = {
    "torch.float": "torch.float32",
    "torch.half": "torch.float16",
    "torch.double": "torch.float64",
    "torch.long": "torch.int64",
    "torch.int": "torch.int32",
}


@dataclass(frozen=True)
class ModuleNames:
    """The imports, functions and classes of one module."""

    imports: Mapping[str, str]
    functions: Mapping[str, FunctionNode]
    classes: Mapping[str, ast.ClassDef]
    overridden: frozenset[str] = field(default=frozenset())
    """Methods (``Class.method``) that a subclass in this module redefines."""

    def dotted(self, node: ast.expr) -> str | None:
        """Return the imported name that an expression spells, or ``None``."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return None
        name = ".".join([self.imports[node.id], *reversed(parts)])
        return _CANONICAL.get(name, name)

    def bases(self, cls: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """Yield a class and its bases within this module, nearest first."""
        seen: set[str] = set()
        queue = [cls]
        while queue:
            current = queue.pop(0)
            if current.name in seen:
                continue
            seen.add(current.name)
            yield current
            queue += [
                self.classes[base.id]
                for base in current.bases
                if isinstance(base, ast.Name) and base.id in self.classes
            ]

    def method(self, cls: ast.ClassDef, name: str) -> FunctionNode | None:
        """Return the method that ``self.name`` means in ``cls``; ``None`` if unsure."""
        for base in self.bases(cls):
            for item in reversed(base.body):  # the last definition is the one that counts
                if isinstance(item, FunctionNode) and item.name == name:
                    return None if f"{base.name}.{name}" in self.overridden else item
        return None


def straight_line(function: FunctionNode) -> list[ast.stmt] | None:
    """Return the body of a helper of assignments to names and one final return."""
    if isinstance(function, ast.AsyncFunctionDef) or function.args.vararg or function.args.kwarg:
        return None
    body = [
        s
        for s in function.body
        if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
    ]
    if not body or not isinstance(body[-1], ast.Return) or body[-1].value is None:
        return None
    for statement in body[:-1]:
        match statement:
            case ast.Assign([ast.Name()]):
                pass
            case ast.Assign([ast.Tuple(items)]) if all(isinstance(i, ast.Name) for i in items):
                pass
            case _:
                return None
    return body


def source_lines(source: str) -> list[str]:
    """Return the lines as Python counts them, ends kept: a form feed does not end one."""
    return re.split(r"(?<=\n)|(?<=\r)(?!\n)", source)


def module_names(tree: ast.Module) -> ModuleNames:
    """Read the top level of a module (``if``/``try`` blocks included)."""
    imports: dict[str, str] = {}
    functions: dict[str, FunctionNode] = {}
    classes: dict[str, ast.ClassDef] = {}
    ambiguous: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    imports[alias.asname] = alias.name
                else:
                    top = alias.name.split(".")[0]
                    imports[top] = top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, FunctionNode):
            # Two definitions of one name (if/else): which one runs is not known here.
            if node.name in functions:
                ambiguous.add(node.name)
            functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            classes[node.name] = node
        ambiguous |= {name for name in _defined(node, tree) if imports.pop(name, None)}
    kept = {name: node for name, node in functions.items() if name not in ambiguous}
    return ModuleNames(imports, kept, classes, _overridden(classes))


def _defined(node: ast.stmt, tree: ast.Module) -> list[str]:
    """Return the names that no longer mean what an import above made them mean."""
    match node:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Assign(targets) if node in tree.body:  # not the `torch_npu = None` of a fallback
            return [ast.unparse(target) for target in targets]
    return []


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            if not _for_type_checkers(node):
                yield from _top_level(node.body)
            yield from _top_level(node.orelse)
            for handler in getattr(node, "handlers", []):
                yield from _top_level(handler.body)


def _for_type_checkers(node: ast.If | ast.Try) -> bool:
    """Tell whether a block is there for type checkers only and does not run."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _overridden(classes: Mapping[str, ast.ClassDef]) -> frozenset[str]:
    found: set[str] = set()
    for cls in classes.values():
        own = {item.name for item in cls.body if isinstance(item, FunctionNode)}
        pending = list(cls.bases)
        seen: set[str] = set()
        while pending:
            base = pending.pop()
            if isinstance(base, ast.Name) and base.id in classes and base.id not in seen:
                seen.add(base.id)
                found |= {f"{base.id}.{name}" for name in own}
                pending += classes[base.id].bases
    return frozenset(found)
