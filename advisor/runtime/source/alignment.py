"""Giving rewritten code the line numbers of the code that it stands for.

A traceback shows the text of the file on disk, and a debugger stops at its lines. So every
statement that both versions have gets its own position, and what is new gets that of the
statement that it replaces.
"""

from __future__ import annotations

import ast
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def align(original: ast.Module, new: ast.Module) -> ast.Module:
    """Give each node of ``new`` a position in the text of ``original``; returns ``new``."""
    first = original.body[0] if original.body else None
    _align(original.body, new.body, first)
    return new


def _align(original: Sequence[ast.AST], new: Sequence[ast.AST], around: ast.AST | None) -> None:
    """Align two blocks; ``around`` is what new code belongs to where nothing else is near."""
    before, after = list(map(ast.dump, original)), list(map(ast.dump, new))
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            for old, same in zip(original[a:b], new[c:d], strict=True):
                _copy(old, same)
            continue
        near = original[b] if b < len(original) else original[-1] if original else around
        _exchange(original[a:b], new[c:d], near)


def _exchange(original: Sequence[ast.AST], new: Sequence[ast.AST], near: ast.AST | None) -> None:
    """Align what stands in one place; the last old statement is the one that was replaced."""
    left = list(original)
    for node in new:
        same = next((old for old in left if _is_same_block(old, node)), None)
        if same is not None:
            left = left[left.index(same) + 1 :]
            _descend(same, node)
        elif isinstance(node, ast.If) and _holds(node.orelse, left):
            _place(node, left[-1])
            _align(left, node.orelse, left[-1])
        else:
            _place(node, left[-1] if left else near)


def _is_same_block(old: ast.AST, new: ast.AST) -> bool:
    """Tell whether a compound statement is the old one with something changed inside."""
    if type(old) is not type(new) or not any(getattr(old, name, None) for name in _BLOCKS):
        return False
    if isinstance(old, ast.IfExp | ast.Lambda):
        return False  # expressions, whose ``body`` is no block
    return _head(old) == _head(new) or _inside(old) == _inside(new)


def _head(node: ast.AST) -> list[str]:
    """Return what a compound statement says above its blocks."""
    return [
        f"{name} {[ast.dump(v) if isinstance(v, ast.AST) else v for v in _list(value)]}"
        for name, value in ast.iter_fields(node)
        if name not in _BLOCKS
    ]


def _inside(node: ast.AST) -> list[str]:
    blocks = [getattr(node, name, None) for name in _BLOCKS]
    return [ast.dump(v) for block in blocks for v in _list(block) if isinstance(v, ast.AST)]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _descend(old: ast.AST, new: ast.AST) -> None:
    for attribute in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
        if hasattr(old, attribute):
            setattr(new, attribute, getattr(old, attribute))
    for (name, value), (_, other) in zip(ast.iter_fields(old), ast.iter_fields(new), strict=True):
        if name in _BLOCKS and isinstance(value, list) and isinstance(other, list):
            _align(value, other, old)
            continue
        for one, same in zip(_list(value), _list(other), strict=True):
            if isinstance(one, ast.AST) and isinstance(same, ast.AST):
                if ast.dump(one) == ast.dump(same):
                    _copy(one, same)
                else:
                    _place(same, one)


def _holds(block: Sequence[ast.stmt], old: Sequence[ast.AST]) -> bool:
    """Tell whether a branch holds some of the old statements: it is the one for other devices."""
    if not old:
        return False
    known = set(map(ast.dump, old))
    return any(ast.dump(statement) in known for statement in block)


def _copy(old: ast.AST, new: ast.AST) -> None:
    """Give equal code equal positions."""
    for one, same in zip(_nodes(old), _nodes(new), strict=True):
        if hasattr(one, "lineno"):
            ast.copy_location(same, one)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, in an order that equal trees share."""
    return ast.walk(node)


def _place(node: ast.AST, old: ast.AST | None) -> None:
    """Give new code the position of one old statement."""
    for inner in ast.walk(node):
        if "lineno" not in inner._attributes:  # noqa: SLF001 - documented
            continue  # an operator, a context
        if old is None:
            _set(inner, (1, 0, 1, 0))
        else:
            _set(inner, _extent(old))


def _extent(old: ast.AST) -> tuple[int, int, int, int]:
    """Return the position of a statement, of a compound one its first line."""
    line, column = getattr(old, "lineno", 1), getattr(old, "col_offset", 0)
    end = getattr(old, "end_lineno", line), getattr(old, "end_col_offset", column)
    if any(getattr(old, name, None) for name in _BLOCKS):
        end = line, column
    return line, column, *end


def _set(node: ast.AST, where: tuple[int, int, int, int]) -> None:
    for name, value in zip(
        ("lineno", "col_offset", "end_lineno", "end_col_offset"), where, strict=True
    ):
        setattr(node, name, value)
