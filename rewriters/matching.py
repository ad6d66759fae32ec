"""Finding a pattern in the dataflow of a function: unification of two graphs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from npufix.rewriters.canonical import COMMUTATIVE
from npufix.rewriters.names import FunctionNode, ModuleNames
from npufix.rewriters.reader import read_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from npufix.rewriters.dataflow import Evaluation, FunctionFlow
    from npufix.rewriters.nodes import Node

# The names that rule files use; they import torch for type checking only.
RULE_IMPORTS = {"torch": "torch", "torch_npu": "torch_npu", "F": "torch.nn.functional"}
_LITERAL = "literal_"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A ``pattern`` function as the graph to look for."""

    root: Node
    code: FunctionNode


@dataclass(frozen=True, eq=False, slots=True)
class Match:
    """A place where the pattern is what the function computes."""

    evaluation: Evaluation
    bindings: Mapping[str, Node]
    covered: frozenset[Node]
    """The user's nodes that the pattern itself stands for, without those of the variables."""
    pairs: Mapping[Node, Node]
    """User's node -> pattern's node, for the covered ones."""


def parse_rule_function(function: Callable[..., object]) -> FunctionNode:
    """Return the syntax of a ``pattern`` or ``replacement`` function."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    code = tree.body[0]
    if not isinstance(code, FunctionNode):
        raise TypeError(f"{function!r} must be a plain function")
    return code


@cache
def pattern_of(function: Callable[..., object]) -> Pattern:
    """Return the graph of a ``pattern`` function, read through the same door as user code."""
    code = parse_rule_function(function)
    flow = read_function(code, ModuleNames(RULE_IMPORTS, {}, {}))
    results = [o.node for o in flow.observables if o.kind in {"return", "write"}]
    if len(results) != 1:
        raise TypeError(f"{function.__qualname__} must return one value or write once")
    return Pattern(results[0], code)


def find(pattern: Pattern, flow: FunctionFlow) -> Iterator[Match]:
    """Yield the matches in a function, one per place in the source."""
    seen: set[int] = set()
    for evaluation in flow.evaluations:
        node = evaluation.node
        # Reading a name is not where its value was computed.
        if node.op != pattern.root.op or isinstance(
            evaluation.code, (ast.Name, ast.NamedExpr, ast.Attribute)
        ):
            continue
        if id(evaluation.code) in seen or _is_discarded(evaluation):
            continue
        state = _Unification(pattern, {}, {})
        for end in state.unify(pattern.root, node):
            if not _same_moment(end.pairs, node):
                continue
            seen.add(id(evaluation.code))
            yield Match(evaluation, end.bindings, frozenset(end.pairs), end.pairs)
            break


def _is_discarded(evaluation: Evaluation) -> bool:
    """Tell whether nobody uses a value: ``x * scale`` as a statement."""
    match evaluation.statement:
        case ast.Expr(value):
            return value is evaluation.code
    return False


def _same_moment(pairs: Mapping[Node, Node], root: Node) -> bool:
    """Tell whether no side effect lies between the first computation and the last."""
    return all(
        node.epoch == root.epoch
        for node in pairs
        if node.op
        not in {
            "const",
            "dtype",
            "dtype_of",
            "shape",
            "size",
            "global",
            "phi",
            "tuple",
            "list",
            "item",
            "slice",
            "attr",
            "rank",
        }
    )


@dataclass(frozen=True, slots=True)
class _Unification:
    pattern: Pattern
    bindings: dict[str, Node]
    pairs: dict[Node, Node]

    def unify(self, wanted: Node, node: Node) -> Iterator[_Unification]:
        """Yield every way in which ``node`` is what ``wanted`` describes."""
        if wanted.op == "param":
            name = str(wanted.value)
            if name.startswith(_LITERAL) and node.op != "const":
                return
            if name not in self.bindings:
                yield _Unification(self.pattern, {**self.bindings, name: node}, self.pairs)
            elif self.bindings[name] is node:
                yield self
            return
        if (
            wanted.op != node.op
            or len(wanted.args) != len(node.args)
            or not _same_value(wanted, node)
        ):
            return
        start = _Unification(self.pattern, self.bindings, {**self.pairs, node: wanted})
        orders = [node.args]
        if wanted.op in COMMUTATIVE and len(node.args) == 2:  # noqa: PLR2004 - left and right
            orders.append((node.args[1], node.args[0]))
        for args in orders:
            yield from start.unify_all(wanted.args, args)

    def unify_all(
        self, wanted: tuple[Node, ...], nodes: tuple[Node, ...]
    ) -> Iterator[_Unification]:
        """Yield every way in which all the arguments agree."""
        if not wanted:
            yield self
            return
        for state in self.unify(wanted[0], nodes[0]):
            yield from state.unify_all(wanted[1:], nodes[1:])


def _same_value(wanted: Node, node: Node) -> bool:
    if isinstance(wanted.value, bool) or isinstance(node.value, bool):
        return wanted.value is node.value
    return wanted.value == node.value
