"""Formulas that are computed for what a mask selects, and written back through it.

``y[m] = torch.exp(x[m]) * 2`` is a ``where`` of all elements.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.masked.rows import find_changed_columns
from npufix.rewriters.edit.statements.masked.sums import (
    COPIED,
    OtherUseError,
    find_selections,
    name_of_mask,
    require_inside,
    tells_finite,
    without_masks,
)
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.surroundings import LOOPS
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_LINEAR = frozenset({"add", "sub", "neg", "clone"})
_SCALED = frozenset({"mul", "div"})
_RAISING = frozenset({"floordiv", "mod", "remainder", "fmod", "floor_divide"})
"""Of integers they fail where one is zero: nobody asked for the elements left out."""
_OF_ONE_SHAPE = frozenset({"row-mask", "same-rank-mask"})
"""One of these is proven where a mask has the dimensions that the formula needs."""
_SINGULAR = frozenset({"log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt"})
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_ABOUT = frozenset({"shape", "size", "dtype", "device", "dim", "ndim"})


def find_masked_formulas(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``y[m] = f(x[m])`` where ``f`` computes element by element, or writes columns."""
    for proposal, _ in _find_formulas(here):
        yield proposal
    yield from find_changed_columns(here)


def reads_of_formulas(here: Surroundings) -> set[int]:
    """Return the ids of the selections that such a formula surely does without."""
    found = ((p.proven, reads) for p, reads in _find_formulas(here))
    return {read for proven, reads in found if proven & _OF_ONE_SHAPE for read in reads}


def _find_formulas(here: Surroundings) -> Iterator[tuple[Proposal, set[int]]]:
    if not here.imports_torch:
        return
    for node in here.nodes:
        match node:
            case ast.Assign([ast.Subscript() as target], value):
                sign = ""
            case ast.AugAssign(ast.Subscript() as target, how, value) if type(how) in _SIGNS:
                sign = _SIGNS[type(how)]
            case _:
                continue
        plain = isinstance(value, ast.Subscript) and not sign  # a copy, and no formula
        if not plain and isinstance(target.value, (ast.Name, ast.Attribute)):
            try:
                yield _whole(here, node, target, value, sign)
            except OtherUseError:
                continue


def _whole(
    here: Surroundings,
    statement: ast.Assign | ast.AugAssign,
    target: ast.Subscript,
    value: ast.expr,
    sign: str,
) -> tuple[Proposal, set[int]]:
    """Return the formula of all elements, and the selections that it does without.

    Raises:
        OtherUseError: it is no such formula, or somebody else needs what was selected.

    """
    formula, mask = here.value(value), here.value(target.slice)
    if formula is None or mask is None or formula.op in {Op.CONST, "" if sign else Op.GETITEM}:
        raise OtherUseError
    parts, selecting = find_selections(here, formula)
    if selecting is not mask or any(part.op in _RAISING for part in parts):
        raise OtherUseError
    reads, changes = _reads(here, statement, parts, mask)
    name, written = here.text(target.slice), here.text(target.value)
    more = _more_dims(here, target, mask, parts)
    if more:
        proven: set[str] | None = _proven_of_rows(here, target, mask)
        name = f"{here.text_of_owner(target.slice)}[..., {', '.join(['None'] * more)}]"
    else:
        proven = _proven(here, target, mask, [read.value for read in reads.values()])
    if tells_finite(mask) or proven is None:
        raise OtherUseError
    no_gradients = here.facts(here.flow.evaluations[0]).is_without_gradients()
    if (_is_linear(parts) and sign not in {"*", "/"}) or no_gradients:
        proven |= {"finite-outside"}
    is_own = _is_own(here, statement, target)
    filled = _filled(here, reads, parts, here.text(target.slice), name)
    filled |= {
        read: name for read in reads if sign == "/" and read == id(value)
    }  # ``y[m] /= n[m]``
    copied = ""
    if not (is_own or no_gradients):
        if not _is_linear(parts):
            same = {i for i, read in reads.items() if here.text(read.value) == written}
            filled = {**dict.fromkeys(same, COPIED), **filled}
            spans = {here.span(reads[i]) for i in same}
            changes = [
                Change(c.span, f"{c.text}.{COPIED}") if c.span in spans else c for c in changes
            ]
        copied = f".{COPIED}" if sign in {"*", "/"} else ""
    text = without_masks(here, value, set(reads), filled)
    if "\n" in text and "#" not in text:
        text = ast.unparse(value)  # the lines of brackets that are gone
    if sign:
        simple = isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
        text = f"{written}{copied} {sign} {text if simple else f'({text})'}"
    chosen = f"torch.where({name}, {text}, {written})"
    new = f"{written} = {chosen}" if is_own else f"{written}.copy_({chosen})"
    others = (here.text(read.value) for read in reads.values())
    other = next((text for text in others if text != written), written)
    proposal = Proposal(
        statement,
        form=("changed" if sign else "computed") + ("_rows" if more else ""),
        changes=(*changes, Change(here.span(statement), new)),
        shown=new,
        asked=(("mask", here.text(target.slice)), ("x", written), ("y", other)),
        proven=frozenset(proven),
    )
    return proposal, set(reads)


def _filled(
    here: Surroundings, reads: dict[int, ast.Subscript], parts: set[Node], mask: str, rows: str
) -> dict[int, str]:
    """Return the selections that divide, or have a logarithm or a root, each with its mask.

    What the mask leaves out may be zero there, and zero times infinity is no gradient.
    """
    found: dict[int, str] = {}
    for one, read in reads.items():
        own = here.value(read)
        wide = {part for part in parts if part.op == "unsqueeze" and part.args[0] is own}
        for node in {own, *wide} - {None}:
            users = [part for part in parts if node in part.args]
            divides = any(u.op == "div" and u.args[1] is node for u in users)
            if divides or any(u.op in _SINGULAR for u in users):
                found[one] = mask if node in wide else rows
    return found


def _more_dims(here: Surroundings, target: ast.Subscript, mask: Node, parts: set[Node]) -> int:
    """Return how many dimensions what is written to has more than the mask, 0 if none are known.

    A mask of rows is one as well where the formula widens what it selects: ``n[m][..., None]``.
    """
    at = here.evaluations.get(id(target.value))
    known = None if at is None else here.facts(at, x=at.node, mask=mask).more_dims("x", "mask")
    if known is None:
        return int(any(part.op == "unsqueeze" for part in parts))
    return max(known, 0)


def _proven_of_rows(here: Surroundings, target: ast.Subscript, mask: Node) -> set[str] | None:
    """Return the conditions that the source proves, ``None`` if it refutes one."""
    at = here.evaluations[id(target.value)]
    facts = here.facts(at, x=at.node, mask=mask)
    is_tensor, is_mask = facts.is_tensor("x"), facts.is_bool_tensor("mask")
    if is_tensor is False or is_mask is False:
        return None
    known = {"row-mask": facts.more_dims("x", "mask") is not None}
    known |= {"boolean-mask": bool(is_mask), "is-tensor": bool(is_tensor)}
    return {name for name, sure in known.items() if sure}


def _reads(
    here: Surroundings, statement: ast.stmt, parts: set[Node], mask: Node
) -> tuple[dict[int, ast.Subscript], list[Change]]:
    """Return the selections, and what becomes of those that other statements make.

    Raises:
        OtherUseError: they are needed besides, or may have changed since.

    """
    inside = {id(n) for n in ast.walk(statement)}
    block = here.block_of(statement)
    reads: dict[int, ast.Subscript] = {}
    changes = []
    for evaluation in (e for e in here.flow.evaluations if e.node in parts):
        code = evaluation.code
        if not isinstance(code, ast.expr):
            continue
        if here.parents.get(id(code)) is not statement:
            require_inside(here, code, parts)
        if not isinstance(code, ast.Subscript) or evaluation.node.op != Op.GETITEM:
            continue
        if here.value(code.slice) is not mask or not isinstance(
            code.value, (ast.Name, ast.Attribute)
        ):
            raise OtherUseError
        reads[id(code)] = code
        if id(code) in inside:
            continue
        _require_unchanged(here, code, block, statement)
        changes.append(Change(here.span(code), here.text(code.value)))
    if not reads:
        raise OtherUseError
    return reads, changes


def _require_unchanged(
    here: Surroundings, read: ast.Subscript, block: list[ast.stmt], until: ast.stmt
) -> None:
    """Refuse a selection of which another statement may have changed the tensor or the mask."""
    made = here.statement_of(read)
    if made not in block or not name_of_mask(here, read.slice):
        raise OtherUseError
    between = block[block.index(made) : block.index(until)]
    held = {ast.unparse(part) for part in (read.value, read.slice)}
    if not between or not all(_only_binds(s) or _writes_apart(here, s, held) for s in between):
        raise OtherUseError
    match made:
        case ast.Assign([ast.Name(kept)], ast.Subscript(ast.Name(old))) if kept == old:
            raise OtherUseError  # other statements may mean the one or the other


def _only_binds(statement: ast.stmt) -> bool:
    """Tell whether a statement computes a value and writes nowhere: ``d = x[m]``."""
    match statement:
        case ast.Assign([ast.Name()]):
            names = (n.attr for n in ast.walk(statement) if isinstance(n, ast.Attribute))
            return not any(name.endswith("_") for name in names)
    return False


def _writes_apart(here: Surroundings, statement: ast.stmt, kept: set[str]) -> bool:
    """Tell whether a statement writes into a tensor that the function has made: ``new[n] = y``."""
    match statement:
        case ast.Assign([ast.Subscript(ast.Name() as whole)], _):
            made = here.value(whole)
            own = made is not None and made.op in operators.FRESH and made.op != "clone"
            calls = (n.attr for n in ast.walk(statement) if isinstance(n, ast.Attribute))
            return own and whole.id not in kept and not any(call.endswith("_") for call in calls)
    return False


def _proven(
    here: Surroundings, target: ast.Subscript, mask: Node, bases: list[ast.expr]
) -> set[str] | None:
    """Return the conditions that the source proves, ``None`` if it refutes one."""
    proven, same = set[str](), list[bool | None]()
    of_torch: list[bool | None] = []
    for code in (target.value, *bases):
        at = here.evaluations.get(id(code))
        if at is None:
            return None
        facts = here.facts(at, x=at.node, mask=mask)
        rank = facts.same_ndim("x", "mask")
        by_element = facts.is_test_of("mask", "x") or facts.covers("mask", "x")
        same.append(True if rank is None and (by_element or facts.ndim("x") == 1) else rank)
        of_torch.append(facts.is_tensor("x"))
        if facts.is_test_of("mask", "x") or facts.is_bool_tensor("mask"):
            proven.add("boolean-mask")
    if False in same or False in of_torch or True not in {*of_torch, "boolean-mask" in proven}:
        return None
    if all(same):
        proven.add("same-rank-mask")
    if of_torch[0]:
        proven.add("is-tensor")
    return proven


def _is_linear(parts: set[Node]) -> bool:
    """Tell whether no gradient can be anything but a number times that of the result."""
    return all(
        part.op in {*_LINEAR, Op.GETITEM}
        or (part.op in _SCALED and part.args[-1].op == Op.CONST and part.args[-1].value != 0)
        for part in parts
        if part.op not in {Op.CONST, Op.COMPARE}
    )


def _is_own(here: Surroundings, statement: ast.stmt, target: ast.Subscript) -> bool:
    """Tell whether the tensor was made for this, and nobody else has got hold of it yet."""
    at = here.evaluations.get(id(target.value))
    if not isinstance(target.value, ast.Name) or at is None:
        return False
    name, block = target.value.id, here.block_of(statement)
    around = any(isinstance(outer, LOOPS) for outer in here.around(statement))
    made = [
        s
        for s in block[: block.index(statement)]
        if isinstance(s, ast.Assign) and any(ast.unparse(t) == name for t in s.targets)
    ]
    if around or len(made) != 1 or len(made[0].targets) != 1:
        return False
    value = here.value(made[0].value)
    if value is None or value.op not in operators.FRESH or value.op == "clone":
        return False
    begun = block.index(made[0])
    for one in block[begun + 1 : block.index(statement)]:
        for node in ast.walk(one):
            if isinstance(node, ast.Name) and node.id == name and not _is_harmless(here, node):
                return False
    return True


def _is_harmless(here: Surroundings, name: ast.Name) -> bool:
    """Tell whether nothing keeps a tensor: it is written to, or asked for its shape."""
    match here.parents.get(id(name)):
        case ast.Subscript(base, _, ast.Store()):
            return base is name
        case ast.Attribute(_, about):
            return about in _ABOUT
    return False
