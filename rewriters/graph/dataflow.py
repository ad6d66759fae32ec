"""What a function body computes: the result types of ``FunctionReader``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.scopes import bound_names
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.twins import exposed, made_twice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.modules.scopes import Scope
    from npufix.rewriters.graph.nodes import Graph, Node


# ``is_torch_npu_available()``, ``x.device.type == "npu"``, ``torch_npu is not None``
_NPU = re.compile(r"(?<![A-Za-z])npu", re.IGNORECASE)


class UnsupportedCodeError(Exception):
    """The function uses something whose dataflow is not followed (``locals()``)."""


class ReadAgainError(Exception):
    """The function does something that must be known from its first line on."""

    def __init__(self, names: Iterable[str] = (), *, reshapes: bool = False) -> None:
        """Say which names other code may bind, or that tensors get other shapes in place."""
        super().__init__()
        self.names = frozenset(names)
        self.reshapes = reshapes


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


@dataclass(frozen=True, eq=False)
class FunctionFlow:
    """The dataflow of one function."""

    function: FunctionNode
    cls: ast.ClassDef | None
    names: ModuleNames
    graph: Graph
    evaluations: tuple[Evaluation, ...]
    observables: tuple[Observable, ...]
    places: Mapping[Node, Sequence[ast.expr | ast.stmt]] = field(default_factory=dict)
    """The code of this file that computes a value, inlined helpers included."""
    captured: frozenset[str] = frozenset()
    """Names that a nested function reads later."""
    scope: Scope | None = None
    """Where the function stands in its module."""
    reshapes: bool = False
    """Whether a tensor may have another shape later on: what is said of one holds for a moment."""

    @cached_property
    def by_operation(self) -> Mapping[str, Sequence[Evaluation]]:
        """Return the evaluations by the operator of their values."""
        found: dict[str, list[Evaluation]] = {}
        for evaluation in self.evaluations:
            found.setdefault(evaluation.node.op, []).append(evaluation)
        return found

    @cached_property
    def twins(self) -> frozenset[Node]:
        """Return the values that the function makes more than one tensor of."""
        return made_twice(self)

    @cached_property
    def shared(self) -> frozenset[Node]:
        """Return the values that something may write to."""
        return exposed(self)

    @cached_property
    def writes(self) -> frozenset[Node]:
        """Return the writes to tensors."""
        return frozenset(seen.node for seen in self.observables if seen.kind == "write")

    @cached_property
    def lines(self) -> Mapping[Node, frozenset[int]]:
        """Return the lines of this file that compute a value, inlined helpers included."""
        return {
            node: frozenset(
                line
                for code in places
                for line in range(code.lineno, (code.end_lineno or code.lineno) + 1)
            )
            for node, places in self.places.items()
        }

    @cached_property
    def name_nodes(self) -> Sequence[ast.Name]:
        """Return every place where a name stands in the function."""
        return tuple(node for node in walk(self.function) if isinstance(node, ast.Name))

    @cached_property
    def bound(self) -> frozenset[str]:
        """Return the names that the function binds."""
        return bound_names(self.function)

    @cached_property
    def npu_branches(self) -> Sequence[ast.If | ast.IfExp]:
        """Return where the function asks whether it runs on an NPU."""
        return tuple(
            node
            for node in walk(self.function)
            if isinstance(node, (ast.If, ast.IfExp)) and _NPU.search(ast.unparse(node.test))
        )

    @property
    def qualname(self) -> str:
        """Return ``Class.method`` or ``function.<locals>.inner``."""
        return self.function.name if self.scope is None else self.scope.qualname
