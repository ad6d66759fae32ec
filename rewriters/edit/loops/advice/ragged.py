"""Loops over parts of different lengths, which a person can write as one operator."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.advice.rounds import follow, list_bound, look_up
from npufix.rewriters.graph.modules.syntax import (
    last_name,
    list_indexes,
    list_names,
    list_stored_names,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.edit.loops.given.reading import Loop

SEGMENTS = (
    "each round launches kernels of its own for one part: give every row the number of its part "
    "(segment = torch.repeat_interleave(torch.arange(n, device=x.device), lengths, "
    "output_size=len(x))), then sum.index_add_(0, segment, x) adds up all parts at once, and "
    "scatter_reduce finds the largest; of padded rows: torch.arange(width) < lengths[:, None]"
)
GROUPS = (
    "each round compares all rows anew, and the host waits for how many there are: sums = "
    "x.new_zeros(n, x.shape[1]).index_add_(0, group, x) adds up all groups at once, "
    "torch.bincount(group, minlength=n) counts them, and scatter_reduce finds the largest"
)
SEQUENCES = (
    "attention of one sequence after the other: one call takes all of them, "
    'torch_npu.npu_fusion_attention(q, k, v, heads, input_layout="TND", actual_seq_qlen=ends, '
    "actual_seq_kvlen=ends), where ends are the ends of the sequences as a list of the host"
)
UNPADDED = (
    "the host waits for the length of each row, to pad them again afterwards: leave them padded, "
    "torch.where(rows == padding, other, rows), and write what comes behind the last one with "
    "rows.scatter(1, (rows != padding).sum(1, keepdim=True), number)"
)
MERGED = (
    "a module is called for each row by itself: where it treats the rows of a batch alike, one "
    "call takes all of them, f(x.flatten(0, 1)).unflatten(0, x.shape[:2]), and torch.cat instead "
    "of torch.stack puts others before or behind"
)
RECURRENCES = (
    "each round needs the one before it, as in h = a[:, t] * h + b[:, t], and launches small "
    "kernels: compute what reads no h for all rounds before the loop, and what only reads h behind "
    "it, from the stacked rounds; chunks of 16 to 64 rounds need one product each, m @ b, where "
    "m[i, j] = a[j + 1] * ... * a[i] for j <= i, else 0 (plus a[0] * ... * a[i] times the h that "
    "the chunk begins with)"
)
OVERLAPS = (
    "each round adds one window to a result in which windows overlap: of frames of [batch, "
    "windows, size], F.fold(frames.transpose(1, 2), (1, length), (1, size), stride=(1, hop))"
    ".flatten(1) adds up all windows at once"
)
GROWING = (
    "each round computes anew what the rounds before had, and one more: one call takes all of them "
    "under a causal mask, torch.ones(n, n, dtype=torch.bool, device=x.device).tril() or "
    "is_causal=True; a mean of all so far is x.cumsum(1) / torch.arange(1, n + 1), the largest "
    "x.cummax(1).values"
)
ADVICE = (OVERLAPS, GROWING, RECURRENCES, SEGMENTS, GROUPS, SEQUENCES, UNPADDED, MERGED)
_REDUCES = frozenset({"amax", "amin", "logsumexp", "max", "mean", "min", "norm", "std", "sum"})
_ATTENDS = re.compile(r"(?i)att(en|n)|sdpa")
_CHOOSES = (ast.Assert, ast.Break, ast.Continue, ast.If, ast.While)
_MOST = 6
"""Statements of a round: what does more, nobody writes anew for one sum."""


def say_how(loop: Loop) -> str:  # noqa: PLR0911 - one case a form
    """Return how the parts of all rounds are computed at once, "" if it takes no parts.

    Parts are ``x[start[i]:end[i]]``, ``x[i, :n[i]]`` and ``x[group == i]``, of which each round
    takes a sum, a mean or the largest.
    """
    if _sums_narrowed(loop):
        return SEGMENTS
    if len(loop.body) > _MOST or any(isinstance(n, _CHOOSES) for n in walk(*loop.body)):
        return ""
    made = [loop.made] if loop.made is not None else [one.made for one in loop.lists]
    code: Sequence[ast.AST] = [*loop.body, *made]
    own = list_names(loop.target)
    bound = dict(list_bound(loop.body))
    if _is_recurrence(loop, own, bound):
        return RECURRENCES
    if any(_adds_window(node, own, bound) for node in loop.body):
        return OVERLAPS
    running = _list_running(loop.body, own, bound)
    for node in walk(*code):
        if isinstance(node, ast.Call):
            given = _given(node)
            reduces = last_name(node.func) in _REDUCES
            attends = _ATTENDS.search(last_name(node.func)) is not None
            for part in _parts(given, bound) if reduces or attends else ():
                if reduces and _is_group(part.slice, own, bound):
                    return GROUPS
                if _is_segment(part.slice, own, bound) or _begins_at(part.slice, running):
                    return SEGMENTS if reduces else SEQUENCES
    kept = bool(made) or any(
        isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store) and own & list_names(n.slice)
        for n in walk(*loop.body)
    )
    return GROWING if kept and _calls_with_more(loop, code, own, bound) else ""


def _is_recurrence(loop: Loop, own: set[str], bound: Mapping[str, ast.expr]) -> bool:
    """Tell whether a round takes ``h = a[:, t] * h + b[:, t]``: it is linear in the one before.

    A module that is called may be anything but linear, and reads ``h``: ``self.cell(x[:, t], h)``.
    """
    nodes = list(walk(*loop.body))
    if any(isinstance(n, ast.Call) and "self" in list_names(n.func) for n in nodes):
        return False
    counted = re.search(r"\.(size\(0\)|shape\[0\])", ast.unparse(loop.items)) is not None
    takes_rows = any(
        isinstance(n, ast.Subscript)
        and isinstance(n.ctx, ast.Load)
        and (counted or isinstance(n.slice, ast.Tuple))  # no list
        and any(isinstance(i, ast.Name) and i.id in own for i in list_indexes(n.slice))
        for n in nodes
    )
    return takes_rows and any(_is_linear_step(loop, code, bound) for code in loop.body)


def _is_linear_step(loop: Loop, code: ast.stmt, bound: Mapping[str, ast.expr]) -> bool:
    """Tell whether code is ``h = a * h + b``, where neither is computed from ``h``.

    Before and after it the round may take ``h = h * mask[:, t]``.
    """
    match code:
        case ast.Assign([ast.Name(name)], ast.BinOp(left, ast.Add(), right) as value):
            parts = [part for part in (left, right) if name in list_names(part)]
            others = {other: found for other, found in bound.items() if other != name}
            read = [n for n in follow([value], others) if isinstance(n, ast.Name)]
            again = [
                found
                for stored, found in list_bound(loop.body)
                if stored == name and found is not value
            ]
            return (
                len(parts) == sum(n.id == name for n in read) == 1
                and _is_factor(name, parts[0])
                and all(_is_factor(name, found) for found in again)
            )
    return False


def _is_factor(name: str, code: ast.expr) -> bool:
    match code:
        case ast.BinOp(left, ast.Mult(), right):
            for one, other in ((left, right), (right, left)):
                is_it = isinstance(one, ast.Name) and one.id == name
                if (is_it or _is_factor(name, one)) and name not in list_names(other):
                    return True
    return False


def takes_padding_off(code: ast.ListComp) -> bool:
    """Tell whether code is ``[row[row != padding] for row in rows]``."""
    match code:
        case ast.ListComp(
            ast.Subscript(ast.Name(row), ast.Compare(ast.Name(compared), [ast.NotEq()], [padding])),
            [
                ast.comprehension(
                    ast.Name(element), ast.Name() | ast.Attribute() | ast.Subscript(), []
                )
            ],
        ):
            return row == compared == element and row not in list_names(padding)
    return False


def calls_for_each_row(code: ast.ListComp) -> bool:
    """Tell whether code is ``[self.encoder(x[:, i]) for i in range(x.shape[1])]``."""
    match code:
        case ast.ListComp(
            ast.Call(
                ast.Attribute(ast.Name("self")),
                [ast.Subscript(_, ast.Tuple([ast.Slice(None, None, None), ast.Name(row)]))],
                [],
            ),
            [ast.comprehension(ast.Name(counter), ast.Call(ast.Name("range")), [])],
        ):
            return row == counter
    return False


def _given(call: ast.Call) -> list[ast.expr]:
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [*owner, *call.args, *(k.value for k in call.keywords)]


def _parts(given: Sequence[ast.expr], bound: Mapping[str, ast.expr]) -> Iterator[ast.Subscript]:
    """Yield what is taken of something, names of the round followed."""
    for node in follow(given, bound):
        if isinstance(node, ast.Subscript):
            yield node


def _is_segment(index: ast.expr, own: set[str], bound: Mapping[str, ast.expr]) -> bool:
    """Tell whether an index goes up to where a table says: ``start[i]:start[i + 1]``.

    Columns of all rows, ``logits[:, start:end]``, belong to heads of different widths.
    """
    parts = list_indexes(index)
    if isinstance(parts[0], ast.Slice) and parts[0].upper is None:
        return False
    for part in parts:
        for node in follow([part], bound, 1):
            match node:
                case ast.Slice(_, ast.expr() as end) | ast.Call(
                    ast.Name("slice"), [_, ast.expr() as end, *_]
                ):
                    if any(
                        isinstance(n, ast.Subscript)
                        and isinstance(n.value, ast.Name | ast.Attribute)
                        and own & list_names(n.slice)
                        for n in follow([end], bound)
                    ):
                        return True
    return False


def _sums_narrowed(loop: Loop) -> bool:
    """Tell whether a round sums up ``x.narrow(0, start, length)``, perhaps if there is any."""
    made = [loop.made] if loop.made is not None else [one.made for one in loop.lists]
    nodes = list(walk(*loop.body, *made))
    own, pairs = list_names(loop.target), list(list_bound(loop.body))
    bound, narrowed = dict(pairs), set[str]()
    for name, value in pairs:
        if _narrows(value, own, bound) or (isinstance(value, ast.Name) and value.id in narrowed):
            narrowed.add(name)
    long = sum(isinstance(n, ast.stmt) for n in nodes) > 2 * _MOST
    if long or any(isinstance(n, ast.Break | ast.While) for n in nodes):
        return False
    return any(
        isinstance(n, ast.Call)
        and last_name(n.func) in _REDUCES
        and any(_narrows(g, own, bound) or last_name(g) in narrowed for g in _given(n)[:1])
        for n in nodes
    )


def _narrows(code: ast.AST, own: set[str], bound: Mapping[str, ast.expr]) -> bool:
    """Tell whether code is ``x.narrow(0, start, length)``, with a length of the round's own."""
    match code:
        case ast.Call(ast.Attribute(base, "narrow"), [*_, ast.Constant(0), _, length], []):
            of_round = list_names(look_up(length, bound)) & own
            return bool(of_round) and not list_names(base) & own
    return False


def _list_running(
    code: Sequence[ast.stmt], own: set[str], bound: Mapping[str, ast.expr]
) -> frozenset[str]:
    """Return the names of running starts: ``off += n``, or ``off = end`` after ``off + n``."""
    found = set()
    for statement in code:
        match statement:
            case ast.AugAssign(ast.Name(name), ast.Add(), more):
                ends: list[ast.expr] = [more]
            case ast.Assign([ast.Name(name)], ast.Name(end)) if end in bound:
                ends = [bound[end]] if name in list_names(bound[end]) else []
            case _:
                continue
        others = {other: value for other, value in bound.items() if other != name}
        if any(isinstance(n, ast.Name) and n.id in own for n in follow(ends, others)):
            found.add(name)
    return frozenset(found)


def _begins_at(index: ast.expr, running: frozenset[str]) -> bool:
    match list_indexes(index)[0]:
        case ast.Slice(ast.Name(name), ast.expr(), None):
            return name in running
    return False


def _adds_window(code: ast.stmt, own: set[str], bound: Mapping[str, ast.expr]) -> bool:
    """Tell whether code is ``out[:, i * hop : i * hop + size] += frames[:, i]``."""
    match code:
        case ast.AugAssign(ast.Subscript(_, index), ast.Add(), value):
            nodes = follow([value], bound)
            taken = (n.slice for n in nodes if isinstance(n, ast.Subscript))
            parts = list_indexes(index)
            windows = (_overlaps(part, own, bound) for part in parts)
            overlaps = next((known for known in windows if known is not None), False)
            return overlaps and any(own & list_names(at) for at in taken)
    return False


def _overlaps(part: ast.expr, own: set[str], bound: Mapping[str, ast.expr]) -> bool | None:
    """Tell whether windows ``i * hop : i * hop + size`` overlap, ``None`` if it is no window."""
    match part:
        case ast.Slice(ast.expr() as begin, ast.BinOp(start, ast.Add(), size), None):
            first = look_up(begin, bound)
            match first:
                case ast.BinOp(ast.Name(counter), ast.Mult(), hop) if counter in own:
                    alike = ast.unparse(start) in {ast.unparse(begin), ast.unparse(first)}
                    return alike and ast.unparse(size) != ast.unparse(hop)
    return None


def _calls_with_more(
    loop: Loop, code: Sequence[ast.AST], own: set[str], bound: Mapping[str, ast.expr]
) -> bool:
    """Tell whether a round calls ``self.step(x[:, :t])``, of which no round changes the ``x``."""
    if not isinstance(loop.items, ast.Call) or last_name(loop.items.func) != "range":
        return False
    changed = {name for statement in loop.body for name in list_stored_names(statement)}
    for call in (n for n in walk(*code) if isinstance(n, ast.Call)):
        of_self = isinstance(call.func, ast.Attribute) and "self" in list_names(call.func)
        given = call.args if of_self or isinstance(call.func, ast.Name) else []
        if any(_is_more(look_up(argument, bound), own, changed) for argument in given):
            return True
    return False


def _is_more(code: ast.expr, own: set[str], changed: set[str]) -> bool:
    """Tell whether code is ``x[:, :t]`` or ``x[:, : t + 1]``: one more in each round."""
    match code:
        case ast.Subscript(
            ast.Name(base),
            ast.Tuple(
                [
                    ast.Slice(None, None),
                    ast.Slice(
                        None,
                        ast.Name(counter)
                        | ast.BinOp(ast.Name(counter), ast.Add(), ast.Constant(1)),
                    ),
                    *_,
                ]
            ),
        ):
            return base not in changed and counter in own
    return False


def _is_group(index: ast.expr, own: set[str], bound: Mapping[str, ast.expr]) -> bool:
    """Tell whether an index takes what belongs to the round: ``group == i``."""
    value = look_up(index, bound)
    match value:
        case ast.Compare(ast.Name() | ast.Attribute(), [ast.Eq()], [ast.Name(number)]):
            return number in own
    return False
