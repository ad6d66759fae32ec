"""The dataflow graph: what a function computes, without how it is spelled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator


@dataclass(frozen=True, eq=False, slots=True)
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

    def walk(self) -> Iterator[Node]:
        """Yield this node and everything it is computed from, each once."""
        seen: set[Node] = set()
        stack = [self]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                yield node
                stack.extend(node.args)


@dataclass
class Graph:
    """Makes nodes, so that equal terms are one object."""

    _known: dict[tuple[Any, ...], Node] = field(default_factory=dict)

    def node(self, op: str, *args: Node, value: Hashable = None, epoch: int = 0) -> Node:
        """Return the one node of this term."""
        # 1, 1.0 and True are equal keys in Python but not the same constant.
        key = (op, *map(id, args), type(value), value, epoch)
        if key not in self._known:
            self._known[key] = Node(op, args, value, epoch)
        return self._known[key]

    def constant(self, value: Hashable) -> Node:
        """Return a literal."""
        return self.node("const", value=value)

    def substitute(self, root: Node, replace: Callable[[Node], Node | None]) -> Node:
        """Return ``root`` with every node that ``replace`` answers for exchanged."""
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

        return visit(root)


def same_term(left: Node, right: Node, known: dict[tuple[Node, Node], bool] | None = None) -> bool:
    """Tell whether two nodes of different graphs are the same term."""
    known = {} if known is None else known
    key = (left, right)
    if key not in known:
        known[key] = (
            left.op == right.op
            and left.epoch == right.epoch
            and type(left.value) is type(right.value)
            and left.value == right.value
            and len(left.args) == len(right.args)
            and all(same_term(a, b, known) for a, b in zip(left.args, right.args, strict=True))
        )
    return known[key]
