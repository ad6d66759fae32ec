"""Work under a mask behind a question whether the mask is true anywhere: ``if mask.any():``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.choices import CHOOSE, target_of
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.selections import RESHAPED
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import list_indexes, walk
from npufix.rewriters.graph.nodes import Node
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_FORM_GUARD = "guarded"
_OF_SOME = operators.RANDOM | {"amax", "amin", "argmax", "argmin", "max", "median", "min", "mode"}
"""What raises where there are no elements, or draws the next numbers."""
_NEW = frozenset({"add", "bmm", "div", "einsum", "masked_fill", "matmul", "mul", "softmax", "sub"})
"""What returns memory of its own, whatever it is given."""
_MANY_WAITS = 3
"""Places that a mask selects: a test is one wait more, and saves theirs where nothing is set."""


def unguard(
    here: Surroundings, code: ast.If, test: ast.expr, body: list[ast.stmt]
) -> Proposal | None:
    """Return the body alone, if it does nothing anyway where the mask is false everywhere.

    Of ``if x is not None and mask.any():`` the other parts stay.
    """
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    masks = ((at, mask_of_test(here, part)) for at, part in enumerate(parts))
    at, mask = next(((at, mask) for at, mask in masks if mask is not None), (0, None))
    if mask is None or not all(_does_nothing_without(here, s, mask) for s in body):
        return None
    picks = [n for n in walk(*body) if isinstance(n, ast.Subscript)]
    if sum(_selects(here, pick.slice, mask) for pick in picks) >= _MANY_WAITS:
        return Proposal(code, CHOOSE)
    lines = here.whole_lines(code)
    before, behind = parts[:at], parts[at + 1 :]
    if any(isinstance(n, ast.Call | ast.Subscript) for part in behind for n in walk(part)):
        return None  # which was not always asked, and may fail or do something
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
    copied = [
        s.targets[0].id
        for s in body
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
    ]
    written = [code for code in map(target_of, body) if code is not None]
    alone = all(_is_held_alone(here, code, name) for name in copied)
    proven = {"may-be-copied"} if alone else set[str]()
    if all(_takes_writes(here, code) for code in written):
        proven.add("may-be-written")
    change = Change(lines, "".join(text))
    if before or behind:
        shown = " and ".join(map(here.text, (*before, *behind)))
        change = Change(here.span(test), shown)
    return Proposal(
        code,
        form=_FORM_GUARD,
        changes=(change,),
        shown=shown,
        asked=tuple((f"target{n}", here.text(code)) for n, code in enumerate(written)),
        proven=frozenset(proven),
    )


def mask_of_test(here: Surroundings, test: ast.expr, *, sure: bool = True) -> Node | None:
    """Return the mask of ``mask.any()`` and of ``mask.sum() > 0``, perhaps a likely one."""
    match here.value(test):
        case Node("any", [mask]):
            return mask
        case Node("gt" | "ne", [Node("sum" | "count_nonzero", [mask, *_]), Node(value=0)]):
            at = here.evaluations[id(test)]
            known = here.facts(at, x=mask).is_bool_tensor("x")
            return mask if known or (known is None and not sure) else None
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
    return bool(call.args) and _is_of_mask(here, call.args[0], mask)


def _is_of_mask(here: Surroundings, code: ast.expr, mask: Node) -> bool:
    """Tell whether code is a mask, or it with other dimensions: ``mask[..., None]``."""
    value = here.value(code)
    while value is not None and value is not mask and (value.op in RESHAPED or _is_to_bool(value)):
        value = value.args[0]
    return value is mask


def _is_to_bool(node: Node) -> bool:
    """Tell whether a value is a mask as bools: true where it was not zero."""
    return node.op == Op.CAST and node.args[1].value == "torch.bool"


def _selects(here: Surroundings, index: ast.expr, mask: Node) -> bool:
    """Tell whether an index selects nothing where the mask is false everywhere."""
    return any(_is_of_mask(here, i, mask) for i in list_indexes(index))


def _is_held_alone(here: Surroundings, code: ast.If, name: str) -> bool:
    """Tell whether a tensor is new, and only computed with under its name: a copy is as good."""
    reads = [n for n in here.flow.name_nodes if n.id == name and isinstance(n.ctx, ast.Load)]
    last = code.end_lineno or code.lineno
    inside = next((n for n in reads if code.lineno <= n.lineno <= last), None)
    made = None if inside is None else here.value(inside)
    if inside is None or made is None or made.op not in _NEW or here.is_written_to(name):
        return False
    held = here.evaluations[id(inside)].names
    if [other for other, value in held.items() if value is made] != [name]:
        return False  # ``scores = kept = q @ k``
    same = (n for n in reads if here.value(n) is made)
    return all(_only_computes(here, n) for n in same)


def _only_computes(here: Surroundings, read: ast.Name) -> bool:
    match here.parents.get(id(read)):
        case ast.BinOp() | ast.Compare():
            return True
        case ast.Attribute() as method:
            call = here.parents.get(id(method))
            return isinstance(call, ast.Call) and call.func is method and _is_new(here, call)
        case ast.Call() as call:
            return _is_new(here, call)
    return False


def _is_new(here: Surroundings, call: ast.Call) -> bool:
    value = here.value(call)
    return value is not None and value.op in _NEW | {Op.SIZE, Op.RANK, "where"}
