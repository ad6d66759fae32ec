"""What a loop runs over: a range, or the rows of a tensor, however they are taken.

``x.unbind(1)`` is ``x`` whose second dimension counts the rounds, ``x.chunk(4, 0)`` is
``x.unflatten(0, (4, -1))``, ``zip`` takes several side by side, and ``for a, b in x`` has the
columns of ``x``.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import (
    CannotBatchError,
    Domain,
    Kind,
    Value,
    everything,
    integer,
    literal,
    method,
    name,
    owned,
    parse,
    shift,
    subscript,
)
from npufix.rewriters.edit.loops.listed import are_borders, list_for_all
from npufix.rewriters.graph.modules.syntax import last_name, list_indexes, list_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.graph.nodes import Node

NO_DOMAIN = "it runs over something else than range, enumerate, zip or the rows of a tensor"
STEPS = "it counts in steps, or from a number that is not written out"
_COUNTER = "_round"
"""What counts the rounds of a loop that has no name for that."""
_PARTS = frozenset({"chunk", "split", "unbind"})


def read_domain(target: ast.expr, items: ast.expr, facts: Facts) -> Domain:
    """Return what a loop runs over.

    Raises:
        CannotBatchError: it is none of the kinds that count.

    """
    return replace(_read_domain(target, items, facts), over=(target, items))


def _read_domain(target: ast.expr, items: ast.expr, facts: Facts) -> Domain:
    node = facts.node(items)
    match items:
        case ast.Call(ast.Name("range"), args, []) if isinstance(target, ast.Name) and args:
            return _range(target.id, args, facts)
        case ast.Call(ast.Name("enumerate"), [over], []):
            match target:
                case ast.Tuple([ast.Name(counter), element]):
                    found = _elements(element, over, facts)
                    return replace(found, names={counter: read_counter(counter), **found.names})
        case _ if node is not None:
            return _elements(target, items, facts)
    raise CannotBatchError(NO_DOMAIN)


def read_counter(counter: str, offset: int = 0) -> Value:
    """Return the value of a name that counts."""
    return Value(Kind.NUMBER, name(counter), 0, integer=True, offset=offset)


def _range(counter: str, args: list[ast.expr], facts: Facts) -> Domain:
    start, stop = (ast.Constant(0), args[0]) if len(args) == 1 else (args[0], args[1])
    node = facts.node(stop)
    if len(args) > 2 or not isinstance(start, ast.Constant) or node is None:  # noqa: PLR2004
        raise CannotBatchError(STEPS)
    if type(start.value) is not int or start.value < 0:
        raise CannotBatchError(STEPS)
    return Domain(start.value, stop, node, {counter: read_counter(counter)})


def _elements(target: ast.expr, over: ast.expr, facts: Facts) -> Domain:  # noqa: PLR0911 - one case a kind
    match target, over:
        case ast.Tuple(names), ast.Call(ast.Name("zip"), parts, []) if len(names) == len(parts):
            both = zip(names, parts, strict=True)
            return _side_by_side([_elements(n, part, facts) for n, part in both])
        case ast.Name(element), ast.Call(ast.Attribute(vector, "tolist"), [], []) if isinstance(
            vector, (ast.Name, ast.Attribute)
        ):  # as numbers or one by one, they are the entries of a vector
            node = facts.node(vector)
            rank = facts.rank(vector)
            if node is None or (isinstance(rank, int) and rank != 1):
                raise CannotBatchError(NO_DOMAIN)
            return _rounds(vector, node, 0, {element: Value(Kind.ENTRY, vector, 0)}, facts)
        case ast.Name(element), ast.Name() | ast.Attribute():
            node = facts.node(over)
            assert node is not None  # noqa: S101 - it is read where it stands
            if node.op == "unbind":  # which has made tensors of one shape
                rows = parse(f"torch.stack({ast.unparse(over)})")
                return _rounds_of_unbound(element, rows, node, facts)
            if not facts.is_tensor(over):
                value = Value(Kind.ENTRY, over, shift(facts.rank(over), -1))
                length = facts.flow.graph.node("py:len", node)
                return Domain(0, ast.Call(name("len"), [over], []), length, {element: value})
            return _rows(target, over, facts)
        case ast.Tuple(names), ast.Name() | ast.Attribute() if not facts.is_tensor(over):
            return _sizes(names, over, facts)
        case _, ast.Call() if last_name(over.func) in _PARTS and isinstance(target, ast.Name):
            return _parts(target.id, over, facts)
    return _rows(target, over, facts)


def _rows(target: ast.expr, over: ast.expr, facts: Facts) -> Domain:
    """Return a loop over the rows of a tensor, each as it is or taken apart."""
    node, one = facts.node(over), shift(facts.rank(over), -1)
    if node is None or facts.is_tensor(over) is not True or _has_effect(over):
        raise CannotBatchError(NO_DOMAIN)
    match target:
        case ast.Name(element):
            names = {element: Value(Kind.ROWS, over, one)}
        case ast.Tuple(elements) if all(isinstance(e, ast.Name) for e in elements):
            columns = [subscript(over, [everything(), literal(n)]) for n in range(len(elements))]
            names = {
                e.id: Value(Kind.ROWS, column, shift(one, -1), source=over)
                for e, column in zip(elements, columns, strict=True)
                if isinstance(e, ast.Name)
            }
        case _:
            raise CannotBatchError(NO_DOMAIN)
    return _rounds(over, node, 0, names, facts)


def _sizes(names: list[ast.expr], over: ast.expr, facts: Facts) -> Domain:
    """Return a loop over tuples of a list: ``for h, w in sizes:``, which are borders of slices."""
    node = facts.node(over)
    bound = [n.id for n in names if isinstance(n, ast.Name)]
    if node is None or len(bound) < len(names) or not are_borders(bound, facts):
        raise CannotBatchError(NO_DOMAIN)
    length = facts.flow.graph.node("py:len", node)
    whole = (ast.Tuple(names, ast.Store()), over)
    domain = Domain(0, ast.Call(name("len"), [over], []), length, over=whole)
    return replace(domain, names={n: list_for_all(name(n), domain) for n in bound})


def _has_effect(code: ast.expr) -> bool:
    """Tell whether a call in code may change something, or may be another one each time."""
    called = (last_name(n.func) for n in ast.walk(code) if isinstance(n, ast.Call))
    return any(c.endswith("_") or c.startswith(("rand", "pop")) for c in called)


def _rounds(over: ast.expr, node: Node, dim: int, names: dict[str, Value], facts: Facts) -> Domain:
    """Return as many rounds as a dimension of a tensor is long."""
    graph = facts.flow.graph
    stop = parse(f"{owned(over)}.shape[{dim}]")
    return Domain(0, stop, graph.node("size", node, graph.constant(dim)), names)


def _rounds_of_unbound(element: str, rows: ast.expr, node: Node, facts: Facts) -> Domain:
    whole = node.args[0]
    rank = facts.shapes.rank(whole)
    value = Value(Kind.ROWS, rows, shift(rank, -1), fresh=True)
    assert isinstance(rows, ast.Call)  # noqa: S101 - it was written so
    count = ast.Call(name("len"), rows.args, [])
    return Domain(0, count, facts.flow.graph.node("py:len", node), {element: value})


def _parts(element: str, over: ast.Call, facts: Facts) -> Domain:
    """Return a loop over ``x.unbind(1)``, ``x.chunk(4, dim=0)`` or ``x.split(1, 1)``."""
    called = last_name(over.func)
    given = list(over.args)
    dotted = facts.flow.names.dotted(over.func)
    if dotted is None and isinstance(over.func, ast.Attribute):
        tensor = over.func.value
    elif dotted == f"torch.{called}" and given:
        tensor = given.pop(0)
    else:
        raise CannotBatchError(NO_DOMAIN)
    words = {k.arg: k.value for k in over.keywords}
    size = None if called == "unbind" else given.pop(0) if given else words.pop("chunks", None)
    dims = [*given, *(words.pop(w) for w in ("dim", "axis") if w in words)]
    dim = integer(dims[0]) if dims else 0
    node, rank = facts.node(tensor), facts.rank(tensor)
    if words or len(dims) > 1 or dim is None or node is None or _has_effect(tensor):
        raise CannotBatchError(NO_DOMAIN)
    known = facts.is_tensor(tensor)
    if known is False or (known is None and called != "unbind"):  # a name of tensors alone
        raise CannotBatchError(NO_DOMAIN)
    dim = dim % rank if isinstance(rank, int) and rank else dim
    if dim < 0 and called != "unbind":
        raise CannotBatchError(NO_DOMAIN)
    if called == "unbind":
        code, axis = (tensor, dim) if dim >= 0 else (method(tensor, "movedim", dim, 0), 0)
        value = Value(Kind.ROWS, code, shift(rank, -1), axis, source=tensor)
        rounds = _rounds(tensor, node, dim, {element: value}, facts)
        return replace(rounds, conditions=() if known else ("is-tensor",))
    parts = None if size is None else facts.node(size)
    if size is None or parts is None:
        raise CannotBatchError(NO_DOMAIN)
    if not (integer(size) or (facts.is_number(size) and facts.is_int(size))):
        raise CannotBatchError(NO_DOMAIN)
    if called == "split" and integer(size) == 1:
        code = method(tensor, "unsqueeze", dim + 1)
        value = Value(Kind.ROWS, code, rank, dim, source=tensor)
        return _rounds(tensor, node, dim, {element: value}, facts)
    length = f"{owned(tensor)}.shape[{dim}]"
    sizes: Sequence[ast.expr] = [size, literal(-1)] if called == "chunk" else [literal(-1), size]
    code = method(tensor, "unflatten", dim, ast.Tuple([*sizes], ast.Load()))
    value = Value(Kind.ROWS, code, rank, dim, source=tensor)
    stop = size if called == "chunk" else parse(f"{length} // {ast.unparse(size)}")
    graph = facts.flow.graph
    count = graph.node("size", node, graph.constant(dim))
    number = parts if called == "chunk" else graph.node("floordiv", count, parts)
    left = parse(f"-({length} % {ast.unparse(size)})")
    return Domain(
        0, stop, number, {element: value}, shown={"left": left},
        conditions=("whole-pieces",),
    )  # fmt: skip


def list_other_rows(of: Expressions) -> Iterator[ast.expr]:
    """Yield the tensors whose rows a loop takes and reads, but for the rows that it writes to."""
    for taken in sorted(of.taken & of.domain.names.keys()):
        value = of.domain.names[taken]
        whole = value.source or value.code
        own = of.own_rows.get(ast.unparse(whole)) == (0, value.axis)
        own = own and not isinstance(value.code, ast.Call)  # parts of several rows
        if value.kind is Kind.ROWS and not (value.fresh or own):
            yield whole


def index_written(domain: Domain, body: Sequence[ast.stmt]) -> tuple[Domain, list[ast.stmt]]:
    """Return a loop that writes to ``x[i]`` where it writes to the row itself: ``row += 1``."""
    changed = {id(s.target) for s in body if isinstance(s, ast.AugAssign)}
    stored = {
        n.id
        for n in walk(*body)
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load) and id(n) not in changed
    }
    counted = [n for n, v in domain.names.items() if v.kind is Kind.NUMBER and not v.offset]
    counter = counted[0] if counted else _COUNTER
    rows: dict[str, ast.expr] = {
        element: value.code
        for element, value in domain.names.items()
        if value.kind is Kind.ROWS and isinstance(value.code, (ast.Name, ast.Attribute))
        if not (value.axis or value.fresh or {element, *list_names(value.code)} & stored)
    }
    new = [_index(statement, rows, counter) for statement in body]
    if all(one is other for one, other in zip(new, body, strict=True)):
        return domain, new
    return replace(domain, names={counter: read_counter(counter), **domain.names}), new


def _index(statement: ast.stmt, rows: dict[str, ast.expr], counter: str) -> ast.stmt:
    """Return a statement that writes to ``x[i]``, not to a row of that name."""
    new: ast.stmt | None = None
    match statement:
        case ast.Assign([ast.Subscript() as target], value):
            if place := _place(target, rows, counter):
                new = ast.Assign([place], value)
        case ast.AugAssign(target, how, value):
            if place := _place(target, rows, counter):
                new = ast.AugAssign(place, how, value)
        case ast.Expr(ast.Call(ast.Attribute(target, called), args, named) as call):
            if called.endswith("_") and (place := _place(target, rows, counter)):
                func = ast.Attribute(place, called, ast.Load())
                new = ast.Expr(ast.copy_location(ast.Call(func, args, named), call))
    return statement if new is None else ast.copy_location(new, statement)


def _place(target: ast.expr, rows: dict[str, ast.expr], counter: str) -> ast.Subscript | None:
    """Return ``x[i, j]`` for ``row[j]``, ``None`` if that is no row."""
    match target:
        case ast.Name(row) if row in rows:
            return ast.Subscript(rows[row], name(counter), ast.Store())
        case ast.Subscript(ast.Name(row), index) if row in rows:
            items = [name(counter), *list_indexes(index)]
            return ast.Subscript(rows[row], ast.Tuple(items, ast.Load()), ast.Store())
    return None


def _side_by_side(found: Sequence[Domain]) -> Domain:
    """Return a loop over several at once, which has as many rounds as the shortest of them."""
    first = found[0]
    lefts = [code for one in found for code in one.shown.values()]
    shown = {f"left{number or ''}": code for number, code in enumerate(lefts)}
    conditions = {c: None for one in found for c in one.conditions}
    if any(one.stop_node is not first.stop_node for one in found):
        conditions["as-many-of-both"] = None
        shown |= {f"count{number}": one.stop for number, one in enumerate(found)}
    names = {n: v for one in found for n, v in one.names.items()}
    return replace(first, names=names, shown=shown, conditions=tuple(conditions))
