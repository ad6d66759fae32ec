"""The definitions of a module, and what a module's top level binds, ready to be compared."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from npufix.rewriters.verification.inputs.source.slicing import IMPORTS, list_bound_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_WITHOUT_CODE = (ast.Global, ast.Nonlocal)


@dataclass
class Definitions:
    """What a module defines; a name that is defined twice has all its definitions."""

    functions: dict[str, list[Function]] = field(default_factory=dict)
    """By qualified name, without those inside of functions."""
    classes: dict[str, list[ast.ClassDef]] = field(default_factory=dict)
    bindings: dict[str, set[str]] = field(default_factory=dict)
    """What the top level binds by import or assignment: name to the texts of what binds it."""
    effects: dict[str, int] = field(default_factory=dict)
    """Top-level statements that bind nothing: text to line."""


def definitions(tree: ast.Module) -> Definitions:
    """Return what a module defines."""
    found = Definitions()
    _collect(tree.body, "", found)
    return found


def _collect(body: Sequence[ast.stmt], inside: str, found: Definitions) -> None:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions.setdefault(inside + statement.name, []).append(statement)
        elif isinstance(statement, ast.ClassDef):
            found.classes.setdefault(inside + statement.name, []).append(statement)
            _collect(statement.body, f"{inside}{statement.name}.", found)
        elif isinstance(statement, ast.If | ast.Try) and _defines(statement):
            for block in _blocks(statement):
                _collect(block, inside, found)
        elif not inside:
            _bind(statement, found)


def _defines(statement: ast.stmt) -> bool:
    return any(isinstance(node, _DEFINITIONS) for node in ast.walk(statement))


def _blocks(statement: ast.If | ast.Try) -> Iterator[list[ast.stmt]]:
    yield statement.body
    yield statement.orelse
    if isinstance(statement, ast.Try):
        yield statement.finalbody
        yield from (handler.body for handler in statement.handlers)


def _bind(statement: ast.stmt, found: Definitions) -> None:
    if isinstance(statement, IMPORTS):
        source = (
            (statement.module, statement.level) if isinstance(statement, ast.ImportFrom) else ()
        )
        for alias in statement.names:
            for name in list_bound_names(ast.Import([alias])):
                found.bindings.setdefault(name, set()).add(f"{source} {alias.name}")
        return
    if is_docstring(statement):
        return
    names = list_bound_names(statement)
    for name in names:
        found.bindings.setdefault(name, set()).add(ast.dump(statement))
    if not names:
        found.effects[ast.dump(statement)] = statement.lineno


def is_docstring(statement: ast.stmt) -> bool:
    """Tell whether a statement is a text that nothing reads."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def meaning(function: Function) -> str:
    """Return what a function says, wherever it stands and whatever its docstring is."""
    bare = type(function)(**{name: getattr(function, name) for name in function._fields})
    bare.body = [s for s in function.body if not is_docstring(s)]
    return ast.dump(bare)


def frame(cls: ast.ClassDef) -> str:
    """Return what a class says outside of its methods."""
    parts = [*cls.bases, *cls.keywords, *cls.decorator_list]
    rest = [s for s in cls.body if not isinstance(s, _DEFINITIONS) and not is_docstring(s)]
    return "\n".join(map(ast.dump, [*parts, *rest]))


def has_plain_bases(cls: ast.ClassDef) -> bool:
    """Tell whether a class inherits nothing but from ``nn.Module``."""
    return all(ast.unparse(b).rpartition(".")[2] in {"object", "Module"} for b in cls.bases)


def statements(function: Function) -> Iterator[tuple[str, int]]:
    """Yield each statement inside as a text without what is nested in it, and its line."""
    for child in function.body:
        yield from _statements(child)


def _statements(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    if isinstance(statement, _WITHOUT_CODE) or is_docstring(statement):
        return
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return
    nested: list[ast.stmt | ast.ExceptHandler | ast.match_case] = []
    parts: list[str] = [type(statement).__name__]
    for name, value in ast.iter_fields(statement):
        items = value if isinstance(value, list) else [value]
        for item in items:
            if isinstance(item, ast.stmt | ast.ExceptHandler | ast.match_case):
                nested.append(item)
            else:
                parts.append(f"{name}={ast.dump(item) if isinstance(item, ast.AST) else item!r}")
    yield " ".join(parts), statement.lineno
    for inner in nested:
        if isinstance(inner, ast.stmt):
            yield from _statements(inner)
            continue
        yield _header(inner)  # of its own, as that the ``try`` runs says nothing of a handler
        for one in inner.body:
            yield from _statements(one)


def _header(part: ast.ExceptHandler | ast.match_case) -> tuple[str, int]:
    kept = (part.type,) if isinstance(part, ast.ExceptHandler) else (part.pattern, part.guard)
    text = " ".join(ast.dump(item) for item in kept if item is not None)
    line = part.lineno if isinstance(part, ast.ExceptHandler) else part.pattern.lineno
    return f"{type(part).__name__} {text}", line


def is_suspended(function: Function) -> bool:
    """Tell whether calling a function, and going through what that returns, does not run it."""
    return isinstance(function, ast.AsyncFunctionDef)


def has_argument(text: str, name: str) -> bool:
    """Tell whether a function of a file has an argument of this name; a text may be no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return True  # which is said elsewhere
    return any(node.arg == name for node in ast.walk(tree) if isinstance(node, ast.arg))
