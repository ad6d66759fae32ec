"""Values that one mask selects, or columns that a list of numbers does."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.columns import is_changed, is_whole
from npufix.rewriters.edit.statements.masked.formulas import reads_of_formulas
from npufix.rewriters.edit.statements.masked.sums import reads_under_mask
from npufix.rewriters.edit.statements.proposal import Change, Proposal, put
from npufix.rewriters.facts.host_tensors import is_moved_to_host
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import (
    is_scalar,
    last_name,
    list_indexes,
    list_stored_names,
    walk,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

RESHAPED = frozenset({"expand", "expand_as", "reshape", "squeeze", "unsqueeze", "view", "view_as"})
_JOINED = frozenset({"cat", "stack"})
"""What has a dimension, whatever it is made of."""
_FEWEST = 2
_COMPUTES = operators.ELEMENTWISE - {*operators.CASTS, "detach"} | {
    "bmm", "cdist", "matmul", "max", "mean", "min", "norm", "prod", "sum",
}  # fmt: skip
"""What reads its operands, and returns no view of them."""
_MOST_RUNS = 4
_NAMED_MASK = re.compile(r"(^|_)masks?$")
_FROM_ELSEWHERE = frozenset({Op.CALL, Op.PARAM, *_JOINED})
"""What may be anything, by the source alone: ``pos_masks = torch.cat(pos_masks)``."""
_CHOICES = (
    ast.BoolOp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp,
)  # fmt: skip


def find_selections(here: Surroundings) -> Iterator[Proposal]:
    """Yield a mask that is the index of several reads in one block: a name, or a comparison."""
    found: dict[tuple[str, int], list[ast.Subscript]] = {}
    for node in here.nodes:
        match node:
            case ast.Subscript(ctx=ast.Load()):
                mask = _mask_of(here, node)
                value = None if mask is None else here.value(mask)
                if mask is None or value is None or not _is_certain(here, node):
                    continue
                if _is_mask(here, node, mask, value):
                    found.setdefault((ast.unparse(mask), id(value)), []).append(node)
    better = reads_under_mask(here) | reads_of_formulas(here) if found else set()
    for (mask_text, _), several in found.items():
        reads = sorted((r for r in several if id(r) not in better), key=here.span)
        if len(reads) >= _FEWEST and not _is_changed_between(here, reads):
            proposal = _once(here, mask_text, reads)
            if proposal is not None:
                yield proposal


def _is_changed_between(here: Surroundings, reads: Sequence[ast.Subscript]) -> bool:
    """Tell whether a mask, or what it compares, is written to from the first read to the last."""
    written = (r.end_lineno or r.lineno for r in _written_with(here, reads))
    last = max([r.end_lineno or r.lineno for r in reads] + list(written))
    lines = range(here.statement_of(reads[0]).lineno, last + 1)
    mask = _mask_of(here, reads[0])
    parts = () if mask is None else ast.walk(mask)
    named = {ast.unparse(n) for n in parts if isinstance(n, (ast.Name, ast.Attribute))}
    return any(here.is_written_to(name, lines=lines) for name in named)


def _is_mask(here: Surroundings, code: ast.Subscript, name: ast.expr, value: Node) -> bool:
    """Tell whether a value is a mask, or a comparison of whatever that picks of a tensor.

    So is what is handed in as one, or joined of several: ``x[valid_mask]``. On the host nobody
    waits for how many it picks.
    """
    if is_moved_to_host(value):
        return False
    known = here.facts(here.evaluations[id(name)], mask=value).is_bool_tensor("mask")
    compared = value.op in operators.COMPARISONS | operators.BOOLEAN
    named = value.op == Op.PARAM and _is_named(name)
    picked = here.is_tensor(code.value)
    joined = value.op in _FROM_ELSEWHERE and _is_named(name) and not is_of_numpy(value)
    likely = (compared or joined) and picked is True
    likely = likely or (named and picked is not False)
    compared = compared or value.op == "invert"
    of_module = compared and picked is None and here.flow.cls is not None
    likely = likely or (of_module and not is_of_numpy(value) and _is_named(name))
    return known is True or (known is None and likely)


def _is_named(name: ast.expr) -> bool:
    return isinstance(name, ast.Name) and _NAMED_MASK.search(name.id) is not None


def _has_dimensions(here: Surroundings, mask: Node) -> bool:
    """Tell whether the code shows that a mask, or what it is computed from, has a dimension."""
    at = here.flow.evaluations[0]
    for part in _elementwise_parts(mask):
        facts = here.facts(at, x=part)
        rank = facts.ndim("x")
        if part.op in _JOINED or facts.least_ndim("x"):
            return True
        if rank is not None:
            if rank:
                return True
        elif any(_asks_for_dimension(user, part) for user in here.users(part)):
            return True
    return False


def _elementwise_parts(node: Node) -> Iterator[Node]:
    """Return a value, and those that have no more dimensions than it."""
    through = operators.SAME_SHAPE | operators.BROADCAST | operators.BOOLEAN
    return node.walk(lambda part: part.args if part.op in through else ())


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


def _mask_of(here: Surroundings, code: ast.Subscript) -> ast.expr | None:
    """Return the mask of ``x[mask]``, ``x[mask, :k]``, ``x[:, mask]`` and ``x[a > b]``.

    So of ``x[i, mask]`` for the number ``i`` of a round.
    """
    match code.slice:
        case ast.Name() | ast.Compare(ops=[_]) as mask:
            return mask
        case ast.Tuple(items):
            others = [item for item in items if not isinstance(item, ast.Slice)]
            values = {id(item): here.value(item) for item in others}
            others = [i for i in others if not ((v := values[id(i)]) and v.op == Op.COUNTER)]
            return others[0] if len(others) == 1 and isinstance(others[0], ast.Name) else None
    return None


def _once(here: Surroundings, name: str, reads: list[ast.Subscript]) -> Proposal | None:
    """Return the reads with positions that are found once, before the first of them."""
    first = here.statement_of(reads[0])
    block = here.block_of(first)
    statements = [here.statement_of(read) for read in reads]
    if (there := _found_before(here, reads[0])) is not None:
        return Proposal(
            reads[0],
            f"the positions of {name} are there: index with what {here.text(there)} returns",
        )
    if (
        any(_outer_in(here, s, block) is None for s in statements)
        or here.whole_lines(first) is None
    ):
        if here.loop_of(reads[0]) is not None:
            return None  # what is said of the loop says more
        return Proposal(reads[0], f"find the positions of {name} once, before the first use")
    mask = _mask_of(here, reads[0])
    at = here.evaluations[id(mask)]
    facts = here.facts(at, mask=at.node)
    tuples = [read for read in reads if isinstance(read.slice, ast.Tuple)]
    rank = facts.ndim("mask")
    if tuples and (rank not in {None, 1} or facts.least_ndim("mask") > 1):
        # ``x[:, *at]`` for a mask of several dimensions is not known to every Python
        return Proposal(reads[0], f"find the positions of {name} once, before the first use")
    taken = {n.id for n in walk(here.flow.function) if isinstance(n, ast.Name)} | list_stored_names(
        here.flow.function
    )
    word = f"{name}_at" if isinstance(mask, ast.Name) else "positions"
    free = (f"{word}{number}" for number in ("", *range(2, len(taken) + 3)))
    index = next(each for each in free if each not in taken)
    indent = here.indent(first)
    target = f"({index},)" if tuples else index
    owner = name if isinstance(mask, ast.Name) else f"({name})"
    line = f"{target} = {owner}.nonzero(as_tuple=True)"
    changes = [Change((first.lineno, 0, first.lineno, 0), f"{indent}{line}\n")]
    for read in (*reads, *_written_with(here, reads)):
        own = _mask_of(here, read)
        if own is not None:
            changes.append(Change(here.span(own), index))
    unsure = at.node.op in _FROM_ELSEWHERE or here.is_tensor(reads[0].value) is None
    proven = set() if unsure else {"boolean-mask"}
    if facts.is_bool_tensor("mask"):
        proven.add("boolean-mask")
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


def _found_before(here: Surroundings, read: ast.Subscript) -> ast.expr | ast.stmt | None:
    """Return ``torch.where(mask)`` that stands in front of ``x[mask]``."""
    name = _mask_of(here, read)
    mask = None if name is None else here.value(name)
    for op in ("nonzero", "where"):
        for found in here.flow.by_operation.get(op, ()):
            alone = found.node.args[0] is mask and (op == "nonzero" or len(found.node.args) == 1)
            if alone and found.certain and found.code.lineno < read.lineno:
                return found.code
    return None


def _written_with(here: Surroundings, reads: Sequence[ast.Subscript]) -> Iterator[ast.Subscript]:
    """Yield ``z[mask]`` of ``z[mask] = y``, in a block with what is read and behind the first.

    A number is filled in without positions.
    """
    first = here.statement_of(reads[0])
    block = here.block_of(first)
    index = _mask_of(here, reads[0])
    wanted = None if index is None else here.value(index)
    for statement in here.nodes:
        match statement:
            case ast.Assign([ast.Subscript() as target], value) if not is_scalar(value):
                mask = _mask_of(here, target)
                same = mask is not None and wanted is not None and here.value(mask) is wanted
                behind = statement.lineno >= first.lineno
                if same and behind and _outer_in(here, statement, block) is not None:
                    yield target


def _outer_in(here: Surroundings, statement: ast.stmt, block: list[ast.stmt]) -> ast.stmt | None:
    """Return the statement of a block that holds another one."""
    if statement in block:
        return statement
    for outer in here.around(statement):
        if isinstance(outer, ast.stmt) and outer in block:
            return None if here.loop_of(statement) is not here.loop_of(block[0]) else outer
    return None


def find_counted(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``x[mask].numel()``, ``x[mask].shape[0]``, ``len(x[mask])``: nothing else is selected.

    What has a name, ``y = x[mask]``, is mostly needed for more than its length.
    """
    for node in here.nodes:
        match node:
            case ast.Call(ast.Attribute(ast.Subscript() as read, "numel"), [], []):
                form = "elements"
            case (
                ast.Subscript(
                    ast.Attribute(ast.Subscript() as read, "shape"), ast.Constant(0), ast.Load()
                )
                | ast.Call(ast.Attribute(ast.Subscript() as read, "size"), [ast.Constant(0)], [])
                | ast.Call(ast.Name("len"), [ast.Subscript() as read], [])
            ):
                form = "rows"
            case _:
                continue
        at, owner = here.evaluations.get(id(read.slice)), here.evaluations.get(id(read.value))
        if at is None or owner is None or not here.is_tensor(read.value):
            continue
        facts = here.facts(at, mask=at.node, x=owner.node)
        if not facts.is_bool_tensor("mask"):
            continue
        proven = {"is-tensor", "boolean-mask"}
        proven |= {"same-rank-mask"} if facts.same_ndim("x", "mask") else set()
        text = f"int({here.text_of_owner(read.slice)}.sum())"
        yield put(
            here,
            node,
            text,
            form=form,
            asked=(("x", here.text(read.value)), ("mask", here.text(read.slice))),
            proven=proven,
        )


def find_index_lists(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``x[:, [0, 2]]`` where the numbers are a slice."""
    for node in here.nodes:
        match node:
            case ast.Subscript(owner, ast.Tuple() | ast.List() as index, ast.Load()):
                items = list_indexes(index)
                lists = [item for item in items if isinstance(item, ast.List)]
                others = [item for item in items if item not in lists]
                numbers = lists[0].elts if len(lists) == 1 else []
                text = slice_of(numbers) or (_one_place(numbers) if items != [index] else None)
                tensor = here.is_tensor(owner)
                if len(lists) != 1 or tensor is False or not all(map(is_whole, others)):
                    continue
                if isinstance(here.statement_of(node), ast.Expr):
                    continue  # ``x[:, [0, 2]].clamp_(0)`` changes a copy: there is more to mend
                sure = tensor or (isinstance(owner, ast.Attribute) and owner.attr == "tensor")
                if not sure and (not here.is_hot or items == [index]):
                    continue  # ``table[["a", "b"]]``
                before = "".join(f"{here.text(o)}, " for o in items[: items.index(lists[0])])
                after = "".join(f", {here.text(o)}" for o in items[items.index(lists[0]) + 1 :])
                name = here.text(owner)
                copied = "" if _is_cloned(here, node) else ".clone()"
                new, form = f"{name}[{before}{text}{after}]{copied}", "every_second"
                if text is None:
                    runs = runs_of(lists[0].elts)
                    if not runs or not isinstance(owner, ast.Name | ast.Attribute):
                        continue
                    dim = items.index(lists[0])
                    dim -= len(items) if "..." in before else 0
                    pieces = [f"{name}[{before}{run}{after}]" for run, _ in runs]
                    parts = ", ".join(
                        f"{piece}.flip({dim})" if turned else piece
                        for piece, (_, turned) in zip(pieces, runs, strict=True)
                    )
                    new, form = f"torch.cat(({parts}), dim={dim})", "any_order"
                    if (back := slice_of(lists[0].elts[::-1])) is not None:
                        new = f"{name}[{before}{back}{after}].flip({dim})"
                    elif not here.imports_torch:
                        continue
                proven = frozenset({"is-tensor"} if tensor else ())
                change = Change(here.span(node), new)
                yield Proposal(node, form=form, changes=(change,), shown=new, proven=proven)


def _one_place(items: Sequence[ast.expr]) -> str | None:
    """Return ``2:3`` for the list ``[2]``, which keeps the dimension."""
    match items:
        case [ast.Constant(int() as place)] if type(place) is int and place >= 0:
            return f"{place}:{place + 1}"
    return None


def _is_cloned(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether what is picked is copied anyway: by ``.clone()``, or ``x[:, [0, 2]] - y``.

    So is what has a name, where all who read that copy it.
    """
    outer = here.parents.get(id(code))
    match outer:
        case ast.BinOp() | ast.Compare() | ast.UnaryOp():
            return True
        case ast.Attribute():
            return isinstance(here.parents.get(id(outer)), ast.Call) and _copies(here, outer)
        case ast.List() | ast.Tuple():  # ``torch.stack([x[:, [0, 1]], y])``
            call = here.parents.get(id(outer))
            return isinstance(call, ast.Call) and last_name(call.func) in {"cat", "stack"}
        case ast.Call():
            called = here.flow.names.dotted(outer.func) or ""
            return called.removeprefix("torch.") in _COMPUTES
        case ast.Assign([ast.Name(name)], value) if value is code:
            return _is_read_alone(here, name, code)
    return False


def _is_read_alone(here: Surroundings, name: str, code: ast.expr) -> bool:
    """Tell whether a name is bound once, and read where it is copied; nobody changes what it shows.

    A name for it, ``dx = x0``, binds once as well.
    """
    found = [n for n in walk(here.flow.function) if isinstance(n, ast.Name) and n.id == name]
    reads = [n for n in found if isinstance(n.ctx, ast.Load)]
    if len(found) != len(reads) + 1 or any(id(n) not in here.parents for n in reads):
        return False
    owner = code.value if isinstance(code, ast.Subscript) else code
    names = {ast.unparse(owner), name}
    return not is_changed(here, names, 0) and all(_is_cloned(here, n) for n in reads)


def _copies(here: Surroundings, method: ast.Attribute) -> bool:
    """Tell whether a method returns no view of what it is called on that anybody writes to."""
    if method.attr != "contiguous":  # which copies, but not all columns
        return method.attr in _COMPUTES or method.attr == "clone"
    held = here.parents.get(id(here.parents.get(id(method))))
    names = {ast.unparse(t) for t in held.targets} if isinstance(held, ast.Assign) else None
    return names is not None and not is_changed(here, names, 0)


def runs_of(items: Sequence[ast.expr]) -> list[tuple[str, bool]]:
    """Return ``2:3`` and ``0:2`` for ``2, 0, 1``; nothing where they are many, or no numbers.

    Beside each whether it counts down: ``0:1`` and ``1:4``, turned round, for ``0, 3, 2, 1``.
    """
    places = [item.value for item in items if isinstance(item, ast.Constant)]
    numbers = [place for place in places if type(place) is int and place >= 0]
    if len(numbers) != len(items) or len(numbers) < 2:  # noqa: PLR2004 - one may keep a dimension
        return []
    runs: list[list[int]] = []
    for place in numbers:
        last = runs[-1] if runs else [place - 2]
        if place - last[-1] in ({1, -1} if len(last) == 1 else {last[1] - last[0]}):
            last.append(place)
        else:
            runs.append([place])
    # a pair that counts down costs less as two views
    pairs = (len(run) == _FEWEST and run[0] > run[1] for run in runs)
    runs = [part for run, pair in zip(runs, pairs, strict=True) for part in _apart(run, pair=pair)]
    spelled = [(f"{min(run)}:{max(run) + 1}", run[-1] < run[0]) for run in runs]
    return spelled if len(runs) <= _MOST_RUNS else []


def _apart(run: list[int], *, pair: bool) -> list[list[int]]:
    return [run[:1], run[1:]] if pair else [run]


def slice_of(items: Sequence[ast.expr]) -> str | None:
    """Return ``0:5:2`` for ``0, 2, 4``, ``None`` for what is no slice of two places or more."""
    places = [item.value for item in items if isinstance(item, ast.Constant)]
    numbers = [place for place in places if type(place) is int and place >= 0]
    if len(numbers) != len(items) or len(numbers) < 2:  # noqa: PLR2004 - one may keep a dimension
        return None
    step = numbers[1] - numbers[0]
    if step < 1 or numbers != list(range(numbers[0], numbers[-1] + 1, step)):
        return None
    end = numbers[-1] + 1
    return f"{numbers[0]}:{end}" if step == 1 else f"{numbers[0]}:{end}:{step}"


def counts_selected(here: Surroundings, test: ast.expr, node: Node) -> bool:
    """Tell whether a value is how much a mask selects: ``x[mask].numel()``."""
    sizes = {"numel", Op.SIZE}  # of what is needed itself, the host has waited before
    if node.op not in sizes or node.args[0].op != Op.GETITEM:
        return False
    if any(user.op not in sizes for user in here.users(node.args[0])):
        return False
    _, index = node.args[0].args
    known = here.facts(here.evaluations[id(test)], m=index).is_bool_tensor("m")
    while index.op in {*RESHAPED, "to"}:  # ``(ids == image).unsqueeze(-1).expand_as(x)``
        index = index.args[0]
    return known is True or (known is None and index.op in operators.COMPARISONS)
