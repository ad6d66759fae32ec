"""What a piece of code means, without what it is called and how it is set.

By it a finding is recognised after its locals are renamed or a formatter has been over it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import keyword
import textwrap
import tokenize
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS = frozenset(dir(builtins)) | frozenset(keyword.kwlist)
_LAYOUT = frozenset({
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
})  # fmt: skip


def digest(*parts: str) -> str:
    """Return a short name of texts."""
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@lru_cache(maxsize=1 << 14)  # findings of one rule are in many copies of a function
def normal_form(code: str) -> str:
    """Return code as a tree in which names are numbered as they come.

    ``y[mask > 0] = 0.`` and ``hidden[(m > 0)] = 0.0  # padding`` are the same, ``self.w * x`` and
    ``self.gamma * x``, too. Other attributes, arguments by name and what Python itself provides
    keep their names.
    """
    tree = _parse(code)
    if tree is not None:
        # A sum of a thousand terms is nested as deep.
        with contextlib.suppress(RecursionError):
            return ast.dump(_Numbering({}).visit(tree))
    return " ".join(_words(code))


def _parse(code: str) -> ast.Module | None:
    """Parse code that may be cut out of a block; None if it is no whole statement."""
    lines = textwrap.dedent(code).strip()
    # A part of an expression may go over lines that only its own brackets would join.
    for text in (lines, f"({lines}\n)", f"{lines}\n    pass", _dedent(code)):
        tree = _tree(text)
        if tree is not None:
            return tree
    return None


def _tree(text: str) -> ast.Module | None:
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.parse(text)
    return None


def _dedent(code: str) -> str:
    """Return code whose first line has lost its indent, as that of a node has."""
    first, _, rest = code.strip().partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}"


def _words(code: str) -> Iterator[str]:
    numbers: dict[str, str] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(code.strip()).readline):
            if token.type in _LAYOUT:
                continue
            is_name = token.type == tokenize.NAME and token.string not in _WORDS
            yield _number(numbers, token.string) if is_name else token.string
    except (tokenize.TokenError, SyntaxError):
        yield from code.split()


def _number(numbers: dict[str, str], name: str) -> str:
    if name in _WORDS:
        return name
    return numbers.setdefault(name, f"_{len(numbers)}")


class _Numbering(ast.NodeTransformer):
    def __init__(self, numbers: dict[str, str]) -> None:
        self._numbers = numbers

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(_number(self._numbers, node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Give the attributes of ``self`` numbers: they are names of the user's own."""
        own = isinstance(node.value, ast.Name) and node.value.id == "self"
        name = _number(self._numbers, f"self.{node.attr}") if own else node.attr
        return ast.Attribute(self.visit(node.value), name, node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(_number(self._numbers, node.arg), None)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.name = _number(self._numbers, node.name) if node.name else None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Leave out a type hint, which changes nothing."""
        if node.value is None:
            return self.generic_visit(node)
        made: ast.AST = self.generic_visit(ast.Assign([node.target], node.value))
        return made
