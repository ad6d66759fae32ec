"""What a function body computes: the result types of ``FunctionReader``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping

    from npufix.rewriters.names import FunctionNode, ModuleNames
    from npufix.rewriters.nodes import Graph, Node


class UnsupportedCodeError(Exception):
    """The function uses something whose dataflow is not followed (``global``, ``match``)."""


@dataclass(frozen=True, eq=False, slots=True)
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


@dataclass(frozen=True, slots=True)
class FunctionFlow:
    """The dataflow of one function."""

    function: FunctionNode
    cls: ast.ClassDef | None
    names: ModuleNames
    graph: Graph
    evaluations: tuple[Evaluation, ...]
    observables: tuple[Observable, ...]
    lines: Mapping[Node, frozenset[int]] = field(default_factory=dict)
    """The lines of this file that compute a value, inlined helpers included."""
    captured: frozenset[str] = frozenset()
    """Names that a nested function reads later."""

    @property
    def qualname(self) -> str:
        """Return ``Class.method`` or ``function``."""
        prefix = f"{self.cls.name}." if self.cls else ""
        return prefix + self.function.name
