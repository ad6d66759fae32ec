"""Tests of tensors that the host has to wait for: what is asserted, skipped, or chosen."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import holds_comment
from npufix.rewriters.edit.layout import style_of
from npufix.rewriters.edit.statements.proposal import Change, Proposal, apply_changes
from npufix.rewriters.edit.statements.surroundings import is_pure
from npufix.rewriters.facts.host_tensors import is_made_on_host
from npufix.rewriters.facts.value_kinds import is_of_numpy
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, walk
from npufix.rewriters.graph.nodes import Node
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_CHOOSE = (
    "the host waits for the answer: compute both and choose with torch.where, or decide by what "
    "the host knows already"
)
_BY_ZERO = (
    "the host waits for the answer: divide by n.clamp(min=1), which is never zero, and choose with "
    "torch.where if the other arm is another value"
)
_MOST_WORK = 12
"""Operators of an arm: computing both must not cost more than the wait."""
_OF_ANOTHER_SHAPE = frozenset({"nonzero", "masked_select", "unique", "cat", "stack"})
_FORM_GUARD, _FORM_ASSERT = "guarded", "asserted"
_OF_SOME = operators.RANDOM | {"amax", "amin", "argmax", "argmin", "max", "median", "min", "mode"}
"""What raises where there are no elements, or draws the next numbers."""
_ANSWERS = frozenset({"all", "allclose", "any", "equal", "is_nonzero"})
_COMPARED = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})


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
    return any(second in b and b[b.index(second) - 1] is first for b in _blocks(here, first))


def _as_one(row: Sequence[Proposal]) -> Proposal:
    if len(row) == 1:
        return row[0]
    return replace(
        row[0],
        changes=tuple(change for one in row for change in one.changes),
        shown="; ".join(one.shown for one in row),
        proven=frozenset.intersection(*(one.proven for one in row)),
        asked=tuple((f"{k}_{n}", code) for n, one in enumerate(row) for k, code in one.asked),
    )


def _checks(here: Surroundings) -> Iterator[Proposal]:
    for node in here.nodes:
        if isinstance(node, ast.If) and here.text(node).startswith("elif"):
            continue  # nothing can stand alone behind another branch
        match node:
            case ast.Assert() | ast.If(_, [ast.Raise()], []) if _is_switched(here, node):
                continue  # who wants no check says so
            case ast.Assert(test) if _is_answer(here, test):
                found = _off_device(here, node, test, "check")
            case ast.If(_, [ast.Raise()], []) if _LEFT_ALONE.search(here.text(node)):
                continue  # one wait in each step, so that training ends with an error
            case ast.If(test, [ast.Raise()], []) if _is_answer(here, test):
                found = _off_device(here, node, test, "failure")
            case ast.If(test, body, []) if _is_answer(here, test):
                found = _unguard(here, node, test, body) or _choose(here, node)
            case ast.If(test) | ast.IfExp(test) if _is_answer(here, test):
                found = _choose(here, node)
            case _:
                continue
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
    if node is None or any(is_of_numpy(part) for part in node.walk()):
        return False
    if node.op in _ANSWERS:
        return here.is_tensor(test) is not False and not node.op.startswith("py:")
    if node.op in _COMPARED:
        at = here.evaluations[id(test)]
        return any(
            here.facts(at, x=arg).is_tensor("x")
            and arg.op in _COMPARABLE
            and not is_made_on_host(arg.args[0])
            for arg in node.args
        )
    return False


_LEFT_ALONE = re.compile(
    r"raise NotImplementedError"  # what comes behind it computes something else
    r"|is(finite|nan|inf)\(\w*(grad_?norm|loss)|(grad_?norm|loss)\w*\.is(finite|nan|inf)"
)
"""Checks whose wait is wanted: training has diverged, or what comes behind is for other data."""
_COMPARABLE = frozenset({"amax", "amin", "max", "mean", "min", "norm", "prod", "std", "sum"})


def _is_switched(here: Surroundings, code: ast.Assert | ast.If) -> bool:
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
                if setting and not here.is_tensor(flag) and last_name(flag) != "training":
                    return True
    return False


def _off_device(here: Surroundings, code: ast.stmt, test: ast.expr, kind: str) -> Proposal | None:
    """Return a check that asks first where it runs, ``None`` where nothing can be asked.

    Only what the host waits for is put behind the question: the ``labels`` of
    ``labels is not None and labels.max() > n`` have no device where they are ``None``.
    """
    fails, is_and = kind == "failure", isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
    parts = test.values if isinstance(test, ast.BoolOp) and (is_and or not fails) else [test]
    first = next((part for part in parts if _is_answer(here, part)), test)
    held = [n for n in walk(first) if isinstance(n, ast.Name | ast.Attribute)]
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
    changes = _in_lines(here, code, test, changes, style.width)
    return Proposal(
        code,
        form=_FORM_ASSERT,
        changes=tuple(changes),
        shown=f"{opening}{' and '.join(map(here.text, rest))}{closing}",
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
    index = outer.slice if isinstance(outer, ast.Subscript) else None
    if isinstance(index, ast.Name) or isinstance(getattr(index, "value", 0), str):
        of_it = (
            isinstance(index, ast.Name) and here.is_tensor(index) is True
        )  # else it may be a table: ``losses[name]``
    return isinstance(code, ast.Name) and code.id != "self" and known and of_it


def _is_answer_throughout(here: Surroundings, test: ast.expr) -> bool:
    """Tell whether no part of a test guards another one: ``x is None or x.min() > 0``."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            return _is_answer_throughout(here, inner)
        case ast.BoolOp(_, parts):
            return all(_is_answer_throughout(here, part) for part in parts)
    return _is_answer(here, test)


def _unguard(
    here: Surroundings, code: ast.If, test: ast.expr, body: list[ast.stmt]
) -> Proposal | None:
    """Return the body alone, if it does nothing anyway where the mask is false everywhere."""
    mask = _tested_mask(here, test)
    if mask is None or not all(_does_nothing_without(here, s, mask) for s in body):
        return None
    lines = here.whole_lines(code)
    first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
    several = any((s.end_lineno or s.lineno) != s.lineno for s in body)
    if lines is None or first == code.lineno or (several and '"""' in here.text(code)):
        return Proposal(code, _CHOOSE)
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


def _tested_mask(here: Surroundings, test: ast.expr) -> Node | None:
    """Return the mask of ``mask.any()`` and of ``mask.sum() > 0``."""
    match here.value(test):
        case Node("any", [mask]):
            return mask
        case Node("gt" | "ne", [Node("sum" | "count_nonzero", [mask, *_]), Node(value=0)]):
            at = here.evaluations[id(test)]
            return mask if here.facts(at, x=mask).is_bool_tensor("x") else None
    return None


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
        case ast.Assign([ast.Subscript(_, index)], value) | ast.AugAssign(
            ast.Subscript(_, index), _, value
        ):
            return _selects(here, index, mask) and _takes_nothing(here, value)
        case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(ast.Name(own), filling)) as call):
            return own == name and filling == "masked_fill" and _is_given(here, call, mask)
        case ast.Assign(
            [ast.Name(name)], ast.Call(ast.Attribute(_, "where"), [_, _, other]) as call
        ):
            same = isinstance(other, ast.Name) and other.id == name
            return same and _is_given(here, call, mask)
        case ast.Expr(ast.Call(ast.Attribute(_, "masked_fill_")) as call):
            return _is_given(here, call, mask)
    return False


def _takes_nothing(here: Surroundings, value: ast.expr) -> bool:
    """Tell whether what is written is computed of no elements as well: not ``sample(x[mask])``."""
    called = [here.value(code) for code in walk(value) if isinstance(code, ast.Call)]
    return all(n is not None and n.op in operators.TABLE and n.op not in _OF_SOME for n in called)


def _is_given(here: Surroundings, call: ast.Call, mask: Node) -> bool:
    return bool(call.args) and here.value(call.args[0]) is mask


def _selects(here: Surroundings, index: ast.expr, mask: Node) -> bool:
    """Tell whether an index selects nothing where the mask is false everywhere."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(here.value(part) is mask for part in parts)


@dataclass(frozen=True, slots=True)
class _Branch:
    code: ast.stmt | ast.expr
    until: ast.stmt | ast.expr
    """The last that takes part: a ``return`` behind the ``if``."""
    test: ast.expr
    first: ast.expr
    second: ast.expr | None
    """``None`` for the old value of ``name``."""
    head: str
    name: str = ""


def _choose(here: Surroundings, node: ast.AST) -> Proposal | None:
    """Return a branch on what a tensor holds as a choice, ``None`` if it is another thing.

    ``node`` is an ``if`` with or without ``else``, or a conditional expression.
    """
    branch = _read(here, node)
    if branch is None:
        return None
    second = branch.second
    if any(isinstance(arm, ast.Constant) and arm.value is None for arm in (branch.first, second)):
        return None  # a mask or none: only the host can decide what code comes next
    if not _is_small(here, branch.first) or (second is not None and not _is_small(here, second)):
        return _advise_on_large(here, branch) if isinstance(node, ast.If) and second else None
    if _divides_by_tested(here, branch):
        return Proposal(branch.code, _BY_ZERO)
    test = _as_tensor(here, branch.test)
    whole = _lines_of(here, branch)
    if not test or whole is None or here.flow.names.imports.get("torch") != "torch":
        return Proposal(branch.code, _CHOOSE)
    other = branch.name if second is None else here.text(second)
    chosen = ", ".join((test, here.text(branch.first), other))
    new = f"{branch.head}torch.where({chosen})"
    text = f"{here.indent(branch.code)}{new}\n" if isinstance(branch.code, ast.stmt) else new
    asked = [branch.first] if second is None else [branch.first, second]
    return Proposal(
        branch.code,
        form="decided",
        changes=(Change(whole, text),),
        shown=new,
        asked=tuple((f"arm{n}", f"lambda:{here.text(arm)}") for n, arm in enumerate(asked)),
        proven=frozenset({"zero-gradients"} if _learn_alike(here, branch) else ()),
    )


def _advise_on_large(here: Surroundings, branch: _Branch) -> Proposal:
    """Return what to do about arms that are much work.

    Beside ``logits.mean() * 0`` the loss of no labels is NaN; ``where`` hands its gradient on.
    """
    arms = [here.value(arm) for arm in (branch.first, branch.second) if arm]
    return Proposal(branch.code, _BY_ZERO if any(a and _is_zero(a) for a in arms) else _CHOOSE)


def _is_zero(arm: Node) -> bool:
    by_zero = any(factor.op == Op.CONST and factor.value == 0 for factor in arm.args)
    return arm.op in {"zeros", "zeros_like", "new_zeros"} or (arm.op == "mul" and by_zero)


def _learn_alike(here: Surroundings, branch: _Branch) -> bool:
    """Tell whether both arms read the same tensors: what learns in one learns in the other."""
    at = here.evaluations[id(branch.test)]
    old = None if branch.second is None else here.value(branch.second)
    arms = [here.value(branch.first), old or at.names.get(branch.name)]
    read = [_read_by(here, arm) for arm in arms if arm is not None]
    return len(read) == len(arms) and read[0] == read[1]


def _read_by(here: Surroundings, arm: Node) -> set[Node]:
    """Return what may have a gradient among the values that an arm begins with."""
    ends = {Op.PARAM, Op.ATTR, Op.CALL, Op.ITEM, Op.ELEMENT, Op.GLOBAL, Op.CARRIED, Op.PHI}
    at = here.flow.evaluations[0]
    return {
        node for node in arm.walk() if node.op in ends and not here.facts(at, x=node).is_number("x")
    }


def _read(here: Surroundings, node: ast.AST) -> _Branch | None:
    match node:
        case ast.If(test, [ast.Assign([ast.Name(one)], first)], []):
            return _Branch(node, node, test, first, None, f"{one} = ", one)
        case ast.If(
            test, [ast.Assign([ast.Name(one)], first)], [ast.Assign([ast.Name(two)], second)]
        ):
            same = one == two
            return _Branch(node, node, test, first, second, f"{one} = ") if same else None
        case ast.If(test, [ast.Return(ast.expr() as first)], [ast.Return(ast.expr() as second)]):
            return _Branch(node, node, test, first, second, "return ")
        case ast.If(test, [ast.Return(ast.expr() as first)], []):
            block = next((b for b in _blocks(here, node) if node in b), [])
            behind = block[block.index(node) + 1 :]
            match behind:
                case [ast.Return(ast.expr() as second) as last]:
                    return _Branch(node, last, test, first, second, "return ")
        case ast.IfExp(test, first, second):
            return _Branch(node, node, test, first, second, "")
    return None


def _blocks(here: Surroundings, node: ast.stmt) -> list[list[ast.stmt]]:
    outer = here.parents.get(id(node), here.flow.function)
    return [b for name in ("body", "orelse") if isinstance(b := getattr(outer, name, None), list)]


def _lines_of(here: Surroundings, branch: _Branch) -> tuple[int, int, int, int] | None:
    if isinstance(branch.code, ast.expr):
        return here.span(branch.code)
    assert isinstance(branch.until, ast.stmt)  # noqa: S101 - both are statements
    first, last = here.whole_lines(branch.code), here.whole_lines(branch.until)
    comments = holds_comment("".join(here.lines), here.lines, branch.code)
    if first is None or last is None or comments:
        return None
    return first[0], 0, last[2], last[3]


def _is_small(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether an arm computes a tensor of its own with a few operators and nothing else."""
    node = here.value(code)
    if node is None or not here.is_tensor(code) or not is_pure(here, node):
        return False
    parts = list(node.walk())
    # What ``x[mask]`` has none of is no number: its mean is NaN, and so is the gradient.
    if any(part.op in _OF_ANOTHER_SHAPE or _picks(here, part) for part in parts):
        return False
    work = [p for p in parts if p.op in operators.TABLE and p.op not in operators.VIEWS]
    return len(work) <= _MOST_WORK


def _picks(here: Surroundings, node: Node) -> bool:
    return (
        node.op == Op.GETITEM
        and here.facts(here.flow.evaluations[0], m=node.args[1]).is_tensor("m") in {True, None}
        and node.args[1].op not in {Op.CONST, Op.SLICE, Op.TUPLE}
    )


def _divides_by_tested(here: Surroundings, branch: _Branch) -> bool:
    """Tell whether an arm divides by what the test compares: by zero, where it is not taken."""
    tested = here.value(branch.test)
    compared = set() if tested is None else {id(part) for part in tested.walk()}
    for arm in (branch.first, branch.second):
        node = None if arm is None else here.value(arm)
        for part in [] if node is None else node.walk():
            if part.op in {"div", "reciprocal"} and id(part.args[-1]) in compared:
                return part.args[-1].op != Op.CONST
    return False


def _as_tensor(here: Surroundings, test: ast.expr) -> str:
    """Return a test as a tensor of one truth value, "" if it is more than that."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            text = _as_tensor(here, inner)
            plain = isinstance(inner, (ast.Call, ast.Name))
            return text and (f"~{text}" if plain else f"~({text})")
        case ast.BoolOp() | ast.Call(ast.Attribute(_, "item")):
            return ""
    node = here.value(test)
    return here.text(test) if node is not None and here.is_tensor(test) is not False else ""
