"""One change at one place of a text, found in its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Edit:
    """A piece of a text and what comes in its place."""

    start: int
    end: int
    new: str
    line: int
    """Of the text, from 1."""

    def apply(self, text: str) -> str:
        """Return the changed text."""
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


class Source:
    """A text with places in it."""

    def __init__(self, text: str) -> None:
        """Find where its lines begin."""
        self.text = text
        self.tree = ast.parse(text)
        self._data = text.encode()
        starts = [0]
        for line in self._data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def spell(self, node: ast.AST) -> str:
        """Return the text of a node, in parentheses where it could fall apart."""
        start, end = self.span(node)
        text = self._data[start:end].decode()
        loose = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.UnaryOp, ast.Tuple)
        return f"({text})" if isinstance(node, loose) else text

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends, in bytes."""
        start = self._at(node.lineno, node.col_offset)  # type: ignore[attr-defined] # a node of text
        return start, self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined] # same

    def text_at(self, node: ast.AST) -> str:
        """Return the text of a node as it stands."""
        start, end = self.span(node)
        return self._data[start:end].decode()

    def after(self, first: ast.AST, whole: ast.AST) -> str:
        """Return the rest of a node that begins with ``first``: ``.sum(-1)`` of ``x.sum(-1)``."""
        return self._data[self.span(first)[1] : self.span(whole)[1]].decode()

    def between(self, first: ast.AST, second: ast.AST) -> str:
        """Return what stands between two nodes."""
        return self._data[self.span(first)[1] : self.span(second)[0]].decode()

    def replace(self, node: ast.AST, new: str) -> Edit:
        """Return the edit that puts ``new`` in place of a node."""
        start, end = self.span(node)
        return Edit(start, end, new, node.lineno)  # type: ignore[attr-defined] # a node of text


Operator: TypeAlias = Callable[[Source, ast.AST], Iterator[Edit]]


def name_of(call: ast.AST) -> str:
    """Return what is called: ``softmax`` of ``F.softmax(x)``; empty for anything else."""
    if not isinstance(call, ast.Call):
        return ""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_method(call: ast.AST) -> bool:
    """Say whether a call is that of a tensor's own method, not of a module's function."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return False
    owner = call.func.value
    return not (isinstance(owner, ast.Name) and owner.id in {"torch", "F", "nn", "math", "np"})


def number_of(node: ast.AST | None) -> int | float | None:
    """Return a number that is written as such, with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = number_of(node.operand)
        return None if found is None else -found
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        return node.value  # type: ignore[return-value] # a number
    return None
