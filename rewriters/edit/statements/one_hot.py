"""Products with a one-hot encoding that ``scatter_`` writes into zeros."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.surroundings import COMPREHENSIONS, LOOPS
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_PRODUCTS = frozenset({"torch.matmul", "torch.mm"})
_CASTS = frozenset({"double", "float", "half", "bfloat16", "to", "type", "type_as"})


@dataclass(frozen=True, slots=True)
class _Encoding:
    """``codes = torch.zeros(len(ids), n)``, and ``codes.scatter_(1, ids, 1)`` behind it."""

    name: str
    made: ast.Assign
    filled: ast.stmt
    ids: ast.expr


def find_scattered_products(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``codes @ table`` where ``scatter_`` wrote a one to each row of ``codes``."""
    for encoding in _list_encodings(here):
        reads = _reads_behind(here, encoding)
        for node in (n for n in here.nodes if isinstance(n, ast.expr)):
            match _read_product(here, node):
                case ast.expr() as codes, ast.expr() as table if (
                    any(_strip_casts(codes) is read for read in reads)
                    and all(read.lineno >= node.lineno for read in reads)
                    and _is_behind(here, encoding, node)
                ):
                    yield from _propose(here, encoding, node, table, alone=len(reads) == 1)


def _propose(
    here: Surroundings, encoding: _Encoding, product: ast.expr, table: ast.expr, *, alone: bool
) -> Iterator[Proposal]:
    """Yield the rows of the table; the encoding goes where nothing else reads it."""
    ids, node, value = encoding.ids, here.value(table), here.value(encoding.ids)
    gone = _spans_of(here, encoding) if alone else []
    functional = here.functional or (f"{here.torch}.nn.functional" if here.torch else "")
    if node is None or value is None or gone is None or not functional:
        return
    facts = here.facts(here.evaluations[id(table)], table=node)
    rank = facts.ndim("table")
    if facts.is_tensor("table") is False or rank not in {None, 2}:
        return
    text = f"{functional}.embedding({_spell_ids(here, ids)}, {here.text(table)})"
    proven = {"one-column-index"} if _is_column(value) else set()
    yield Proposal(
        product,
        changes=(Change(here.span(product), text), *(Change(span, "") for span in gone)),
        shown=text,
        asked=(("index", here.text(ids)), ("table", here.text(table))),
        proven=frozenset(proven | ({"matrix-table"} if rank else set())),
    )


def _is_behind(here: Surroundings, encoding: _Encoding, product: ast.expr) -> bool:
    """Tell whether a product comes behind an encoding, of which the indices are still the same."""
    behind = here.list_behind(encoding.filled)
    outer = [product, *here.around(product)]
    if not any(statement in behind for statement in outer):
        return False
    inner = outer[: next(i for i, s in enumerate(outer) if s in behind) + 1]
    if any(isinstance(o, (*LOOPS, *COMPREHENSIONS, ast.Lambda)) for o in inner):
        return False  # where the indices may be those of another round
    first, last = encoding.filled.lineno, product.lineno
    read = {n.id for n in walk(encoding.ids) if isinstance(n, ast.Name)}
    return not any(
        isinstance(n, ast.Name)
        and not isinstance(n.ctx, ast.Load)
        and n.id in read
        and first <= n.lineno < last
        for n in here.nodes
    ) and not any(map(here.is_written_to, {*read, ast.unparse(encoding.ids)}))


def _spans_of(here: Surroundings, encoding: _Encoding) -> list[Span] | None:
    statements = dict.fromkeys((encoding.made, encoding.filled))
    spans = [here.whole_lines(statement) for statement in statements]
    return None if None in spans else [span for span in spans if span is not None]


def _list_encodings(here: Surroundings) -> Iterator[_Encoding]:
    """Yield the zeros that one call of ``scatter_`` along the second dimension writes ones to."""
    for made in here.nodes:
        match made:
            case ast.Assign([ast.Name(name)], value) if len(here.assigned.get(name, ())) == 1:
                pass
            case _:
                continue
        inner = _read_scatter(value)
        if inner is not None:
            of, ids = inner
            rows = _rows_of_zeros(here, of)
            fits = rows is not None and _has_as_many_rows(here, rows, ids)
            if fits and not _is_changed(here, name, None):
                yield _Encoding(name, made, made, ids)
            continue
        rows = _rows_of_zeros(here, value)
        behind = here.list_behind(made)
        if rows is None or not behind:
            continue
        match behind[0]:
            case ast.Expr(ast.Call() as call):
                found = _read_scatter(call)
            case _:
                continue
        if found is None or ast.unparse(found[0]) != name or not _is_in_place(call):
            continue
        if _has_as_many_rows(here, rows, found[1]) and not _is_changed(here, name, call):
            yield _Encoding(name, made, behind[0], found[1])


def _is_in_place(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "scatter_"


def _read_scatter(code: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Return what ones are scattered into, and where: ``x.scatter_(1, ids, 1)``."""
    match code:
        case ast.Call(ast.Attribute(of, "scatter_" | "scatter"), args, keywords):
            given = dict(zip(("dim", "index", "value"), args, strict=False))
            given |= {("value" if k.arg == "src" else k.arg or ""): k.value for k in keywords}
            dim, ids, value = (given.get(name) for name in ("dim", "index", "value"))
            known = len(given) == 3 and len(args) + len(keywords) == 3  # noqa: PLR2004
            if ids is None or dim is None or value is None or not known:
                return None
            if ast.unparse(dim) in {"1", "-1"} and ast.unparse(value) in {"1", "1.0"}:
                return of, ids
    return None


def _rows_of_zeros(here: Surroundings, code: ast.expr) -> ast.expr | None:
    """Return the number of rows of a new matrix of zeros, cast or moved or not."""
    while True:
        match code:
            case ast.Call(ast.Attribute(inner, method)) if method in {*_CASTS, "cuda", "npu"}:
                code = inner
            case _:
                break
    match code:
        case ast.Call(function, args) if here.dotted(function) == "torch.zeros":
            pass
        case ast.Call(ast.Attribute(_, "new_zeros"), args):
            pass
        case _:
            return None
    match args:
        case [ast.Tuple([rows, _]) | ast.List([rows, _])] | [rows, _]:
            return None if isinstance(rows, ast.Starred) else rows
    return None


def _is_changed(here: Surroundings, name: str, besides: ast.Call | None) -> bool:
    """Tell whether anything else writes to a tensor, or may: it is handed on only to be read."""
    for node in here.nodes:
        match node:
            case ast.keyword("out", ast.Name(whole)) | ast.For(ast.Name(whole)) if whole == name:
                return True
    return here.is_written_to(name, besides) or name in here.flow.captured


def _reads_behind(here: Surroundings, encoding: _Encoding) -> Sequence[ast.Name]:
    """Return the reads of an encoding, but for the call that fills it."""
    filled = {id(part) for part in walk(encoding.filled)}
    return [
        node
        for node in here.nodes
        if isinstance(node, ast.Name)
        and node.id == encoding.name
        and isinstance(node.ctx, ast.Load)
        and id(node) not in filled
    ]


def _read_product(here: Surroundings, node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    """Return the operands of a matrix product."""
    match node:
        case ast.BinOp(left, ast.MatMult(), right):
            return left, right
        case ast.Call(function, [left, right], []) if here.dotted(function) in _PRODUCTS:
            return left, right
        case ast.Call(ast.Attribute(left, "matmul" | "mm"), [right], []):
            return left, right
    return None, None


def _strip_casts(code: ast.expr) -> ast.Name | None:
    """Return the name of which other dtypes hold the same zeros and ones: ``codes.float()``."""
    while True:
        match code:
            case ast.Call(ast.Attribute(inner, method)) if method in _CASTS:
                code = inner
            case ast.Name():
                return code
            case _:
                return None


def _spell_ids(here: Surroundings, ids: ast.expr) -> str:
    """Return the indices without the dimension of their one column."""
    match ids:
        case ast.Call(ast.Attribute(inner, "unsqueeze"), [dim], []) if ast.unparse(dim) in {
            "1",
            "-1",
        }:
            return here.text(inner)
        case ast.Subscript(inner, ast.Tuple([ast.Slice(None, None, None), ast.Constant(None)])):
            return here.text(inner)
    return f"{here.text_of_owner(ids)}.squeeze(1)"


def _has_as_many_rows(here: Surroundings, rows: ast.expr, ids: ast.expr) -> bool:
    """Tell whether zeros have a row for each index: ``torch.zeros(ids.shape[0], n)``."""
    counted, node = here.value(rows), here.value(ids)
    if counted is None or node is None or counted.op not in {Op.SIZE, "py:len"}:
        return False
    of, dims = counted.args[0], counted.args[1:]
    if any(dim.value != 0 for dim in dims):
        return False
    return of == node or (node.op in {"unsqueeze", Op.GETITEM} and of == node.args[0])


def _is_column(ids: Node) -> bool:
    """Tell whether indices of two dimensions, as ``scatter_`` wants them, are one column."""
    match ids.op, [arg.value for arg in ids.args[1:]]:
        case "unsqueeze", [1 | -1]:
            return True
        case "argmax" | "argmin", [1 | -1, True]:
            return True
    return False
