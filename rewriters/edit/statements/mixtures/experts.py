"""Mixtures of experts: loops over the experts."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.rounds.written import is_left_alone
from npufix.rewriters.graph.modules.syntax import (
    find_unused_name,
    last_name,
    list_indexes,
    list_names,
    list_stored_names,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_EXPERT = re.compile(r"(?i)expert")
_MIXTURE = re.compile(r"(?i:expert)|M[oO]E|moe_|_moe\b|\bmoe\b")
_FUSED = re.compile(r"(?i)group(ed)?_?(gemm|matmul|mm)(?![a-z])|\bnpu_gmm\b|\bgmm\(")
_SEQUENTIAL = re.compile(r"(?i)sequential|naive|loop")
_OF_GROUPS = re.compile(r"(?i)(?=.*group).*(expert|ffn|gemm|linear|matmul|mlp|moe|_mm)")
"""``GroupedMLP``, not ``pad_and_group_codes``."""
_COUNTS = re.compile(r"(?i)count|per_expert|tolist\(|num_tokens|splits|sizes|sections")
"""What lengths of parts that differ are called like; a number is one length for all."""
_CHOOSES = frozenset({"where", "nonzero", "argwhere", "eq"})
_PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm"})
_MADE = ("counts", "places", "rows")
"""What is found before a loop: how much is set in each row, where, and, of comparisons, what."""
_GROUPED = (
    "sort the tokens by expert once: permuted, places = torch_npu.npu_moe_token_permute({tokens}, "
    "{indices}.int()); ends = torch.bincount({indices}.flatten(), minlength=experts).cumsum(0); "
    "multiply them all at once: npu_gmm(permuted, {weight}, group_list=ends, group_type=0) of "
    "mindspeed.ops.gmm; torch_npu.npu_moe_token_unpermute(out, places, probs={weights}). "
    "Inference: npu_grouped_matmul instead of npu_gmm. Few large experts have been slower so: "
    "measure it"
)


def find_expert_loops(here: Surroundings) -> Iterator[Proposal]:
    """Yield the loops in which each round picks the tokens of one expert and computes them."""
    loops = [n for n in here.nodes if isinstance(n, ast.For) and _is_of_experts(here, n)]
    if loops and (_FUSED.search(here.text(here.flow.cls or here.flow.function)) or _is_other(here)):
        return  # its author has chosen
    for loop in loops:
        wraps = any(isinstance(s, ast.FunctionDef) for s in loop.body)  # a new ``forward`` of each
        if here.loop_of(loop) is None and not wraps:
            yield Proposal(loop, _advice(here, loop))


def _is_other(here: Surroundings) -> bool:
    """Tell whether it is the slow one of two ways: ``SequentialMLP`` beside ``GroupedMLP``."""
    names = here.flow.names
    beside = (*names.classes, *names.functions)
    return _SEQUENTIAL.search(here.flow.qualname) is not None and any(
        _OF_GROUPS.match(other) for other in beside
    )


def find_rows_of_masks(here: Surroundings) -> Iterator[Proposal]:
    """Yield the loops in which each round finds what is set in one row of a mask."""
    for loop in here.nodes:
        if isinstance(loop, ast.For) and here.loop_of(loop) is None:
            found = _find_once(here, loop)
            if found is not None:
                yield found


def _find_once(here: Surroundings, loop: ast.For) -> Proposal | None:
    """Return the tokens of all experts found before the loop, where each round asks for its own.

    ::

        for i in range(n):                      places = list(zip(*(... torch.where(mask)[1:])))
            slot, row = torch.where(mask[i])    for i in range(n):
            ...                                     slot, row = places[i]
    """
    found = [read for n in walk(loop) if (read := _read_of_mask(n)) is not None]
    masks = {(read.mask.id, read.compared) for read in found}
    tensor = [here.is_tensor(read.mask) for read in found]
    if len(masks) != 1 or here.whole_lines(loop) is None or False in tensor:
        return None
    ((mask, compared),) = masks
    if any(isinstance(n, ast.Attribute) and n.attr == "tolist" for n in walk(*loop.body)):
        return None  # each round waits for the host all the same
    alone = is_left_alone(here, loop, {mask})
    rows = _goes_through_rows(here, loop)
    numbered = all(_is_number(loop, read, of_rows=rows) for read in found)
    first, last = _range(here, loop)
    inner = any(here.loop_of(read.call) is not loop for read in found)
    if alone is False or not numbered or inner or (compared and not last):
        return None
    taken = list_names(here.flow.names.tree or here.flow.function)
    counts, places, own = (find_unused_name(f"mask_{what}", taken) for what in _MADE)
    every = f"torch.arange({last}, device={mask}.device).view(-1{', 1' * compared})"
    head = [f"{own} = {mask} == {every}"] if compared else []  # ``indices == i``, for all i
    own = own if compared else mask
    head += [
        f"{counts} = {own}.flatten(1).count_nonzero(1).tolist()",
        f"{places} = list(zip(*(torch.split(at, {counts}) for at in torch.where({own})[1:])))",
    ]
    changes = [Change(here.span(read.call), f"{places}[{here.text(read.place)}]") for read in found]
    if rows and _asks_for_numbers(here, loop):
        changes.append(Change(here.span(loop.iter), f"{here.text(loop.iter)}.tolist()"))
    line = (loop.lineno, 0, loop.lineno, 0)
    text = "".join(f"{here.indent(loop)}{one}\n" for one in head)
    proven = {
        "not-written-to": alone,
        "is-tensor": all(tensor),
        "begins-with-zero": not compared or first.isdigit(),
    }
    return Proposal(
        loop,
        changes=(Change(line, text), *changes),
        shown="\n".join(head),
        proven=frozenset(name for name, is_so in proven.items() if is_so),
    )


class _Read(NamedTuple):
    """``slot, row = torch.where(mask[i])`` or ``torch.where(mask == i)``."""

    call: ast.Call
    mask: ast.Name
    place: ast.expr
    compared: int = 0
    """How many dimensions what is compared with the index has."""
    squeezed: bool = False
    """``mask[row].squeeze(0)``, where the row of positions has one number."""


def _read_of_mask(node: ast.AST) -> _Read | None:
    match node:
        case ast.Assign(
            [ast.Tuple([_, _, *_] as targets)],
            ast.Call(ast.Attribute(ast.Name("torch"), "where"), [asked], []) as call,
        ) if not any(isinstance(t, ast.Starred) for t in targets):
            match asked:
                case ast.Subscript(ast.Name() as mask, index):
                    return _Read(call, mask, index)
                case ast.Compare(ast.Name() as mask, [ast.Eq()], [ast.Name() as index]):
                    return _Read(call, mask, index, len(targets))
                case ast.Call(
                    ast.Attribute(ast.Subscript(ast.Name() as mask, index), "squeeze"),
                    [ast.Constant(0)],
                    [],
                ):
                    return _Read(call, mask, index, squeezed=True)
    return None


def _range(here: Surroundings, loop: ast.For) -> tuple[str, str]:
    """Return where a loop over numbers begins and ends, as it is written; "" for others."""
    calls = [n for n in ast.walk(loop.iter) if isinstance(n, ast.Call)]
    if any(last_name(c.func) not in {"range", "enumerate", "len"} for c in calls):
        return "", ""  # what it costs, it would cost twice
    match loop.iter:
        case ast.Call(ast.Name("range"), [stop], []):
            return "0", here.text(stop)
        case ast.Call(ast.Name("range"), [start, stop], []):
            return here.text(start), here.text(stop)
        case ast.Call(ast.Name("enumerate"), [ast.Name() | ast.Attribute() as held], []):
            return "0", f"len({here.text(held)})"
    return "", ""


def _goes_through_rows(here: Surroundings, loop: ast.For) -> bool:
    """Tell whether a loop is over positions: ``for row in hit``, ``hit = (x > 0).nonzero()``."""
    rows = loop.iter.value if isinstance(loop.iter, ast.Subscript) else loop.iter
    bound = [
        n
        for n in here.nodes
        if isinstance(n, ast.Assign) and list_names(rows) & list_stored_names(n)
    ]
    return (
        isinstance(rows, ast.Name)
        and isinstance(loop.target, ast.Name)
        and len(bound) == 1
        and isinstance(bound[0].value, ast.Call)
        and last_name(bound[0].value.func) == "nonzero"
        and not bound[0].value.keywords
    )


def _is_number(loop: ast.For, read: _Read, *, of_rows: bool) -> bool:
    """Tell whether an index is a number in each round: ``i`` of a range, ``row[0]``."""
    index, names = ast.unparse(read.place), [n for n in walk(*loop.body) if isinstance(n, ast.Name)]
    match loop.target, loop.iter:
        case (ast.Name(name), ast.Call(ast.Name("range"))) | (
            ast.Tuple([ast.Name(name), _]),
            ast.Call(ast.Name("enumerate"), [_]),
        ):
            wanted, first = ("" if read.squeezed else name), False
        case ast.Name(name), _ if of_rows:
            first = ast.unparse(loop.body[0]) == f"{name} = {name}[0]"
            wanted = name if first != read.squeezed else f"{name}[0]"
        case _:
            return False
    bound = sum(n.id == name and isinstance(n.ctx, ast.Store) for n in names)
    return index == wanted and bound == first


def _asks_for_numbers(here: Surroundings, loop: ast.For) -> bool:
    """Tell whether ``i = row[0]`` begins a loop that only compares it and picks by it alone."""
    assert isinstance(loop.target, ast.Name)  # noqa: S101 - it goes through rows
    name = loop.target.id
    uses = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == name]
    inside = {id(n) for n in walk(*loop.body[1:])}
    later = [n for n in uses if isinstance(n.ctx, ast.Load) and id(n) in inside]
    first = ast.unparse(loop.body[0]) == f"{name} = {name}[0]"
    return (
        first
        and len(uses) == len(later) + 3
        and all(
            isinstance(outer := here.parents.get(id(n)), ast.Compare)
            or (isinstance(outer, ast.Subscript) and outer.slice is n)
            for n in later
        )
    )


def _is_of_experts(here: Surroundings, loop: ast.For) -> bool:
    if _MIXTURE.search(f"{here.flow.qualname} {here.text(loop)}") is None:
        return False
    bound = list_stored_names(loop)
    inner = [n for statement in loop.body for n in ast.walk(statement)]
    own = list_names(loop.target)
    counters = {c for n in inner if isinstance(n, ast.For) for c in list_names(n.target)}
    if any(isinstance(n, ast.Attribute) and n.attr == "data" for n in inner):
        return False  # weights are loaded
    # where all experts get all tokens nothing is picked: ``self.gates[j](x)`` for each ``j``
    picks = any(_picks_rows(n, bound - own - counters, own) for n in inner)
    return (picks or _goes_through_parts(here, loop)) and any(
        _computes(n, own, bound) for n in inner
    )


def _goes_through_parts(here: Surroundings, loop: ast.For) -> bool:
    """Tell whether each round gets the tokens of its expert: ``zip(experts, x.split(counts))``."""
    named = list_names(loop.iter)
    parts: list[ast.expr] = [loop.iter]
    for node in here.nodes:
        match node:
            case ast.Assign([ast.Name(name)], value) if name in named:
                parts.append(value)
    for node in walk(*parts):
        match node:
            case ast.Call(function, args, words) if last_name(function) == "split":
                of_torch = here.flow.names.dotted(function) == "torch.split"
                sizes = [*args[of_torch : of_torch + 1]]
                sizes += [k.value for k in words if k.arg not in {"dim", "tensor"}]
                if any(_COUNTS.search(here.text(size)) for size in sizes):
                    return True
    return False


def _picks_rows(node: ast.AST, bound: frozenset[str] | set[str], own: set[str]) -> bool:
    """Tell whether some rows are taken: ``x[token_idx]``, ``x[idx == i]``, ``x[start:end]``.

    Or ``x[rows[i]]``, where ``i`` is the loop's own.
    """
    match node:
        case ast.Subscript(_, index, ast.Load()):
            parts = list_indexes(index)
            for part in parts:
                match part:
                    case ast.Compare():
                        return True
                    case ast.Subscript(_, place) if own & list_names(place):
                        return True
                    case ast.Name(name) if name in bound:
                        return True
                    case ast.Slice(ast.expr() as low, ast.expr()):
                        return bool(list_names(low) & bound)
        case ast.Call(function):
            return last_name(function) in _CHOOSES
    return False


def _computes(node: ast.AST, own: set[str], stored: frozenset[str] | set[str]) -> bool:
    """Tell whether an expert is called, or a product takes its weights."""
    bound = own | stored
    match node:
        case ast.Call(ast.Subscript(experts), [_, *_]):
            return _EXPERT.search(ast.unparse(experts)) is not None
        case ast.Call(ast.Name(name), [_, *_]):
            return name in bound and _EXPERT.search(name) is not None
        case ast.Call(function, [_, *_] as args) if last_name(function) in _PRODUCTS:
            return any(_is_of_expert(arg, bound) for arg in args)
        case ast.Call(ast.Attribute(ast.Name("self")), [ast.Name(rows), *others]):
            # the expert by its number: ``self.mlp(tokens, expert_idx)``
            return rows in stored - own and any(
                isinstance(other, ast.Name) and other.id in own for other in others
            )
        case ast.BinOp(_, ast.MatMult(), right):
            return _is_of_expert(right, bound)
    return False


def _is_of_expert(code: ast.expr, bound: set[str]) -> bool:
    return any(
        isinstance(n, ast.Subscript)
        and list_names(n.slice) & bound
        and not isinstance(n.slice, ast.Slice)
        for n in ast.walk(code)
    )


def _advice(here: Surroundings, loop: ast.For) -> str:
    """Return what to do, in the names of the code as far as it tells them."""
    names = {n.id for n in here.nodes if isinstance(n, ast.Name)}
    names |= {a.arg for a in here.flow.function.args.args}
    names -= list_stored_names(loop)

    def named(*words: str, default: str) -> str:
        found = (n for word in words for n in sorted(names) if re.search(word, n))
        return next(found, default)

    weights = sorted(
        (n.lineno, n.col_offset, here.text(n.value))
        for n in ast.walk(loop)
        if isinstance(n, ast.Subscript)
        and here.text(n.value).startswith("self.")
        and not here.text(n.value).endswith("experts")
    )
    return _GROUPED.format(
        tokens=named("^hidden_states$", "^x$", "^inputs?$", default="tokens"),
        indices=named(
            "top_?k_i", "top_experts", "selected", "router_ind", "indices", default="indices"
        ),
        weights=named(
            "top_?k_weight", "top_weights", "routing_weights", "^weights$", default="weights"
        ),
        weight=weights[0][2] if weights else "weight",
    )
