"""Values that one mask selects from several tensors: its positions are found each time."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import stored_names, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_FEWEST = 2
_CHOICES = (
    ast.BoolOp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp,
)  # fmt: skip


def find_selections(here: Surroundings) -> Iterator[Proposal]:
    """Yield a mask that has a name and is the index of several reads in one block."""
    found: dict[tuple[str, int], list[ast.Subscript]] = {}
    for node in here.nodes:
        match node:
            case ast.Subscript(ctx=ast.Load()):
                name = _mask_of(node)
                value = None if name is None else here.value(name)
                if name is not None and value is not None and _is_certain(here, node):
                    at = here.evaluations[id(name)]
                    if here.facts(at, mask=value).is_bool_tensor("mask"):
                        found.setdefault((name.id, id(value)), []).append(node)
    for (mask, _), several in found.items():
        reads = sorted(several, key=here.span)
        if len(reads) >= _FEWEST and not _is_written_to(here, mask):
            proposal = _once(here, mask, reads)
            if proposal is not None:
                yield proposal


def _has_dimensions(here: Surroundings, mask: Node) -> bool:
    """Tell whether the code shows that a mask, or what it is computed from, has a dimension."""
    at = here.flow.evaluations[0]
    for part in _elementwise_parts(mask):
        rank = here.facts(at, x=part).ndim("x")
        if rank is not None:
            if rank:
                return True
        elif any(_asks_for_dimension(user, part) for user in here.users(part)):
            return True
    return False


def _elementwise_parts(node: Node) -> Iterator[Node]:
    """Yield a value, and those that have no more dimensions than it."""
    yield node
    if node.op in operators.SAME_SHAPE | operators.BROADCAST | operators.BOOLEAN and node.args:
        for part in node.args:
            yield from _elementwise_parts(part)


def _asks_for_dimension(user: Node, node: Node) -> bool:
    """Tell whether a use needs a dimension: ``x.shape[1]``, ``x[:, 0]``, ``len(x)``."""
    if user.args[0] is not node:
        return False
    if user.op in {Op.SIZE, "py:len"}:
        return True
    if user.op != Op.GETITEM:
        return False
    index = user.args[1]
    items = index.args if index.op == Op.TUPLE else (index,)
    return any(i.op == Op.SLICE or type(i.value) is int for i in items)


def _is_certain(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a statement always computes an expression: not so in ``x[m] if c else x``."""
    for outer in here.around(code):
        if isinstance(outer, ast.stmt):
            return True
        if isinstance(outer, _CHOICES):
            return False
    return True


def _is_written_to(here: Surroundings, name: str) -> bool:
    """Tell whether anything changes a tensor where it is: ``mask[0] = True``, ``mask &= other``."""
    for node in here.nodes:
        match node:
            case ast.Subscript(ast.Name(changed), ctx=ast.Store()) | ast.AugAssign(
                ast.Name(changed)
            ):
                if changed == name:
                    return True
            case ast.Call(ast.Attribute(ast.Name(changed), method)):
                if changed == name and method.endswith("_"):
                    return True
    return False


def _mask_of(code: ast.Subscript) -> ast.Name | None:
    """Return the mask of ``x[mask]``, ``x[mask, :k]`` or ``x[:, mask]``."""
    match code.slice:
        case ast.Name() as name:
            return name
        case ast.Tuple(items):
            names = [item for item in items if isinstance(item, ast.Name)]
            others = [item for item in items if not isinstance(item, (ast.Name, ast.Slice))]
            return names[0] if len(names) == 1 and not others else None
    return None


def _once(here: Surroundings, name: str, reads: list[ast.Subscript]) -> Proposal | None:
    """Return the reads with positions that are found once, before the first of them."""
    first = here.statement_of(reads[0])
    block = _block_of(here, first)
    statements = [here.statement_of(read) for read in reads]
    if (
        any(_outer_in(here, s, block) is None for s in statements)
        or here.whole_lines(first) is None
    ):
        return Proposal(reads[0], f"find the positions of {name} once, before the first use")
    taken = {n.id for n in walk(here.flow.function) if isinstance(n, ast.Name)} | stored_names(
        here.flow.function
    )
    free = (f"{name}_at{number}" for number in ("", *range(2, len(taken) + 3)))
    index = next(each for each in free if each not in taken)
    tuples = [read for read in reads if isinstance(read.slice, ast.Tuple)]
    indent = here.indent(first)
    target = f"({index},)" if tuples else index
    line = f"{target} = {name}.nonzero(as_tuple=True)"
    changes = [Change((first.lineno, 0, first.lineno, 0), f"{indent}{line}\n")]
    for read in reads:
        mask = _mask_of(read)
        if mask is not None:
            changes.append(Change(here.span(mask), index))
    at = here.evaluations[id(_mask_of(reads[0]))]
    proven = {"boolean-mask"}
    rank = here.facts(at, mask=at.node).ndim("mask")
    if not tuples or rank == 1:
        proven.add("vector-mask")
    if _has_dimensions(here, at.node):
        proven.add("has-dimensions")
    shown = f"{line}\n{', '.join(here.text(read).replace(name, index) for read in reads[:1])}"
    return Proposal(
        reads[0],
        form="rows" if tuples else "elements",
        changes=tuple(changes),
        shown=shown,
        asked=(("mask", name),),
        proven=frozenset(proven),
    )


def _block_of(here: Surroundings, statement: ast.stmt) -> list[ast.stmt]:
    outer = here.parents.get(id(statement), here.flow.function)
    return next(
        b
        for n in ("body", "orelse", "finalbody")
        if statement in (b := getattr(outer, n, None) or [])
    )


def _outer_in(here: Surroundings, statement: ast.stmt, block: list[ast.stmt]) -> ast.stmt | None:
    """Return the statement of a block that holds another one."""
    if statement in block:
        return statement
    for outer in here.around(statement):
        if isinstance(outer, ast.stmt) and outer in block:
            return None if here.loop_of(statement) is not here.loop_of(block[0]) else outer
    return None
