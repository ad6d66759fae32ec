"""Loops whose rounds pair something: places with values, rows with others, columns with classes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.advice.rounds import carries, list_bound
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.graph.modules.syntax import last_name, list_names, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop

MATCHED = (
    "each round writes what is matched in one row: rows = torch.cat([torch.full_like(p, i) for i, "
    "(p, _) in enumerate(matches)]) and columns = torch.cat([p for p, _ in matches]) name all "
    "places, out[rows, columns] = torch.cat([x[t] for x, (_, t) in zip(xs, matches)]) writes them "
    "at once"
)
UPPER = (
    "each round computes one pair: first, second = torch.triu_indices(n, n, 1, device=x.device) "
    "name all of them, f(x[:, first], x[:, second]) computes them at once (from lists, stack x "
    "before), and numbers of a pair are table[first, second]"
)
CLASSES = (
    "each round compares the labels with one class and computes with its column: F.one_hot(labels, "
    "n) compares with all of them, and operators along dim=0 (sort, cumsum, sum) take all columns "
    "of x at once; classes that are left out are 0 in the sum, weighed by one_hot.any(0)"
)
STACKED = (
    "each round multiplies the same rows with one of several matrices: torch.matmul(x, torch.stack("
    "list(weights))) is one product of all of them, with the results along its first dimension"
)
MEMBERS = (
    "each round asks whether one element is among others, for which the host waits: torch.isin(x, "
    "torch.tensor(sorted(others), device=x.device)) asks it of all elements, with the others made "
    "once"
)
OF_PAIRS = (MATCHED, UPPER, CLASSES, STACKED, MEMBERS)
_MOST = 16
"""Statements of a round."""
_OUT = (ast.Await, ast.Break, ast.Return, ast.Try, ast.While, ast.With, ast.Yield)
_PRODUCTS = frozenset({"mm", "matmul", "bmm", "linear"})


def say_of_pairs(facts: Facts, loop: Loop) -> str:
    """Return the form of a loop that pairs something, "" for any other."""
    body = loop.statement.body if isinstance(loop.statement, ast.For) else loop.body
    made = [loop.made] if loop.made is not None else [one.made for one in loop.lists]
    nodes = list(walk(*body, *made))
    if sum(isinstance(n, ast.stmt) for n in nodes) > _MOST or any(
        isinstance(n, _OUT) for n in nodes
    ):
        return ""
    own = list_names(loop.target)
    forms = {
        MATCHED: _writes_matched(facts, loop, nodes),
        UPPER: _pairs_up(facts, loop, body),
        CLASSES: _takes_classes(facts, own, nodes) and not carries(body, frozenset(own)),
        MEMBERS: _asks_members(facts, loop, body),
        STACKED: _multiplies(loop, own, nodes) and not carries(body, frozenset(own)),
    }
    return next((form for form, fits in forms.items() if fits), "")


def _writes_matched(facts: Facts, loop: Loop, nodes: Sequence[ast.AST]) -> bool:
    """Tell whether code is ``out[i, p] = xs[i][t]``, of ``for i, (p, t) in enumerate(matches)``."""
    match loop.target, loop.items:
        case ast.Tuple([ast.Name(row), ast.Tuple(pair)]), ast.Call(ast.Name("enumerate")):
            places = {name for part in pair for name in list_names(part)}
        case _:
            return False
    writes = [
        n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Subscript)
    ]
    for write in writes:
        match write.targets[0]:
            case ast.Subscript(base, ast.Tuple([ast.Name(first), ast.Name(second)])):
                of_row = first == row and second in places
                if not of_row or facts.is_tensor(base) is False or _is_array(facts, base):
                    return False
            case _:
                return False
    return len(places) > 1 and bool(writes) and not _has_effects(nodes)


def _pairs_up(facts: Facts, loop: Loop, body: Sequence[ast.stmt]) -> bool:
    """Tell whether a loop holds ``for j in range(i + 1, n)`` and computes with rows i and j."""
    match loop.target, loop.items, body:
        case ast.Name(first), ast.Call(ast.Name("range")), [
            ast.For(ast.Name(second), ast.Call(ast.Name("range"), [low, _]), inner)
        ] if list_names(low) == {first}:
            pass
        case _:
            return False
    match inner[-1]:
        case ast.AugAssign(ast.Name(), ast.Add(), made):
            pass
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(), "append"), [made])):
            pass
        case _:
            return False
    bound = dict(list_bound(inner))
    code = [made, *bound.values()]
    picks = [n for n in walk(*code) if isinstance(n, ast.Subscript)]
    rows = [n for n in picks if list_names(n.slice) & {first, second}]
    arrays = any(_is_array(facts, n.value) for n in picks)
    of_tensors = any(facts.is_tensor(n.value) for n in rows) or any(
        isinstance(n.slice, ast.Tuple) and any(isinstance(i, ast.Slice) for i in n.slice.elts)
        for n in rows
    )
    called = isinstance(made, ast.Call) and {first, second} <= list_names(made)
    both = {name for n in rows for name in list_names(n.slice)} >= {first, second}
    return both and (of_tensors or called) and not arrays and not _has_effects(list(walk(*inner)))


def _takes_classes(facts: Facts, own: set[str], nodes: Sequence[ast.AST]) -> bool:
    """Tell whether a round has ``labels == c`` and ``x[:, c]``, of which one is a tensor."""
    compared = [
        n.left
        for n in nodes
        if isinstance(n, ast.Compare)
        and isinstance(n.ops[0], ast.Eq)
        and isinstance(n.comparators[0], ast.Name)
        and n.comparators[0].id in own
    ]
    columns = [n for n in nodes if isinstance(n, ast.Subscript) and _is_column(n, own)]
    stored = any(not isinstance(n.ctx, ast.Load) for n in columns)
    tensors = [*compared, *(n.value for n in columns)]
    if not compared or not columns or stored or _has_effects(nodes):
        return False
    return not any(_is_array(facts, part) for part in tensors)


def _is_column(code: ast.Subscript, own: set[str]) -> bool:
    match code.slice:
        case ast.Tuple([*before, ast.Name(name)]) if before:
            return name in own and all(isinstance(i, ast.Slice | ast.Constant) for i in before)
        case ast.Tuple([ast.Slice(None, None), ast.Name(name), *_]):
            return name in own
    return False


def _asks_members(facts: Facts, loop: Loop, body: Sequence[ast.stmt]) -> bool:
    """Tell whether code is ``keep[i] = x in others``, of ``for i, x in enumerate(xs)``."""
    match loop.target, loop.items, body:
        case (
            ast.Tuple([ast.Name(row), ast.Name(element)]),
            ast.Call(ast.Name("enumerate"), [_]),
            [
                ast.Assign(
                    [ast.Subscript(base, ast.Name(index))],
                    ast.Compare(ast.Name(left), [ast.In() | ast.NotIn()]),
                )
            ],
        ):
            return (row, element) == (index, left) and facts.is_tensor(base) is True
    return False


def _multiplies(loop: Loop, own: set[str], nodes: Sequence[ast.AST]) -> bool:
    """Tell whether a round is a product with ``self.weights[i]``, which goes into a list."""
    match loop.items:
        case ast.Call(ast.Name("range"), [_]):
            pass
        case _:
            return False
    appended = any(isinstance(n, ast.Call) and last_name(n.func) == "append" for n in nodes)
    for node in nodes:
        match node:
            case ast.BinOp(left, ast.MatMult(), right) | ast.Call(_, [left, right, *_]) if (
                isinstance(node, ast.BinOp) or last_name(node.func) in _PRODUCTS
            ):
                weights = [part for part in (left, right) if _is_weight(part, own)]
                others = [part for part in (left, right) if not list_names(part) & own]
                if len(weights) == len(others) == 1 and (appended or loop.joined is not None):
                    return not _has_effects(nodes)
    return False


def _is_weight(code: ast.expr, own: set[str]) -> bool:
    match code:
        case ast.Subscript(ast.Attribute(ast.Name("self")), ast.Name(name)):
            return name in own
    return False


def _is_array(facts: Facts, code: ast.expr) -> bool:
    node = facts.node(code)
    return node is not None and is_of_numpy(node)


def _has_effects(nodes: Sequence[ast.AST]) -> bool:
    """Tell whether a round calls something for its effect, what fills a list aside."""
    calls = [n.value for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    read = any(
        isinstance(n, ast.Call) and last_name(n.func) in {"item", "tolist", "print"} for n in nodes
    )
    return read or not all(last_name(call.func) == "append" for call in calls)
