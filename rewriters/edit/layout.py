"""Breaking a statement that is too long into lines, as black and ruff do."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import statements_below

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_ASSIGNS = frozenset({"=", "+=", "-=", "*=", "/=", "//=", "%=", "@=", "&=", "|=", "^=", "**="})
# What a long expression is broken before, the loosest binding first; brackets around it are asked
# for by all of them.
_OPERATORS = (
    {"if", "else"}, {"or"}, {"and"},
    {"==", "!=", "<", ">", "<=", ">=", "is", "in"},
    {"|"}, {"^"}, {"&"}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "//", "%", "@"},
)  # fmt: skip
_SHORTEST, _OF_BLACK, _LONGEST = 79, 88, 120
_LONGER_LINES = 50
"""Of so many lines one may be longer than its author wants lines to be."""
_TEXT = re.compile(
    r"""#[^\n]*|'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*\"""", re.DOTALL
)

_PRAGMA = re.compile(r"#\s*(noqa|type:|pylint:|fmt:|mypy:|pyright:|npufix:|pragma)")
"""A comment for a tool, which is about its line."""


@dataclass(frozen=True, slots=True)
class Style:
    """The habits of a file."""

    width: int
    quote: str


_project_width: ContextVar[int | None] = ContextVar("project_width", default=None)


@contextmanager
def use_width(width: int | None) -> Iterator[None]:
    """Write lines as long as the project of a file says; of ``None`` the file itself tells."""
    token = _project_width.set(width)
    try:
        yield
    finally:
        _project_width.reset(token)


def style_of(source: str) -> Style:
    """Return the habits of a file; it is as wide as its project says, or most of its lines."""
    style, width = _style_of(source), _project_width.get()
    return style if width is None else replace(style, width=width)


def limit_of(source: str) -> int:
    """Return what is too long for a file: where no project says it, not yet what black allows."""
    width = style_of(source).width
    return width if _project_width.get() is not None else max(width, _OF_BLACK)


@lru_cache(maxsize=4)
def _style_of(source: str) -> Style:
    """Return the quotes that prevail in a file, and how long all but a few of its lines are.

    One in fifty may be longer: a help text, or a table, that nobody could break.
    """
    strings = [text for text in _TEXT.findall(source) if text[:3] not in {"'''", '"""'}]
    single = sum(text[0] == "'" for text in strings)
    double = sum(text[0] == '"' for text in strings)
    code = _TEXT.sub(lambda m: "" if m[0][0] == "#" or m[0][:3] in {"'''", '"""'} else m[0], source)
    lengths = sorted(len(line.rstrip()) for line in code.split("\n") if line.strip()) or [0]
    longest = lengths[-1 - len(lengths) // _LONGER_LINES]
    width = min(max(longest, _SHORTEST), _LONGEST)
    return Style(width, "'" if single > double else '"')


def break_lines(statement: str, room: int, unit: str, *, one_a_line: bool = False) -> str:
    """Return a simple statement of one line in lines that fit into ``room``, if they can.

    All but the first are indented relative to the first one. With ``one_a_line`` the arguments of a
    call share no line.
    """
    if (len(statement) <= room and not one_a_line) or "\n" in statement:
        return statement
    tree = ast.parse(statement)
    line = _Line(_tokens(statement), room, unit, one_a_line)
    try:
        lines = list(line.statement(isinstance(tree.body[0], ast.Expr)))
    except RecursionError:  # a term of thousands of brackets
        return statement
    text = "\n".join(lines)
    try:
        return text if ast.dump(ast.parse(text)) == ast.dump(tree) else statement
    except SyntaxError:  # ``for key, x in pairs`` of a comprehension has a comma of its own
        return statement


def fit(text: str, before: Sequence[str], unit: str) -> str:
    """Return a module in which the statements that have become too long are broken into lines.

    What was as long before stays; ``before`` holds the old lines.
    """
    width = limit_of("".join(before))
    old = {line.strip() for line in before}
    text = lift_comments(text, old, width)
    lines = text.splitlines(keepends=True)
    too_long = (n for n, line in enumerate(lines, 1) if len(line.rstrip()) > width)
    long = [n for n in too_long if lines[n - 1].strip() not in old]
    if not long:
        return text
    simple = [
        node
        for node in _list_statements(ast.parse(text))
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Assert))
    ]
    for node in sorted(simple, key=lambda s: s.lineno, reverse=True):
        first, last = node.lineno, node.end_lineno or node.lineno
        inside = [n for n in long if first < n < last]
        parts = [_break_argument(lines[n - 1], width, unit) for n in inside]
        if inside and len(inside) == sum(first <= n <= last for n in long) and all(parts):
            for n, part in zip(reversed(inside), reversed(parts), strict=True):
                lines[n - 1 : n] = part  # the other arguments stay as they are
            continue
        if not any(first <= n <= last for n in long):
            continue
        head = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
        if len(head.encode()) != node.col_offset:
            continue
        joined = join_lines("".join(lines[first - 1 : last]).strip())
        if joined is None or ast.dump(ast.parse(joined)) != ast.dump(ast.Module([node], [])):
            continue
        broken = break_lines(joined, width - len(head), unit).split("\n")
        if max(map(len, broken)) + len(head) <= width:
            end = "\r\n" if lines[first - 1].endswith("\r\n") else "\n"
            lines[first - 1 : last] = [f"{head}{line}{end}" for line in broken]
    return "".join(lines)


def _list_statements(tree: ast.Module) -> list[ast.stmt]:
    """Return all statements of a module, breadth first: what they hold is far more."""
    found = list(tree.body)
    for statement in found:  # grows
        found += statements_below(statement)
    return found


def _break_argument(line: str, width: int, unit: str) -> list[str]:
    """Return a line of arguments of a call in several, [] if it is none: ``f(x, y),``, ``x, y``."""
    code, end = line.strip(), line[len(line.rstrip("\r\n")) :]
    head, whole = line[: len(line) - len(line.lstrip())], f"f({code})"
    try:
        match ast.parse(whole).body:
            case [ast.Expr(ast.Call(ast.Name("f"), [ast.Call()], []))] if code.endswith(","):
                broken = break_lines(code[:-1], width - len(head) - 1, unit).split("\n")
            case [ast.Expr(ast.Call(ast.Name("f")) as call)] if not code.endswith((",", "(", "[")):
                given = [*call.args, *(k.value for k in call.keywords)]
                parts = [ast.get_source_segment(whole, one) or "" for one in given]
                names = [""] * len(call.args) + [f"{k.arg}=" for k in call.keywords]
                broken = [f"{n}{p}," for n, p in zip(names, parts, strict=True)]
                broken[-1] = broken[-1][:-1]
                if ast.dump(ast.parse(f"f({''.join(broken)})")) != ast.dump(ast.parse(whole)):
                    return []
            case _:
                return []
    except SyntaxError:
        return []
    fits = len(broken) > 1 and max(map(len, broken)) + len(head) < width
    return [f"{head}{part}{end}" for part in (*broken[:-1], f"{broken[-1]},")] if fits else []


def lift_comments(text: str, old: Collection[str], width: int) -> str:
    """Return a module in which comments behind new code that leaves them no room stand above it.

    ``x = f(q, k, v)            # (B, T, C)``: the blanks in between were for another text.
    """
    lines = text.splitlines(keepends=True)
    long = {
        n for n, ln in enumerate(lines, 1) if len(ln.rstrip()) > width and ln.strip() not in old
    }
    if not any("#" in lines[n - 1] for n in long):
        return text
    starts = {
        node.end_lineno: node.lineno
        for node in _list_statements(ast.parse(text))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Return)
    }
    comments = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and token.start[0] in long & starts.keys()
    ]
    for token in reversed(comments):
        row, column = token.start
        line = lines[row - 1]
        code = line[:column].rstrip()
        end = line[len(line.rstrip("\r\n")) :]
        if len(code) + 2 + len(token.string) <= width or _PRAGMA.match(token.string):
            lines[row - 1] = f"{code}  {token.string}{end}"
            continue
        first = lines[starts[row] - 1]
        head = first[: len(first) - len(first.lstrip())]
        lines[row - 1] = code + end
        lines.insert(starts[row] - 1, f"{head}{token.string}{end}")
    return "".join(lines)


def align(old: str, new: str, width: int) -> str:
    """Return new lines with arguments below the first one of their bracket, if they were there.

    ``Adam(params,`` has become ``adam_class(params,``: the next line goes along.
    """
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    above = len(after) - len(before)
    if old == new or above < 0 or len(before) < 2:  # noqa: PLR2004 - a line and the next
        return new
    then, now = _list_columns(old), _list_columns(new)
    moved: list[str] = []
    for n, line in enumerate(after):
        text, was = line.lstrip(" "), before[n - above] if n >= above else ""
        aligned = then.get(n - above)
        shifted = " " * now.get(n, 0) + text
        stood = was.lstrip(" ") == text and len(was) - len(text) == aligned
        moved.append(shifted if stood and n in now and len(shifted.rstrip()) <= width else line)
    return "".join(moved)


def _list_columns(text: str) -> dict[int, int]:
    """Return of each line that begins in a bracket where the first text in that bracket stands."""
    found: dict[int, int] = {}
    opened: list[int | None] = []
    row = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}:
                continue
            if opened and opened[-1] is None:
                opened[-1] = token.start[1] if token.start[0] == row else -1
            if opened and token.start[0] > row and (opened[-1] or -1) >= 0:
                found[token.start[0] - 1] = opened[-1] or 0
            row = token.end[0]
            if token.string in _OPENING:
                opened.append(None)
            elif token.string in _CLOSING and opened:
                opened.pop()
    except (tokenize.TokenError, IndentationError):
        pass  # a part of a function: what was read of it counts
    return found


def join_lines(statement: str) -> str | None:
    """Return a statement in one line, ``None`` if it holds a comment or a text of several lines."""
    if "\\\n" in statement:
        return None  # its author has chosen where it breaks
    parts: list[str] = []
    row, column, comma = 1, 0, False
    for token in tokenize.generate_tokens(io.StringIO(statement).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and token.start[0] != token.end[0]
        ):
            return None
        if token.type in {tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER, tokenize.INDENT}:
            continue
        new_line = token.start[0] > row
        before = statement.split("\n")[token.start[0] - 1][column : token.start[1]]
        if new_line:
            before = "" if not parts or parts[-1] in _OPENING or token.string in _CLOSING else " "
            before = "" if token.string == "." else before
            if comma and token.string in _CLOSING:
                parts.pop()  # what stands behind the last of several arguments
        parts += [before, token.string] if before else [token.string]
        comma = token.string == ","
        row, column = token.end
    return "".join(parts)


def strip_brackets(statement: str) -> str:
    """Return ``y = (f(x))`` without the brackets around all of its value, which held its lines."""
    if "\n" in statement or not (statement.isascii() and statement.endswith("))")):
        return statement
    value = getattr(ast.parse(statement).body[0], "value", None)
    if not isinstance(value, ast.expr) or value.end_col_offset != len(statement) - 1:
        return statement
    first = value.col_offset
    in_brackets = statement[first - 1 : first] == "("
    return f"{statement[: first - 1]}{statement[first:-1]}" if in_brackets else statement


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    before: str
    """The blanks before it."""
    is_name: bool


def _tokens(line: str) -> tuple[_Token, ...]:
    found: list[_Token] = []
    end = 0
    for token in tokenize.generate_tokens(io.StringIO(line).readline):
        if token.type in {tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER, tokenize.INDENT}:
            continue
        start, stop = token.start[1], token.end[1]
        found.append(_Token(line[start:stop], line[end:start], token.type == tokenize.NAME))
        end = stop
    return tuple(found)


_Tokens = tuple[_Token, ...]


def _text(tokens: _Tokens) -> str:
    return "".join(t.before + t.text for t in tokens).strip()


def _top(tokens: _Tokens) -> Iterator[int]:
    """Yield the places of the tokens that are in no brackets; the brackets count as outside."""
    depth = 0
    for at, token in enumerate(tokens):
        depth -= token.text in _CLOSING
        if depth == 0:
            yield at
        depth += token.text in _OPENING


@dataclass(frozen=True, slots=True)
class _Line:
    tokens: _Tokens
    room: int
    unit: str
    one_a_line: bool

    def statement(self, is_expression: bool) -> Iterator[str]:  # noqa: FBT001
        """Yield the lines of the whole statement."""
        tokens = self.tokens
        start = max((a + 1 for a in _top(tokens) if tokens[a].text in _ASSIGNS), default=0)
        if tokens[0].text in {"return", "yield", "await"} and start == 0:
            start = 1
        head = _text(tokens[:start])
        prefix = f"{head} " if head else ""
        yield from self._lines(prefix, tokens[start:], "", 0, inside=is_expression)

    def _fits(self, text: str, depth: int) -> bool:
        return len(self.unit) * depth + len(text) <= self.room

    def _lines(
        self, prefix: str, tokens: _Tokens, suffix: str, depth: int, *, inside: bool
    ) -> Iterator[str]:
        """Yield an expression; ``inside`` brackets it can be broken before its operators."""
        pad = self.unit * depth
        whole = f"{prefix}{_text(tokens)}{suffix}"
        apart = self.one_a_line and depth == 0 and tokens[-1].text == ")"
        if self._fits(whole, depth) and not apart:
            yield pad + whole
            return
        parts = _operands(tokens)
        if len(parts) > 1 and not inside:
            yield f"{pad}{prefix}("
            yield from self._body([tokens], depth + 1)
            yield f"{pad}){suffix}"
        elif len(parts) > 1 and not prefix:
            for number, part in enumerate(parts):
                end = suffix if number == len(parts) - 1 else ""
                yield from self._lines("", part, end, depth, inside=True)
        else:
            yield from self._hug(prefix, tokens, suffix, depth)

    def _hug(self, prefix: str, tokens: _Tokens, suffix: str, depth: int) -> Iterator[str]:
        """Yield a call with its arguments on lines of their own."""
        pad = self.unit * depth
        for first, last in _brackets(tokens):
            head = prefix + _text(tokens[: first + 1])
            tail = _text(tokens[last:]) + suffix
            if self._fits(head, depth) and self._fits(tail, depth) and last > first + 1:
                yield pad + head
                yield from self._body(_arguments(tokens[first + 1 : last]), depth + 1)
                yield pad + tail
                return
        yield f"{pad}{prefix}{_text(tokens)}{suffix}"

    def _body(self, items: Sequence[_Tokens], depth: int) -> Iterator[str]:
        """Yield what stands in brackets: in one line, or one item a line."""
        line = ", ".join(map(_text, items))
        apart = self.one_a_line and len(items) > 1 and depth == 1
        if self._fits(line, depth) and not apart:
            yield self.unit * depth + line
            return
        comma = "," if len(items) > 1 else ""
        for item in items:
            prefix = ""
            value = item
            if len(item) > 1 and item[1].text == "=":
                prefix, value = f"{item[0].text}=", item[2:]
            yield from self._lines(prefix, value, comma, depth, inside=not prefix)


def _arguments(tokens: _Tokens) -> list[_Tokens]:
    commas = [a for a in _top(tokens) if tokens[a].text == ","]
    parts = [tokens[a + 1 : b] for a, b in pairwise([-1, *commas, len(tokens)])]
    return [part for part in parts if part]


def _brackets(tokens: _Tokens) -> list[tuple[int, int]]:
    """Return the calls and subscripts that end an expression, the last one first."""
    places = [a for a in _top(tokens) if tokens[a].text in _OPENING | _CLOSING]
    pairs = [p for p in pairwise(places) if tokens[p[0]].text in _OPENING][::-1]
    # ``[0]`` is broken only if nothing else can be.
    return sorted(pairs, key=lambda pair: pair[1] - pair[0] <= 2)  # noqa: PLR2004


def _operands(tokens: _Tokens) -> list[_Tokens]:
    """Return the parts of an expression, the operator between them first in each but the first."""
    top = list(_top(tokens))
    if any(tokens[a].text in {"lambda", "for", ","} for a in top):
        return [tokens]
    for operators in _OPERATORS:
        at = [a for a in top if tokens[a].text in operators and _is_binary(tokens, a)]
        if at:
            break
    else:
        at = [a for a in top if a and tokens[a].text == "." and tokens[a - 1].text in _CLOSING]
        calls = sum(tokens[a].text == "(" for a in top)
        if len(at) < 2 or calls < 2:  # noqa: PLR2004 - one method is no chain
            return [tokens]
    return [tokens[a:b] for a, b in pairwise([0, *at, len(tokens)])]


def _is_binary(tokens: _Tokens, at: int) -> bool:
    """Tell whether an operator stands between two operands, and is not half of ``is not``."""
    before = tokens[at - 1] if at else None
    if before is None or before.text == "not":
        return False
    return (
        before.is_name
        or before.text in _CLOSING
        or before.text[-1:] in {"'", '"', "."}
        or (before.text[:1].isdigit())
    )
