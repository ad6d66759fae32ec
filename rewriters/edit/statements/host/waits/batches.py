"""Copies to the device that the host need not wait for: batches of a loader, numbers read back."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.accumulated import has_no_dimensions, makes_anew
from npufix.rewriters.edit.statements.host.of_host import is_of_host
from npufix.rewriters.edit.statements.proposal import Change, Proposal, more_arguments, put
from npufix.rewriters.edit.statements.surroundings import COMPREHENSIONS
from npufix.rewriters.facts.host_tensors import is_made_on_host
from npufix.rewriters.facts.steps.functions import moves_given, trains
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import (
    last_name,
    list_indexes,
    list_stored_names,
    root_name,
    walk,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_STRIDED = (
    "columns of a tensor are no block of memory, so the copy goes through the host and waits: copy "
    "whole rows or the whole tensor"
)
_INDEX = (
    "the index is made on the host, so each use of it copies it to the device and waits: make it "
    "there, device=x.device, once for all that it picks from"
)
_OF_NUMBERS = frozenset({"as_tensor", "from_numpy", "tensor"})
_REDUCED = frozenset({"amax", "amin", "max", "mean", "min", "norm", "prod", "std", "sum", "var"})
_LOADS = re.compile(r"(?i)load|data|batch|iter")
_DEVICE = re.compile(r"(?i)gpu|npu|cuda|^(?!.*(cpu|host)).*(dev|rank)")
"""Not ``cpu_device`` and ``torch.device("cpu")``: the host would read before the copy is done."""


def find_batches(here: Surroundings) -> Iterator[Proposal]:
    """Yield, once for each loop, the copies of what a loader hands to a training loop."""
    yield from _moves_of_batch(here)
    loops = [n for n in here.nodes if isinstance(n, (ast.For, ast.While))]
    for loop in loops if trains(here.flow.function) else ():
        given = _list_handed(here, loop)
        if (
            not given
            or _gives_back(loop, given)
            or not trains(here.flow.function, loop.body[0].lineno)
        ):
            continue
        moves = [n for n in walk(*loop.body) if _is_move(here, n, given)]
        added = [
            _without_wait(here, code)
            for code in moves
            if isinstance(code, ast.Call) and _round_of(here, code) is loop
        ]
        changes = tuple(change for change in added if change is not None)
        if changes and len(changes) == len(added) == len(moves):
            first = moves[0]
            assert isinstance(first, ast.Call)  # noqa: S101 - ``_is_move`` has looked
            yield Proposal(first, form="blocking", changes=changes, shown=_shown(here, first))


def _shown(here: Surroundings, call: ast.Call) -> str:
    more = ", " if call.args or call.keywords else ""
    return f"{here.text(call)[:-1].rstrip().rstrip(',')}{more}non_blocking=True)"


def _moves_of_batch(here: Surroundings) -> Iterator[Proposal]:
    """Yield the copies of a function that moves all of a batch, wherever training calls it.

    ``return {k: v.to(device) for k, v in batch.items()}``
    """
    if here.flow.cls is not None or not moves_given(here.flow.function):
        return
    for node in here.nodes:
        if not isinstance(node, ast.DictComp | ast.ListComp):
            continue
        given = {name for part in node.generators for name in list_stored_names(part.target)}
        moves = [n for n in walk(node) if _is_move(here, n, given)]
        changes = [_without_wait(here, code) for code in moves if isinstance(code, ast.Call)]
        known = [change for change in changes if change is not None]
        if known and len(known) == len(moves):
            first = moves[0]
            assert isinstance(first, ast.Call)  # noqa: S101 - ``_is_move`` has looked
            yield Proposal(first, form="blocking", changes=tuple(known), shown=_shown(here, first))


def _gives_back(loop: ast.For | ast.While, given: set[str]) -> bool:
    """Tell whether others fill a batch anew, or the loop does, while it may still be copied.

    ``free.put(batch["index"])``, ``batch["x"].zero_()``; ``x = x.to(device)`` names the copy.
    """
    copied = {
        target.id
        for node in walk(*loop.body)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if last_name(node.value.func) in operators.TO_DEVICE
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in walk(*loop.body):
        match node:
            case ast.Call(ast.Attribute(_, "put" | "put_nowait" | "release" | "recycle"), handed):
                if any(root_name(part) in given for part in handed):
                    return True
            case ast.Expr(ast.Call(ast.Attribute(owner, method))):
                if re.search(r"[a-z]_$", method) and root_name(owner) in given - copied:
                    return True
            case ast.Assign([ast.Subscript(ast.Subscript() as whole)]):
                if root_name(whole) in given - copied:
                    return True
    return False


def _list_handed(here: Surroundings, loop: ast.For | ast.While) -> set[str]:
    """Return the names of what a loader hands to a loop: ``for x, y in loader``, ``next(batches)``.

    So are parts of it, ``x = batch["x"]``, and what goes through them:
    ``[{k: v.to(d) for k, v in t.items()} for t in targets]``.
    """
    given = set[str]()
    if isinstance(loop, ast.For) and _LOADS.search(here.text(loop.iter)):
        given = list_stored_names(loop.target)
    parts: list[ast.comprehension] = []
    for node in walk(*loop.body):
        match node:
            case ast.Assign(value=ast.Call(ast.Name("next"), [it, *_])) if here.loop_of(
                node
            ) is loop and _LOADS.search(here.text(it)):
                given |= list_stored_names(node)
            case ast.Assign(value=ast.Call(ast.Attribute(queue, "get"), [])) if (
                here.loop_of(node) is loop and "queue" in here.text(queue).lower()
            ):
                given |= list_stored_names(node)
            case ast.Assign(value=ast.Name() | ast.Subscript() as value):
                given |= list_stored_names(node) if root_name(value) in given else set()
            case ast.comprehension():
                parts.append(node)
    for part in [*parts, *parts]:
        if root_name(_iterated(part.iter)) in given:
            given |= list_stored_names(part.target)
    return given


def _iterated(code: ast.expr) -> ast.expr:
    """Return ``t`` of ``t.items()``."""
    match code:
        case ast.Call(ast.Attribute(inner, "items" | "values"), [], []):
            return inner
    return code


def _round_of(here: Surroundings, code: ast.AST) -> ast.AST | None:
    """Return the loop that runs code, comprehensions aside."""
    loop = here.loop_of(code)
    while isinstance(loop, COMPREHENSIONS):
        loop = here.loop_of(loop)
    return loop


def _without_wait(here: Surroundings, code: ast.Call) -> Change | None:
    if code.args or code.keywords:
        return more_arguments(code, here.lines, "non_blocking=True")
    *_, line, end = here.span(code)
    return Change((line, end - 1, line, end), "non_blocking=True)")


def _is_move(here: Surroundings, code: ast.AST, given: set[str]) -> bool:
    """Tell whether code is ``images.to(device)`` of what the loader has handed over.

    Columns of it, ``images[:, 1:]``, the host gathers first, in memory that is not pinned.
    """
    match code:
        case ast.Call(
            ast.Attribute(ast.Name() | ast.Subscript() | ast.Attribute() as moved, method),
            args,
            words,
        ):
            named = [k for k in words if k.arg == "device"]
            where = [*args, *(k.value for k in named)]
            is_own = (
                method in operators.TO_DEVICE
                and root_name(moved) in given
                and not takes_columns(moved)
            )
            if any(here.text(a).endswith("accelerator.device") for a in where):
                return False  # the loader that ``accelerator.prepare`` returns has moved it
            others = {k.arg for k in words} - {"device", "dtype"}
            to_device = method != "to" or any(_DEVICE.search(here.text(a)) for a in where)
            return is_own and not others and to_device and len(args) <= 1
    return False


def copy_whole(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return the copy of a whole tensor instead of the same columns of both."""
    match code:
        case ast.Call(ast.Attribute(target, "copy_"), [source, *_]):
            is_host = re.search(r"(^|[._])(cpu|host|np|numpy)([._\[]|$)", here.text(source))
            if not (is_host and takes_columns(target) and takes_columns(source)):
                return None
            assert isinstance(target, ast.Subscript)  # noqa: S101 - ``takes_columns`` has looked
            assert isinstance(source, ast.Subscript)  # noqa: S101 - same
            if here.text(target.slice) != here.text(source.slice):
                return Proposal(code, _STRIDED)
            parts = [(p, here.text(p.value)) for p in (target, source)]
            return Proposal(
                code,
                form="columns",
                changes=tuple(Change(here.span(part), text) for part, text in parts),
                shown=f"{parts[0][1]}.copy_({parts[1][1]})",
            )
    return None


def takes_columns(code: ast.expr) -> bool:
    """Tell whether an index takes all of a dimension, and then a part of the next."""
    match code:
        case ast.Subscript(_, ast.Tuple([ast.Slice(None, None, None), *rest])):
            return any(not isinstance(r, ast.Slice) or r.lower or r.upper for r in rest)
    return False


def find_host_indexes(here: Surroundings) -> Iterator[Proposal]:
    """Yield what is made on the host and picks elements of a tensor: ``x[torch.tensor(n)]``."""
    said = set[int]()
    for node in here.nodes:
        match node:
            case ast.Subscript(owner, index, ast.Load()):
                items = list_indexes(index)
            case _:
                continue
        whole = here.value(owner)
        if not here.is_tensor(owner) or whole is None or is_made_on_host(whole):
            continue
        for item in items:
            value = here.value(item)
            made = value is not None and value.op in _OF_NUMBERS and is_made_on_host(value)
            if made and id(value) not in said and not is_of_host(here, owner):
                said.add(id(value))
                yield Proposal(item, _INDEX)


def make_of_read(here: Surroundings, made: ast.Call) -> Proposal | None:
    """Return the tensor itself for ``torch.tensor([x.item()], dtype=d, device=x.device)``.

    So for ``torch.tensor([x.sum()], device=d)``, which Python makes a number of as well, and for
    ``y.new_tensor([x.sum()])``; of several ``torch.stack([x.sum(), y.sum()])``.
    """
    listed = made.args[0].elts if made.args and isinstance(made.args[0], ast.List) else None
    parts = made.args if listed is None else listed
    if len(made.args) != 1 or not parts:
        return None
    read = [_tensor_read(here, part) for part in parts]
    tensors = [tensor for tensor in read if tensor is not None]
    if len(tensors) < len(parts) or all(is_of_host(here, t) for t in tensors):
        return None
    reads = any(part not in tensors for part in parts)
    where = _place_of(here, made, tensors, reads=reads)
    if where is None or (listed is None and not reads):  # torch.tensor(x) copies on the device
        return None
    if len(tensors) > 1 and not all(
        _is_one_number(here, t) and not is_of_host(here, t) for t in tensors
    ):
        return None
    if len(tensors) == 1:
        shape = "()" if listed is None else "1"
        held = f"{here.text_detached(tensors[0])}.reshape({shape})"
        # ``all_reduce`` of what is made must not write into what it is made of
        held += "" if makes_anew(tensors[0]) else ".clone()"
    else:
        held = f"{here.torch}.stack([{', '.join(map(here.text, tensors))}]).detach()"
    text = f"{held}.to({where})" if where else held
    known = all(map(here.is_tensor, tensors))
    return put(
        here,
        made,
        text,
        form="read_back",
        proven=frozenset({"is-tensor"} if known else ()) | {"same-device"},
    )


def _tensor_read(here: Surroundings, code: ast.expr) -> ast.expr | None:
    """Return ``x`` of ``x.item()``, or of a tensor ``x`` that nobody reads by name."""
    match code:
        case ast.Call(ast.Attribute(tensor, "item"), [], []):
            known = here.is_tensor(tensor)
            return None if known is False or (known is None and here.flow.cls is None) else tensor
    value = here.value(code)
    if value is not None and here.is_tensor(code) is None and value.op in _REDUCED:
        moved = any(part.op in operators.TO_DEVICE for part in value.walk())
        return code if moved and _is_one_number(here, code) else None
    return code if here.is_tensor(code) and _is_one_number(here, code) else None


def _place_of(
    here: Surroundings, made: ast.Call, tensors: Sequence[ast.expr], *, reads: bool
) -> str | None:
    """Return the arguments of ``to``: where a tensor is made, and in which dtype.

    ``None`` where that is open: a number of Python has another dtype than the tensor it is from.
    """
    words = {k.arg: here.text(k.value) for k in made.keywords}
    match made.func:
        case ast.Attribute(like, "new_tensor"):
            return None if words else here.text(like)
    above = here.parents.get(id(made))
    is_moved = isinstance(above, ast.Attribute) and above.attr in operators.TO_DEVICE
    if ("device" not in words and not is_moved) or not words.keys() <= {"dtype", "device"}:
        return None
    if reads and "dtype" not in words:
        return None
    device = words.get("device", "")
    there = device.removesuffix(".device")
    names = [{n.id for n in ast.walk(tensor) if isinstance(n, ast.Name)} for tensor in tensors]
    same = device.endswith(".device") and all(there in each for each in names)
    return ", ".join(filter(None, ["" if same else device, words.get("dtype", "")]))


def _is_one_number(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code is a tensor without dimensions, as what reduces all of them returns."""
    found = here.evaluations.get(id(code))
    if found is not None and found.node.op in _REDUCED:
        given = found.node.args[1:]
        return all(
            arg.op == Op.CONST and (arg.value is None or arg.value is False) for arg in given
        )
    return has_no_dimensions(here, code)
