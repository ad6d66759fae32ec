"""Over what a loop runs, and the vector of its counter."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.values import CannotBatchError, Kind, Value, name, shifted

if TYPE_CHECKING:
    from npufix.rewriters.edit.loops.facts import Facts
    from npufix.rewriters.graph.nodes import Node

NO_DOMAIN = "it runs over something else than range, enumerate, zip or the rows of a tensor"
STEPS = "it counts in steps, or from a number that is not written out"


@dataclass(frozen=True)
class Domain:
    """``for i in range(start, stop)``; of a loop over a tensor ``stop`` is its length."""

    start: int
    stop: ast.expr
    stop_node: Node
    names: dict[str, Value] = field(default_factory=dict)
    """What the names of the target are."""


def read_domain(target: ast.expr, items: ast.expr, facts: Facts) -> Domain:
    """Return what a loop runs over.

    Raises:
        CannotBatchError: it is none of the kinds that count.

    """
    node = facts.node(items)
    match items:
        case ast.Call(ast.Name("range"), args, []) if isinstance(target, ast.Name) and args:
            return _range(target.id, args, facts)
        case ast.Call(ast.Name("enumerate"), [over], []):
            match target:
                case ast.Tuple([ast.Name(counter), element]):
                    found = _elements(element, over, facts)
                    names = {counter: counted(counter), **found.names}
                    return Domain(0, found.stop, found.stop_node, names)
        case _ if node is not None:
            return _elements(target, items, facts)
    raise CannotBatchError(NO_DOMAIN)


def counted(counter: str, offset: int = 0) -> Value:
    """Return the value of a name that counts."""
    return Value(Kind.NUMBER, name(counter), 0, integer=True, offset=offset)


def _range(counter: str, args: list[ast.expr], facts: Facts) -> Domain:
    start, stop = (ast.Constant(0), args[0]) if len(args) == 1 else (args[0], args[1])
    node = facts.node(stop)
    if len(args) > 2 or not isinstance(start, ast.Constant) or node is None:  # noqa: PLR2004
        raise CannotBatchError(STEPS)
    if type(start.value) is not int or start.value < 0:
        raise CannotBatchError(STEPS)
    return Domain(start.value, stop, node, {counter: counted(counter)})


def _elements(target: ast.expr, over: ast.expr, facts: Facts) -> Domain:
    match target, over:
        case ast.Tuple(names), ast.Call(ast.Name("zip"), parts, []) if len(names) == len(parts):
            found = [_elements(n, p, facts) for n, p in zip(names, parts, strict=True)]
            bound = {n: v for one in found for n, v in one.names.items()}
            return Domain(0, found[0].stop, found[0].stop_node, bound)
        case ast.Name(element), ast.Name() | ast.Attribute():
            node = facts.node(over)
            assert node is not None  # noqa: S101 - it is read where it stands
            rank = facts.rank(over)
            one = shifted(rank, -1)
            value = Value(Kind.ENTRY, over, one)
            if facts.is_tensor(over):
                value = Value(Kind.ROWS, over, one)
                stop = ast.parse(f"{ast.unparse(over)}.shape[0]", mode="eval").body
                size = facts.flow.graph.node("size", node, facts.flow.graph.constant(0))
                return Domain(0, stop, size, {element: value})
            length = facts.flow.graph.node("py:len", node)
            return Domain(0, ast.Call(name("len"), [over], []), length, {element: value})
    raise CannotBatchError(NO_DOMAIN)
