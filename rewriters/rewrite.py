"""One match in, the new text of the module out -- or the reason why it stays as it is.

The new text is not trusted: it is read again, and its dataflow must be that of the original with
the matched value exchanged, and nothing else (translation validation).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.rewriters.dataflow import UnsupportedCodeError
from npufix.rewriters.imports import import_torch_npu, uses_torch_npu
from npufix.rewriters.names import FunctionNode, module_names
from npufix.rewriters.nodes import Node, same_term
from npufix.rewriters.reader import read_function
from npufix.rewriters.spelling import is_simple, replacement_node, spell
from npufix.rewriters.splice import CannotSpliceError, Edit, splice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npufix.rewriters.dataflow import FunctionFlow, Observable
    from npufix.rewriters.matching import Match
    from npufix.rules.substitution import Form

# Values that cost nothing on the device; they may stay when the code around them goes.
_FREE = frozenset(
    {"attr", "const", "dtype", "dtype_of", "global", "item", "list", "param", "rank", "shape",
     "size", "slice", "tuple", "cast"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The module after one substitution."""

    direct: str
    """The new code unconditionally: what is verified."""
    portable: str
    """The new code on an NPU, the old one elsewhere; equal to ``direct`` without NPU operators."""
    text: str
    """What was put in: new local names, if any, then the expression."""
    line: int
    """Where it is in ``direct``."""


class NotRewritableError(Exception):
    """The match stays as it is, for the reason given."""


def rewrite(source: str, flow: FunctionFlow, match: Match, form: Form) -> Rewrite:
    """Return the module with one match replaced.

    Raises:
        NotRewritableError: the replacement has no spelling here, a removed value is used
            elsewhere, or the layout of the code does not allow it.

    """
    covered = list(_covered_statements(flow, match))
    places = [match.evaluation.names]
    if covered:
        first = min(covered, key=lambda s: s.lineno)
        places.insert(0, next(e.names for e in flow.evaluations if e.statement is first))
    reason = "its operands have no name at this place"
    for names in places:
        spelled = spell(form.replacement, flow, match, names)
        if spelled is None:
            continue
        if spelled.hoisted and _is_conditional(match):
            raise NotRewritableError("its operands are computed on a condition only")
        edit = Edit(
            match.evaluation.code,
            match.evaluation.statement,
            spelled.text,
            covered,
            list(spelled.hoisted.items()),
        )
        try:
            return _checked(source, flow, match, form, edit)
        except NotRewritableError as error:
            reason = str(error)
    raise NotRewritableError(reason)


def _is_conditional(match: Match) -> bool:
    """Tell whether the statement computes the matched value only sometimes: ``a and b``."""
    return any(
        node is match.evaluation.code
        for choice in ast.walk(match.evaluation.statement)
        if isinstance(choice, (ast.IfExp, ast.BoolOp, ast.Assert))
        for node in ast.walk(choice)
    )


def _checked(source: str, flow: FunctionFlow, match: Match, form: Form, edit: Edit) -> Rewrite:
    """Apply an edit; keep statements whose values are still read; validate the result."""
    removable = [s for s in edit.remove if not _targets(s) & flow.captured]
    while True:
        edit = replace(edit, remove=removable)
        try:
            spliced = splice(source, flow.function, edit)
        except CannotSpliceError as error:
            raise NotRewritableError(str(error)) from error
        direct = import_torch_npu(spliced, guarded=False) if uses_torch_npu(edit.text) else spliced
        new = _reread(direct, flow)
        problem = _difference(new, flow, match, form)
        if problem is None:
            break
        used = [s for s in removable if _targets(s) & _read_names(new)]
        if not used:
            raise NotRewritableError(problem)
        removable = [s for s in removable if s not in used]
    if not uses_torch_npu(edit.text):
        return Rewrite(direct, direct, _shown(edit), _line(new, edit.text))
    guard = f'{_device(edit)}.type == "npu"'
    try:
        guarded = splice(source, flow.function, replace(edit, guard=guard))
    except CannotSpliceError as error:
        raise NotRewritableError(str(error)) from error
    portable = import_torch_npu(guarded, guarded=True)
    return Rewrite(direct, portable, _shown(edit), _line(new, edit.text))


def _shown(edit: Edit) -> str:
    return "\n".join([*(f"{name} = {text}" for name, text in edit.hoisted), edit.text])


def _line(new: FunctionFlow, text: str) -> int:
    """Return the line of the new expression within its function."""
    wanted = ast.parse(text, mode="eval").body
    same = ast.dump(wanted)
    for node in ast.walk(new.function):
        if type(node) is type(wanted) and isinstance(node, ast.expr) and ast.dump(node) == same:
            return node.lineno
    raise NotRewritableError("the new expression is not where it should be")


def _device(edit: Edit) -> str:
    """Return the device of an operand of the new call: it decides which code runs."""
    call = ast.parse(edit.text, mode="eval").body
    for node in ast.walk(call):
        if isinstance(node, ast.Call) and node.args and uses_torch_npu(ast.unparse(node.func)):
            # Asking a name costs nothing; an expression would be computed once more.
            holder = next((arg for arg in node.args if is_simple(arg)), node.args[0])
            return ast.unparse(ast.Attribute(holder, "device", ast.Load()))
    raise NotRewritableError(f"no tensor to ask for its device in {edit.text}")


def _covered_statements(flow: FunctionFlow, match: Match) -> Iterator[ast.stmt]:
    """Yield the statements of the same block that do nothing but compute matched values."""
    values = {id(e.code): e.node for e in flow.evaluations}

    def covered(statement: ast.stmt) -> bool:
        match statement:
            case ast.Assign([ast.Name()], value) | ast.AnnAssign(ast.Name(), _, value) if value:
                node = values.get(id(value))
                return node in inside and node is not root
            case ast.If(_, body, []):
                return all(covered(s) for s in body)
        return False

    root = match.evaluation.node
    # An alias of an operand goes with the code it was made for, if nothing else reads it.
    inside = match.covered
    for statement in match.evaluation.block:
        if statement is match.evaluation.statement:
            return
        if covered(statement):
            yield statement


def _targets(statement: ast.stmt) -> set[str]:
    return {
        n.id
        for n in ast.walk(statement)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _reread(source: str, flow: FunctionFlow) -> FunctionFlow:
    """Return the same function of another version of the module."""
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise NotRewritableError(f"the new code does not parse: {error.msg}") from error
    names = module_names(module)
    for function, cls in functions(module):
        if function.name == flow.function.name and (cls and cls.name) == (
            flow.cls and flow.cls.name
        ):
            try:
                return read_function(function, names, cls)
            except UnsupportedCodeError:
                break
    raise NotRewritableError("the new function cannot be read")


def functions(module: ast.Module) -> Iterator[tuple[FunctionNode, ast.ClassDef | None]]:
    """Yield the functions of a module and the methods of its classes."""

    def visit(
        body: list[ast.stmt], cls: ast.ClassDef | None
    ) -> Iterator[tuple[FunctionNode, ast.ClassDef | None]]:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield node, cls
                case ast.ClassDef():
                    yield from visit(node.body, node)
                case ast.If() | ast.Try():
                    yield from visit(node.body, cls)
                    yield from visit(node.orelse, cls)
                    for handler in getattr(node, "handlers", []):
                        yield from visit(handler.body, cls)

    return visit(module.body, None)


def _read_names(new: FunctionFlow) -> set[str]:
    return {
        n.id
        for n in ast.walk(new.function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }


def _difference(new: FunctionFlow, flow: FunctionFlow, match: Match, form: Form) -> str | None:
    """Return how the new function differs from the expected one, ``None`` if it does not."""
    root = match.evaluation.node
    wanted = replacement_node(form.replacement, flow, match)

    def exchange(node: Node) -> Node | None:
        return wanted if node is root else None

    expected = [_exchanged(o, flow, exchange) for o in flow.observables]
    known: dict[tuple[Node, Node], bool] = {}
    if len(expected) != len(new.observables) or not all(
        a.kind == b.kind
        and same_term(a.node, b.node, known)
        and len(a.path) == len(b.path)
        and all(
            x[1] == y[1] and same_term(x[0], y[0], known)
            for x, y in zip(a.path, b.path, strict=True)
        )
        for a, b in zip(expected, new.observables, strict=True)
    ):
        return "a value that would be replaced is used elsewhere in the function"
    # What the fused operator computes must not be computed beside it once more.
    needed = set(wanted.walk())
    kept = [n for n in match.covered - needed if n is not root and n.op not in _FREE]
    for evaluation in new.evaluations:
        if any(same_term(n, evaluation.node, known) for n in kept):
            return "a value in between is needed elsewhere in the function"
    return None


def _exchanged(
    observable: Observable, flow: FunctionFlow, exchange: Callable[[Node], Node | None]
) -> Observable:
    path = tuple((flow.graph.substitute(n, exchange), side) for n, side in observable.path)
    return replace(observable, node=flow.graph.substitute(observable.node, exchange), path=path)
