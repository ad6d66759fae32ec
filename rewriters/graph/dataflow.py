"""What a function body computes: the result types of ``FunctionReader``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rewriters.graph.aliases import duplicates, find_exposed, list_written_by, read_by
from npufix.rewriters.graph.modules.scopes import list_bound_names
from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.modules.scopes import Scope
    from npufix.rewriters.graph.nodes import Evaluation, Graph, Node, Observable


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
    for_npu: frozenset[Node] = frozenset()
    """Values of helpers that compute something else on devices of other makers."""
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
    def operators(self) -> frozenset[str]:
        """Return the operators of all nodes: a pattern that has others is not in there."""
        return self.graph.operators

    @cached_property
    def _duplicates(self) -> frozenset[Node]:
        return duplicates(self.evaluations)

    @cached_property
    def _exposed(self) -> frozenset[Node]:
        return find_exposed(self.observables)

    @cached_property
    def _writes(self) -> frozenset[Node]:
        return frozenset(seen.node for seen in self.observables if seen.kind == "write")

    def computes_for_npu(self, lines: Container[int]) -> bool:
        """Tell whether lines, or what reads them, compute with what helpers do on an NPU alone.

        Not so ``scale = x.new_tensor([2.0])`` where nothing joins it with ``y = helper(x)``.
        """
        if not self.for_npu:
            return False
        made = {e.node for e in self.evaluations if e.code.lineno in lines and e.node.args}
        return any(
            not made.isdisjoint(parts) and not self.for_npu.isdisjoint(parts)
            for parts in ({*evaluation.node.walk()} for evaluation in self.evaluations)
        )

    def is_certain(self, root: Node) -> bool:
        """Tell whether what a match reads is what its nodes say.

        Not so for ``b`` after ``a = x + 1; b = x + 1; a.zero_()``: it has the node of ``a``.
        """
        operands = [node for node in read_by(root) if node in self._duplicates]
        written = set(list_written_by(root)) if operands and root in self._writes else set()
        return not any(
            node in written or (node.epoch != root.epoch and node in self._exposed)
            for node in operands
        )

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
        return list_bound_names(self.function)

    @cached_property
    def taken(self) -> frozenset[str]:
        """Return the names that mean something in the function: a new one is none of them."""
        return frozenset({*self.bound, *self.names.imports, *self.names.bound})

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
