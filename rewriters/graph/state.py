"""What is known while a function is read: names, moments, and what was seen so far."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Protocol

from npufix.rewriters.graph.attributes import is_made_once
from npufix.rewriters.graph.dataflow import ReadAgainError
from npufix.rewriters.graph.nodes import Evaluation, Node, Observable, Serial
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.nodes import Graph


class Expressions(Protocol):
    """What the readers of calls and helpers need to read the expressions in them."""

    def read(self, code: ast.expr) -> Node:
        """Return the value of an expression and remember where it was computed."""

    def evaluate(self, code: ast.expr) -> Node:
        """Return the value of an expression."""

    def item(self, base: Node, index: int) -> Node:
        """Return element ``index`` of a pair, a shape, a tuple or a tensor."""

    def arguments(self, code: ast.Call) -> tuple[list[Node], dict[str, Node]]:
        """Read the arguments of a call."""

    def unknown(self, code: ast.Call) -> Node:
        """Read a call that may do anything."""


class State:
    """What all readers of one function share and change.

    A moment is a number: ``x + 1`` before and after a write are two nodes, as their epoch differs.
    """

    def __init__(
        self,
        names: ModuleNames,
        cls: ast.ClassDef | None,
        graph: Graph,
        declared: Mapping[str, str] | None = None,
    ) -> None:
        self.names = names
        self.cls = cls
        self.graph = graph
        self.declared = declared or {}
        """Parameters of a rule that stand for submodules or activations."""
        self.env: dict[str, Node] = {}
        self.outside: frozenset[str] = frozenset()
        """Names that other functions may bind at any time: ``global``, ``nonlocal``."""
        self.is_module = False
        self.reshapes = False
        """Whether tensors get other shapes in place: then these have moments as values do."""
        self.frame: dict[str, Node] = {}
        """The names of the function itself while a helper is read."""
        self.inner: dict[Node, FunctionNode] = {}
        """Functions and lambdas that the function defines."""
        self.made: dict[Node, int] = {}
        """New tensors, with the number of others of the same contents."""
        self.moved: dict[str, int] = {}
        """When an attribute of this name was set last, under "" any attribute."""
        self.ranks: Mapping[Node, int] = {}
        """Never changed, only exchanged: evaluations keep it."""
        self.stored: dict[tuple[Node, str], Node] = {}
        self.path: tuple[tuple[Node, bool], ...] = ()
        self.epoch = 0
        self.effects = 0
        self.serial = 0
        self.depth = 0
        self.maybe = 0
        self.statement: ast.stmt | None = None
        self.block: list[ast.stmt] = []
        self.before: dict[str, Node] = {}
        self.evaluations: list[Evaluation] = []
        self.observables: list[Observable] = []
        self.carried: list[tuple[Node, str, Node]] = []
        self.places: dict[Node, list[ast.expr | ast.stmt]] = {}
        self.touched: set[Node] = set()
        self.captured: set[str] = set()
        self.sees_all = False
        """``locals()`` is called: in the next round of a loop it sees what is bound behind it."""
        self.for_npu: set[Node] = set()
        """Values that are these on an NPU, and may be others elsewhere."""
        self._made_once: dict[str, bool] = {}

    def observe(self, kind: str, node: Node) -> None:
        """Record something that the outside can see."""
        self.observables.append(Observable(kind, node, self.path))

    def effect(self, kind: str, node: Node) -> Node:
        """Record something after which a tensor may hold other values."""
        self.observe(kind, node)
        self.effects += 1
        self.epoch = self.effects
        if kind not in {"write", "def", "try", "Assert"}:
            self.stored.clear()  # other code may have set the attributes
        return node

    def unique(self) -> Serial:
        """Return a number that no other call of this function has."""
        self.serial += 1
        return Serial(self.serial)

    def op(self, op: str, *args: Node, value: Hashable = None) -> Node:
        """Return a node computed now."""
        return self.graph.node(op, *args, value=value, epoch=self.epoch)

    def about(self, op: str, *args: Node) -> Node:
        """Return a length or number of dimensions, which a tensor keeps unless it is reshaped."""
        return self.graph.node(op, *args, epoch=self.epoch if self.reshapes else 0)

    def bind(self, name: str, node: Node) -> None:
        """Give a name a value."""
        if name in self.outside:
            self.effect("rebind", self.op(Op.REBIND, node, value=name))
        else:
            self.env[name] = node

    def record(self, node: Node, code: ast.expr | ast.stmt) -> None:
        """Remember which code computes a value."""
        if not (isinstance(code, ast.Name) or self.names.home):  # reading a name computes nothing
            self.places.setdefault(node, []).append(code)
        if self.depth == 0 and self.statement is not None:
            self.evaluations.append(
                Evaluation(
                    node,
                    code,
                    self.statement,
                    self.block,
                    self.before,
                    self.ranks,
                    certain=self.maybe == 0,
                )
            )

    def phi(self, test: Node, then: Node, other: Node) -> Node:
        """Return the value that depends on a branch."""
        return then if then is other else self.graph.node(Op.PHI, test, then, other)

    def on_npu(self, node: Node) -> Node:
        """Take note that a value is this one on an NPU, whatever it is elsewhere."""
        self.for_npu.add(node)
        return node

    def is_self(self) -> bool:
        """Tell whether ``self`` is what it is called: the object that the method belongs to."""
        found = self.env.get("self")
        return found is not None and found.op == Op.PARAM and found.value == "self"

    def dotted(self, code: ast.expr) -> str | None:
        """Return the imported name that an expression spells, local names aside."""
        root = code
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id in self.env or root.id in self.outside:
            return None
        return self.names.dotted(code) if root.id in self.names.imports else None

    def value_of(self, name: str) -> Node:
        """Return what a name stands for now."""
        names = self.names
        if name in self.outside:
            return self.op(Op.OUTSIDE, value=name)
        if name in self.env:
            node = self.env[name]
            self.touched.add(node)
            again = node.op == Op.OUTSIDE and names.is_rebound(name)
            return self.op(Op.OUTSIDE, value=name) if again else node
        if name in names.imports:
            return self.graph.node(Op.GLOBAL, value=names.imports[name])
        full = f"{names.home}.{name}" if names.home and name in names.bound else name
        epoch = self.epoch if names.is_rebound(name) else 0
        return self.graph.node(Op.GLOBAL, value=full, epoch=epoch)

    def attribute_of(self, base: Node, name: str) -> Node:
        """Return an attribute; one that only ``__init__`` binds is the same at all times."""
        is_own = self.cls is not None and base.op == Op.PARAM and base.value == "self"
        fixed = is_own and self._is_made_once(name)
        epoch = 0 if fixed else max(self.epoch, self.moved.get(name, 0))
        return self.graph.node(Op.ATTR, base, value=name, epoch=epoch)

    def _is_made_once(self, name: str) -> bool:
        if name not in self._made_once:
            cls = self.cls
            self._made_once[name] = cls is not None and is_made_once(self.names, cls, name)
        return self._made_once[name]

    def learn_rank(self, lengths: Node, count: int) -> None:
        """Take note of how many lengths were unpacked: ``b, n = x.shape[:-1]`` are all but one."""
        others = 0
        match lengths.args if lengths.op == Op.GETITEM else ():
            case [Node(Op.SHAPE) as lengths, Node(Op.SLICE, [start, stop, step])]:
                first, last = start.value or 0, stop.value or 0
                plain = {start.op, stop.op, step.op} == {Op.CONST} and step.value is None
                if not (plain and type(first) is type(last) is int and first >= 0 >= last):
                    return
                others = first - last
        if lengths.op == Op.SHAPE and not self.reshapes:
            self.ranks = {**self.ranks, lengths.args[0]: count + others}

    def reshaping(self) -> None:
        """Take note that a tensor gets another shape in place.

        Raises:
            ReadAgainError: the function was read as if none did.

        """
        if not self.reshapes:
            raise ReadAgainError(reshapes=True)

    def once(self, node: Node) -> Node:
        """Return a new tensor or list; two of the same contents are not one when one is changed."""
        if node not in self.made:
            self.made[node] = 0
            return node
        self.made[node] += 1
        return self.graph.node(Op.AGAIN, node, value=self.made[node])
