"""One edit of a function: what it replaces, where, and how the user's text is laid out there."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

    from npufix.rewriters.graph.modules.names import FunctionNode

_WIDE = 96
"""Lines of other calls end here, about."""
_CLOSING = re.compile(r"\s*,?\s*(#[^\n]*\s*)?\)")
_COMMENTED = re.compile(r"(?P<comma>,?)(?P<comment>[^\S\n]*#[^\n]*)\n")

Span = tuple[int, int, int, int]
"""Line and column (in characters, not bytes) of the first character and after the last."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What changes in a function. Positions are those of the module, as ``ast`` gives them."""

    replace: ast.expr | ast.stmt
    """The expression, or the statement, that the new text stands for."""
    statement: ast.stmt
    """The statement that holds it."""
    text: str
    remove: Sequence[ast.stmt] = ()
    hoisted: Sequence[tuple[str, str]] = ()
    guard: str = ""
    """If given, the old code stays and the new runs where this condition is true."""
    width: int = 100
    """How long a line may get."""
    tensors: frozenset[str] = frozenset()
    """The names of tensors that ``text`` uses."""
    after: ast.stmt | None = None
    """The next statement, if it is a guard that may be shared."""


class CannotSpliceError(Exception):
    """The code is laid out in a way that the edit does not fit into."""


def span(node: ast.expr | ast.stmt, lines: Sequence[str]) -> Span:
    """Return the position of an ``ast`` node in characters."""
    first, last = node.lineno, node.end_lineno or node.lineno

    def column(line: int, offset: int) -> int:
        return len(lines[line - 1].encode()[:offset].decode())

    return (
        first,
        column(first, node.col_offset),
        last,
        column(last, node.end_col_offset or 0),
    )


def segment(lines: Sequence[str], node: ast.expr | ast.stmt) -> str:
    """Return the text of an ``ast`` node."""
    first, start, last, end = span(node, lines)
    if first == last:
        return lines[first - 1][start:end]
    return "".join([lines[first - 1][start:], *lines[first : last - 1], lines[last - 1][:end]])


def behind_arguments(call: ast.Call, lines: Sequence[str], *added: str) -> tuple[Span, str] | None:
    """Return where more arguments of a call go, and as what: ``None`` if there is no plain place.

    Each gets a line of its own where the last one has. The comment of that one stays with it.
    """
    given = [*call.args, *(k.value for k in call.keywords)]
    if not given:
        return None
    *_, last, end = max(span(code, lines) for code in given)
    *_, final, close = span(call, lines)
    rest = "".join([*lines[last - 1 : final - 1], lines[final - 1][:close]])[end:]
    if not _CLOSING.fullmatch(rest):
        return None
    starts = [(arg.lineno, arg.col_offset) for arg in call.args]
    starts += [(arg.lineno, arg.col_offset) for arg in call.keywords]
    row, column = max(starts)
    indent = lines[row - 1][:column]
    lone = indent.isspace() and len(given) > 1
    first = next((c for r, c in sorted(starts) if r == row), 0)
    front = lines[row - 1][:first]
    hugged = "\n" in rest  # ``f(\n    a, b\n)``, which is laid out anew as a whole
    if not (lone or hugged) and front.isspace() and end + sum(map(len, added)) > _WIDE:
        indent, lone = front, True  # ``f(a,\n  b, c)``: on a line of its own below ``b``
    if lone and (commented := _COMMENTED.match(rest)) is not None:
        comma, comment = commented["comma"], commented["comment"]
        text = f",{comment}\n{indent}" + f",\n{indent}".join(added) + comma
        return (last, end, last, end + commented.end() - 1), text
    joint = f",\n{indent}" if lone else ", "
    return (last, end, last, end), "".join(f"{joint}{one}" for one in added)


def holds_comment(source: str, lines: Sequence[str], node: ast.expr | ast.stmt) -> bool:
    """Tell whether a comment stands between the first and the last line of ``node``."""
    last = node.end_lineno or node.lineno
    if not any("#" in line for line in lines[node.lineno - 1 : last - 1]):
        return False  # which is so nearly always, and tokens take long
    return any(
        token.type == tokenize.COMMENT and node.lineno <= token.start[0] < last
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
    )


def extent(function: FunctionNode) -> tuple[int, int]:
    """Return the first line of a function, decorators included, and its last."""
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    return first, function.end_lineno or function.lineno


def unit_of(function: FunctionNode, lines: Sequence[str]) -> str:
    """Return by what the body of a function is indented below its head."""
    if not function.body:  # a module that only defines
        return "    "
    first = function.body[0]
    if first.lineno == function.lineno or first.col_offset <= function.col_offset:
        return "    "
    return lines[first.lineno - 1][function.col_offset : first.col_offset]
