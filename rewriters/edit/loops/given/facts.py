"""What the dataflow proves about the values that a loop reads and writes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rewriters.facts.kinds.value_kinds import KEEPS_DTYPE, ValueKinds
from npufix.rewriters.facts.ranks import Rank, RelativeRank
from npufix.rewriters.facts.shapes import Shapes
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.aliases import copies
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of
from npufix.rewriters.graph.special import Op
from npufix.rewriters.match.matching import Match

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Evaluation, Node

_COUNTS = frozenset({Op.SIZE, Op.RANK, "py:len"})
_LIKE = frozenset({"zeros_like", "ones_like", "empty_like", "full_like", "rand_like"})
_MADE = frozenset({"zeros", "ones", "empty", "full"})
_BY_ANOTHER = frozenset({"new_zeros", "new_ones", "new_empty", "new_full"})
# What torch joins is a list of tensors.
_JOINING = frozenset(
    {"block_diag", "broadcast_tensors", "cartesian_prod", "cat", "column_stack", "concat",
     "dstack", "hstack", "meshgrid", "stack", "vstack"}
)  # fmt: skip
_CASTS = frozenset({*operators.CASTS, Op.CAST})
_ADDED = frozenset(
    {"add", "sub", "mul", "div", "neg", "pow", "sum", "mean", "abs", "exp", *KEEPS_DTYPE}
)
"""What has the dtype of an operand, or the wider one of two."""
_TYPED = frozenset({Op.CAST, *_LIKE, *_MADE, *_BY_ANOTHER})
_NUMBER = re.compile(r"n(um)?_[a-z]\w*s")
_LISTED = re.compile(r"(?i)(typing\.)?(iterable|list|sequence|tuple)\[")
_SAID_TENSOR = re.compile(r"(:\w+:)?[`~]*(torch\.)?(\w*Tensor|tensor)\b[`]*(?! or |\[|s)")
"""``x (torch.Tensor): of shape``, ``x : torch.Tensor``; not ``x (Tensor or list)``."""
_LISTS = frozenset({Op.LIST, Op.CONTAINER, "py:list"})


class Facts(ValueKinds):
    """Facts at the place of a loop."""

    def __init__(self, flow: FunctionFlow, inside: Sequence[Evaluation]) -> None:
        first = inside[0]
        self.flow = flow
        self.match = Match(first, {}, frozenset(), {})
        self.shapes = Shapes(flow, first.ranks, first.node.epoch)
        self._nodes = {id(e.code): e.node for e in flow.evaluations}
        self.sizes: set[str] = set()
        """What is written for the lengths of rows."""
        self.assumes = False
        self.assumed: dict[Node, int] = {}
        """Numbers of dimensions that nobody has proven."""
        self.told: list[tuple[ast.expr, int]] = []
        """Those tensors as they are written, with the number."""
        self.counted: dict[str, ast.expr] = {}
        """What is a number by its name alone: ``data.num_graphs``, ``num_nodes``."""
        self._inside = inside
        self._ends = {
            part
            for e in flow.evaluations
            if e.node.op == "py:range"
            for arg in e.node.args
            for part in (arg, linear(arg)[0])
        }
        self._asked = {
            e.node.args[0]
            for e in flow.evaluations
            if e.node.op == Op.DTYPE_OF or (e.node.op == Op.ATTR and e.node.value == "device")
        }

    def node(self, code: ast.AST) -> Node | None:
        """Return what an expression of the function is in its graph."""
        return self._nodes.get(id(code))

    def rank(self, code: ast.AST) -> Rank:
        """Return the number of dimensions of a tensor, as proven or as assumed."""
        node = self.node(code)
        rank = None if node is None else self.shapes.rank(node)
        if isinstance(rank, RelativeRank) and rank.base in self.assumed:
            return self.assumed[rank.base] + rank.more
        if rank is None and node is not None and isinstance(code, (ast.Attribute, ast.Subscript)):
            return self.assumed.get(node, RelativeRank(node, 0))  # ``data["agent"]["batch"]``
        return self.assumed.get(node) if rank is None and node is not None else rank

    def assume_ranks(self) -> None:
        """Take it that tensors have no more dimensions than they are indexed with.

        ``sizes[i, 0]`` is a number then; what ``q[i]`` is nobody knows.
        """
        self.assumes = True
        inside = list(self._list_indexed(self._inside))
        # ``rows = points[:, 0]`` before the loop says as much, of what is still called so there.
        before = (e for e in self.flow.evaluations if e.code.lineno < self._inside[0].code.lineno)
        inside += (f for f in self._list_indexed(list(before)) if self._is_called_so(f[0]))
        for base, rank, count in inside:
            if rank.base in self.assumed:
                continue
            self.assumed[rank.base] = count - rank.more
            self.told.append((base, count))

    def assume(self, rank: Rank, count: int, code: ast.expr) -> Rank:
        """Take it that something of a tensor has so many dimensions, if that is not known."""
        if not isinstance(rank, RelativeRank):
            return rank
        self.assumed[rank.base] = count - rank.more
        if isinstance(own := self.rank(code), int):
            self.told.append((code, own))
        else:  # ``mask`` of ``mask = x[i] > 0`` says it of ``x``
            named = (e.code for e in self._inside if e.node is rank.base)
            whole = next((c for c in named if isinstance(c, (ast.Name, ast.Attribute))), None)
            if whole is not None:
                self.told.append((whole, self.assumed[rank.base]))
        return count

    def rank_of(self, rank: Rank) -> Rank:
        """Return a number of dimensions, as far as it has been assumed."""
        if isinstance(rank, RelativeRank) and rank.base in self.assumed:
            return self.assumed[rank.base] + rank.more
        return rank

    def likely(self, rank: Rank) -> Rank:
        """Return a number of dimensions as ``assume_ranks`` would have it."""
        found = {r.base: count - r.more for _, r, count in self._list_indexed(self._inside)}
        if isinstance(rank, RelativeRank) and rank.base in found:
            return found[rank.base] + rank.more
        return rank

    def _is_called_so(self, code: ast.expr) -> bool:
        """Tell whether the names in code from before the loop are in the loop what they were."""
        now = self.match.evaluation.names
        used = [n for n in ast.walk(code) if isinstance(n, ast.Name)]
        return all(n.id in now and now[n.id] is self.node(n) for n in used)

    def _list_indexed(
        self, evaluations: Sequence[Evaluation]
    ) -> Iterator[tuple[ast.expr, RelativeRank, int]]:
        """Yield the tensors of unknown dimensions, and how many they are indexed with."""
        for code in (_find_target(e.code) for e in evaluations):
            match code:
                case ast.Subscript(base, ast.Tuple(items)):
                    pass
                case ast.Subscript(
                    ast.Subscript(base, row), (ast.Slice() | ast.Constant()) as part
                ):
                    items = [row, part]  # ``x[i][:n]``
                case _:
                    continue
            rank, node = self.rank(base), self.node(base)
            rank = RelativeRank(node, 0) if rank is None and node is not None else rank
            plain = not any(isinstance(i, ast.Constant) and type(i.value) is not int for i in items)
            if isinstance(rank, RelativeRank) and plain:
                yield base, rank, len(items)

    def is_tensor(self, code: ast.AST) -> bool | None:
        """Tell whether a value is a tensor; what is asked for its device is one."""
        node = self.node(code)
        if node is None:
            return None
        if node in self._asked:
            return True
        if node.op in _LISTS or (isinstance(code, ast.Name) and code.id in self._lists):
            return False
        return self._is_tensor(node)

    @cached_property
    def _lists(self) -> frozenset[str]:
        """Return the names that are bound to displays of lists alone: ``ids = []; ids += more``."""
        made, begun = Counter[str](), set[str]()
        for node in nodes_of(self.flow.function):
            match node:
                case ast.Assign([ast.Name(name)], ast.List() | ast.ListComp()):
                    begun.add(name)
                    made[name] += 1
                case ast.AugAssign(ast.Name(name)):
                    made[name] += 1
                case ast.arg(name):
                    made[name] -= 1
        bound = Counter(n.id for n in self.flow.name_nodes if isinstance(n.ctx, ast.Store))
        return frozenset(name for name in begun if made[name] == bound[name])

    def _counts(self, evaluation: Evaluation) -> bool:
        return evaluation.node.op not in _JOINING

    def _is_tensor(self, node: Node) -> bool | None:
        # ``hidden, layers = output``: that ``output`` is a tensor elsewhere says nothing of them
        if node.op == Op.ITEM and node.args[0].op not in operators.VIEWS | operators.PAIRS:
            return None
        if node.op.endswith("(*)") and node.op.removesuffix("(*)") in operators.NEW | _BY_ANOTHER:
            return True  # ``x.new_zeros(*x.shape)``
        if node.op in {Op.PARAM, Op.PHI} and any(map(self._is_listed, (node, *node.args))):
            return False
        known = super()._is_tensor(node)
        return True if known is None and node in self._compared else known

    @cached_property
    def _cast(self) -> frozenset[Node]:
        """Return what is cast by a method, as only tensors and arrays are: ``(y == 1).float()``."""
        by_operation = self.flow.by_operation
        return frozenset(e.node.args[0] for op in _CASTS for e in by_operation.get(op, ()))

    def _is_listed(self, node: Node) -> bool:
        """Tell whether a parameter is a list by its annotation: ``grids: list[Tensor]``."""
        return node.op == Op.PARAM and _LISTED.match(self._annotation(node)) is not None

    def count_of(self, rank: Rank) -> str:
        """Return code for a number of dimensions, by a name in the loop: ``(x.dim() - 1)``.

        It is "" where nothing with a name has as many, or some more.
        """
        for evaluation in self._inside:
            code = evaluation.code
            if isinstance(code, (ast.Name, ast.Attribute)) and isinstance(rank, RelativeRank):
                own = self.shapes.rank(evaluation.node)
                if isinstance(own, RelativeRank) and own.base is rank.base:
                    more = rank.more - own.more
                    sign = "-" if more < 0 else "+"
                    count = f"{ast.unparse(code)}.dim()"
                    return f"({count} {sign} {abs(more)})" if more else count
        return ""

    @cached_property
    def _compared(self) -> frozenset[Node]:
        """Return what is compared with numbers alone, and the outcome taken for a tensor."""
        every = (e.node for op in operators.COMPARISONS for e in self.flow.by_operation.get(op, ()))
        return frozenset(
            node
            for made in every
            if made in self._operands_of_tensors or made in self._cast
            for node in made.args
            if all(arg is node or self.shapes.is_number(arg) for arg in made.args)
        )

    def _annotation(self, node: Node) -> str:
        """Return what a parameter is, in the words of the docstring if nothing else says so."""
        declared = super()._annotation(node)
        if declared or node.op != Op.PARAM:
            return declared
        said = ast.get_docstring(self.flow.function) or ""
        named = re.search(rf"(?m)^\s*`?{re.escape(str(node.value))}`?\s*(\(|: )(.*)$", said)
        return "Tensor" if named and _SAID_TENSOR.match(named[2]) else ""

    def is_mask(self, code: ast.AST) -> bool:
        """Tell whether an index is, or may be, a mask: one of booleans."""
        node = self.node(code)
        return node is not None and (self._is_bool(node) or self._may_be_bool(node))

    def is_number(self, code: ast.AST) -> bool:
        """Tell whether a value is a Python number; what a ``range`` ends at counts as one."""
        node = self.node(code)
        if node is not None and node in self._ends:
            return True
        if self.sizes and isinstance(code, ast.Subscript) and ast.unparse(code) in self.sizes:
            return True
        if isinstance(code, ast.Constant) or (node is not None and self.shapes.is_number(node)):
            return True
        if not isinstance(code, (ast.Attribute, ast.Name)) or self.is_tensor(code) is not None:
            return False
        if named := _NUMBER.fullmatch(last_name(code)):
            self.counted[ast.unparse(code)] = code
        return named is not None

    def is_int(self, code: ast.AST) -> bool:
        """Tell whether a value is a Python int."""
        node = self.node(code)
        return node is not None and self._is_int(node) is True

    def dtype(self, code: ast.AST) -> str | None:
        """Return the dtype of a tensor; of one that is made without, the default is meant."""
        node = self.node(code)
        if node is None:
            return None
        known = self._dtype(node)
        if known is None and node.op in _MADE - {"full"} and "dtype" not in _words(node):
            return "float32"
        return known

    def before(self, name: str) -> Node | None:
        """Return what a name is in front of the loop."""
        nodes = {e.names.get(name) for e in self._inside}
        carried = (o.node.args for o in self.flow.observables if o.node.op == Op.CARRY)
        return next((bound for read, bound in carried if read in nodes), None)

    def is_wide(self, total: Node) -> bool:
        """Tell whether a tensor is of float32 at least: what rows are cast to then fits them."""
        made = total.op in _MADE - {"full"} and "dtype" not in _words(total)
        return made or self._dtype(total) in {"float32", "float64"}

    def is_as_wide(self, code: ast.expr, total: Node) -> bool:
        """Tell whether a value is computed from what gave a total its dtype: ``x.new_zeros(3)``."""
        node = self.node(code)
        if node is None:
            return False
        if total.op in _LIKE | _BY_ANOTHER and "dtype" not in _words(total):
            source = total.args[0]
        elif total.op in _TYPED and any(a.op == Op.DTYPE_OF for a in total.args):
            source = next(a.args[0] for a in total.args if a.op == Op.DTYPE_OF)
        else:
            kinds = self._dtype(node), self._dtype(total)
            return None not in kinds and kinds[0] == kinds[1]
        return _keeps(node, _typed(source))

    def is_fresh(self, node: Node) -> bool:
        """Tell whether a tensor was made in this function and shares memory with no argument."""
        root = root_of(node)
        return root.op in operators.NEW or root.op in {Op.AGAIN, *_BY_ANOTHER, *_LIKE, *_MADE}

    def may_share(self, written: Node, read: Node) -> bool | None:
        """Tell whether writing to one tensor may change the other one; ``None``: nobody knows."""
        left, right = root_of(written), root_of(read)
        if left is right:
            return True
        if written in read.walk() and not self.is_fresh(read):
            return True
        if self.is_fresh(written) or self.is_fresh(read):
            return False
        return None

    def spans(self, stop: Node, base: Node, dim: int, offset: int = 0) -> bool:
        """Tell whether ``stop + offset`` is the length of a dimension."""
        if stop.op == Op.SIZE and stop.args[0] is base:
            return not offset and stop.args[1].value == dim
        while base.op in _LIKE | _CASTS or base.op in {"clone", Op.AGAIN, "contiguous"}:
            base = base.args[0]
        root, more = linear(stop)
        length = self._length_node(base, dim)
        if length is not None:
            other, less = linear(length)
            return root is other and more + offset == less
        if more + offset:
            return False
        if root.op == Op.SIZE:
            return root.args[0] is base and root.args[1].value == dim
        return root.op == "py:len" and dim == 0 and root.args[0] is base

    def is_alike(self, made: Node, other: Node) -> bool:
        """Tell whether a tensor was made in the shape of another: ``x.new_zeros(x.size())``."""
        while made.op in _CASTS:
            made = made.args[0]
        if made.op in _LIKE:
            return made.args[0] is other
        sizes = made.args[1:] if made.op in _BY_ANOTHER else made.args if made.op in _MADE else ()
        return bool(sizes) and sizes[0].op == Op.SHAPE and sizes[0].args[0] is other

    def is_made_by(self, made: Node, other: Node) -> bool:
        """Tell whether a tensor has dtype and device of another: ``x.new_zeros(9)``."""
        by_other = made.op in _LIKE | _BY_ANOTHER and made.args[0] is other
        return by_other and {"dtype", "device"}.isdisjoint(_words(made))

    def is_count(self, stop: Node, offset: int = 0) -> bool:
        """Tell whether ``stop + offset`` cannot be negative."""
        root, more = linear(stop)
        if root.op == Op.CONST:
            return isinstance(root.value, int) and root.value + more + offset >= 0
        return root.op in _COUNTS and more + offset >= 0

    def _length_node(self, base: Node, dim: int) -> Node | None:
        """Return the length that a tensor was made with."""
        words = len(_words(base))
        if base.op in _MADE:
            sizes = base.args[: len(base.args) - words or None]
        elif base.op in _BY_ANOTHER:
            sizes = base.args[1 : len(base.args) - words or None]
        else:
            return None
        if sizes and sizes[0].op == Op.SHAPE:
            return self.flow.graph.node(Op.SIZE, sizes[0].args[0], self.flow.graph.constant(dim))
        if sizes and sizes[0].op in {Op.LIST, Op.TUPLE}:
            sizes = sizes[0].args
        if any(s.op == Op.STAR for s in sizes) or dim >= len(sizes):
            return None
        return sizes[dim]


def _typed(node: Node) -> Node:
    while node.op in KEEPS_DTYPE and node.args:
        node = node.args[0]
    return node


def _keeps(node: Node, source: Node) -> bool:
    """Tell whether a value has the dtype of a tensor, or a wider one."""
    return any(part is source for part in node.walk(_list_of_its_dtype))


def _list_of_its_dtype(node: Node) -> tuple[Node, ...]:
    """Return the operands that a value has the dtype of, or a wider one."""
    told = any(arg.op in {Op.DTYPE, Op.DTYPE_OF} for arg in node.args)
    if node.op not in _ADDED or told or "dtype" in _words(node):
        return ()
    return node.args[: 2 if node.op in {"add", "sub", "mul", "div"} else 1]


def _words(node: Node) -> list[str]:
    value = node.value if isinstance(node.value, tuple) else ()
    return [word for word in value if isinstance(word, str)]


def root_of(node: Node) -> Node:
    """Return the tensor whose memory a view shows."""
    while node.args:
        seen = node.op in operators.VIEWS or (node.op == Op.GETITEM and not copies(node))
        if not (seen or node.op in {Op.AUGMENTED, Op.ITEM, *_CASTS}):  # ``new_zeros(n).int()``
            break
        node = node.args[0]
    return node


def linear(node: Node) -> tuple[Node, int]:
    """Return a number as another one and an integer that is added to it."""
    more = 0
    while node.op in {"add", "sub"} and len(node.args) == 2:  # noqa: PLR2004 - left and right
        left, right = node.args
        sign = 1 if node.op == "add" else -1
        if right.op == Op.CONST and type(right.value) is int:
            node, more = left, more + sign * right.value
        elif node.op == "add" and left.op == Op.CONST and type(left.value) is int:
            node, more = right, more + left.value
        else:
            break
    return node, more


def _find_target(code: ast.AST) -> ast.AST:
    match code:
        case ast.Assign([target]) | ast.AugAssign(target):
            return target
    return code
