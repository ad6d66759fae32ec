"""Places that a mask marks, where a number is written to all of them: the mask itself says where.

::

    rows, columns = torch.where(x > limit)      y[x > limit] = 0
    y[rows, columns] = 0

    at = (kind == n).nonzero().squeeze(1)       at = kind == n
    y[at, 3] = 1                                y[:, 3][at] = 1
    z[at] = 0                                   z[at] = 0
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import is_number
from npufix.rewriters.edit.statements.host.waits.limits import is_written_number
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.surroundings import PRIMARIES
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import list_indexes, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Evaluation

_FORM = "written"
_BOOLEAN = operators.COMPARISONS | {
    "bitwise_not", "invert", "isfinite", "isinf", "isnan", "logical_and", "logical_not",
    "logical_or",
}  # fmt: skip
_TO_NUMBERS = frozenset({"byte", "float", "int", "long"})
_MATRIX, _TUPLE, _VECTOR = "matrix", "tuple", "vector"


def write_by_mask(here: Surroundings, found: Evaluation, mask: ast.expr) -> Proposal | None:
    """Return how ``y[mask] = 1`` writes what ``y[places] = 1`` does, if places do nothing else."""
    if not isinstance(found.code, ast.Call):
        return None
    kind, code = _shape_of(here, found)
    outer = here.parents.get(id(code))
    if isinstance(outer, ast.Subscript) and outer.slice is code and kind != _MATRIX:
        written = here.statement_of(outer)
        if not _is_write(here, written, outer):
            return None
        text = _text_of(here, mask)
        return _propose(here, found.code, mask, [Change(here.span(code), text)], text)
    bound = here.statement_of(code)
    match bound:
        case ast.Assign([ast.Name(name)], value) if value is code:
            names = [name]
        case ast.Assign([ast.Tuple(targets)], value) if value is code and kind == _TUPLE:
            names = [t.id for t in targets if isinstance(t, ast.Name)]
            if len(names) != len(targets) or len(set(names)) != len(names):
                return None
        case _:
            return None
    return _write_named(here, found.code, mask, bound, names, kind)


def _shape_of(here: Surroundings, found: Evaluation) -> tuple[str, ast.expr]:
    """Return how places are held, and the code of all of it: ``torch.where(x)[0]`` is a vector."""
    code = found.code
    assert isinstance(code, ast.expr)  # noqa: S101 - a call
    kind = _TUPLE if found.node.args[-1].value is True else _MATRIX
    outer = here.parents.get(id(code))
    match outer:
        case ast.Subscript(_, ast.Constant(0)) if kind == _TUPLE:
            return _VECTOR, outer
        case ast.Subscript(_, ast.Tuple([ast.Slice(None, None, None), ast.Constant(0)])) if (
            kind == _MATRIX
        ):
            return _VECTOR, outer
    call = here.parents.get(id(outer)) if isinstance(outer, ast.Attribute) else None
    match call:
        case ast.Call(ast.Attribute(_, "flatten"), [], []) if kind == _MATRIX:
            return _VECTOR, call
        case ast.Call(
            ast.Attribute(_, "squeeze"),
            [ast.Constant(1) | ast.UnaryOp(ast.USub(), ast.Constant(1))],
        ) | ast.Call(
            ast.Attribute(_, "view" | "reshape"), [ast.UnaryOp(ast.USub(), ast.Constant(1))]
        ) if kind == _MATRIX:
            return _VECTOR, call
    return kind, code


def _write_named(  # noqa: PLR0913, PLR0917 - what is bound, and how
    here: Surroundings,
    call: ast.Call,
    mask: ast.expr,
    bound: ast.Assign,
    names: Sequence[str],
    kind: str,
) -> Proposal | None:
    after = here.list_behind(bound)
    writes = _list_writes(here, after, names, kind)
    if not writes:
        return None
    text, last = _text_of(here, mask), writes[-1][0]
    kept = isinstance(mask, ast.Name) and text == mask.id
    if kept and (len(writes) > 1 or is_named(after[: after.index(last) + 1], text)):
        text = f"{text}.clone()"  # what is written to may be a view of it
    lines = here.whole_lines(bound)
    changes = [change for _, change in writes]
    if len(writes) == 1 and after[0] is last and lines is not None:
        head = changes[0].text.removesuffix(names[0])
        changes = [Change(lines, ""), Change(changes[0].span, f"{head}{text}")]
    elif len(names) == 1:
        changes.append(Change(here.span(bound.value), text))
    else:
        return None  # the mask has no name yet
    return _propose(here, call, mask, changes, text)


def _list_writes(
    here: Surroundings, after: Sequence[ast.stmt], names: Sequence[str], kind: str
) -> list[tuple[ast.stmt, Change]]:
    """Return the statements that write a number to places, and their new index.

    There are none where places are used for anything else, or in an inner block or function.
    """
    uses = [n for n in here.nodes if isinstance(n, ast.Name) and n.id in names]
    loads = [n for n in uses if isinstance(n.ctx, ast.Load)]
    if len(uses) != len(loads) + len(names):
        return []
    found: list[tuple[ast.stmt, Change]] = []
    for statement in after:
        held = [n for n in walk(statement) if n in loads]
        place = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not held:
            continue
        if not isinstance(place, ast.Subscript) or not _is_write(here, statement, place):
            return []
        rest = _rest_of(place, names, kind)
        if rest is None or any(n in loads for n in walk(place.value)):
            return []
        loads = [n for n in loads if n not in held]
        cut = f"{':, ' * (len(names) if kind == _TUPLE else 1)}{rest}][" if rest else ""
        found.append((statement, Change(here.span(place.slice), f"{cut}{names[0]}")))
    return [] if loads else found


def _rest_of(place: ast.Subscript, names: Sequence[str], kind: str) -> str | None:
    """Return the text of what an index takes behind the places, ``None`` for other indexes."""
    items = list_indexes(place.slice)
    if kind == _MATRIX:  # ``y[at[:, 0], at[:, 1]]``
        columns = [f"{names[0]}[:, {n}]" for n in range(len(items))]
        several = len(items) > 1
        return "" if several and list(map(ast.unparse, items)) == columns else None
    texts = list(map(ast.unparse, items))
    if texts[: len(names)] != list(names):
        return None
    if kind == _TUPLE and len(names) == 1 and len(items) > 1:
        return None  # ``y[at, 0]`` of the tuple itself
    rest = items[len(names) :]
    if not all(isinstance(r, ast.Slice) or _is_whole_number(r) for r in rest):
        return None
    whole = all(ast.unparse(r) == ":" for r in rest)
    return "" if whole else ", ".join(map(ast.unparse, rest))


def _is_whole_number(code: ast.expr) -> bool:
    return is_written_number(code) and isinstance(ast.literal_eval(code), int)


def _is_write(here: Surroundings, statement: ast.stmt, place: ast.Subscript) -> bool:
    """Tell whether a statement writes a number, ``y[at] = 1``."""
    match statement:
        case ast.Assign([target], value) if target is place:
            known = isinstance(value, ast.Constant) and isinstance(value.value, bool)
            return known or is_written_number(value) or _is_number(here, value)
    return False


def _is_number(here: Surroundings, code: ast.expr) -> bool:
    value = here.value(code)
    return value is not None and is_number(value)


def _text_of(here: Surroundings, mask: ast.expr) -> str:
    """Return a mask of bool: what counts numbers, or is one of another type, is compared."""
    match mask:  # ``(x == 0).long()``
        case ast.Call(ast.Attribute(inner, how), [], []) if how in _TO_NUMBERS and _is_bool(
            here, inner
        ):
            mask = inner
    if _is_bool(here, mask):
        return here.text(mask)
    text = here.text(mask) if isinstance(mask, PRIMARIES) else f"({here.text(mask)})"
    return f"{text} != 0"


def _is_bool(here: Surroundings, mask: ast.expr) -> bool:
    value = here.value(mask)
    if value is None:
        return False
    if value.op in _BOOLEAN and here.is_tensor(mask) is not False:
        return True
    at = here.evaluations[id(mask)]
    return here.facts(at, x=value).is_bool_tensor("x") is True


def is_named(between: Sequence[ast.stmt], name: str) -> bool:
    """Tell whether something between two statements may change what a name is."""
    return any(re.search(rf"\b{name}\b", ast.unparse(s)) for s in between)


def _propose(
    here: Surroundings, call: ast.Call, mask: ast.expr, changes: list[Change], text: str
) -> Proposal:
    sure = any(
        here.is_tensor(n) for n in walk(mask) if isinstance(n, (ast.Name, ast.Attribute, ast.Call))
    )
    writes = [c.text for c in changes if c.text]
    shown = f"y[{text}] = ..." if len(changes) == 1 or not writes else "; ".join(writes)
    return Proposal(
        call,
        form=_FORM,
        changes=tuple(changes),
        shown=shown,
        proven=frozenset({"is-tensor"} if sure else ()),
    )
