"""Reductions one behind the other, each along one dimension."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_ALIKE = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}
"""What reduces several dimensions at once, for what reduces one."""
_WORDS = frozenset({"dim", "axis", "keepdim"})


@dataclass(frozen=True, slots=True)
class _Reduction:
    """``x.sum(dim, keepdim)``, or ``x.max(dim, keepdim)[0]``; no ``dim`` for all of them."""

    of: ast.expr
    name: str
    dim: int | None
    keepdim: bool


def find_reductions(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``x.sum(3).sum(2)`` and ``x.max(-1)[0].max(-1)[0]``, the longest chains."""
    steps = [(n, r) for n in here.nodes if isinstance(n, ast.expr) and (r := _reduction(here, n))]
    before = {id(r.of): found for _, r in steps if (found := _statement_before(here, r.of))}
    inner = {id(r.of) for _, r in steps} | {id(code) for code, _ in before.values()}
    for node, reduction in steps:
        if id(node) in inner:
            continue
        chain, gone = [reduction], list[Change]()
        while True:
            of, lines = before.get(id(chain[-1].of), (chain[-1].of, None))
            if (last := _reduction(here, of)) is None:
                break
            chain.append(last)
            gone += [] if lines is None else [Change(lines, "")]
        if len(chain) < 2 or not here.is_tensor(chain[-1].of):  # noqa: PLR2004 - two are a chain
            continue
        text = _as_one(here, chain[::-1])
        if text is not None:
            form = {"sum": "sums", "mean": "means"}.get(reduction.name, "extremes")
            changes = (*gone, Change(here.span(node), text))
            yield Proposal(node, form=form, changes=changes, shown=text)


def _statement_before(here: Surroundings, code: ast.expr) -> tuple[ast.expr, Span] | None:
    """Return what a name stands for, and its lines, where the next statement binds it anew.

    ``loss = loss.sum(2)``, for the ``loss`` in ``loss = loss.sum(1)`` below it.
    """
    if not isinstance(code, ast.Name):
        return None
    statement = here.statement_of(code)
    block = here.block_of(statement)
    at = block.index(statement)
    match statement, block[at - 1] if at else None:
        case ast.Assign([ast.Name(bound)]), ast.Assign([ast.Name(name)], value) as before:
            reads = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
            lines = here.whole_lines(before)
            if bound == name == code.id and len(reads) == 2 and lines is not None:  # noqa: PLR2004 - target and operand
                return value, lines
    return None


def _reduction(here: Surroundings, code: ast.expr) -> _Reduction | None:
    match code:
        case ast.Subscript(inner, ast.Constant(0)) | ast.Attribute(inner, "values"):
            found = _call(here, inner)
            picks = found is not None and found.name in {"max", "min"} and found.dim is not None
            return found if picks else None
        case ast.Call():
            found = _call(here, code)
            whole = found is not None and (found.name in {"sum", "mean"} or found.dim is None)
            return found if whole else None
    return None


def _call(here: Surroundings, code: ast.expr) -> _Reduction | None:
    match code:
        case ast.Call(ast.Attribute(of, name), given, words) if name in _ALIKE:
            if here.flow.names.dotted(code.func) == f"torch.{name}":
                of, given = (given[0], given[1:]) if given else (of, given)
        case _:
            return None
    named = {str(k.arg): _literal(k.value) for k in words}
    dims = [_literal(g) for g in given]
    if not named.keys() <= _WORDS or len(dims) > 2:  # noqa: PLR2004 - dim and keepdim
        return None
    if len(dims) == 2:  # noqa: PLR2004 - same
        named["keepdim"] = dims.pop()
    found = dims[0] if dims else named.get("dim", named.get("axis"))
    asked = bool(dims) or not named.keys().isdisjoint({"dim", "axis"})
    keepdim = named.get("keepdim", False)
    if (asked and type(found) is not int) or type(keepdim) is not bool or (keepdim and not asked):
        return None
    return _Reduction(of, name, found if isinstance(found, int) and asked else None, keepdim)


def _literal(code: ast.expr) -> object:
    try:
        return ast.literal_eval(code)
    except ValueError:
        return code


def _as_one(here: Surroundings, chain: list[_Reduction]) -> str | None:
    """Return one reduction for some, the first of them first, ``None`` where there is none."""
    first, last = chain[0], chain[-1]
    if any(
        r.name != first.name or (r.dim is not None and r.keepdim != first.keepdim) for r in chain
    ):
        return None
    if any(r.dim is None for r in chain[:-1]):
        return None  # one number is left: there is nothing to reduce
    owner = here.text(first.of)
    if isinstance(first.of, ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp | ast.IfExp):
        owner = f"({owner})"
    if last.dim is None:
        return f"{owner}.{first.name}()"  # of means, too: all rows are of one length
    dims: list[int] = []
    for one in chain:
        assert one.dim is not None  # noqa: S101 - the last one has a dimension, and so the others
        dim = one.dim if first.keepdim else _in_whole(one.dim, dims)
        if dim is None or dim in dims or (dims and (dim < 0) is not (dims[0] < 0)):
            return None
        dims.append(dim)
    kept = ", keepdim=True" if first.keepdim else ""
    places = ", ".join(map(str, sorted(dims)))
    return f"{owner}.{_ALIKE[first.name]}(({places}){kept})"


def _in_whole(dim: int, gone: list[int]) -> int | None:
    """Return where a dimension of what is left was before others were reduced.

    ``1`` is 2 where 1 is gone; ``-1`` is -2 where -1 is gone. From the other end nothing is known.
    """
    if any((dim < 0) is not (other < 0) for other in gone):
        return None
    for other in sorted(gone, key=abs):
        if (dim < 0 and dim <= other) or (dim >= 0 and dim >= other):
            dim += -1 if dim < 0 else 1
    return dim
