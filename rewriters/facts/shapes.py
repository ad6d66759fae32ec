"""What the source alone proves about a tensor: its number of dimensions and some lengths."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.facts.annotations import annotated_rank, annotation
from npufix.rewriters.facts.constants import number
from npufix.rewriters.facts.ranks import (
    MATRIX,
    Rank,
    RelativeRank,
    product_rank,
    rank_of_wider,
    shift,
)
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import parameter_shape
from npufix.rewriters.graph.modules.syntax import last_name, walk
from npufix.rewriters.graph.nodes import once_per_value
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.names import FunctionNode
    from npufix.rewriters.graph.nodes import Node


SAME_SHAPE = operators.SAME_SHAPE | {Op.AGAIN, Op.AUGMENTED}
_NEW_TENSORS = operators.FACTORIES & operators.TAKES_LENGTHS
_REDUCTIONS = frozenset(
    {"amax", "amin", "argmax", "argmin", "linalg.norm", "linalg.vector_norm", "logsumexp", "mean",
     "norm", "prod", "sum"}
)  # fmt: skip
_BY_MODE: dict[object, int] = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}
"""The dimensions that a mode of ``F.interpolate`` is for; the others take images of any."""
_RANKS = re.compile(r"get_(\w+_)?(rank|world_size)$")
"""Functions that return a number: ``torch.distributed.get_rank``."""
_RESHAPED = frozenset({"expand", "reshape", "view"})
_OF_ONE_DIM = frozenset({"all", "any", "max", "min"})
_ADDS_DIM = frozenset({"cat", "stack", "unsqueeze"})
"""What takes a list, or a dimension that there is none of yet."""
_LENGTH = re.compile(r"len\(\w+\)|[\w.]+\.(size\(-?\d\)|shape\[-?\d\])|\d+")


@lru_cache(maxsize=4)
def _find_lengths(flow: FunctionFlow) -> dict[Node, int]:
    """Return how many dimensions the function certainly asks tensors for: 3 for ``x.shape[2:]``."""
    least: dict[Node, int] = {}
    for evaluation in flow.evaluations:
        node = evaluation.node
        if evaluation.certain and (count := _count_asked(node)):
            least[node.args[0]] = max(least.get(node.args[0], 0), count)
        if not evaluation.certain or node.op not in {Op.SIZE, Op.GETITEM, "argsort", "topk"}:
            continue
        of, at = node.args[0], node.args[1 + (node.op == "topk")]
        if node.op in {"argsort", "topk"}:
            while of.op in SAME_SHAPE:
                of = of.args[0]
        elif at.op == Op.TUPLE:  # ``x[:, :k]``
            of = of.args[0] if of.op == "argsort" else of
            taken = [a for a in at.args if a.op == Op.SLICE or type(a.value) is int]
            least[of] = max(least.get(of, 0), len(taken))
        elif node.op == Op.GETITEM:
            if of.op != Op.SHAPE or at.op != Op.SLICE:
                continue
            of, at = of.args[0], at.args[0]
        if type(at.value) is int and at.value >= 0:
            least[of] = max(least.get(of, 0), at.value + 1)
    return least


def _count_asked(node: Node) -> int:
    """Return how many dimensions what an operator gets must have: 2 for ``x.sum(1)``."""
    named = operators.parameters(node.op) or ()
    at = 1 if node.op in _OF_ONE_DIM else [*named].index("dim") if "dim" in named else 0
    if node.op in _ADDS_DIM or not 0 < at < len(node.args):
        return 0
    dim = node.args[at]
    values = [d.value for d in (dim.args if dim.op == Op.TUPLE else (dim,))]
    dims = [d for d in values if isinstance(d, int) and not isinstance(d, bool)]
    # a tensor without dimensions takes 0 and -1 as well
    return max((d + 1 if d > 0 else -d for d in dims if d not in {0, -1}), default=0)


@dataclass(frozen=True)
class Shapes:
    """Shape facts of one function at one place."""

    flow: FunctionFlow
    ranks: Mapping[Node, int]
    moment: int = 0
    """When the site is reached; it matters where tensors get other shapes in place."""

    _ranks: dict[Node, Rank] = field(default_factory=dict, repr=False, compare=False)
    _numbers: dict[Node, bool] = field(default_factory=dict, repr=False, compare=False)

    def rank(self, node: Node) -> Rank:
        """Return the number of dimensions, or the node that has as many."""
        if node not in self._ranks:
            rank = self._rank(node)
            self._ranks[node] = RelativeRank(node, 0) if rank is None else rank
        return self._ranks[node]

    def _rank(self, node: Node) -> Rank:  # noqa: PLR0911 - one case a family of operators
        if node in self.ranks:
            return self.ranks[node]
        if self.may_have_changed(node):
            return RelativeRank(node, 0)
        args = node.args
        op = node.op
        if keywords_of(node) and operators.signature(op) is not None:
            return None  # arguments that do not fit the signature keep the order they were given in
        if op in SAME_SHAPE and args:
            return self.rank(args[0])
        if op in operators.BROADCAST:
            both = len(args) == 2 and not _is_new_axis(args[1])  # noqa: PLR2004 - left and right
            return self._broadcast(*args) if both else self._broadcast_all(args)
        if op in _NEW_TENSORS:
            # ``torch.full(size, value)`` takes the lengths in one tuple.
            return self._rank_of_sizes(_sizes(node)[: 1 if op == "full" else None])
        if op.startswith("new_") and op.removeprefix("new_") in _NEW_TENSORS:
            return self._rank_of_sizes(_sizes(node)[1 : 2 if op == "new_full" else None])
        if op in _RESHAPED:
            return self._rank_of_sizes(_sizes(node)[1:])
        return self._result_rank(node)

    def _result_rank(self, node: Node) -> Rank:  # noqa: C901, PLR0911, PLR0912 - one case an operator
        args, op = node.args, node.op
        match op:
            case Op.PARAM if (said := annotated_rank(self.flow, str(node.value))) is not None:
                return said
            case Op.ATTR:
                shape = parameter_shape(self.flow, node)
                return RelativeRank(node, 0) if shape is None else len(shape)
            case "one_hot" | "unsqueeze":
                return shift(self.rank(args[0]), 1)
            case _ if op in _REDUCTIONS:
                return self._reduced_rank(node)
            case "flatten" if args[2].value == -1 and (first := _positive(args[1])) is not None:
                return first + 1
            case "arange" | "eye" | "randperm":
                return MATRIX if op == "eye" else 1
            case "tensor" if self.is_number(args[0]):
                return 0
            case "max" | "min" | "any" | "all" if len(args) == 1:
                return 0
            case "any" | "all" if _reduces_one(node):
                return shift(self.rank(args[0]), -1)
            case Op.ITEM if args[0].op in {"max", "min"} and _reduces_one(args[0]):
                return shift(self.rank(args[0].args[0]), -1)
            case "nonzero" if args[1].value is False:
                return MATRIX
            case "squeeze" if self._has_one_column(args[0]) and args[1].value in {1, -1}:
                return 1
            case Op.GETITEM if _are_positions(args[0]) and _is_int(args[1]):
                return 1
            case "cat" | "stack" if args[0].args and _is_sequence(args[0]):
                return shift(self.rank(args[0].args[0]), op == "stack")
            case "where" if len(args) == 3:  # noqa: PLR2004 - condition, value, other value
                return self._broadcast_all(args)
            case "addmm" | "outer":
                return 2
            case "interpolate" | "upsample":
                return _BY_MODE.get(args[3].value) or self.rank(args[0])
            case "gather":
                return self.rank(args[2]) if len(args) > 2 else None  # noqa: PLR2004 - of ranks: gather(x)
            case "linear":
                return self.rank(args[0]) if self.rank(args[1]) == MATRIX else None
            case "transpose" | "t" | "index_select":
                return self.rank(args[0])
            case "module:Linear" | "module:LayerNorm" | "module:Dropout" if len(args) == 2:  # noqa: PLR2004 - layer, x
                return self.rank(args[1])
            case "expand_as" | "view_as" | "reshape_as" if len(args) > 1:
                return self.rank(args[1])
            case "repeat" if len(args) > 2 and not _is_starred(args):  # noqa: PLR2004 - x and sizes
                return len(args) - 1
            case "permute" if all(arg.op == Op.CONST for arg in args[1:]):
                return len(args) - 1
            case Op.ITEM if args[0].op == "unbind":
                return shift(self.rank(args[0].args[0]), -1)
            case Op.ITEM if args[0].op in {"topk", "sort", "chunk", "split"}:
                return self.rank(args[0].args[0])
            case Op.GETITEM:
                return self._rank_of_indexed(node)
            case "matmul":
                return product_rank(self.rank(args[0]), self.rank(args[1]))
            case _ if op in _EINOPS:
                return _rank_in_letters(node)
            case Op.PHI:
                ranks = {self.rank(arg) for arg in args[1:] if arg.op != Op.UNSET}
                return ranks.pop() if len(ranks) == 1 else None
        known = op in {Op.PARAM, Op.ITEM, Op.CALL, Op.GLOBAL, Op.ELEMENT, Op.CARRIED}
        return RelativeRank(node, 0) if known else None

    def _reduced_rank(self, node: Node) -> Rank:
        """Return how many dimensions ``x.sum(dim, keepdim)`` leaves."""
        given = dict(zip(operators.parameters(node.op) or (), node.args, strict=False))
        dim, keeps = given.get("dim"), given.get("keepdim")
        dims = () if dim is None else dim.args if dim.op == Op.TUPLE else (dim,)
        if keeps is None or not dims or any(arg.op != Op.CONST for arg in (*dims, keeps)):
            return None
        if dims[0].value is None:
            return None if keeps.value else 0
        return shift(self.rank(node.args[0]), 0 if keeps.value else -len(dims))

    def may_have_changed(self, node: Node) -> bool:
        """Tell whether a tensor may have got another shape in place since it was made."""
        if not self.flow.reshapes or node.op in {Op.CONST, Op.TUPLE, Op.LIST}:
            return False
        return node.epoch != self.moment or node.op == Op.ATTR

    @once_per_value
    def covers(self, node: Node, other: Node) -> bool:
        """Tell whether a value has all dimensions of another one: computed with its elements."""
        rank, least = self.rank(node), self.rank(other)
        if node is other or (rank is not None and rank == least):
            return True
        if self.may_have_changed(node):
            return False
        # ``mask = (ids < a) | (ids >= b)`` has all of ``ids - a``
        if other.op in operators.BROADCAST and not self.may_have_changed(other):
            parts = other.args[: len(other.args) - len(keywords_of(other))]
            if parts and all(self.is_number(p) or self.covers(node, p) for p in parts):
                return True
        if node.op in SAME_SHAPE:
            return self.covers(node.args[0], other)
        return node.op in operators.BROADCAST and any(self.covers(arg, other) for arg in node.args)

    def shape(self, node: Node) -> tuple[int | None, ...] | None:
        """Return the lengths that are known, ``None`` if not even their number is."""
        rank = self.rank(node)
        if not isinstance(rank, int):
            return None
        if node.op == Op.ATTR:
            return parameter_shape(self.flow, node)
        return tuple(self._length(node, dim - rank) for dim in range(rank))

    @once_per_value
    def _length(self, node: Node, dim: int) -> int | None:  # noqa: C901, PLR0911, PLR0912 - one case an operator
        """Return the length of dimension ``dim``, counted from the end (negative)."""
        rank, args = self.rank(node), node.args
        if self.may_have_changed(node):
            return None
        if node.op == Op.ATTR and (own := parameter_shape(self.flow, node)):
            return own[dim] if -dim <= len(own) else None
        if node.op in SAME_SHAPE and args:
            return self._length(args[0], dim)
        if node.op in _RESHAPED:
            sizes = _sizes(node)[1:]
            size = sizes[dim] if -dim <= len(sizes) else None
            return _positive(size)
        match node.op:
            case "unsqueeze" if args[1].value == dim == -1:
                return 1
            case "unsqueeze" if isinstance(rank, int) and isinstance(args[1].value, int):
                at = args[1].value if args[1].value < 0 else args[1].value - rank
                if dim == at:
                    return 1
                return self._length(args[0], dim if dim > at else dim + 1)
            case Op.GETITEM if dim == -1:
                if self._ends_with_new_axis(args[0], args[1]):
                    return 1
                return self._length(args[0], dim) if self._takes_last(args[0], args[1]) else None
            case "permute" if isinstance(rank, int) and rank == len(args) - 1:
                source = args[1 + dim + rank].value
                return self._length(args[0], source % rank - rank) if type(source) is int else None
            case "nonzero" if self._has_one_column(node) and dim == -1:
                return 1
            case "matmul" if dim == -1 and self.least_rank(args[1]) >= MATRIX:
                return self._length(args[1], dim)
            case "add" | "sub" | "mul" | "div" if dim == -1:
                return self._broadcast_length(args[0], args[1])
            case "reshape(*)" | "view(*)" if not _is_starred(args[dim:]):  # ``(*shape, 3)``
                return _positive(args[dim])
            case "cat" if dim == -1 and self._is_in_front(args[1], args[0]):
                return self._length(args[0].args[0], dim)
            case Op.ITEM if args[0].op == "topk" and args[0].args[2].value == -1 == dim:
                return _positive(args[0].args[1])
        return None

    def _has_one_column(self, node: Node) -> bool:
        """Tell whether a node is the table of the positions in a vector."""
        return node.op == "nonzero" and node.args[1].value is False and self.rank(node.args[0]) == 1

    def _ends_with_new_axis(self, base: Node, index: Node) -> bool:
        """Tell whether ``x[:, None]`` puts the new axis last: behind every axis of ``x``."""
        items = index.args if index.op == Op.TUPLE else (index,)
        if not items or not _is_new_axis(items[-1]):
            return False
        taken = sum(not _is_new_axis(item) for item in items)
        whole = any(item.op == Op.CONST and item.value is Ellipsis for item in items)
        return whole or taken == self.rank(base)

    def _broadcast_length(self, left: Node, right: Node) -> int | None:
        """Return the length of the last dimension of a sum or product, if that is one."""
        tensors = [node for node in (left, right) if not self.is_number(node)]
        return 1 if tensors and all(self._length(node, -1) == 1 for node in tensors) else None

    def _takes_last(self, base: Node, index: Node) -> bool:
        """Tell whether a subscript of slices takes all of the last dimension: ``x[..., :2, :]``."""
        items = index.args if index.op == Op.TUPLE else (index,)
        dots = [i for i in items if i.op == Op.CONST and i.value is Ellipsis]
        if any(i.op != Op.SLICE and i not in dots for i in items):
            return False
        whole = items[-1].op == Op.SLICE and all(_is_new_axis(part) for part in items[-1].args)
        return whole if dots else len(items) < self.least_rank(base)

    def _is_in_front(self, dim: Node, parts: Node) -> bool:
        """Tell whether a dimension of tensors that are joined is none of the last ones."""
        ranks = [self.least_rank(part) for part in parts.args] if _is_sequence(parts) else []
        return type(dim.value) is int and 0 <= dim.value < max(ranks, default=0) - 1

    @once_per_value
    def least_rank(self, node: Node) -> int:  # noqa: C901, PLR0911 - one case an operator
        """Return how many dimensions a tensor has at least."""
        rank = self.rank(node)
        if isinstance(rank, int):
            return rank
        if self.may_have_changed(node):
            return 0
        if rank is not None and rank.more and rank.base is not node:  # ``x[..., None, None]``
            return max(0, self.least_rank(rank.base) + rank.more)
        seen = _find_lengths(self.flow).get(node, 0)
        match node.op:
            case op if len(node.args) > 1 and (op == "expand_as" or op in operators.BROADCAST):
                return max(seen, *map(self.least_rank, node.args[:2]))
            case "matmul":
                # Of matrices and vectors nobody knows what is left.
                ranks = [self.least_rank(arg) for arg in node.args]
                return max(ranks) if min(ranks) >= MATRIX else max(0, *ranks) - 1
            case "unsqueeze":
                return self.least_rank(node.args[0]) + 1
            case "cat" if _is_sequence(node.args[0]):
                return max(map(self.least_rank, node.args[0].args), default=0)
            case Op.GETITEM if self._keeps_dims(node.args[1]):
                return self.least_rank(node.args[0])
            case "repeat_interleave" if type(node.args[2].value) is int:
                return self.least_rank(node.args[0])
            case "expand":
                return max(len(_sizes(node)) - 1, self.least_rank(node.args[0]))
        return self.least_rank(node.args[0]) if node.op in SAME_SHAPE and node.args else seen

    @staticmethod
    def _keeps_dims(index: Node) -> bool:
        items = index.args if index.op == Op.TUPLE else (index,)
        return all(i.op == Op.SLICE or (i.op == Op.CONST and i.value is Ellipsis) for i in items)

    def length_from_end(self, node: Node, dim: int) -> int | None:
        """Return the length of dimension ``dim``, which is negative, if it is a known number."""
        rank = self.rank(node)
        return None if isinstance(rank, int) and rank < -dim else self._length(node, dim)

    def _broadcast_all(self, args: tuple[Node, ...]) -> Rank:
        ranks = {self.rank(a) for a in args if not (self.is_number(a) or _is_new_axis(a))}
        return ranks.pop() if len(ranks) == 1 else rank_of_wider(self.flow.graph, *ranks)

    def _broadcast(self, left: Node, right: Node) -> Rank:
        if self.is_number(right):
            return self.rank(left)
        if self.is_number(left):
            return self.rank(right)
        first, second = self.rank(left), self.rank(right)
        if isinstance(first, int) and isinstance(second, int):
            return max(first, second)
        return first if first == second else rank_of_wider(self.flow.graph, first, second)

    def is_number(self, node: Node) -> bool:
        """Tell whether a value is proven to be a Python number."""
        if node not in self._numbers:
            self._numbers[node] = self._is_number(node)
        return self._numbers[node]

    def _is_number(self, node: Node) -> bool:
        if node.op == Op.CONST:
            return isinstance(node.value, (int, float))
        if number(node) is not None:
            return True
        if node.op in {Op.COUNTER, Op.SIZE, Op.RANK, "py:len", "py:int", "py:float"}:
            return True
        if node.op == Op.CALL and _RANKS.search(str(node.args[0].value)):
            return True
        if node.op == Op.PARAM:
            name, declared = str(node.value), annotation(self.flow, str(node.value))
            own = self.flow.function.name.startswith("_") and not declared
            lengths = _list_lengths(self.flow.cls, self.flow.function) if own else frozenset()
            return declared in {"int", "float", "bool"} or name in lengths
        return node.op in operators.BROADCAST and all(self.is_number(arg) for arg in node.args)

    def _rank_of_sizes(self, sizes: tuple[Node, ...]) -> Rank:
        if len(sizes) == 1:
            only = sizes[0]
            if only.op == Op.SHAPE:
                return self.rank(only.args[0])
            if only.op in {Op.TUPLE, Op.LIST}:
                return None if _is_starred(only.args) else len(only.args)
            return 1 if self.is_number(only) else None
        return None if not sizes or _is_starred(sizes) else len(sizes)

    def _rank_of_indexed(self, node: Node) -> Rank:
        base, index = node.args
        items = index.args if index.op == Op.TUPLE else (index,)
        if any(not (_is_dots(i) or i.op == Op.SLICE or _is_place(i)) for i in items):
            return None
        rank = self.rank(base)
        if isinstance(rank, RelativeRank) and index.op != Op.TUPLE and _is_place(index):
            # One of several results perhaps, and then of a rank of its own: ``group(x)[2]``.
            return RelativeRank(node, 0)
        added, dropped = sum(map(_is_new_axis, items)), sum(map(_is_place, items))
        return shift(rank, added - dropped)


@lru_cache(maxsize=64)
def _list_lengths(cls: ast.ClassDef | None, function: FunctionNode) -> frozenset[str]:
    """Return the parameters of a method that its class calls with lengths: ``x.shape[0]``."""
    names = [arg.arg for arg in function.args.args[1:]]
    nodes = () if cls is None else walk(cls)
    calls = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == function.name]
    given: list[dict[str | None, ast.expr]] = [
        {**dict(zip(names, call.args, strict=False)), **{k.arg: k.value for k in call.keywords}}
        for call in calls
    ]
    return frozenset(
        name
        for name in names
        if given and all(name in g and _LENGTH.fullmatch(ast.unparse(g[name])) for g in given)
    )


def keywords_of(node: Node) -> list[str]:
    """Return the arguments that are named; a random operator has a number among them."""
    value = node.value if isinstance(node.value, tuple) else ()
    return [part for part in value if isinstance(part, str)]


def _sizes(node: Node) -> tuple[Node, ...]:
    """Return the positional arguments; keywords such as ``device`` come last in a node."""
    return node.args[: len(node.args) - len(keywords_of(node))]


_EINOPS = frozenset({"einops.rearrange", "einops.reduce", "einops.repeat"})
_AXIS = re.compile(r"\([^)]*\)|\S+")


def _rank_in_letters(node: Node) -> int | None:
    """Return 3 for ``rearrange(x, "b d -> b d 1")``."""
    texts = [a.value for a in node.args[1:] if a.op == Op.CONST and isinstance(a.value, str)]
    letters = texts[0].partition("->")[2] if texts else ""
    return len(_AXIS.findall(letters)) if letters and "..." not in letters else None


def _is_sequence(node: Node) -> bool:
    return node.op in {Op.TUPLE, Op.LIST} and not _is_starred(node.args)


def _reduces_one(node: Node) -> bool:
    """Tell whether ``max(x, dim)`` drops one dimension: no second tensor, no ``keepdim``."""
    return len(node.args) == 2 and _is_int(node.args[1]) and node.value in {None, (), ("dim",)}  # noqa: PLR2004


def _are_positions(node: Node) -> bool:
    """Tell whether a node is a tuple of index vectors: ``where(mask)``."""
    return (node.op == "where" and len(node.args) == 1) or (
        node.op == "nonzero" and node.args[1].value is True
    )


def _positive(node: Node | None) -> int | None:
    if node is None or not _is_int(node):
        return None
    return node.value if isinstance(node.value, int) and node.value >= 0 else None


def _is_int(node: Node) -> bool:
    return node.op == Op.CONST and type(node.value) is int


def _is_place(node: Node) -> bool:
    """Tell whether an index takes one of a dimension: a number, or the counter of a loop."""
    return _is_int(node) or node.op == Op.COUNTER


def _is_dots(node: Node) -> bool:
    """Tell whether an index is ``None`` or ``...``."""
    return node.op == Op.CONST and node.value in {None, Ellipsis}


def _is_new_axis(node: Node) -> bool:
    return node.op == Op.CONST and node.value is None


def _is_starred(nodes: tuple[Node, ...]) -> bool:
    return any(node.op == Op.STAR for node in nodes)
