"""Edits of one function through libcst: everything that is not edited stays byte for byte."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from npufix.rewriters.edit.blocks import Deeper, join_paragraphs, list_bound, names_in
from npufix.rewriters.edit.edit import (
    CannotSpliceError,
    Edit,
    Span,
    behind_arguments,
    extent,
    holds_comment,
    segment,
    span,
    unit_of,
)
from npufix.rewriters.edit.layout import (
    align,
    break_lines,
    join_lines,
    lift_comments,
    strip_brackets,
)
from npufix.rewriters.graph.modules.names import source_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.graph.modules.names import FunctionNode

_DEVICE = re.compile(r"""\w[\w.]*\.device\.type == ["']npu["']""")
_Block = cst.IndentedBlock | cst.Module


def splice(source: str, lines: Sequence[str], function: FunctionNode, edit: Edit) -> str:
    """Return the text of ``function`` with one edit made in it.

    Raises:
        CannotSpliceError: a comment would be lost, or what comes out is no Python.

    """
    start, end = extent(function)
    # libcst takes long, so it gets to see no more than the statements that change.
    edited = [edit.statement, *edit.remove]
    first = min(s.lineno for s in edited)
    while first > start + 1 and lines[first - 2].lstrip()[:1] in {"", "#"}:
        first -= 1  # the comments above belong to them
    if edit.guard and edit.after:
        edited.append(edit.after)
    last = max(s.end_lineno or s.lineno for s in edited)
    head = lines[min(s.lineno for s in edited) - 1]
    indent = len(head) - len(head.lstrip())
    newline = "\r\n" if lines[first - 1].endswith("\r\n") else "\n"
    # A block is not a module: an `if` above gives its indentation something to belong to.
    header = [f"if True:{newline}"] if indent else []
    text = "".join([*header, *lines[first - 1 : last]])
    offset = first - 1 - len(header)

    def local(node: ast.expr | ast.stmt) -> Span:
        a, b, c, d = span(node, lines)
        return a - offset, b, c - offset, d

    if holds_comment(source, lines, edit.replace):
        raise CannotSpliceError("a comment stands inside the expression")
    line, column, *_ = span(edit.replace, lines)
    before = lines[line - 1][:column]
    whole = getattr(edit.statement, "value", None) is edit.replace and "(" in edit.text
    job = _Job(
        text=text,
        header=header[0] if header else "",
        target=local(edit.replace),
        statement=local(edit.statement),
        removed=frozenset(local(s) for s in edit.remove),
        new=_as_laid_out(edit, lines, indent),
        hoisted=tuple(edit.hoisted),
        guard=edit.guard,
        tensors=edit.tensors,
        width=edit.width,
        indent=unit_of(function, lines),
        room=edit.width - indent,
        after_word=re.search(r"\w\($", before) is not None,
        one_a_line=whole and re.search(r",\s*\n\s*\)$", segment(lines, edit.replace)) is not None,
    )
    return "".join([*lines[start - 1 : first - 1], _edited(job), *lines[last:end]])


@dataclass(frozen=True, slots=True)
class _Job:
    """All that becomes of an edit depends on, whatever module its statements stand in."""

    text: str
    """The statements, below ``header`` where they are indented."""
    header: str
    target: Span
    statement: Span
    removed: frozenset[Span]
    new: str
    hoisted: tuple[tuple[str, str], ...]
    guard: str
    tensors: frozenset[str]
    width: int
    indent: str
    room: int
    """How long the statement may get."""
    after_word: bool
    """Whether a bracket that opens right after a word stands before the old expression."""
    one_a_line: bool
    """Whether the last of the old arguments has a comma behind it, and the bracket its line."""


@lru_cache(maxsize=1024)
def _edited(job: _Job) -> str:
    """Return the new text of some statements: models copy each other's, and libcst takes long."""
    try:
        wrapper = _parse(job.text)
    except cst.ParserSyntaxError as error:
        raise CannotSpliceError("libcst cannot read these statements") from error
    editor = _Editor(
        job=job,
        config=wrapper.module.config_for_parsing,
        in_brackets=_needs_brackets(job.text, job.target, job.new),
    )
    try:
        new = wrapper.visit(editor).code
    except (cst.ParserSyntaxError, cst.CSTValidationError) as error:
        text = job.new
        raise CannotSpliceError(f"{text!r} cannot stand there") from error
    if not editor.done:
        raise CannotSpliceError("the statement shares its line with another one")
    old = job.text.removeprefix(job.header)
    new = lift_comments(new, {line.strip() for line in old.splitlines()}, job.width)
    return align(old, new.removeprefix(job.header), job.width)


@lru_cache(maxsize=4)
def _parse(text: str) -> MetadataWrapper:
    """Return statements with their places: each gets new code, new code on an NPU, and a probe."""
    return MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)


def _as_laid_out(edit: Edit, lines: Sequence[str], indent: int) -> str:
    """Return new text in the lines of the old one where only arguments of a call are added."""
    old = edit.replace
    if edit.guard or not isinstance(old, ast.Call) or old.lineno == old.end_lineno:
        return edit.text
    match ast.parse(edit.text).body:
        case [ast.Expr(ast.Call(func, args, keywords))]:
            pass
        case _:
            return edit.text
    count = len(old.keywords)
    before = ast.Call(func, args, keywords[:count])
    if ast.dump(before) != ast.dump(old) or len(keywords) == count:
        return edit.text
    added = behind_arguments(old, lines, *map(ast.unparse, keywords[count:]))
    if added is None:
        return edit.text
    (row, column, _, end), more = added
    own = list(lines[old.lineno - 1 : old.end_lineno])
    at = row - old.lineno
    own[at] = f"{own[at][:column]}{more}{own[at][end:]}"
    first, start, last, stop = span(old, lines)
    own[-1] = own[-1][: stop + (len(own[-1]) - len(lines[last - 1]) if at == last - first else 0)]
    own[0] = own[0][start:]
    rows = "".join(own).split("\n")
    below = [line[indent:] if line[:indent].isspace() or not indent else "" for line in rows[1:]]
    text = "\n".join([rows[0].rstrip("\r"), *(line.rstrip("\r") for line in below)])
    try:
        same = ast.dump(ast.parse(text)) == ast.dump(ast.parse(edit.text))
    except SyntaxError:
        same = False
    return text if same else edit.text


def _needs_brackets(text: str, place: Span, new: str) -> bool:
    """Tell whether a new expression binds less tightly than what is around it."""
    lines = source_lines(text)
    first, start, last, end = place
    above, below = "".join([*lines[: first - 1], lines[first - 1][:start]]), lines[last - 1][end:]
    rest = "".join([below, *lines[last:]])
    try:
        return ast.dump(ast.parse(f"{above}{new}{rest}")) != ast.dump(
            ast.parse(f"{above}({new}){rest}")
        )
    except SyntaxError:
        return True


@dataclass
class _Editor(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    job: _Job
    config: cst.PartialParserConfig
    in_brackets: bool
    """Whether the new expression needs brackets where it goes."""
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
            and not self.job.guard
            and not self.done
            and self._span(original_node) == self.job.target
        ):
            self.done = True
            return self.replacement(original_node)
        return node  # type: ignore[return-value]

    def leave_IndentedBlock(  # noqa: N802 - the name that libcst asks for
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Edit the statements of one block."""
        return cast("cst.IndentedBlock", self._edit(original_node, updated_node))

    def leave_Module(  # noqa: N802 - the name that libcst asks for
        self, original_node: cst.Module, updated_node: cst.Module
    ) -> cst.Module:
        """Edit the statements of the top level."""
        return cast("cst.Module", self._edit(original_node, updated_node))

    def leave_SimpleStatementSuite(  # noqa: N802 - the name that libcst asks for
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        """Give ``def f(x): return …`` lines of their own where statements are added."""
        places: list[Span | None] = [self._span(s) for s in original_node.body]
        if places != [self.job.statement] or not (self.job.guard or self.job.hoisted):
            return updated_node
        old, new = (
            cst.IndentedBlock(
                [cst.SimpleStatementLine(n.body, trailing_whitespace=n.trailing_whitespace)],
                indent=self.job.indent,
            )
            for n in (original_node, updated_node)
        )
        if self.job.guard:
            return cast("cst.IndentedBlock", self._guard(old, new, places))
        return new.with_changes(body=self._statement(places[0], new.body[0]))

    def _edit(self, original_node: _Block, updated_node: _Block) -> _Block:
        """Remove, replace or guard the statements of one block."""
        spans = [self._statement_span(s) for s in original_node.body]
        if not any(s in self.job.removed or self._holds_target(s) for s in spans):
            return updated_node
        if self.job.guard:
            return self._guard(original_node, updated_node, spans)
        body: list[cst.BaseStatement] = []
        above: list[cst.EmptyLine] = []
        for place, new in zip(spans, updated_node.body, strict=True):
            if place in self.job.removed:
                above = join_paragraphs(above, new)
                continue
            here = self._statement(place, new)
            if above:
                here[0] = here[0].with_changes(leading_lines=join_paragraphs(above, here[0]))
                above = []
            body += here
        return updated_node.with_changes(body=body)

    def _statement_span(self, node: cst.BaseStatement) -> Span | None:
        if isinstance(node, cst.SimpleStatementLine):
            return self._span(node.body[0]) if len(node.body) == 1 else None
        return self._span(node)

    def _holds_target(self, place: Span | None) -> bool:
        return place == self.job.statement

    def _statement(self, place: Span | None, new: cst.BaseStatement) -> list[cst.BaseStatement]:
        """Return what a kept statement becomes, new local names before it."""
        if not self._holds_target(place):
            return [new]
        if place == self.job.target:  # the statement itself is what the rule rewrites
            self.done = True
            new = new.with_changes(body=self._parse(self.job.new).body)
        before = self._hoist(self.job.room)
        new = self._laid_out(new, self.job.room)
        if before and isinstance(new, cst.SimpleStatementLine):
            before[0] = before[0].with_changes(leading_lines=new.leading_lines)
            new = new.with_changes(leading_lines=[])
        return [*before, new]

    def _hoist(self, room: int) -> list[cst.BaseStatement]:
        """Return the new local names."""
        texts = [f"{name} = {text}" for name, text in self.job.hoisted]
        return [self._parse(break_lines(text, room, self.job.indent)) for text in texts]

    def _laid_out(self, new: cst.BaseStatement, room: int) -> cst.BaseStatement:
        """Return a statement in several lines if it is too long for one."""
        if not isinstance(new, cst.SimpleStatementLine):
            return new
        bare = new.with_changes(leading_lines=[], trailing_whitespace=cst.TrailingWhitespace())
        text = cst.Module([bare]).code.strip()
        if max(map(len, text.split("\n"))) > room:
            text = strip_brackets(join_lines(text) or text)
        lines = break_lines(text, room, self.job.indent, one_a_line=self.job.one_a_line)
        return new if lines == text else new.with_changes(body=self._parse(lines).body)

    def _parse(self, text: str) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
        return cst.parse_statement(
            text.replace("\n", str(self.config.default_newline)), self.config
        )

    def _guard(
        self,
        original: _Block,
        updated: _Block,
        spans: list[Span | None],
    ) -> _Block:
        """Keep the old code for other devices: ``if <guard>: new`` before or around it."""
        at = next((i for i, s in enumerate(spans) if self._holds_target(s)), None)
        covered = [i for i, s in enumerate(spans) if s in self.job.removed]
        if at is None:
            return updated
        first = min([at, *covered])
        between = [updated.body[i] for i in range(first, at) if i not in covered]
        if list_bound(between) & names_in(updated.body[i] for i in covered):
            raise CannotSpliceError("other statements lie between the ones to replace")
        line = original.body[at]
        if not isinstance(line, cst.SimpleStatementLine):
            raise CannotSpliceError("the expression is part of a compound statement")
        new = line.visit(_ReplaceExpression(self))
        if not isinstance(new, cst.SimpleStatementLine):
            raise TypeError(new)
        self.done = True
        room = self.job.room - len(self.job.indent)
        deeper = Deeper(self.job.indent)
        bare = self._laid_out(new.with_changes(leading_lines=[]), room)
        bare = cast("cst.BaseStatement", bare.visit(deeper))
        old = [updated.body[i] for i in (*covered, at)]
        choice = cst.If(
            cst.parse_expression(self.job.guard, self.config),
            cst.IndentedBlock([*self._hoist(room), bare], indent=self.job.indent),
            leading_lines=getattr(old[0], "leading_lines", ()),
        )
        old[0] = old[0].with_changes(leading_lines=[])
        before = [*updated.body[:first], *between]
        after = updated.body[at + 1 :]
        if isinstance(line.body[0], cst.Return):
            return updated.with_changes(body=[*before, choice, *old, *after])
        other = [cast("cst.BaseStatement", s.visit(deeper)) for s in old]
        if after and (next_one := self._same_guard(after[0], list_bound([bare]))):
            block, orelse = next_one
            choice = choice.with_changes(
                body=choice.body.with_changes(body=[*choice.body.body, *block])
            )
            other, after = [*other, *orelse], after[1:]
        choice = choice.with_changes(
            orelse=cst.Else(cst.IndentedBlock(other, indent=self.job.indent))
        )
        return updated.with_changes(body=[*before, choice, *after])

    def _same_guard(
        self, after: cst.CSTNode, bound: set[str]
    ) -> tuple[Sequence[cst.BaseStatement], Sequence[cst.BaseStatement]] | None:
        """Return both branches of the next statement if it asks for the same device.

        It does if it asks the same tensor, or if its operator takes a tensor that this one takes.
        """
        match after:
            case cst.If(
                test=cst.BaseExpression() as test,
                body=cst.IndentedBlock(body=[cst.SimpleStatementLine() as new]) as block,
                orelse=cst.Else(body=cst.IndentedBlock() as orelse),
                leading_lines=[],
            ):
                asked = cst.Module([]).code_for_node(test)
                if not _DEVICE.fullmatch(asked) or asked.split(".")[0] in bound:
                    return None
                shared = self.job.tensors & names_in([new]) - bound
                if asked == self.job.guard or shared:
                    return block.body, orelse.body
        return None

    def replacement(self, old: cst.BaseExpression) -> cst.BaseExpression:
        """Return the new expression, in the brackets of the old one if those span lines."""
        new = cst.parse_expression(self.job.new, self.config)
        brackets = [*old.lpar, *old.rpar]
        if any("\n" in cst.Module([]).code_for_node(b) for b in brackets):
            return new.with_changes(lpar=old.lpar, rpar=old.rpar)
        atom = isinstance(new, (cst.Call, cst.Subscript, cst.Attribute, cst.Name))
        tight = brackets and self.job.after_word  # ``return(x)``
        if self.in_brackets or tight or (brackets and not atom):
            return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return new


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
            and self.editor._span(original_node) == self.editor.job.target  # noqa: SLF001
        ):
            return self.editor.replacement(original_node)
        return super().on_leave(original_node, updated_node)  # type: ignore[return-value]
