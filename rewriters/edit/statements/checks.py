"""Tests of tensors that the host has to wait for: what is asserted, and what is skipped."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import holds_comment
from npufix.rewriters.edit.statements.branches import CHOOSE, choose
from npufix.rewriters.edit.statements.proposal import Change, Proposal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_FORM_GUARD, _FORM_ASSERT = "guarded", "asserted"
_ANSWERS = frozenset({"all", "allclose", "any", "equal", "is_nonzero"})
_COMPARED = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})


def find_checks(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``assert t.all()`` and ``if mask.any():`` in code that runs in every step."""
    for node in here.nodes:
        if isinstance(node, ast.If) and here.text(node).startswith("elif"):
            continue  # nothing can stand alone behind another branch
        match node:
            case ast.Assert(test) if _is_answer(here, test):
                yield _without(here, node, test, "check")
            case ast.If(test, [ast.Raise()], []) if _is_answer(here, test):
                yield _without(here, node, test, "failure")
            case ast.If(test, body, []) if _is_answer(here, test):
                found = _unguarded(here, node, test, body)
                found = found or choose(here, node)
                if found is not None:
                    yield found
            case ast.If(test) | ast.IfExp(test) if _is_answer(here, test):
                found = choose(here, node)
                if found is not None:
                    yield found


def _is_answer(  # noqa: PLR0911 - one case a kind of test
    here: Surroundings, test: ast.expr
) -> bool:
    """Tell whether a test is of what tensors hold, not of their shapes."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            return _is_answer(here, inner)
        case ast.BoolOp(_, parts):
            return any(_is_answer(here, part) for part in parts)
        case ast.Call(ast.Attribute(tensor, "item"), [], []):
            return _is_answer(here, tensor)
    node = here.value(test)
    if node is None:
        return False
    if node.op in _ANSWERS:
        return here.is_tensor(test) is not False and not node.op.startswith("py:")
    if node.op in _COMPARED:
        at = here.evaluations[id(test)]
        return any(
            here.facts(at, x=arg).is_tensor("x") and arg.op in _COMPARABLE for arg in node.args
        )
    return False


_COMPARABLE = frozenset({"amax", "amin", "max", "mean", "min", "norm", "prod", "std", "sum"})


def _without(here: Surroundings, code: ast.stmt, test: ast.expr, kind: str) -> Proposal:
    """Return the code without a check that is there to fail."""
    lines = here.whole_lines(code)
    outer = here.parents.get(id(code), here.flow.function)
    alone = any(getattr(outer, block, None) == [code] for block in ("body", "orelse", "finalbody"))
    if lines is None or holds_comment("".join(here.lines), here.lines, code):
        return Proposal(code, "leave the check out, or make it once in N steps")
    new = f"{here.indent(code)}pass\n" if alone else ""
    asked = ((kind, f"lambda:{here.text(test)}"),)
    return Proposal(
        code, form=_FORM_ASSERT, changes=(Change(lines, new),), shown="pass", asked=asked
    )


def _unguarded(
    here: Surroundings, code: ast.If, test: ast.expr, body: list[ast.stmt]
) -> Proposal | None:
    """Return the body alone, if it does nothing anyway where the mask is false everywhere."""
    value = here.value(test)
    if value is None or value.op != "any" or len(value.args) != 1:
        return None
    mask = value.args[0]
    if not all(_does_nothing_without(here, statement, mask) for statement in body):
        return None
    lines = here.whole_lines(code)
    first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
    several = any((s.end_lineno or s.lineno) != s.lineno for s in body)
    if lines is None or first == code.lineno or (several and '"""' in here.text(code)):
        return Proposal(code, CHOOSE)
    unit = here.indent(body[0]).removeprefix(here.indent(code))
    depth = len(here.indent(code))
    text = [
        line[:depth] + line[depth:].removeprefix(unit)
        for line in here.lines[code.test.end_lineno or code.lineno : last]
    ]
    shown = "".join(text).strip()
    copies = any(isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) for s in body)
    written = [code for code in map(_target_of, body) if code is not None]
    proven = set() if copies else {"may-be-copied"}
    if all(_takes_writes(here, code) for code in written):
        proven.add("may-be-written")
    return Proposal(
        code,
        form=_FORM_GUARD,
        changes=(Change(lines, "".join(text)),),
        shown=shown,
        asked=tuple((f"target{n}", here.text(code)) for n, code in enumerate(written)),
        proven=frozenset(proven),
    )


def _target_of(code: ast.stmt) -> ast.expr | None:
    """Return the tensor that a statement writes to in place."""
    match code:
        case ast.Assign([ast.Subscript(target, _)], _) | ast.AugAssign(ast.Subscript(target, _)):
            return target
        case ast.Expr(ast.Call(ast.Attribute(target, "masked_fill_"))):
            return target
    return None


def _takes_writes(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a write can disturb no gradient: what is written to has none."""
    found = here.evaluations.get(id(code))
    if found is None:
        return False
    whole = here.facts(found, x=found.node)
    return whole.is_bool_tensor("x") is True or whole.is_without_gradients() is True


def _does_nothing_without(here: Surroundings, statement: ast.stmt, mask: Node) -> bool:
    match statement:
        case ast.Assign([ast.Subscript(_, index)], _) | ast.AugAssign(ast.Subscript(_, index)):
            return _selects(here, index, mask)
        case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(ast.Name(own), filling)) as call):
            return own == name and filling == "masked_fill" and _given(here, call, mask)
        case ast.Assign(
            [ast.Name(name)], ast.Call(ast.Attribute(_, "where"), [_, _, other]) as call
        ):
            same = isinstance(other, ast.Name) and other.id == name
            return same and _given(here, call, mask)
        case ast.Expr(ast.Call(ast.Attribute(_, "masked_fill_")) as call):
            return _given(here, call, mask)
    return False


def _given(here: Surroundings, call: ast.Call, mask: Node) -> bool:
    return bool(call.args) and here.value(call.args[0]) is mask


def _selects(here: Surroundings, index: ast.expr, mask: Node) -> bool:
    """Tell whether an index selects nothing where the mask is false everywhere."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(here.value(part) is mask for part in parts)
