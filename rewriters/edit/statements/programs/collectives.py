"""Collectives over lists of tensors that are joined again: one tensor takes their place."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal, put
from npufix.rewriters.graph.modules.syntax import last_name, list_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_FILLED = frozenset({"torch.empty_like", "torch.zeros_like", "torch.ones_like"})
_PARTS = frozenset({"chunk", "split", "tensor_split", "unbind"})
"""What returns a tuple; ``stack`` takes no tensor in its place."""
_JOINED = frozenset({"torch.cat", "torch.concat"})


def find_list_collectives(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``all_gather`` and ``all_to_all`` of lists whose results are only joined."""
    for node in here.nodes:
        match node:
            case ast.Call(function, [into, given, *others]):
                name = here.flow.names.dotted(function)
                if name == "torch.distributed.all_gather" and isinstance(into, ast.Name):
                    yield from _find_gathers(here, node, into.id, given)
                elif name == "torch.distributed.all_to_all":
                    if isinstance(into, ast.Name):
                        yield from _find_exchanges(here, node, into.id, given)
                    yield from _find_exchange_of_rows(here, node, into, given, others)


def _find_gathers(
    here: Surroundings, call: ast.Call, out: str, given: ast.expr
) -> Iterator[Proposal]:
    """Yield ``all_gather(list, x)`` with ``cat(list)`` behind it, along the first dimension."""
    made, joins = _find_binding(here, out), _joins(here, out, call)
    if made is None or not joins or not all(_dim(join) == "0" for join in joins):
        return
    match made:
        case ast.ListComp(
            ast.Call(filled, [ast.Name(like)], []),
            [ast.comprehension(ast.Name(), ast.Call(ast.Name("range"), [count]), [])],
        ) if here.flow.names.dotted(filled) in _FILLED and like == here.text(given):
            pass
        case _:
            return
    function = here.text(call.func).removesuffix("all_gather") + "all_gather_into_tensor"
    shape = f"({here.text(count)} * {like}.shape[0], *{like}.shape[1:])"
    value = here.value(given)
    whole = value is not None and value.op == "contiguous"
    sent, left = (like if whole else f"{like}.contiguous()"), _find_left_over(here, call, joins)
    whole_name = out if left is None else ast.unparse(left.targets[0])
    parts = [n for n in _names(here, out) if isinstance(n.ctx, ast.Store) or n in call.args]
    changes = [
        Change(here.span(made), f"{like}.new_empty({shape})"),
        Change(here.span(call.func), function),
    ]
    changes += [] if whole else [Change(here.span(given), sent)]
    if left is None:
        changes += [Change(here.span(join), out) for join in joins]
    else:
        changes += [Change(here.span(n), whole_name) for n in parts]
        first, _, last, end = here.whole_lines(left) or here.span(left)
        changes.append(Change((first, 0, last, end), ""))
    yield Proposal(
        call, changes=tuple(changes), form="listed", shown=f"{function}({whole_name}, {sent})"
    )


def _find_left_over(
    here: Surroundings, call: ast.Call, joins: Sequence[ast.Call]
) -> ast.Assign | None:
    """Return ``y = torch.cat(parts)`` if ``y`` is nothing before: the parts may be called so."""
    statement = here.parents.get(id(joins[0])) if len(joins) == 1 else None
    match statement:
        case ast.Assign([ast.Name(name)], value) if value is joins[0]:
            before = [n for n in _names(here, name) if n.lineno < statement.lineno]
            given = here.flow.function.args
            known = name in {a.arg for a in ast.walk(given) if isinstance(a, ast.arg)}
            beside = statement in here.block_of(here.statement_of(call))
            if not before and not known and beside and here.whole_lines(statement) is not None:
                return statement
    return None


def _find_exchanges(
    here: Surroundings, call: ast.Call, out: str, given: ast.expr
) -> Iterator[Proposal]:
    """Yield ``all_to_all(list, list)`` with ``cat`` behind it."""
    joins = _joins(here, out, call)
    made = _find_binding(here, out)
    sent = _find_binding(here, given.id) if isinstance(given, ast.Name) else None
    if made is None or sent is None or not joins or not isinstance(given, ast.Name):
        return
    uses = [n for n in _names(here, given.id) if isinstance(n.ctx, ast.Load) and n is not given]
    inner = {id(n) for n in ast.walk(made)}
    match made:
        case ast.ListComp(ast.Call(filled, [_], [])) if here.flow.names.dotted(
            filled
        ) in _FILLED and all(id(n) in inner for n in uses):
            pass
        case _:
            return
    text = here.text(sent)
    match sent:
        case ast.Call(ast.Name("list"), [parts], []):
            text = here.text(parts)
        # ``stack`` makes them contiguous
        case ast.ListComp(ast.Call(ast.Attribute(ast.Name(part), "contiguous"), [], [])) as listed:
            match listed.generators:
                case [ast.comprehension(ast.Name(name), ast.Call() as parts, [])] if (
                    name == part and last_name(parts.func) in _PARTS
                ):
                    text = here.text(parts)
    function = here.text(call.func).removesuffix("all_to_all") + "all_to_all_single"
    changes = (
        Change(here.span(sent), f"torch.stack({text})"),
        Change(here.span(made), f"torch.empty_like({given.id})"),
        Change(here.span(call.func), function),
        *(Change(here.span(join.args[0]), f"{out}.unbind()") for join in joins),
    )
    shown = f"{function}{here.text(call).removeprefix(here.text(call.func))}"
    yield Proposal(call, changes=changes, form="exchanged", shown=shown)


def _find_exchange_of_rows(
    here: Surroundings, call: ast.Call, out: ast.expr, given: ast.expr, others: Sequence[ast.expr]
) -> Iterator[Proposal]:
    """Yield ``all_to_all(list(y.split(theirs)), list(x.split(ours)))``: views, filled in place."""
    received, sent = _split_rows(here, out, call), _split_rows(here, given, call)
    made = None if received is None else _bound_before(here, received[0], call)
    if received is None or sent is None or made is None:
        return
    fresh = isinstance(made, ast.Call) and (
        last_name(made.func) in {"new_empty", "new_zeros"}
        or here.flow.names.dotted(made.func) in {"torch.empty", "torch.zeros"}
    )
    if not fresh:
        return  # what is written into may have gaps between its rows
    (into, theirs), (x, ours) = received, sent
    x = f"{x}.contiguous()"
    function = here.text(call.func).removesuffix("all_to_all") + "all_to_all_single"
    before = [f"{into}, {x}, {theirs}, {ours}", *map(here.text, others)]
    words = [f"{k.arg}={here.text(k.value)}" for k in call.keywords if k.arg]
    text = f"{function}({', '.join([*before, *words])})"
    yield put(here, call, text, form="rows_of")


def _split_rows(here: Surroundings, code: ast.expr, call: ast.Call) -> tuple[str, str] | None:
    """Return the tensor of ``list(x.split(sizes))``, and the sizes if they are a list of numbers.

    A number alone would be that of each part, which ``all_to_all_single`` is not told.
    """
    match code:
        case ast.Call(ast.Name("list"), [inner], []):
            code = inner
        case ast.Name(name) if (made := _find_binding(here, name)) is not None:
            uses = [n for n in _names(here, name) if isinstance(n.ctx, ast.Load)]
            since = any(
                isinstance(n.ctx, ast.Store) and made.lineno < n.lineno <= call.lineno
                for read in list_names(made)
                for n in _names(here, read)
            )  # ``x = x + 1`` in between: its parts are those of the old one
            return _split_rows(here, made, call) if len(uses) == 1 and not since else None
    match code:
        case ast.Call(ast.Attribute(ast.Name(x), "split"), [sizes], []):
            pass
        case ast.Call(function, [ast.Name(x), sizes], []) if (
            here.flow.names.dotted(function) == "torch.split"
        ):
            pass
        case _:
            return None
    made = _find_binding(here, sizes.id) if isinstance(sizes, ast.Name) else sizes
    if isinstance(sizes, ast.Name) and made is None:
        made = _bound_before(here, sizes.id, call)
    match made:
        case ast.List() | ast.ListComp() | ast.Call(ast.Attribute(_, "tolist"), [], []):
            return x, here.text(sizes)
    return None


def _names(here: Surroundings, name: str) -> list[ast.Name]:
    return [n for n in walk(here.flow.function) if isinstance(n, ast.Name) and n.id == name]


def _find_binding(here: Surroundings, name: str) -> ast.expr | None:
    """Return what a name is bound to, if that happens once and nowhere below a branch."""
    stored = [n for n in _names(here, name) if isinstance(n.ctx, ast.Store)]
    parent = here.parents.get(id(stored[0])) if len(stored) == 1 else None
    match parent:
        case ast.Assign([ast.Name()], value) if here.loop_of(parent) is None:
            return value
    return None


def _bound_before(here: Surroundings, name: str, call: ast.Call) -> ast.expr | None:
    """Return what a name is bound to last before a call, if a statement beside it does that."""
    at = here.statement_of(call)
    before = [s for s in here.block_of(at) if s.lineno < at.lineno]
    for statement in reversed(before):
        match statement:
            case ast.Assign([ast.Name(bound)], value) if bound == name:
                return value
        stored = (n for n in walk(statement) if isinstance(n, ast.Name) and n.id == name)
        if any(isinstance(n.ctx, ast.Store) for n in stored):
            return None
    return None


def _joins(here: Surroundings, name: str, call: ast.Call) -> list[ast.Call]:
    """Return the calls of ``cat`` that read a list, nothing if anything else but one call does."""
    found = []
    for read in _names(here, name):
        outer = here.parents.get(id(read))
        if isinstance(read.ctx, ast.Store) or outer is call:
            continue
        match outer:
            case ast.Call(function, [ast.Name(), *_]) if (
                here.flow.names.dotted(function) in _JOINED
            ):
                found.append(outer)
            case _:
                return []
    return found


def _dim(join: ast.Call) -> str:
    named = {k.arg: k.value for k in join.keywords}
    dim = join.args[1] if len(join.args) > 1 else named.get("dim")
    return "0" if dim is None else ast.unparse(dim)
