"""The text of a module after a loop has become operators on all rows."""

from __future__ import annotations

import ast
import io
import keyword
import re
import textwrap
import tokenize
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import CannotSpliceError, Edit, extent, span, unit_of
from npufix.rewriters.edit.imports import Import, add_import
from npufix.rewriters.edit.job import PROBE
from npufix.rewriters.edit.layout import break_lines, style_of
from npufix.rewriters.edit.loops.rows.order import EFFECT
from npufix.rewriters.edit.rewrite import NotRewritableError
from npufix.rewriters.edit.site import Rewrite
from npufix.rewriters.edit.statements.proposal import Change, apply_changes
from npufix.rewriters.graph.modules.names import source_lines
from npufix.rewriters.graph.modules.syntax import list_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.loops.given.reading import FilledList, Loop
    from npufix.rewriters.edit.loops.statements import Body
    from npufix.rewriters.graph.dataflow import FunctionFlow


@dataclass(frozen=True)
class Join:
    """A list that is a tensor now, and what takes the place of joining it."""

    of: FilledList
    code: ast.expr


_VECTOR, _POSITIONS, _PIECES = "rows", "positions", "pieces"
_OFTEN, _MOST_LINES = 3, 3
"""A statement of more lines gets a name for its counter."""
_VIEWS = frozenset({"contiguous", "flatten", "movedim", "transpose", "unflatten", "unsqueeze"})
NOTHING_COMPUTED = "its rounds only take pieces, which are joined at once"
ONE_LINE = "it shares a line with another statement"


def write(  # noqa: PLR0913, PLR0917 - what is written, and where
    source: str,
    flow: FunctionFlow,
    loop: Loop,
    body: Body,
    statements: Sequence[ast.stmt],
    new: ast.expr | None,
    joins: Sequence[Join] = (),
    *,
    with_text: bool,
) -> Rewrite:
    """Return the module with a loop replaced.

    Raises:
        NotRewritableError: the layout of the code does not allow it.

    """
    kept = [ast.For(loop.target, loop.items, list(body.kept), [], lineno=0)] if body.kept else []
    results = [join.code for join in joins] if new is None else [new]
    statements = body.of.parts.without_unread(statements, results)
    room = style_of(source).width - loop.statement.col_offset
    if new is not None and _only_looks(new) and not statements:
        raise NotRewritableError(NOTHING_COMPUTED)
    if new is not None and not joins:
        statements, new = _name_in_result(statements, new, flow, room)
    elif not joins:
        statements = _name_parts(_name_vector(statements, flow, room), flow, room)
    made = [ast.fix_missing_locations(s) for s in (*kept, *statements)]
    results = [join.code for join in joins] if new is None else [new]
    _call_torch(flow, *made, *results, *body.of.shown.values())
    text = "\n".join([*map(ast.unparse, made), *map(ast.unparse, results)])
    if not with_text:
        return Rewrite("", "", text, 0)
    lines = source_lines(source)
    met = body.of.met if "same-dtype" in body.of.conditions else []
    shown = body.of.shown | {f"met{number}": code for number, code in enumerate(met)}
    probed = ", ".join(f"{word}={ast.unparse(code)}" for word, code in shown.items())
    if joins:
        direct, line = _with_lists(source, lines, flow, loop, made, joins)
        call = [*_list_needed(made, probed), *ast.parse(f"{PROBE}({probed})").body]
        probe = _replace(source, lines, flow, loop.statement, call)[0] if probed else ""
    elif new is None:
        direct, line = _replace(source, lines, flow, loop.statement, made)
        call = [*_list_needed(made, probed), *ast.parse(f"{PROBE}({probed})").body]
        probe = _replace(source, lines, flow, loop.statement, call)[0] if probed else ""
    else:
        old = "\n".join(
            ast.get_source_segment(source, code) or "" for code in (*loop.removed, loop.statement)
        )
        hoisted = [(n, _as_written(t, old)) for n, t in _assignments(made)]
        text = _as_written(ast.unparse(new), old)
        edit = _edit(loop, text, style_of(source).width, loop.removed, hoisted)
        direct, line = _splice(source, lines, flow, edit), _line_of(loop, made)
        needed = [*_list_needed(made, probed)]
        removed = loop.removed if needed else ()
        asked = _edit(loop, f"{PROBE}({probed})", 100, removed, hoisted if needed else ())
        probe = _splice(source, lines, flow, asked) if probed else ""
    if loop.begun is not None and not joins and new is None:
        rows = direct.splitlines(keepends=True)
        if rows[loop.begun.lineno - 1].strip() == ast.unparse(loop.begun):
            del rows[loop.begun.lineno - 1]
            direct, line = "".join(rows), line - 1
    if "torch" not in flow.names.imports and re.search(r"\btorch\.", f"{text}{probed}"):
        lines_before = direct.count("\n")
        direct = add_import(direct, Import("torch"), guarded=False)
        probe = add_import(probe, Import("torch"), guarded=False) if probe else ""
        line += direct.count("\n") - lines_before
    ast.parse(direct)
    return Rewrite(direct, direct, text, line, "", probe)


def _list_needed(made: Sequence[ast.stmt], probed: str) -> Iterator[ast.stmt]:
    """Yield what binds the names that a question is about: ``x1, y1 = boxes.unbind(1)``."""
    asked = list_names(ast.parse(f"f({probed})"))
    binds = [s for s in made if isinstance(s, ast.Assign) and not _stores_rows(s)]
    bound = {name for s in binds for name in list_names(s.targets[0])}
    if asked & bound:
        yield from binds


def _stores_rows(code: ast.Assign) -> bool:
    return any(isinstance(n, ast.Subscript | ast.Attribute) for n in ast.walk(code.targets[0]))


def _call_torch(flow: FunctionFlow, *codes: ast.AST) -> None:
    """Call torch as the module does: ``import torch as th``."""
    own = next((name for name, full in flow.names.imports.items() if full == "torch"), "torch")
    if own != "torch" and "torch" not in flow.bound:
        for node in (n for code in codes for n in ast.walk(code)):
            if isinstance(node, ast.Name) and node.id == "torch":
                node.id = own


def _name_vector(
    statements: Sequence[ast.stmt], flow: FunctionFlow, room: int
) -> Sequence[ast.stmt]:
    """Return statements with a name for the counter of all rounds, if they need it.

    So they do where it stands there twice, or makes of one statement more than a few lines.
    """
    text = "\n".join(map(ast.unparse, statements))
    vectors = re.findall(r"torch\.arange\((?:[^()]|\([^()]*\))*\)", text)
    often = next((vector for vector in vectors if vectors.count(vector) > 1), None)
    if often is None and vectors and any(_is_long(s, room) for s in statements):
        named = any(
            isinstance(s, ast.Assign) and ast.unparse(s.value) in vectors for s in statements
        )
        often = None if named else vectors[0]
    name = _POSITIONS if often is not None and ".shape[" in often else _VECTOR
    if often is None or name in flow.taken:
        return statements
    return ast.parse(f"{name} = {often}\n{text.replace(often, name)}").body


def _is_long(statement: ast.stmt, room: int) -> bool:
    if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)):
        return False  # what a block computes may be other in each round
    return break_lines(ast.unparse(statement), room, "    ").count("\n") >= _MOST_LINES


def _only_looks(new: ast.expr) -> bool:
    """Tell whether all rounds take pieces of a tensor, which are joined: no round computes."""
    calls = [n for n in ast.walk(new) if isinstance(n, ast.Call)]
    called = {n.func.attr if isinstance(n.func, ast.Attribute) else "" for n in calls}
    return "unflatten" in called and called <= _VIEWS


def _name_in_result(
    statements: Sequence[ast.stmt], new: ast.expr, flow: FunctionFlow, room: int
) -> tuple[Sequence[ast.stmt], ast.expr]:
    """Return a long result with names for what it reads of a dictionary, and for its counter.

    ``agent = data["agent"]`` where it stands there again and again.
    """
    text = ast.unparse(new)
    held = [
        n
        for n in ast.walk(new)
        if isinstance(n, ast.Subscript)
        and isinstance(n.value, ast.Name)
        and isinstance(n.slice, ast.Constant)
        and str(n.slice.value).isidentifier()
    ]
    counted = Counter(map(ast.unparse, held))
    made = list(statements)
    for code in held:
        key, name = ast.unparse(code), str(getattr(code.slice, "value", ""))
        if counted[key] >= _OFTEN and name not in flow.taken and not keyword.iskeyword(name):
            made.append(ast.parse(f"{name} = {key}").body[0])
            text = text.replace(key, name)
            counted[key] = 0
    *named, last = _name_vector(ast.parse(f"_ = {text}").body, flow, room)
    assert isinstance(last, ast.Assign)  # noqa: S101 - one went in
    return [*made, *named], last.value


def _name_parts(
    statements: Sequence[ast.stmt], flow: FunctionFlow, room: int
) -> Sequence[ast.stmt]:
    """Return statements with a name for pieces that are written to, if they fill a line."""
    made: list[ast.stmt] = []
    for statement in statements:
        match statement:
            case ast.Assign([ast.Subscript(ast.Call() as owner, index) as target], value) if (
                len(ast.unparse(target)) + len(" = (") > room and _PIECES not in flow.taken
            ):
                named = ast.Subscript(ast.Name(_PIECES, ast.Load()), index, ast.Store())
                made.append(ast.Assign([ast.Name(_PIECES, ast.Store())], owner, lineno=0))
                made.append(ast.Assign([named], value, lineno=0))
            case _:
                made.append(statement)
    return made


def _edit(
    loop: Loop,
    text: str,
    width: int,
    removed: Sequence[ast.stmt],
    hoisted: Sequence[tuple[str, str]],
) -> Edit:
    assert loop.joined is not None  # noqa: S101 - the caller has looked
    return Edit(loop.joined, loop.statement, text, removed, hoisted, width=width)


def _line_of(loop: Loop, made: Sequence[ast.stmt]) -> int:
    gone = sum((s.end_lineno or s.lineno) - s.lineno + 1 for s in loop.removed)
    assert loop.joined is not None  # noqa: S101 - the caller has looked
    return loop.joined.lineno - gone + len(made)


def _assignments(made: Sequence[ast.stmt]) -> list[tuple[str, str]]:
    found = []
    for statement in made:
        match statement:
            case ast.Assign([ast.Name(name)], value):
                found.append((name, ast.unparse(value)))
            case _:
                raise NotRewritableError(EFFECT)
    return found


def _splice(source: str, lines: Sequence[str], flow: FunctionFlow, edit: Edit) -> str:
    first, last = extent(flow.function)
    from npufix.rewriters.edit.splice import splice  # libcst, which takes a tenth of a start

    try:
        text = splice(source, lines, flow.function, edit)
    except CannotSpliceError as error:
        raise NotRewritableError(str(error)) from error
    return "".join([*lines[: first - 1], text, *lines[last:]])


def _with_lists(  # noqa: PLR0913, PLR0917 - what is written, and where
    source: str,
    lines: Sequence[str],
    flow: FunctionFlow,
    loop: Loop,
    made: Sequence[ast.stmt],
    joins: Sequence[Join],
) -> tuple[str, int]:
    """Return the text without the lists that a loop fills, and the line of its first statement."""
    first, last = loop.statement.lineno, loop.statement.end_lineno or 0
    new, start = _block(source, lines, flow, loop.statement, made)
    changes = {(first, 0, last, len(lines[last - 1])): new}
    for join in joins:
        empty = join.of.empty
        if empty is None:
            changes[span(join.of.call, lines)] = ast.unparse(join.code)
            continue
        place = (empty.lineno, 0, empty.end_lineno or 0, len(lines[empty.lineno - 1]))
        alone = not lines[empty.lineno - 1][: empty.col_offset].strip()
        if not alone or empty.end_lineno != empty.lineno or ";" in lines[empty.lineno - 1]:
            raise NotRewritableError(ONE_LINE)
        changes[place] = ""
        text = ast.unparse(join.code)
        bound = join.of.statement
        whole = isinstance(bound, ast.Assign) and bound.value is join.of.call
        if join.of.is_bound_again and whole and text == join.of.name:
            end = bound.end_lineno or bound.lineno
            changes[bound.lineno, 0, end, len(lines[end - 1])] = ""
        else:
            changes[span(join.of.call, lines)] = text
    direct = apply_changes(lines, [Change(place, text) for place, text in changes.items()])
    gone = sum(not text and place[0] < first for place, text in changes.items())
    return direct, first + start - gone


def _replace(
    source: str,
    lines: Sequence[str],
    flow: FunctionFlow,
    loop: ast.stmt,
    made: Sequence[ast.stmt],
) -> tuple[str, int]:
    """Return the module with statements in place of a loop, and the line of the last of them."""
    first, last = loop.lineno, loop.end_lineno or loop.lineno
    text, start = _block(source, lines, flow, loop, made)
    return "".join([*lines[: first - 1], text, *lines[last:]]), first + start


def _block(
    source: str,
    lines: Sequence[str],
    flow: FunctionFlow,
    loop: ast.stmt,
    made: Sequence[ast.stmt],
) -> tuple[str, int]:
    """Return the lines of statements in place of a loop, and which of them is the last one's."""
    first, last = loop.lineno, loop.end_lineno or loop.lineno
    head = lines[first - 1]
    indent = head[: len(head) - len(head.lstrip())]
    if len(indent.encode()) != loop.col_offset:
        raise NotRewritableError(ONE_LINE)
    style, unit = style_of(source), unit_of(flow.function, lines)
    newline = "\r\n" if head.endswith("\r\n") else "\n"
    new = [f"{indent}{text}" for text in _comments(source, first, last)]
    start = len(new)
    old = textwrap.dedent("".join(lines[first - 1 : last]))
    for statement in made:
        start = len(new)
        room = style.width - len(indent)
        new += [
            f"{indent}{line}" for line in _laid_out(statement, room, unit, textwrap.dedent(old))
        ]
    return "".join(f"{line}{newline}" for line in new), start


def _laid_out(statement: ast.stmt, room: int, unit: str, old: str) -> Iterator[str]:
    """Yield the lines of a statement, blocks indented by ``unit``, spelled as the ``old`` code."""
    if isinstance(statement, (ast.For, ast.If)):
        yield _as_written(ast.unparse(statement).split("\n")[0], old)
        for inner in statement.body:
            yield from (f"{unit}{line}" for line in _laid_out(inner, room - len(unit), unit, old))
        if statement.orelse:
            yield "else:"
            for inner in statement.orelse:
                yield from (f"{unit}{t}" for t in _laid_out(inner, room - len(unit), unit, old))
        return
    yield from break_lines(_as_written(ast.unparse(statement), old), room, unit).split("\n")


def _as_written(text: str, like: str) -> str:
    """Return code with the numbers and texts spelled as in some other code: ``1e-6``, not 1e-06."""
    own: dict[str, str] = {}
    for token in _literals(like):
        own.setdefault(repr(ast.literal_eval(token.string)), token.string)
    lines = text.splitlines(keepends=True)
    for token in reversed(list(_literals(text))):
        (line, start), (_, end) = token.start, token.end
        spelled = own.get(token.string, token.string)
        lines[line - 1] = f"{lines[line - 1][:start]}{spelled}{lines[line - 1][end:]}"
    return "".join(lines)


def _literals(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in {tokenize.NUMBER, tokenize.STRING} and token.start[0] == token.end[0]:
                yield token
    except (tokenize.TokenError, IndentationError):  # a part of a statement
        return


def _comments(source: str, first: int, last: int) -> Iterator[str]:
    """Yield the comments between two lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and first <= token.start[0] <= last:
            yield token.string
