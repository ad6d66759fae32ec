"""The dataflow graph: what a function computes, without how it is spelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    import ast
    from collections.abc import Hashable, Iterable, Iterator, Mapping


_Prove = TypeVar("_Prove", bound=Callable[..., Any])


class Serial(int):
    """Tells two calls of one function apart. Which number it is means nothing."""


@dataclass(eq=False, slots=True)  # a frozen one takes three times as long to make
class Node:
    """One value of a function. Nodes of one ``Graph`` are equal only if they are the same object.

    ``epoch`` counts the side effects before the value was computed: the same expression before
    and after a write is two values. Leaves and metadata other than attributes have epoch 0.
    """

    op: str
    args: tuple[Node, ...] = ()
    value: Hashable = None
    epoch: int = 0

    def __repr__(self) -> str:
        """Show the node as a term, for messages of failing tests."""
        inner = ", ".join(map(repr, self.args))
        label = self.op if self.value is None else f"{self.op}={self.value!r}"
        return f"{label}({inner})" if self.args else label

    def walk(self, into: Callable[[Node], Iterable[Node]] | None = None) -> Iterator[Node]:
        """Yield this node and everything it is computed from, each once.

        ``into`` returns those operands of a node that are followed, if not all are.
        """
        seen: set[Node] = set()
        stack = [self]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                yield node
                stack.extend(node.args if into is None else into(node))


@dataclass
class Graph:
    """Makes nodes, so that equal terms are one object."""

    _known: dict[tuple[Any, ...], Node] = field(default_factory=dict)

    def node(self, op: str, *args: Node, value: Hashable = None, epoch: int = 0) -> Node:
        """Return the one node of this term."""
        # 1, 1.0 and True are equal keys in Python but not the same constant.
        key = (op, args, type(value), value, epoch)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Node(op, args, value, epoch)
        return found

    @property
    def operators(self) -> frozenset[str]:
        """Return the operators of all nodes so far."""
        return frozenset(node.op for node in self._known.values())

    def has(self, op: str, value: Hashable) -> bool:
        """Tell whether a leaf was made."""
        return (op, (), type(value), value, 0) in self._known

    def constant(self, value: Hashable) -> Node:
        """Return a literal."""
        return self.node(Op.CONST, value=value)

    def substitution(self, replace: Callable[[Node], Node | None]) -> Callable[[Node], Node]:
        """Return what exchanges every node in a term that ``replace`` answers for."""
        done: dict[Node, Node] = {}

        def visit(node: Node) -> Node:
            if node not in done:
                new = replace(node)
                if new is None:
                    args = tuple(visit(arg) for arg in node.args)
                    new = (
                        node
                        if args == node.args
                        else self.node(node.op, *args, value=node.value, epoch=node.epoch)
                    )
                done[node] = new
            return done[node]

        return visit


class Resemblance:
    """Tells most terms apart at a glance: those that are the same have the same mark."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._known: dict[Node, int] = {}

    def mark(self, node: Node) -> int:
        """Return a number; serial numbers do not count."""
        found = self._known.get(node)
        if found is None:
            args = tuple(map(self.mark, node.args))
            found = self._known[node] = hash((node.op, node.epoch, _drop_number(node.value), args))
        return found


def _drop_number(value: Hashable) -> Hashable:
    if isinstance(value, tuple):
        return tuple(map(_drop_number, value))
    return Serial(0) if isinstance(value, Serial) else value


class Comparison:
    """Compares nodes of two graphs; serial numbers may differ, as long as they do one to one."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._known: dict[tuple[Node, Node], bool] = {}
        self._partners: dict[tuple[str, int], int] = {}

    @staticmethod
    def once(left: Node, right: Node) -> bool:
        """Tell whether two nodes are the same term, whatever else was compared."""
        return Comparison().same_term(left, right)

    def same_term(self, left: Node, right: Node) -> bool:
        """Tell whether two nodes are the same term."""
        key = (left, right)
        if key not in self._known:
            self._known[key] = (
                left.op == right.op
                and left.epoch == right.epoch
                and self._same_value(left.value, right.value)
                and len(left.args) == len(right.args)
                and all(map(self.same_term, left.args, right.args))
            )
        return self._known[key]

    def _same_value(self, left: Hashable, right: Hashable) -> bool:
        if type(left) is not type(right):
            return False
        if isinstance(left, tuple) and isinstance(right, tuple):
            return len(left) == len(right) and all(map(self._same_value, left, right))
        if isinstance(left, Serial) and isinstance(right, Serial):
            return self._same_number(left, right)
        return left == right

    def _same_number(self, left: int, right: int) -> bool:
        """Tell whether a number of the left graph always meets the same one of the right."""
        first = self._partners.setdefault(("left", left), right)
        second = self._partners.setdefault(("right", right), left)
        return first == right and second == left


@dataclass(eq=False, slots=True)  # a frozen one takes three times as long to make
class Evaluation:
    """An expression of the function (or a subscript assignment) and the value it has."""

    node: Node
    code: ast.expr | ast.stmt
    statement: ast.stmt
    block: list[ast.stmt]
    names: Mapping[str, Node]
    """The value of each local name just before ``statement``."""
    ranks: Mapping[Node, int]
    """Number of dimensions, where an earlier unpacking of the shape proves it."""
    certain: bool = True
    """Whether the statement always computes it: not so in one arm of a conditional."""


@dataclass(frozen=True, slots=True)
class Observable:
    """Something that the outside can see: a return, a write, a call that may do anything."""

    kind: str
    node: Node
    path: tuple[tuple[Node, bool], ...]
    """The branches taken to get there."""


def once_per_value(prove: _Prove) -> _Prove:
    """Let what asks about values answer once for each of them, however many ways lead to it.

    Its first argument, the facts or the function that it asks about, keeps the answers. Behind
    ``x = x * x + x`` in a row of sixty lines there are more ways than can be gone.
    """
    kept = f"_known_{prove.__name__}"

    @wraps(prove)
    def answer(facts: object, *values: Hashable) -> object:
        known = facts.__dict__.setdefault(kept, {})
        if values not in known:
            known[values] = prove(facts, *values)
        return known[values]

    return cast("_Prove", answer)
