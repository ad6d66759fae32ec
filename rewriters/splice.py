"""Edits of one function through libcst: everything that is not edited stays byte for byte."""

from __future__ import annotations

import io
import tokenize
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from npufix.rewriters.names import source_lines

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

    from npufix.rewriters.names import FunctionNode

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


def _holds_comment(source: str, node: ast.expr | ast.stmt) -> bool:
    """Tell whether a comment stands between the first and the last line of ``node``."""
    last = node.end_lineno or node.lineno
    return node.lineno < last and any(
        token.type == tokenize.COMMENT and node.lineno <= token.start[0] < last
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
    )


def splice(source: str, function: FunctionNode, edit: Edit) -> str:
    """Return ``source`` with one edit made inside ``function``."""
    lines = source_lines(source)
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    last = function.end_lineno or function.lineno
    indent = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    newline = "\r\n" if lines[first - 1].endswith("\r\n") else "\n"
    # A method is not a module: an `if` above gives its indentation something to belong to.
    header = [f"if True:{newline}"] if indent else []
    text = "".join([*header, *lines[first - 1 : last]])
    offset = first - 1 - len(header)

    def local(node: ast.expr | ast.stmt) -> Span:
        a, b, c, d = span(node, lines)
        return a - offset, b, c - offset, d

    if _holds_comment(source, edit.replace):
        raise CannotSpliceError("a comment stands inside the expression")
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    except cst.ParserSyntaxError as error:
        raise CannotSpliceError("libcst cannot read this function") from error
    editor = _Editor(
        config=wrapper.module.config_for_parsing,
        target=local(edit.replace),
        statement=local(edit.statement),
        removed=frozenset(local(s) for s in edit.remove),
        edit=edit,
    )
    try:
        new = wrapper.visit(editor).code
    except (cst.ParserSyntaxError, cst.CSTValidationError) as error:
        raise CannotSpliceError(f"{edit.text!r} cannot stand there") from error
    if not editor.done:
        raise CannotSpliceError("the statement shares its line with another one")
    if header:
        new = new.removeprefix(header[0])
    return "".join([*lines[: first - 1], new, *lines[last:]])


@dataclass
class _Editor(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    config: cst.PartialParserConfig
    target: Span
    statement: Span
    removed: frozenset[Span]
    edit: Edit
    done: bool = field(default=False)

    def __post_init__(self) -> None:
        super().__init__()

    def _span(self, node: cst.CSTNode) -> Span:
        position = self.get_metadata(PositionProvider, node)
        if not isinstance(position, CodeRange):
            raise TypeError(position)
        start, end = position.start, position.end
        return start.line, start.column, end.line, end.column

    def on_leave(  # type: ignore[override]  # one hook for every kind of expression
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        node = super().on_leave(original_node, updated_node)
        # With a guard the old expression stays; the block is handled as a whole.
        if (
            isinstance(original_node, cst.BaseExpression)
            and not self.edit.guard
            and not self.done
            and self._span(original_node) == self.target
        ):
            self.done = True
            new = cst.parse_expression(self.edit.text, self.config)
            if isinstance(new, (cst.BinaryOperation, cst.UnaryOperation)):
                new = new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            return new
        return node  # type: ignore[return-value]

    def leave_IndentedBlock(  # noqa: N802 - the name that libcst asks for
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Remove, replace or guard the statements of one block."""
        spans = [self._statement_span(s) for s in original_node.body]
        if not any(s in self.removed or self._holds_target(s) for s in spans):
            return updated_node
        if self.edit.guard:
            return self._guarded(original_node, updated_node, spans)
        body: list[cst.BaseStatement] = []
        comments: list[cst.EmptyLine] = []
        for place, new in zip(spans, updated_node.body, strict=True):
            if place in self.removed:
                comments += _comments(new)
                continue
            here = self._statement(place, new)
            if comments:
                here[0] = here[0].with_changes(leading_lines=[*comments, *_comments(here[0])])
                comments = []
            body += here
        return updated_node.with_changes(body=body)

    def _statement_span(self, node: cst.BaseStatement) -> Span | None:
        if isinstance(node, cst.SimpleStatementLine):
            return self._span(node.body[0]) if len(node.body) == 1 else None
        return self._span(node)

    def _holds_target(self, place: Span | None) -> bool:
        return place == self.statement

    def _statement(self, place: Span | None, new: cst.BaseStatement) -> list[cst.BaseStatement]:
        """Return what a kept statement becomes, new local names before it."""
        if not self._holds_target(place):
            return [new]
        if place == self.target:  # the statement itself is what the rule rewrites
            self.done = True
            new = new.with_changes(body=self._parsed(self.edit.text).body)
        before = [self._parsed(f"{name} = {text}") for name, text in self.edit.hoisted]
        if before and isinstance(new, cst.SimpleStatementLine):
            before[0] = before[0].with_changes(leading_lines=new.leading_lines)
            new = new.with_changes(leading_lines=[])
        return [*before, new]

    def _parsed(self, text: str) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
        return cst.parse_statement(text, self.config)

    def _guarded(
        self,
        original: cst.IndentedBlock,
        updated: cst.IndentedBlock,
        spans: list[Span | None],
    ) -> cst.IndentedBlock:
        """Keep the old code for other devices: ``if <guard>: new`` before or around it."""
        at = next((i for i, s in enumerate(spans) if self._holds_target(s)), None)
        covered = [i for i, s in enumerate(spans) if s in self.removed]
        if at is None:
            return updated
        first = min([at, *covered])
        if set(range(first, at)) - set(covered):
            raise CannotSpliceError("other statements lie between the ones to replace")
        line = original.body[at]
        if not isinstance(line, cst.SimpleStatementLine):
            raise CannotSpliceError("the expression is part of a compound statement")
        new = line.visit(_ReplaceExpression(self))
        if not isinstance(new, cst.SimpleStatementLine):
            raise TypeError(new)
        self.done = True
        bare = new.with_changes(leading_lines=[])
        hoisted = [self._parsed(f"{name} = {text}") for name, text in self.edit.hoisted]
        choice = cst.If(
            cst.parse_expression(self.edit.guard, self.config),
            cst.IndentedBlock([*hoisted, bare]),
        )
        old = list(updated.body[first : at + 1])
        if isinstance(line.body[0], cst.Return):
            body = [*updated.body[:first], choice, *old, *updated.body[at + 1 :]]
        else:
            other = choice.with_changes(orelse=cst.Else(cst.IndentedBlock(old)))
            body = [*updated.body[:first], other, *updated.body[at + 1 :]]
        return updated.with_changes(body=body)

    def replacement(self) -> cst.BaseExpression:
        """Return the new expression."""
        return cst.parse_expression(self.edit.text, self.config)


def _comments(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    """Return the comment lines above a statement, without the blank lines between them."""
    lines: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return [line for line in lines if line.comment]


class _ReplaceExpression(cst.CSTTransformer):
    """Exchanges the target inside a copy of its statement; the original is left as it is."""

    def __init__(self, editor: _Editor) -> None:
        super().__init__()
        self.editor = editor

    def on_leave(  # type: ignore[override]  # one hook for every kind of expression
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        if (
            isinstance(original_node, cst.BaseExpression)
            and self.editor._span(original_node) == self.editor.target  # noqa: SLF001
        ):
            return self.editor.replacement()
        return super().on_leave(original_node, updated_node)  # type: ignore[return-value]
