"""From the ``replacement`` function of a rule to the text that goes into the user's file."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.matching import RULE_IMPORTS, Match, parse_rule_function
from npufix.rewriters.names import ModuleNames
from npufix.rewriters.reader import FunctionReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npufix.rewriters.dataflow import FunctionFlow
    from npufix.rewriters.names import FunctionNode
    from npufix.rewriters.nodes import Node


@dataclass(frozen=True, slots=True)
class Spelled:
    """The replacement in the user's own names."""

    text: str
    hoisted: Mapping[str, str]
    """New local names for expressions that the replacement needs more than once."""


def spell(
    replacement: Callable[..., object], flow: FunctionFlow, match: Match, names: Mapping[str, Node]
) -> Spelled | None:
    """Write the replacement where ``names`` are the local names; ``None`` if that is impossible."""
    code = parse_rule_function(replacement)
    body = result_expression(code)
    uses = [n.id for n in ast.walk(body) if isinstance(n, ast.Name)]
    texts: dict[str, ast.expr] = {}
    hoisted: dict[str, str] = {}
    for param in (arg.arg for arg in code.args.args):
        expression = _expression(match.bindings[param], flow, names)
        if expression is None:
            return None
        if uses.count(param) > 1 and not is_simple(expression):
            name = _fresh(param, flow.function)
            hoisted[name] = ast.unparse(expression)
            expression = ast.Name(name, ast.Load())
        texts[param] = expression
    return Spelled(ast.unparse(_fold(_Substitute(texts).visit(copy.deepcopy(body)))), hoisted)


def result_expression(code: FunctionNode) -> ast.expr:
    """Return the expression that a ``replacement`` returns or, for a write, executes."""
    last = code.body[-1]
    if isinstance(last, (ast.Return, ast.Expr)) and last.value is not None:
        return last.value
    raise TypeError(f"{code.name} must end with one expression")


def replacement_node(replacement: Callable[..., object], flow: FunctionFlow, match: Match) -> Node:
    """Return the replacement as a node of the user's graph: what the patched code must compute."""
    code = parse_rule_function(replacement)
    reader = FunctionReader(ModuleNames(RULE_IMPORTS, {}, {}), None, flow.graph)
    reader.epoch = match.evaluation.node.epoch
    reader.env = {arg.arg: match.bindings[arg.arg] for arg in code.args.args}
    return reader.read(_fold(_Literals(match.bindings).visit(result_expression(code))))


def _expression(node: Node, flow: FunctionFlow, names: Mapping[str, Node]) -> ast.expr | None:
    """Return the shortest way to write a value where ``names`` are the local names."""
    if node.op == "const":
        return ast.Constant(node.value)  # type: ignore[arg-type]  # a literal of the user
    for name, value in names.items():
        if value is node:
            return ast.Name(name, ast.Load())
    for evaluation in flow.evaluations:
        code = evaluation.code
        if (
            evaluation.node is node
            and isinstance(code, ast.expr)
            and not isinstance(code, ast.Name)
        ):
            free = {n.id for n in ast.walk(code) if isinstance(n, ast.Name)}
            if all(names.get(f) is evaluation.names.get(f) for f in free):
                return code
    if node.op == "attr":  # read in a helper only: ``self.eps``
        base = _expression(node.args[0], flow, names)
        return base and ast.Attribute(base, str(node.value), ast.Load())
    return None


def is_simple(code: ast.expr) -> bool:
    """Tell whether an expression is a name, an attribute of one, or a literal."""
    while isinstance(code, ast.Attribute):
        code = code.value
    return isinstance(code, (ast.Name, ast.Constant))


def _fresh(wanted: str, function: FunctionNode) -> str:
    used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    used |= {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    while wanted in used:
        wanted += "_"
    return wanted


class _Substitute(ast.NodeTransformer):
    def __init__(self, texts: Mapping[str, ast.expr]) -> None:
        self.texts = texts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.texts.get(node.id, node)


class _Literals(ast.NodeTransformer):
    """Puts the values of ``literal_`` variables in place, so that arithmetic on them folds."""

    def __init__(self, bindings: Mapping[str, Node]) -> None:
        self.bindings = bindings

    def visit_Name(self, node: ast.Name) -> ast.expr:
        bound = self.bindings.get(node.id)
        if bound is None or bound.op != "const":
            return node
        return ast.copy_location(ast.Constant(bound.value), node)  # type: ignore[arg-type]


def _fold(code: ast.expr) -> ast.expr:
    """Return ``x.unsqueeze(1 + 1)`` as ``x.unsqueeze(2)``."""

    class Fold(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
            self.generic_visit(node)
            match node:
                case ast.BinOp(ast.Constant(int(left)), op, ast.Constant(int(right))):
                    if isinstance(op, (ast.Add, ast.Sub)):
                        total = left + right if isinstance(op, ast.Add) else left - right
                        return ast.copy_location(ast.Constant(total), node)
            return node

    folded: ast.expr = Fold().visit(code)
    return folded
