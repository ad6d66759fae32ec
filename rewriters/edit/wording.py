"""The user's own text of an expression, and text by the rule in the user's style."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import segment

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Wording:
    """Stands names in for the user's expressions while a replacement is put together."""

    lines: Sequence[str]
    quote: str
    texts: dict[str, str] = field(default_factory=dict)
    """What each of these names stands for."""
    codes: dict[str, ast.expr] = field(default_factory=dict)

    def shown(self, code: ast.expr) -> ast.expr:
        """Return what stands for an expression of the user while a replacement is folded."""
        if isinstance(code, ast.Name):
            return code
        if isinstance(code, ast.Constant):
            literal = ast.Constant(code.value)
            literal.own = self.own(code)  # type: ignore[attr-defined]
            return literal
        return self._stand_in(code, self.own(code))

    def _stand_in(self, code: ast.expr, text: str) -> ast.Name:
        name = f"_npufix_{len(self.texts)}_"
        self.texts[name], self.codes[name] = text, code
        return ast.Name(name, ast.Load())

    def literal(self, node: ast.Constant) -> ast.expr:
        """Return a literal in the words of the user, or with the quotes of the file."""
        own = getattr(node, "own", "")
        if isinstance(node.value, str) and not own and not {"'", '"', "\\"} & set(node.value):
            own = f"{self.quote}{node.value}{self.quote}"
        return self._stand_in(node, own) if own else node

    def own(self, code: ast.expr) -> str:
        """Return how the user wrote an expression, in one line."""
        own = self._segment(code)
        return own if own and _dump(own) == ast.dump(code) else ast.unparse(code)

    def _segment(self, code: ast.expr) -> str:
        if getattr(code, "end_lineno", None) is None or (code.end_lineno or 0) > len(self.lines):
            return ""  # not from a file, or from another one
        try:
            return _one_line(segment(self.lines, code))
        except (UnicodeDecodeError, SyntaxError, tokenize.TokenError):
            return ""  # a helper of another file

    def written(self, code: ast.expr) -> str:
        """Return the text of an expression in which names stand for others."""
        text = ast.unparse(_Strings(self).visit(code))
        for name in sorted(set(re.findall(r"\b_npufix_\d+_", text))):
            own = self.texts[name]
            meant = _dump(text, name, own)
            bare = text.replace(name, own)
            text = bare if _dump(bare) == meant else text.replace(name, f"({own})")
        return text


class _Strings(ast.NodeTransformer):
    """Has the literals of the user, and strings of the rule, written in the user's style."""

    def __init__(self, wording: Wording) -> None:
        self.wording = wording

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self.wording.literal(node)


class _Exchange(ast.NodeTransformer):
    def __init__(self, name: str, code: ast.expr) -> None:
        self.name = name
        self.code = code

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.code if node.id == self.name else node


def _dump(text: str, name: str = "", own: str = "") -> str:
    """Return the syntax tree of an expression, with one expression in place of a name."""
    try:
        tree = ast.parse(f"({text}\n)", mode="eval").body
        if name:
            tree = _Exchange(name, ast.parse(f"({own}\n)", mode="eval").body).visit(tree)
    except SyntaxError:
        return ""
    return ast.dump(tree)


def _one_line(text: str) -> str:
    """Return an expression of several lines in one, "" if that would lose a comment."""
    if "\n" not in text and "\r" not in text:
        return text
    parts: list[str] = []
    last = None
    for token in tokenize.generate_tokens(io.StringIO(f"({text})").readline):
        if token.type == tokenize.COMMENT or "\n" in token.string.strip("\r\n"):
            return ""
        if token.type in {tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}:
            continue
        if last is not None and token.start[0] == last.end[0]:
            parts.append(" " * (token.start[1] - last.end[1]))
        elif last is not None:
            if token.string in ")]}" and last.string == ",":
                parts.pop()
            elif token.string[0] not in ")]}." and last.string not in {*"([{"}:
                parts.append(" ")
        parts.append(token.string)
        last = token
    return "".join(parts)[1:-1]
