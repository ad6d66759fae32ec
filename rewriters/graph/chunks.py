"""Halves and pairs of the last dimension: one node each, however they are spelled.

* A half is ``x.chunk(2, -1)[i]``: also a slice up to or from ``x.shape[-1] // 2``, a part of
  ``x.split([n, n], -1)``, or an element of ``x.unflatten(-1, (2, -1)).unbind(-2)``.
* Every other element is ``x[..., i::2]``: also an element of ``x.unflatten(-1, (-1, 2))``.
* Two tensors interleaved are ``torch.stack((a, b), -1).flatten(-2)``: also reshaped or rearranged.

For an odd length ``chunk`` puts the element in the middle into the first half, a slice into the
second one. Rules about halves say what happens then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.rewriters.graph.nodes import Graph, Node

    Ranks = Mapping[Node, int]

_RESHAPES = frozenset({"reshape", "reshape(*)", "view", "view(*)"})
_SPLIT_LAST = re.compile(r"(.*?)\((\w+) (\w+)\) -> \1\2 \3")
_JOIN_LAST = re.compile(r"(.*?)(\w+) (\w+) -> \1\(\2 \3\)")
_SPLIT_FIRST = re.compile(r"(.*?)\((\w+) (\w+)\) -> (\w+) \1(\w+)")
_JOIN_LISTED = re.compile(r"(\w+) (.*?)(\w+) -> \2\((\w+) (\w+)\)")
_REDUCES = frozenset({"mean", "norm", "std", "var"})
_TWO = 2


class _Pairs(NamedTuple):
    """A view that makes two dimensions out of the last one of ``x``, one of them of length two."""

    x: Node
    is_inner: bool
    """Whether the new last dimension is the one of two: (n, 2), not (2, n)."""


def part(graph: Graph, base: Node, index: int, ranks: Ranks) -> Node | None:
    """Return element ``index`` of a chunked, split or unbound tensor if it is half of one."""
    match base.op, base.args:
        case "chunk", (x, pieces, dim) if _is(pieces, _TWO) and _is_last(dim, x, ranks):
            return _half(graph, x, index, base.epoch)
        case "split", (x, sizes, dim) if _is_last(dim, x, ranks) and _in_two(sizes, x, ranks):
            return _half(graph, x, index, base.epoch)
        case "unbind", (view, dim):
            return _element(graph, view, dim, index, ranks, base.epoch)
    return None


def subscript(  # noqa: PLR0911 - one case a spelling
    graph: Graph, base: Node, index: Node, ranks: Ranks, epoch: int
) -> Node | None:
    """Return ``base[index]`` if it is a half or every other element of the last dimension."""
    items = index.args if index.op == Op.TUPLE else (index,)
    if not items or not _leaves_the_others(items[:-1], base, ranks):
        return None
    last = items[-1]
    if last.op == Op.CONST and type(last.value) is int:
        return _element(graph, base, graph.constant(-1), last.value, ranks, epoch)
    if last.op != Op.SLICE:
        return None
    lower, upper, step = last.args
    from_start, to_end = _is_none(lower) or _is(lower, 0), _is_none(upper)
    if _is(step, _TWO) and to_end and (from_start or _is(lower, 1)):
        return every_other(graph, base, 0 if from_start else 1, epoch)
    if not (_is_none(step) or _is(step, 1)):
        return None
    if from_start and _is_half_length(upper, base, ranks):
        return _half(graph, base, 0, epoch)
    if _is_half_length(lower, base, ranks) and (to_end or _is_length(upper, base, ranks)):
        return _half(graph, base, 1, epoch)
    return None


def join(graph: Graph, node: Node, ranks: Ranks) -> Node | None:
    """Return a stack whose last two dimensions become one as two interleaved tensors."""
    stack = node.args[0] if node.args else node
    if stack.op != "stack" or len(stack.args) != _TWO or not _is(stack.args[1], -1):
        return None
    if not _joins_the_last(node, stack, ranks):
        return None
    return graph.node("flatten", stack, graph.constant(-2), graph.constant(-1), epoch=node.epoch)


def listed(graph: Graph, node: Node) -> Node | None:
    """Return ``rearrange([a, b], "r ... d -> ... (d r)")`` as a stack that is flattened.

    With the list in front, ``... (r d)``, it is ``torch.cat((a, b), -1)``.
    """
    tensors, text, *lengths = node.args
    found = _JOIN_LISTED.fullmatch(str(text.value))
    told = not lengths or (len(lengths) == 1 and _is(lengths[0], len(tensors.args)))
    if tensors.op not in {Op.LIST, Op.TUPLE} or found is None or not told:
        return None
    name, _, last, *joined = found.groups()
    if any(arg.op == Op.STAR for arg in tensors.args) or node.value not in {(), None, (name,)}:
        return None
    end, parts = graph.constant(-1), graph.node(Op.TUPLE, *tensors.args)
    if joined == [name, last]:
        return graph.node("cat", parts, end, epoch=node.epoch)
    if joined != [last, name]:
        return None
    stack = graph.node("stack", parts, end, epoch=node.epoch)
    return graph.node("flatten", stack, graph.constant(-2), end, epoch=node.epoch)


def leading(graph: Graph, view: Node, index: int) -> Node | None:
    """Return an element of ``rearrange(x, "... (d r) -> r ... d", r=2)``, one of two."""
    if view.op != "einops.rearrange" or len(view.args) != 3 or not _is(view.args[2], _TWO):  # noqa: PLR2004 - x, text, a length
        return None
    found = _SPLIT_FIRST.fullmatch(str(view.args[1].value))
    if found is None or view.value != (found[4],) or not -_TWO <= index < _TWO:
        return None
    if (found[2], found[3]) == (found[5], found[4]):
        return every_other(graph, view.args[0], index % _TWO, view.epoch)
    same = (found[2], found[3]) == (found[4], found[5])
    return _half(graph, view.args[0], index, view.epoch) if same else None


def from_end(graph: Graph, node: Node, ranks: Ranks) -> Node:
    """Return ``x.mean(2)`` as ``x.mean(-1)`` where ``x`` has three dimensions.

    A matrix is left as it is: its last dimension is that of channels as well.
    """
    at = 2 if node.op == "norm" else 1
    if node.op not in _REDUCES or len(node.args) <= at:
        return node
    rank = _rank(node.args[0], ranks)
    if rank <= _TWO or not _is(node.args[at], rank - 1):
        return node
    args = [*node.args[:at], graph.constant(-1), *node.args[at + 1 :]]
    return graph.node(node.op, *args, value=node.value, epoch=node.epoch)


def _rank(x: Node, ranks: Ranks) -> int:
    """Return how many dimensions a tensor has, 0 where nobody knows."""
    while x not in ranks and x.args and x.op in operators.SAME_SHAPE:
        x = x.args[0]
    if x.op == Op.PHI:
        found = {_rank(part, ranks) for part in x.args[1:]}
        return found.pop() if len(found) == 1 else 0
    return ranks.get(x, 0)


def every_other(graph: Graph, x: Node, first: int, epoch: int) -> Node:
    """Return ``x[..., first::2]``."""
    nothing = graph.constant(None)
    start = graph.constant(first) if first else nothing
    step = graph.node(Op.SLICE, start, nothing, graph.constant(_TWO))
    return graph.node(
        Op.GETITEM, x, graph.node(Op.TUPLE, graph.constant(Ellipsis), step), epoch=epoch
    )


def _half(graph: Graph, x: Node, index: int, epoch: int) -> Node | None:
    if not -_TWO <= index < _TWO:
        return None
    chunks = graph.node("chunk", x, graph.constant(_TWO), graph.constant(-1), epoch=epoch)
    return graph.node(Op.ITEM, chunks, value=index % _TWO)


def _element(  # noqa: PLR0913, PLR0917 - where, and which
    graph: Graph, view: Node, dim: Node, index: int, ranks: Ranks, epoch: int
) -> Node | None:
    """Return an element along the dimension of two that a view made."""
    pairs = _pairs(view, ranks)
    if pairs is None or not -_TWO <= index < _TWO:
        return None
    if pairs.is_inner:
        return every_other(graph, pairs.x, index % _TWO, epoch) if _is(dim, -1) else None
    return _half(graph, pairs.x, index, epoch) if _is(dim, -2) else None


def _pairs(view: Node, ranks: Ranks) -> _Pairs | None:
    if view.op == "einops.rearrange":
        return _read_rearrange(view)
    made = _last_made(view, ranks)
    if made is None or len(made) != _TWO:
        return None
    x, (outer, inner) = view.args[0], made
    if _is(inner, _TWO) and (_is(outer, -1) or _is_half_length(outer, x, ranks)):
        return _Pairs(x, is_inner=True)
    if _is(outer, _TWO) and (_is(inner, -1) or _is_half_length(inner, x, ranks)):
        return _Pairs(x, is_inner=False)
    return None


def _last_made(view: Node, ranks: Ranks) -> tuple[Node, ...] | None:
    """Return the lengths that a view makes out of the last one, if it leaves the others."""
    x, *sizes = view.args or (view,)
    if view.op == "unflatten" and len(sizes) == _TWO and _is_last(sizes[0], x, ranks):
        return sizes[1].args if sizes[1].op in {Op.TUPLE, Op.LIST} else None
    if view.op not in _RESHAPES or view.value:
        return None
    if len(sizes) == 1 and sizes[0].op == "add" and _is_leading(sizes[0].args[0], x, -1):
        return sizes[0].args[1].args
    if sizes and sizes[0].op == Op.STAR and _is_leading(sizes[0].args[0], x, -1):
        return tuple(sizes[1:])
    rank = ranks.get(x, 0)
    kept = sizes[: rank - 1]
    same = all(_is_size(size, x, number) for number, size in enumerate(kept))
    return tuple(sizes[rank - 1 :]) if rank and same else None


def _read_rearrange(view: Node) -> _Pairs | None:
    """Read ``rearrange(x, '... (d r) -> ... d r', r=2)``."""
    if len(view.args) != 3 or not _is(view.args[2], _TWO):  # noqa: PLR2004 - x, text, a length
        return None
    found = _SPLIT_LAST.fullmatch(str(view.args[1].value))
    names = view.value if isinstance(view.value, tuple) else ()
    if found is None or names not in {(found[2],), (found[3],)}:
        return None
    return _Pairs(view.args[0], is_inner=names == (found[3],))


def _joins_the_last(  # noqa: PLR0911 - one case a spelling
    node: Node, stack: Node, ranks: Ranks
) -> bool:
    """Tell whether ``node`` makes one dimension out of the last two of ``stack``."""
    sizes = node.args[1:]
    if node.op == "flatten":
        rank = next(
            (ranks[_whole(part)] for part in stack.args[0].args if _whole(part) in ranks), 0
        )
        return _is(sizes[1], -1) and (_is(sizes[0], -2) or bool(rank and _is(sizes[0], rank - 1)))
    if node.op == "einops.rearrange":
        # ``two=2`` only says again how many are stacked
        told = not node.value or (len(sizes) == _TWO and _is(sizes[1], _TWO))
        return told and bool(_JOIN_LAST.fullmatch(str(sizes[0].value)))
    if node.op in {"reshape_as", "view_as"} and len(sizes) == 1:
        return _whole(stack.args[0].args[0]) is _whole(sizes[0])
    if node.op not in _RESHAPES or node.value:
        return False
    if len(sizes) == 1 and sizes[0].op == Op.SHAPE:
        return _whole(stack.args[0].args[0]) is _whole(sizes[0].args[0])
    if len(sizes) != _TWO or sizes[0].op != Op.STAR or not _is(sizes[1], -1):
        return False
    lead = sizes[0].args[0]
    tensors = {_strip(stack.args[0].args[0]), _whole(stack.args[0].args[0])}
    return _is_leading(lead, stack, -2) or any(_is_leading(lead, t, -1) for t in tensors)


def _whole(x: Node) -> Node:
    """Return the tensor of which ``x`` is every other element, as it is or negated."""
    x = _strip(x)
    if x.op == Op.GETITEM and x.args[1].op == Op.TUPLE and len(x.args[1].args) == _TWO:
        first, last = x.args[1].args
        if first.value is Ellipsis and last.op == Op.SLICE and _is(last.args[2], _TWO):
            return _strip(x.args[0])
    return x


def _strip(x: Node) -> Node:
    """Return the tensor that ``x`` is a copy of, as far as lengths go."""
    while x.op in operators.SAME_SHAPE and x.args:
        x = x.args[0]
    return x


def _is_last(dim: Node, x: Node, ranks: Ranks) -> bool:
    return _is(dim, -1) or (x in ranks and _is(dim, ranks[x] - 1))


def _in_two(sizes: Node, x: Node, ranks: Ranks) -> bool:
    """Tell whether ``split`` makes two parts of one length."""
    if sizes.op in {Op.TUPLE, Op.LIST}:  # they must add up, so two equal ones are halves
        return len(sizes.args) == _TWO and sizes.args[0] is sizes.args[1]
    return _is_half_length(sizes, x, ranks)


def _leaves_the_others(items: Sequence[Node], base: Node, ranks: Ranks) -> bool:
    """Tell whether these subscripts leave all dimensions but the last as they are."""
    if len(items) == 1 and items[0].op == Op.CONST and items[0].value is Ellipsis:
        return True
    whole = all(i.op == Op.SLICE and all(map(_is_none, i.args)) for i in items)
    return whole and ranks.get(base) == len(items) + 1


def _is_half_length(size: Node, x: Node, ranks: Ranks) -> bool:
    match size.op, size.args:
        case "floordiv", (length, two):
            return _is(two, _TWO) and _is_length(length, x, ranks)
        case "py:int", (quotient,):
            halved = quotient.op == "div" and len(quotient.args) == _TWO
            return halved and _is(quotient.args[1], _TWO) and _is_length(quotient.args[0], x, ranks)
    return False


def _is_length(size: Node, x: Node, ranks: Ranks) -> bool:
    """Tell whether ``size`` is the length of the last dimension of ``x``."""
    x = _strip(x)
    while x.op == "transpose" and _keeps_last(x, ranks):
        x = _strip(x.args[0])
    if size.op == Op.SIZE:
        of, dim = _strip(size.args[0]), size.args[1]
        return of is x and (_is(dim, -1) or (of in ranks and _is(dim, ranks[of] - 1)))
    if x.op in {"reshape", "view"} and not x.value and len(x.args) > _TWO:
        return x.args[-1] is size  # ``x.view(b, s, heads, head_size)``
    match x.op, x.args:
        case Op.GETITEM, (of, index) if index.op == Op.TUPLE and index.args:
            *others, last = index.args  # ``x[..., :d]``, of which there are d
            cut = last.op == Op.SLICE and last.args[1] is size and _is_none(last.args[2])
            from_start = cut and (_is_none(last.args[0]) or _is(last.args[0], 0))
            return from_start and _leaves_the_others(others, of, ranks)
    return False


def _keeps_last(x: Node, ranks: Ranks) -> bool:
    """Tell whether a transposition leaves the last dimension where it is."""
    source = _strip(x.args[0])
    rank = ranks.get(source, 0)
    if not rank and source.op in {"reshape", "view"} and not source.value:
        rank = len(source.args) - 1
    dims = [d.value for d in x.args[1:]]
    return all(isinstance(d, int) and (0 <= d < rank - 1 or d < -1) for d in dims)


def _is_leading(sizes: Node, x: Node, end: int) -> bool:
    """Tell whether ``sizes`` is ``x.shape[:end]``."""
    match sizes.op, sizes.args:
        case Op.GETITEM, (shape, part_of):
            cut = part_of.op == Op.SLICE and _is(part_of.args[1], end)
            whole = cut and _is_none(part_of.args[0]) and _is_none(part_of.args[2])
            return whole and shape.op == Op.SHAPE and _strip(shape.args[0]) is _strip(x)
    return False


def _is_size(size: Node, x: Node, dim: int) -> bool:
    return size.op == Op.SIZE and _strip(size.args[0]) is _strip(x) and _is(size.args[1], dim)


def _is(node: Node, value: int) -> bool:
    return node.op == Op.CONST and type(node.value) is int and node.value == value


def _is_none(node: Node) -> bool:
    return node.op == Op.CONST and node.value is None
