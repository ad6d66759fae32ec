"""One match in, the new text of the module out -- or the reason why it stays as it is.

What to change is tried on the syntax tree; the text is then written with libcst. Neither is
trusted: both are read again, and their dataflow must be that of the original with the matched
value exchanged, and nothing else (translation validation).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit import tree_edit
from npufix.rewriters.edit.dead_code import dead_statements
from npufix.rewriters.edit.edit import CannotSpliceError, Edit, extent, unit_of
from npufix.rewriters.edit.imports import Import, add_import, insertion
from npufix.rewriters.edit.job import PROBE
from npufix.rewriters.edit.layout import style_of
from npufix.rewriters.edit.site import Rewrite
from npufix.rewriters.edit.spelling import fresh, spell
from npufix.rewriters.edit.validation import computes_the_same, difference, unbound
from npufix.rewriters.edit.wording import Wording
from npufix.rewriters.graph.dataflow import UnsupportedCodeError
from npufix.rewriters.graph.modules.names import FunctionNode, module_names, source_lines
from npufix.rewriters.graph.modules.scopes import MODULE, Scope, scopes, top_level
from npufix.rewriters.graph.modules.stars import read_names
from npufix.rewriters.graph.modules.syntax import list_stored_names, walk
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.match.matching import find, pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.edit.spelling import Spelled
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.names import ModuleNames
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.match.matching import Match
    from npufix.rules.substitution import Form

_CHOICES = (
    ast.IfExp, ast.BoolOp, ast.Assert, ast.Lambda,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


class NotRewritableError(Exception):
    """The match stays as it is, for the reason given."""


def rewrite(
    source: str, flow: FunctionFlow, match: Match, form: Form, *, with_text: bool = True
) -> Rewrite:
    """Return the module with one match replaced; without ``with_text`` only that it can be.

    Raises:
        NotRewritableError: the replacement has no spelling here, a removed value is used
            elsewhere, or the layout of the code does not allow it.

    """
    if _assigns_more(match.evaluation.code):
        raise NotRewritableError("the statement assigns something else as well")
    try:
        return _rewritten(source, flow, match, form, with_text=with_text)
    except _UnnamedError as unnamed:
        named = _name_operand(unnamed, match, form)
        return _rewritten(*named, form, with_text=with_text)


def _rewritten(
    source: str, flow: FunctionFlow, match: Match, form: Form, *, with_text: bool
) -> Rewrite:
    """Return the module with one match replaced by names that are there already."""
    covered = list(_list_covered(flow, match))
    lines, style = source_lines(source), style_of(source)
    places = [match.evaluation.names]
    if covered:
        first = min(covered, key=lambda s: s.lineno)
        places.insert(0, next(e.names for e in flow.evaluations if e.statement is first))
    problem = NotRewritableError("its operands have no name at this place")
    for names in places:
        spelled = spell(form.replacement, flow, match, names, Wording(lines, style.quote))
        if spelled is None:
            continue
        if spelled.guard == "" and not flow.for_npu.isdisjoint(match.evaluation.node.walk()):
            spelled = replace(spelled, guard=spelled.on_npu or None)
        if form.one_line and not _is_short(flow, match, spelled, style.width):
            raise NotRewritableError("the new code would take several lines")
        if spelled.hoisted and _is_conditional(match.evaluation.code, match.evaluation.statement):
            raise NotRewritableError("its operands are computed on a condition only")
        edit = Edit(
            match.evaluation.code,
            match.evaluation.statement,
            _keep_keywords(spelled.text, match.evaluation.code)
            if not spelled.guard  # of classes that torch_npu has nobody knows the names
            else spelled.text,
            [
                *covered,
                *dead_statements(flow, match, covered, [spelled.text, *spelled.hoisted.values()]),
            ],
            list(spelled.hoisted.items()),
            width=style.width,
            tensors=spelled.tensors,
        )
        try:
            around = _Around(source, lines, flow, spelled)
            return _check(around, match, form, edit, with_text=with_text)
        except NotRewritableError as error:
            problem = problem if isinstance(problem, _UnnamedError) else error
    try:
        raise problem
    finally:
        del problem  # it knows this frame, which holds the tree of the module


def _keep_keywords(text: str, old: ast.AST) -> str:
    """Return a call with the keywords of the old one: ``Adam(params=groups)``."""
    new = ast.parse(text, mode="eval").body
    if not (isinstance(old, ast.Call) and isinstance(new, ast.Call)) or old.args or not new.args:
        return text
    said = {ast.dump(k.value): k.arg for k in old.keywords}
    names = [said.get(ast.dump(arg)) for arg in new.args]
    if "\n" in text or None in names or not text.isascii():
        return text
    for name, arg in reversed(list(zip(names, new.args, strict=True))):
        text = f"{text[: arg.col_offset]}{name}={text[arg.col_offset :]}"
    return text


def _is_short(flow: FunctionFlow, match: Match, spelled: Spelled, width: int) -> bool:
    """Tell whether new code that is hard to read takes one line, in a file without einops."""
    statement, old = match.evaluation.statement, match.evaluation.code
    length = statement.col_offset + len(ast.unparse(statement)) + len(spelled.text)
    length -= len(ast.unparse(old))
    plain = "einops" not in {full.partition(".")[0] for full in flow.names.imports.values()}
    return plain and not spelled.hoisted and length <= width


def _assigns_more(code: ast.expr | ast.stmt) -> bool:
    """Tell whether a statement that writes to some elements does so to other targets, too."""
    match code:
        case ast.Assign([ast.Subscript()]):
            return False
    return isinstance(code, ast.Assign)


def _is_conditional(code: ast.expr | ast.stmt, statement: ast.stmt) -> bool:
    """Tell whether a statement computes a value only sometimes, or often: ``a and b``."""
    return any(
        node is code
        for choice in walk(statement)
        if isinstance(choice, _CHOICES)
        for node in walk(choice)
    )


@dataclass(frozen=True, slots=True)
class _Around:
    """The module around the function that is edited."""

    source: str
    lines: Sequence[str]
    flow: FunctionFlow
    spelled: Spelled

    def spliced(self, edit: Edit) -> str:
        """Return the new text of the function."""
        from npufix.rewriters.edit.splice import splice

        try:
            return splice(self.source, self.lines, self.flow.function, edit)
        except CannotSpliceError as error:
            raise NotRewritableError(str(error)) from error

    def edited(self, match: Match, edit: Edit) -> FunctionFlow:
        """Return the dataflow of the function after an edit of its syntax tree."""
        flow = self.flow
        try:
            guarded = replace(edit, guard=self.spelled.guard or "")
            block = match.evaluation.block
            new = tree_edit.edit_function(self.source, self.lines, flow.function, block, guarded)
        except CannotSpliceError as error:
            raise NotRewritableError(str(error)) from error
        names = _with_imports(flow.names, self.spelled.imports)
        return _read(new, names, flow)

    def module(self, function: str, *, guarded: bool) -> tuple[str, int]:
        """Return the module with a new text of the function, and its first line there."""
        first, last = extent(self.flow.function)
        if self.flow.function.name == MODULE:
            text = function
            for needed in self.spelled.imports:
                only = guarded and needed.module != "torch"
                text = add_import(text, needed, guarded=only, unit=self._unit)
            return text, 1 + text.count("\n") - function.count("\n")
        parts = [*self.lines[: first - 1], function, *self.lines[last:]]
        start = first
        # From the last place to the first, so that none moves another; the function is one part.
        inserts = sorted(
            (self._insert(i, guarded=guarded) for i in self.spelled.imports), reverse=True
        )
        for at, block in inserts:
            place = at if at < first else at - (last - first)
            parts[place:place] = block
            start += len(block) if at < first else 0
        return "".join(parts), start

    @property
    def _unit(self) -> str:
        return unit_of(self.flow.function, self.lines)

    def _insert(self, needed: Import, *, guarded: bool) -> tuple[int, list[str]]:
        names = self.flow.names if self.flow.names.tree else module_names(ast.parse(self.source))
        only = guarded and needed.module != "torch"
        return insertion(names, self.lines, needed, guarded=only, unit=self._unit)


class _UnnamedError(NotRewritableError):
    """It could be asked on which device it runs if one of its operands had a name."""

    def __init__(self, around: _Around, edit: Edit) -> None:
        super().__init__(f"no tensor to ask for its device in {edit.text}")
        self.around, self.edit = around, edit


def _check(around: _Around, match: Match, form: Form, edit: Edit, *, with_text: bool) -> Rewrite:
    """Apply an edit; keep statements whose values are still read; validate the result."""
    flow = around.flow
    is_module = flow.function.name == MODULE  # whose names others may import
    removable = [s for s in edit.remove if not (is_module or list_stored_names(s) & flow.captured)]
    while True:
        edit = replace(edit, remove=removable)
        new = around.edited(match, edit)
        gone = sorted(set().union(*map(list_stored_names, removable)))
        problem = difference(new, flow, match, form) or unbound(new, gone)
        if problem is None:
            break
        used = [s for s in removable if list_stored_names(s) & _read_names(new)]
        if not used:
            raise NotRewritableError(problem)
        # What the changed statement binds anew is hardly what is read after it.
        again = list_stored_names(edit.statement)
        kept = [s for s in used if not list_stored_names(s) & again] or used
        removable = [s for s in removable if s not in kept]
    if around.spelled.guard is None:
        raise _UnnamedError(around, edit)
    guarded = replace(edit, guard=around.spelled.guard, after=_guard_below(match))
    if guarded.guard:
        _check_layout(match, guarded)
    if not with_text:
        return Rewrite("", "", _show(edit), 0)
    written = around.spliced(edit)
    new = _reread(written, flow, around.spelled.imports)
    problem = difference(new, flow, match, form) or unbound(new, gone)
    if problem is not None:
        raise NotRewritableError(problem)
    direct, start = around.module(written, guarded=False)
    line = start + _line(new, edit.text) - extent(new.function)[0]
    asked = replace(edit, text=f"{PROBE}({around.spelled.operands})")
    bare = replace(around, spelled=replace(around.spelled, imports=()))
    probe, _ = bare.module(around.spliced(asked), guarded=False)
    if not guarded.guard:
        on_npu = _on_npu(around, match, edit)
        return Rewrite(direct, direct, _show(edit), line, on_npu, probe)
    portable, _ = around.module(around.spliced(_choose_class(flow, guarded)), guarded=True)
    return Rewrite(direct, portable, _show(edit), line, portable, probe)


def _choose_class(flow: FunctionFlow, edit: Edit) -> Edit:
    """Return an edit that calls one of two classes where both take the same arguments.

    ``sgd_class = NpuFusedSGD if torch_npu else SGD``, and then the author's own call.
    """
    package, *asked = edit.guard.split()
    match ast.parse(_keep_keywords(edit.text, edit.replace)).body[0], edit.replace:
        case ast.Expr(ast.Call() as new), ast.Call() as old if asked == ["is", "not", "None"]:
            if _arguments(old) == _arguments(new) and not (edit.hoisted or edit.remove):
                old_class = ast.unparse(old.func).rpartition(".")[2]
                name = fresh(f"{old_class.lower()}_class", flow.function)
                chosen = ast.unparse(ast.IfExp(ast.Name(package), new.func, old.func))
                return replace(
                    edit, replace=old.func, text=name, hoisted=[(name, chosen)], guard=""
                )
    return edit


def _arguments(call: ast.Call) -> list[str]:
    """Return the arguments of an optimizer, whose rate comes second: ``SGD(groups, 0.1)``."""
    given, keywords = call.args, call.keywords
    if len(given) == 2 and not any(isinstance(arg, ast.Starred) for arg in given):  # noqa: PLR2004 - groups and rate
        given, keywords = given[:1], [ast.keyword("lr", given[1]), *keywords]
    return [*map(ast.dump, given), *sorted(map(ast.dump, keywords))]


def _name_operand(
    problem: _UnnamedError, match: Match, form: Form
) -> tuple[str, FunctionFlow, Match]:
    """Return the module, the function and the match in it, with a name for an operand.

    ``if self.net(x).device.type == "npu":`` would compute ``self.net(x)`` once more: it becomes
    ``h = self.net(x)`` and ``if h.device.type == "npu":``.
    """
    around, edit = problem.around, problem.edit
    flow, (name, code) = around.flow, around.spelled.unnamed or ("", None)
    of_form = pattern_of(form.pattern)
    places = [e for e in flow.evaluations if e.code is code and e.certain]
    if code is None or not places or flow.function.name == MODULE:
        raise problem
    held = places[0].statement
    if not isinstance(held, _SIMPLE) or _is_conditional(code, held):
        raise problem
    before = [m.evaluation.code for m in find(of_form, flow)]
    text = Wording(around.lines, '"').own(code)
    naming = Edit(code, held, name, hoisted=[(name, text)], width=edit.width)
    bare = replace(around, spelled=replace(around.spelled, imports=()))
    source, _ = bare.module(bare.spliced(naming), guarded=False)
    tree = ast.parse(source)
    names = read_names(tree, flow.names.neighbour)
    wanted = flow.scope or Scope(flow.function, flow.cls)
    (scope,) = (
        s for s in scopes(tree) if (s.qualname, s.number) == (wanted.qualname, wanted.number)
    )
    try:
        new = read_function(scope.function, names, scope.cls, scope=scope)
    except UnsupportedCodeError as error:
        raise problem from error
    again = list(find(of_form, new))
    if len(again) != len(before) or not computes_the_same(new, flow):
        raise problem
    same = again[next(i for i, c in enumerate(before) if c is match.evaluation.code)]
    return source, new, same


def _on_npu(around: _Around, match: Match, edit: Edit) -> str:
    """Return the module with new code that runs everywhere on an NPU only, "" if it cannot be."""
    guarded = replace(edit, guard=around.spelled.on_npu, after=_guard_below(match))
    if not guarded.guard:
        return ""
    try:
        _check_layout(match, guarded)
        return around.module(around.spliced(guarded), guarded=False)[0]
    except NotRewritableError:
        return ""


def _check_layout(match: Match, edit: Edit) -> None:
    """Refuse code that no ``if`` can be put around."""
    block = match.evaluation.block
    at = [number for number, s in enumerate(block) if s is edit.statement or s in edit.remove]
    between = [s for s in block[min(at, default=0) : max(at, default=0)] if s not in edit.remove]
    # They move before the ``if``, unless the code that goes would see other values then.
    bound = set().union(*map(list_stored_names, between))
    if any(isinstance(n, ast.Name) and n.id in bound for s in edit.remove for n in walk(s)):
        raise NotRewritableError("other statements lie between the ones to replace")
    if not isinstance(edit.statement, _SIMPLE):
        raise NotRewritableError("the expression is part of a compound statement")


def _guard_below(match: Match) -> ast.stmt | None:
    """Return the next statement if it has code for an NPU and other code."""
    block = match.evaluation.block
    at = next((i for i, s in enumerate(block) if s is match.evaluation.statement), len(block))
    match block[at + 1 : at + 2]:
        case [ast.If(ast.Compare(_, [ast.Eq()], [ast.Constant("npu")]), _, [_, *_]) as below]:
            return below
    return None


def _show(edit: Edit) -> str:
    return "\n".join([*(f"{name} = {text}" for name, text in edit.hoisted), edit.text])


def _line(new: FunctionFlow, text: str) -> int:
    """Return the line of the new expression within its function."""
    wanted = ast.parse(text, mode="eval").body
    same = ast.dump(wanted)
    for node in walk(new.function):
        if type(node) is type(wanted) and isinstance(node, ast.expr) and ast.dump(node) == same:
            return node.lineno
    raise NotRewritableError("the new expression is not where it should be")


def _list_covered(flow: FunctionFlow, match: Match) -> Iterator[ast.stmt]:
    """Yield the statements of the same block that do nothing but compute matched values."""
    # An alias of an operand goes with the code it was made for, if nothing else reads it.
    every = {id(e.code): e.node for e in flow.evaluations}
    values = {code: node for code, node in every.items() if node in match.covered}
    # ``if mask is not None: part = mask[..., :n]; scores = scores + part``
    bound = set(match.bindings.values())
    inside = values | {code: node for code, node in every.items() if node in bound}
    for statement in match.evaluation.block:
        if statement is match.evaluation.statement:
            return
        if _is_covered(statement, values, match.evaluation.node, inside):
            yield statement


def _is_covered(
    statement: ast.stmt, values: Mapping[int, Node], root: Node, inside: Mapping[int, Node]
) -> bool:
    """Tell whether a statement only computes some values, or ``inside`` a branch some others."""
    match statement:
        case ast.Assign([ast.Name()], value) | ast.AnnAssign(ast.Name(), _, value) if value:
            return values.get(id(value), root) is not root
        case ast.AugAssign(ast.Name()):
            return values.get(id(statement), root) is not root
        case ast.Expr(ast.Call(ast.Attribute(ast.Name())) as changed):  # ``x.masked_fill_(...)``
            return values.get(id(changed), root) is not root
        case ast.Assign([ast.Tuple(items)], value):
            return all(isinstance(item, ast.Name) for item in items) and id(value) in values
        case ast.If(_, body, []):
            return any(_is_covered(s, values, root, inside) for s in body) and all(
                _is_covered(s, inside, root, inside) for s in body
            )
    return False


def _reread(text: str, flow: FunctionFlow, imports: Sequence[Import]) -> FunctionFlow:
    """Return the dataflow of a new text of the same function."""
    indented = text[:1] in {" ", "\t"}
    try:
        module = ast.parse(f"if True:\n{text}" if indented else text)
    except SyntaxError as error:
        raise NotRewritableError(f"the new code does not parse: {error.msg}") from error
    if flow.function.name == MODULE:
        function: FunctionNode = top_level(module).function
        names = module_names(module)
    else:
        first = module.body[0]
        block = first.body if indented and isinstance(first, ast.If) else module.body
        if not isinstance(block[0], FunctionNode):
            raise NotRewritableError("the new function cannot be read")
        function, names = block[0], flow.names
    return _read(function, _with_imports(names, imports), flow)


def _with_imports(names: ModuleNames, imports: Sequence[Import]) -> ModuleNames:
    return replace(names, imports={**names.imports, **{i.bound: i.full for i in imports}})


def _read(function: FunctionNode, names: ModuleNames, flow: FunctionFlow) -> FunctionFlow:
    """Return the dataflow of a new version of the function that ``flow`` is of."""
    scope = flow.scope or Scope(flow.function, flow.cls)
    try:
        return read_function(function, names, flow.cls, scope=replace(scope, function=function))
    except UnsupportedCodeError as error:
        raise NotRewritableError("the new function cannot be read") from error


def _read_names(new: FunctionFlow) -> set[str]:
    return {
        n.id for n in walk(new.function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
