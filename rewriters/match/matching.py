"""Finding a pattern in the dataflow of a function: unification of two graphs."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.nodes import Serial
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.graph.special import Op
from npufix.rules.substitution import option

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Evaluation, Node

# The names that rule files use; they import torch for type checking only.
RULE_IMPORTS = {
    "torch": "torch",
    "torch_npu": "torch_npu",
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "mindspeed": "mindspeed",
    "mx_driving": "mx_driving",
    "math": "math",
    "either": "npufix.rules.substitution.either",
}
# They have a moment only in a function that reshapes tensors in place.
_METADATA = frozenset({Op.DTYPE_OF, Op.RANK, Op.SHAPE, Op.SIZE})
_MIRRORED = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt"}
"""``a < b`` is ``b > a``."""
_TIMELESS = frozenset(
    {Op.ATTR, Op.CONST, Op.DTYPE, Op.GLOBAL, Op.ITEM, Op.LIST, Op.PHI, Op.SLICE, Op.TUPLE}
)
LITERAL = "literal_"
"""How the names of variables begin that match only literals."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A ``pattern`` function as the graph to look for."""

    root: Node
    roots: frozenset[str]
    """The operators that the value may be the result of."""
    code: FunctionNode
    defaults: Mapping[str, Hashable]
    """What a parameter is where a spelling of the pattern does not mention it."""
    needed: frozenset[str]
    """The operators that every spelling of it has."""


@dataclass(frozen=True, eq=False, slots=True)
class Match:
    """A place where the pattern is what the function computes."""

    evaluation: Evaluation
    bindings: Mapping[str, Node]
    covered: frozenset[Node]
    """The user's nodes that the pattern itself stands for, without those of the variables."""
    pairs: Mapping[Node, Node]
    """User's node -> pattern's node, for the covered ones."""

    @property
    def epoch(self) -> int:
        """When it is computed; the length that ``nonzero(mask).shape[0]`` ends in has no moment."""
        return max(_list_moments(self.covered), default=0)


def parse_rule_function(function: Callable[..., object]) -> FunctionNode:
    """Return the syntax of a ``pattern`` or ``replacement`` function.

    Raises:
        TypeError: it is a lambda, or made by a program.

    """
    code = getattr(function, "__code__", None)
    known = _functions_of(inspect.getfile(function))
    if code is None or (code.co_name, code.co_firstlineno) not in known:
        raise TypeError(f"{function!r} must be a plain function")
    return known[code.co_name, code.co_firstlineno]


@cache
def _functions_of(path: str) -> Mapping[tuple[str, int], FunctionNode]:
    """Return the functions of a file by name and line; a file of many forms is parsed once."""
    tree = ast.parse(Path(path).read_bytes())
    return {(n.name, n.lineno): n for n in tree.body if isinstance(n, FunctionNode)}


@cache
def pattern_of(function: Callable[..., object]) -> Pattern:
    """Return the graph of a ``pattern`` function, read through the same door as user code.

    Raises:
        TypeError: it has not one result.

    """
    code = parse_rule_function(function)
    names = ModuleNames(RULE_IMPORTS, helpers_of(function), {})
    flow = read_function(code, names, declared=list_declared(code))
    results = [o.node for o in flow.observables if o.kind in {"return", "write"}]
    if len(results) != 1:
        raise TypeError(f"{function.__qualname__} must return one value or write once")
    params = [arg.arg for arg in code.args.args]
    given = [ast.literal_eval(default) for default in code.args.defaults]
    defaults = dict(zip(params[::-1], given[::-1], strict=False))
    root = results[0]
    return Pattern(root, root_ops(root), code, defaults, _list_needed_ops(root, {}))


def helpers_of(function: Callable[..., object]) -> dict[str, FunctionNode]:
    """Return the functions of its own file that a ``pattern`` calls."""
    scope = vars(sys.modules[function.__module__])
    found: dict[str, FunctionNode] = {}
    left = [parse_rule_function(function)]
    for code in left:  # grows
        for name in sorted({n.id for n in walk(code) if isinstance(n, ast.Name)}):
            helper = scope.get(name)
            if not inspect.isfunction(helper) or helper.__module__ != function.__module__:
                continue
            if name not in found:
                found[name] = parse_rule_function(helper)
                left.append(found[name])
    return found


def list_declared(code: FunctionNode) -> dict[str, str]:
    """Return the parameters of a rule that stand for something that is called, and for what."""
    found = {}
    for arg in code.args.args:
        written = ast.unparse(arg.annotation).strip("'\"") if arg.annotation else ""
        if written == "Activation":
            found[arg.arg] = written
        elif written.startswith("nn.") and written not in {"nn.Parameter", "nn.Module"}:
            found[arg.arg] = written.removeprefix("nn.")
    return found


def root_ops(root: Node) -> frozenset[str]:
    """Return the operators that the value of a pattern may be the result of."""
    if root.op == Op.EITHER:
        return frozenset().union(*map(root_ops, root.args))
    return frozenset({root.op})


def _list_needed_ops(node: Node, known: dict[Node, frozenset[str]]) -> frozenset[str]:
    """Return the operators without which nothing is what a node of a pattern describes."""
    if node not in known:
        parts = [_list_needed_ops(arg, known) for arg in node.args]
        if node.op == Op.EITHER:
            known[node] = frozenset.intersection(*parts)
        else:
            own = () if node.op == Op.PARAM or node.op in _MIRRORED else (node.op,)
            known[node] = frozenset(own).union(*parts)
    return known[node]


def find(pattern: Pattern, flow: FunctionFlow) -> Iterator[Match]:
    """Yield the matches in a function, one per place in the source."""
    if not pattern.needed <= flow.operators:
        return
    seen: set[int] = set()
    roots = pattern.roots
    for evaluation in (e for op in roots for e in flow.by_operation.get(op, ())):
        node = evaluation.node
        # Reading a name is not where its value was computed.
        if isinstance(evaluation.code, (ast.Name, ast.NamedExpr, ast.Attribute)):
            continue
        if isinstance(evaluation.code, ast.If):
            evaluation = _where_returned(evaluation, flow)  # noqa: PLW2901 - another place of it
        if id(evaluation.code) in seen or _is_discarded(evaluation):
            continue
        state = _Unification(pattern, {}, {})
        for end in state.unify(pattern.root, node):
            if not _same_moment(end.pairs, node) or not flow.is_certain(node):
                continue
            seen.add(id(evaluation.code))
            bindings = {**_defaults_of(pattern, flow), **end.bindings}
            yield Match(evaluation, bindings, frozenset(end.pairs), end.pairs)
            break


def _defaults_of(pattern: Pattern, flow: FunctionFlow) -> dict[str, Node]:
    """Return what the parameters are that a spelling of the pattern does not mention."""
    return {name: flow.graph.constant(value) for name, value in pattern.defaults.items()}


def list_unmentioned(pattern: Pattern, chosen: int) -> dict[str, Hashable]:
    """Return the defaults of the parameters that one spelling of a pattern does without."""
    named, left = set(), [pattern.root]
    for node in left:  # grows
        if node.op == Op.EITHER:
            line, column = cast("tuple[int, int]", node.value)
            left.append(node.args[option(chosen, (line, column), len(node.args))])
        else:
            named |= {str(node.value)} if node.op == Op.PARAM else set()
            left += node.args
    return {name: value for name, value in pattern.defaults.items() if name not in named}


def _where_returned(joined: Evaluation, flow: FunctionFlow) -> Evaluation:
    """Return where the value that a branch leaves in a name is returned, else the branch.

    ``if hasattr(self, "weight"): x = x * self.weight``, and then ``return x``.
    """
    for evaluation in flow.by_operation.get(joined.node.op, ()):
        match evaluation.statement:
            case ast.Return(ast.Name() as value) if value is evaluation.code:
                if evaluation.node is joined.node and evaluation.block is joined.block:
                    return evaluation
    return joined


def _is_discarded(evaluation: Evaluation) -> bool:
    """Tell whether nobody uses a value: ``x * scale`` as a statement.

    Nor is one put in the place of ``y += bias``, which has the operator within it.
    """
    match evaluation.statement:
        case ast.Expr(value):
            return value is evaluation.code
        case ast.AugAssign() as changed:
            return changed is evaluation.code and evaluation.node.op != Op.AUGMENT
    return False


def _same_moment(pairs: Mapping[Node, Node], root: Node) -> bool:
    """Tell whether no side effect lies between the first computation and the last."""
    return len(_list_moments((root, *pairs))) <= 1


def _list_moments(nodes: Iterable[Node]) -> set[int]:
    return {
        node.epoch
        for node in nodes
        if node.op not in _TIMELESS and (node.epoch or node.op not in _METADATA)
    }


@dataclass(frozen=True, slots=True)
class _Unification:
    pattern: Pattern
    bindings: dict[str, Node]
    pairs: dict[Node, Node]

    def unify(self, wanted: Node, node: Node) -> Iterator[_Unification]:
        """Yield every way in which ``node`` is what ``wanted`` describes."""
        if wanted.op == Op.PARAM:
            name = str(wanted.value)
            if name.startswith(LITERAL) and node.op != Op.CONST:
                return
            if name not in self.bindings:
                yield _Unification(self.pattern, {**self.bindings, name: node}, self.pairs)
            elif self.bindings[name] is node:
                yield self
            return
        if wanted.op == Op.EITHER:
            for option in wanted.args:
                yield from self.unify(option, node)
            return
        orders = list_orders(wanted, node)
        if not orders or not same_value(wanted, node):
            return
        start = _Unification(self.pattern, self.bindings, {**self.pairs, node: wanted})
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


def list_orders(wanted: Node, node: Node) -> list[tuple[Node, ...]]:
    """Return in which orders the operands may be those of the pattern, none if it is another one.

    ``a + b`` in both, ``b > a`` turned round if the pattern has ``a < b``.
    """
    args = node.args
    if len(wanted.args) != len(args):
        return []
    if _MIRRORED.get(wanted.op) == node.op:
        return [args[::-1]]
    if wanted.op != node.op:
        return []
    both = wanted.op in operators.COMMUTATIVE and len(args) == 2  # noqa: PLR2004 - left and right
    return [args, args[::-1]] if both else [args]


def same_value(wanted: Node, node: Node) -> bool:
    """Tell whether the value of a node (a literal, a name) is the one of the pattern."""
    if isinstance(wanted.value, tuple) and isinstance(node.value, tuple):
        # Which of several random numbers are drawn is no part of a pattern.
        return _without_serials(wanted.value) == _without_serials(node.value)
    if isinstance(wanted.value, bool) or isinstance(node.value, bool):
        return wanted.value is node.value
    return wanted.value == node.value


def _without_serials(value: tuple[object, ...]) -> list[object]:
    return [part for part in value if not isinstance(part, Serial)]
