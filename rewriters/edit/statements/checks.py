"""Tests of tensors that the host has to wait for: what is asserted, skipped, or chosen."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.guards import is_simple
from npufix.rewriters.edit.layout import limit_of, style_of
from npufix.rewriters.edit.statements.choices import (
    LEAVES,
    choose,
    divide,
    goes_on,
    is_nothing,
    is_one_number,
    read_branch,
)
from npufix.rewriters.edit.statements.guarded import mask_of_test, unguard
from npufix.rewriters.edit.statements.host.of_host import (
    READING,
    is_asked_of_host,
    is_count,
    without_numbers,
)
from npufix.rewriters.edit.statements.host.seldom import decides, is_rare, is_seldom, stays_anyway
from npufix.rewriters.edit.statements.proposal import Change, Proposal, apply_changes, text_after
from npufix.rewriters.edit.statements.selections import counts_selected
from npufix.rewriters.edit.statements.surroundings import LOOPS
from npufix.rewriters.facts.host_tensors import is_made_on_host, is_moved_to_host
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.facts.occasions import is_called_by_forward
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_WEIGHED = (
    "the host waits for the answer, and again for how many elements x[mask] has: compute with all "
    "of them and weigh by the mask, (loss * mask).sum() / mask.sum().clamp(min=1), which is zero "
    "where nothing is set, and needs no test"
)
_TAKES_LOSS = re.compile(r"(?i)loss|criterion|cross_entropy|^(mean|sum|smooth_l1)$")
_FORM_ASSERT = "asserted"
_ANSWERS = frozenset({"all", "allclose", "any", "equal", "is_nonzero"})


def find_checks(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``assert t.all()`` and ``if mask.any():`` in code that runs in every step.

    Checks that stand in a row are one.
    """
    row: list[Proposal] = []
    for found in _checks(here):
        if row and not (found.form == _FORM_ASSERT and _follows(here, row[-1], found)):
            yield _as_one(row)
            row = []
        row.append(found)
    if row:
        yield _as_one(row)


def _follows(here: Surroundings, one: Proposal, other: Proposal) -> bool:
    first, second = one.code, other.code
    if one.form != _FORM_ASSERT or not isinstance(first, ast.stmt):
        return False
    block = here.block_of(first)
    return second in block and block[block.index(second) - 1] is first


def _as_one(row: Sequence[Proposal]) -> Proposal:
    if len(row) == 1:
        return row[0]
    return replace(
        row[0],
        changes=tuple(change for one in row for change in one.changes),
        shown="\n".join(one.shown for one in row),
        proven=frozenset.intersection(*(one.proven for one in row)),
        asked=tuple((f"{k}_{n}", code) for n, one in enumerate(row) for k, code in one.asked),
    )


def _checks(here: Surroundings) -> Iterator[Proposal]:
    for node in here.nodes:
        if isinstance(node, ast.If) and here.text(node).startswith("elif"):
            continue  # nothing can stand alone behind another branch
        match node:
            case ast.Assert(test) | ast.If(test, [*_, ast.Raise()], []):
                waits = _is_wanted(here, node) or _picks_rows(here, test)
                if not waits and _is_answer(here, test):
                    kind = "check" if isinstance(node, ast.Assert) else "failure"
                    found = _off_device(here, node, test, kind)
                else:
                    continue
            case ast.If(test, [ast.Break()]) if _is_answer(here, test) or _is_compared(here, test):
                loop = here.loop_of(node)
                found = Proposal(node, LEAVES) if isinstance(loop, LOOPS) else None
            case ast.If(test) | ast.IfExp(test) if _is_answer(here, test):
                waits = isinstance(node, ast.If) and stays_anyway(here, node)
                waits = waits or _gives_none(here, node)
                found = None if waits else _of_branch(here, node, test) or _tell(here, node)
            case _:
                continue
        if found is not None:
            yield found


def _picks_rows(here: Surroundings, test: ast.expr) -> bool:
    """Tell whether the host needs what is compared anyway: ``n <= 8``, and later ``x[:, :n]``."""
    node = here.value(test)
    compared = node.args if node is not None and node.op in operators.COMPARISONS else ()
    return any(user.op == Op.SLICE for arg in compared for user in here.users(arg))


def _is_wanted(here: Surroundings, code: ast.Assert | ast.If) -> bool:
    """Tell whether a check is to wait, or does not do so in each step."""
    if _is_switched(here, code):
        return True  # who wants no check says so
    if _asks_all_ranks(here):
        return True
    if isinstance(code, ast.Assert):
        return False
    if not _is_in_layers(here):
        return True  # who calls it wants to be told
    plain = all(isinstance(s, ast.Assign | ast.Expr | ast.Raise) for s in code.body)
    # one wait in each step, so that training ends with an error
    return not plain or _LEFT_ALONE.search(here.text(code)) is not None


def _asks_all_ranks(here: Surroundings) -> bool:
    """Tell whether a function is there to check something on all ranks: ``check_consistency``."""
    checks = _CHECKS.match(here.flow.function.name) is not None
    calls = (here.flow.names.dotted(n.func) or "" for n in here.nodes if isinstance(n, ast.Call))
    return checks and any(name.startswith("torch.distributed.") for name in calls)


def _is_in_layers(here: Surroundings) -> bool:
    """Tell whether ``forward`` runs the function: a wait in each layer, not in each call."""
    scope = here.flow.scope
    named = here.flow.function.name == "forward"
    return named or (scope is not None and is_called_by_forward(scope))


def _of_branch(here: Surroundings, code: ast.If | ast.IfExp, test: ast.expr) -> Proposal | None:
    found = divide(here, code, is_count)
    if found is None and isinstance(code, ast.If) and not code.orelse:
        found = unguard(here, code, test, code.body)
    found = found or choose(here, code)
    if found is not None and not found.advice:
        return found
    weighed = _weigh(here, code, test) if isinstance(code, ast.If) else None
    return None if _is_read(code) else weighed or found


def _is_read(code: ast.If | ast.IfExp) -> bool:
    """Tell whether the host waits for an arm as well: ``(loss / n).item() if n > 0 else 0.0``."""
    parts = [code.body, code.orelse] if isinstance(code, ast.IfExp) else [*code.body, *code.orelse]
    if len(parts) > 3:  # noqa: PLR2004 - it does something else besides
        return False
    calls = (n for n in walk(*parts) if isinstance(n, ast.Call) and not n.args)
    return any(last_name(call.func) in READING for call in calls)


def _tell(here: Surroundings, code: ast.If | ast.IfExp) -> Proposal | None:
    """Return what to do about a branch that only the host can take, where steps wait for it."""
    if not decides(here, code) or _is_switched(here, code) or is_seldom(here, code):
        return None
    if _is_read(code) or _is_in_search(here, code):
        return None
    return None if is_rare(here, code) else goes_on(here, code)


def _is_in_search(here: Surroundings, code: ast.AST) -> bool:
    """Tell whether the loop around waits as well, or ends with what it has found, as a search."""
    loop = here.loop_of(code)
    if loop and isinstance(code, ast.If) and isinstance(code.body[-1], ast.Break | ast.Return):
        return True
    test = loop.test if isinstance(loop, ast.While) else None
    return test is not None and (_is_answer(here, test) or _is_compared(here, test))


def _gives_none(here: Surroundings, code: ast.If | ast.IfExp) -> bool:
    """Tell whether a branch gives a mask or none, ``mask = x == 0 if pads.any() else None``.

    What comes next is quicker without, and only the host can decide that. So it is in
    ``if pads.any(): mask = x == 0`` behind ``mask = None``.
    """
    if isinstance(code, ast.If) and any(map(_is_none, code.body)):
        return True
    branch = read_branch(here, code)
    if branch is None:
        return False
    if any(isinstance(a, ast.Constant) and a.value is None for a in (branch.first, branch.second)):
        return True
    at = here.evaluations.get(id(branch.test))
    before = at.names.get(branch.name) if at is not None else None
    return before is not None and before.op == Op.CONST and before.value is None


def _is_none(code: ast.stmt) -> bool:
    match code:
        case ast.Return(None | ast.Constant(None)) | ast.Assign(_, ast.Constant(None)):
            return True
    return False


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
    if node is None or is_moved_to_host(node) or any(map(is_of_numpy, node.walk())):
        return False
    if node.op in _ANSWERS:
        is_tensor = here.is_tensor(test) is not False and not is_asked_of_host(here, test)
        return is_tensor and not node.op.startswith("py:")
    if node.op in operators.COMPARISONS:
        in_forward = here.flow.function.name == "forward"  # helpers may be for settings of few
        return any(
            counts_selected(here, test, arg)
            or (
                is_one_number(here, test, arg)
                and _may_be_tensor(here, test, arg)
                and not is_made_on_host(arg.args[0])
            )
            for arg in (map(without_numbers, node.args) if in_forward else node.args)
        )
    return False


def _is_compared(here: Surroundings, test: ast.expr) -> bool:
    """Tell whether what a tensor is computed to is compared: ``torch.sigmoid(gate) > limit``."""
    at = here.evaluations.get(id(test))
    if at is None or at.node.op not in operators.COMPARISONS or is_moved_to_host(at.node):
        return False
    made = [a for a in at.node.args if a.op != Op.PARAM and not is_made_on_host(a)]
    return any(here.facts(at, x=arg).is_tensor("x") for arg in made)


def _may_be_tensor(here: Surroundings, test: ast.expr, node: Node) -> bool:
    """Tell whether a value is a tensor; what a module adds up in its steps is no array.

    ``(shapes[:, 0] * shapes[:, 1]).sum()``; so is ``labels.max()`` of what it is given.
    """
    known = here.facts(here.evaluations[id(test)], x=node).is_tensor("x")
    of_given = node.op in {"max", "min"} and node.args[0].op == Op.PARAM and len(node.args) == 1
    in_module = here.flow.cls is not None and (node.op in {"mean", "sum"} or of_given)
    return known is True or (known is None and in_module)


_CHECKS = re.compile(r"_*(assert|check|ensure|validate|verify)(_|$)")
_LEFT_ALONE = re.compile(
    r"raise NotImplementedError"  # what comes behind it computes something else
    r"|\bis(finite|nan|inf)\("
)
"""Checks whose wait is wanted: training has diverged, or what comes behind is for other data."""
_FOR_DEBUGGING = re.compile(r"(?i)(^|_)(debug|strict|sanity|paranoid)")
"""What switches checks on, wherever it comes from: ``hard_debug = debug or IS_DEBUGGING``."""


def _is_switched(here: Surroundings, code: ast.Assert | ast.If | ast.IfExp) -> bool:
    """Tell whether a check is seldom made: ``if self.strict: assert x.all()``.

    A setting decides on it, where it runs, or another check, ``if not x.all():``, that has waited.
    """
    if ".device" in ast.unparse(code.test):
        return True
    for outer in here.around(code):
        match outer:
            case ast.If(ast.UnaryOp(ast.Not(), test)) | ast.If(test) if _is_answer(here, test):
                return True
            case ast.If(ast.UnaryOp(ast.Not(), ast.Name() | ast.Attribute() as flag)) | ast.If(
                ast.Name() | ast.Attribute() as flag
            ):
                value = here.value(flag)
                setting = value is not None and value.op in {Op.PARAM, Op.ATTR, Op.GLOBAL}
                setting = setting and (isinstance(code, ast.IfExp) or _only_checks(outer))
                setting = setting or _FOR_DEBUGGING.search(last_name(flag)) is not None
                if setting and not here.is_tensor(flag) and last_name(flag) != "training":
                    return True
    return False


def _only_checks(code: ast.If) -> bool:
    """Tell whether a setting decides on checks alone: what computes as well is another mode."""
    inner = [s.body for s in code.body if isinstance(s, ast.If | ast.For)]
    checks = (ast.Assert, ast.Raise, ast.If, ast.For)
    return all(isinstance(s, checks) for s in (*code.body, *(s for b in inner for s in b)))


def _off_device(here: Surroundings, code: ast.stmt, test: ast.expr, kind: str) -> Proposal | None:
    """Return a check that asks first where it runs, ``None`` where nothing can be asked.

    Only what the host waits for is put behind the question: the ``labels`` of
    ``labels is not None and labels.max() > n`` have no device where they are ``None``.
    """
    fails, is_and = kind == "failure", isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
    parts = test.values if isinstance(test, ast.BoolOp) and (is_and or not fails) else [test]
    first = next((part for part in parts if _is_answer(here, part)), test)
    held = [n for n in walk(first) if isinstance(n, ast.Name | ast.Attribute) and is_simple(n)]
    sure = next((n for n in held if here.is_tensor(n)), None)
    asked = sure or next((n for n in held if _is_held(here, n)), None)
    guarded = isinstance(first, ast.BoolOp) or isinstance(getattr(first, "operand", 0), ast.BoolOp)
    if asked is None or (guarded and not _is_answer_throughout(here, first)):
        return None
    style = style_of("".join(here.lines))
    device = f"{ast.unparse(asked)}.device.type"
    of_device = f"{device} {'!=' if fails else '=='} {style.quote}npu{style.quote}"
    rest = parts[parts.index(first) :] if not fails and is_and else [first]
    closing = ")" if len(rest) > 1 or isinstance(first, (ast.BoolOp, ast.IfExp)) else ""
    opening = f"{of_device} {'and' if fails else 'or'} {'(' if closing else ''}"
    if not fails and is_and and rest != parts:  # ``a and (on_npu or (b and c))``
        opening, closing = f"({opening}", f"{closing})"
    line, start, *_ = here.span(first)
    *_, last, end = here.span(rest[-1])
    changes = [Change((line, start, line, start), opening)]
    changes += [Change((last, end, last, end), closing)] if closing else []
    changes = _in_lines(here, code, test, changes, limit_of("".join(here.lines)))
    return Proposal(
        code,
        form=_FORM_ASSERT,
        changes=tuple(changes),
        shown=text_after(here, code, changes),
        proven=frozenset({"is-tensor"} if sure is not None else ()),
        asked=((kind, f"lambda:{here.text(test)}"),),
    )


def _in_lines(
    here: Surroundings, code: ast.stmt, test: ast.expr, changes: list[Change], width: int
) -> list[Change]:
    """Return changes of a test of one line; a line that is too long then is three."""
    line, start, last, _ = here.span(test)
    old = here.lines[line - 1]
    if line != last or len(old.rstrip()) + sum(len(c.text) for c in changes) <= width:
        return changes
    if not here.text(code)[: start - len(here.indent(code))].endswith(("assert ", "if ")):
        return changes  # in brackets already
    shift = (1 - line, -start)
    inner = [replace(c, span=_move(c.span, *shift)) for c in changes]
    indent = here.indent(code)
    new = apply_changes([here.text(test)], inner)
    return [Change(here.span(test), f"(\n{indent}    {new}\n{indent})")]


def _move(place: Span, lines: int, columns: int) -> Span:
    first, start, last, end = place
    return first + lines, start + columns, last + lines, end + columns


def _is_held(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a name stands for what may be a tensor: ``boxes`` of ``boxes[:, 2:]``."""
    value, outer = here.value(code), here.parents.get(id(code))
    known = value is not None and value.op != Op.GLOBAL and here.is_tensor(code) is not False
    of_it = isinstance(outer, ast.Subscript | ast.Attribute) and outer.value is code
    if isinstance(outer, ast.Attribute) and outer.attr != "data":  # not of ``losses.total.max()``
        of_it = getattr(here.parents.get(id(outer)), "func", None) is outer
    index = outer.slice if isinstance(outer, ast.Subscript) else None
    if isinstance(index, ast.Name) or isinstance(getattr(index, "value", 0), str):
        # Else it may be a table: ``losses[name]``.
        of_it = isinstance(index, ast.Name) and here.is_tensor(index) is True
    of_it = of_it or (isinstance(outer, ast.Compare) and _is_reduced(here, outer))
    return isinstance(code, ast.Name) and code.id != "self" and known and of_it


def _is_reduced(here: Surroundings, code: ast.Compare) -> bool:
    """Tell whether what is compared with numbers is a tensor: a ``bool`` has no ``sum``."""
    over = here.parents.get(id(code))
    of_numbers = all(
        isinstance(number, ast.Constant)
        # of what a module computes and compares, the left one is no number
        or (isinstance(number, ast.Name) and here.flow.cls is not None)
        for number in code.comparators
    )
    return isinstance(over, ast.Attribute) and over.attr in {"all", "any", "sum"} and of_numbers


def _is_answer_throughout(here: Surroundings, test: ast.expr) -> bool:
    """Tell whether no part of a test guards another one: ``x is None or x.min() > 0``."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            return _is_answer_throughout(here, inner)
        case ast.BoolOp(_, parts):
            return all(_is_answer_throughout(here, part) for part in parts)
    return _is_answer(here, test)


def _weigh(here: Surroundings, code: ast.If, test: ast.expr) -> Proposal | None:
    """Return what to do about a test whether a mask selects anything of which a loss is taken.

    The other arm is none, or zero: ``loss = pred.sum() * 0``.
    """
    tested = mask_of_test(here, test, sure=False)
    inside = list(walk(*code.body))
    other: list[ast.stmt] = code.orelse
    if not other and any(isinstance(n, ast.Return) for n in inside):
        other = here.list_behind(code)
    values = [s.value for s in other if isinstance(s, ast.Assign | ast.AugAssign | ast.Return)]
    if tested is None or len(values) < len(other) or not all(v and is_nothing(v) for v in values):
        return None
    picks = [n for n in inside if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load)]
    takes_loss = any(
        isinstance(n, ast.Call) and _TAKES_LOSS.search(last_name(n.func) or "") for n in inside
    )
    selected = any(here.value(pick.slice) is tested for pick in picks)
    return Proposal(code, _WEIGHED) if selected and takes_loss else None
