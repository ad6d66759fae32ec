"""Finds the loops of a function that may be over rows, and brings them to one shape.

That is over what they run, with the vector of the counter, and a body.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from npufix.rewriters.facts.row_operators import REPEATING
from npufix.rewriters.facts.steps.weights import changes_weights
from npufix.rewriters.graph.modules.syntax import (
    children,
    last_name,
    list_stored_names,
    nodes_of,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames

_JOINED = frozenset({"torch.stack", "torch.cat", "torch.concat", "torch.concatenate"})
_NAMES = frozenset(name.rpartition(".")[2] for name in _JOINED)
_CALLED = "|".join(sorted({*_NAMES, "sum"}))
_LIKELY = re.compile(rf"(?m)^\s*(?:async )?for\b|\b(?:{_CALLED})\(|\[(?:\w+\[\w+ !=|self\.\w+\()")
_WORDS = frozenset({"for", "sum", *_NAMES, *(f"self.{name}" for name in _NAMES)})
_MADE = frozenset({*REPEATING, "full", "narrow", "new_full", "unbind"})
"""Rows that are no index of anything: ``x.expand(n, -1)``, ``torch.full((n, 1), i)``, a part."""
_WRITING = frozenset({"add_", "copy_", "div_", "fill_", "mul_", "sub_", "zero_"})
"""What may write to a row: ``for i, row in enumerate(x): row.copy_(y - i)``."""
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)


@dataclass(frozen=True)
class FilledList:
    """A list to which each round appends, and which is joined once."""

    name: str
    made: ast.expr
    """What a round appends."""
    empty: ast.stmt | None
    """What makes the list, if that is not the loop itself: ``xs = [f(y) for y in ys]``."""
    statement: ast.stmt
    call: ast.Call
    """The ``torch.stack`` or ``torch.cat`` of it, and the statement that it is in."""

    @property
    def is_bound_again(self) -> bool:
        """Whether the name of the list is that of the tensor from then on."""
        match self.statement:
            case ast.Assign([ast.Name(name)], value):  # ``xs = torch.cat(xs).T``
                return name == self.name and any(node is self.call for node in ast.walk(value))
        return False


@dataclass(frozen=True)
class Loop:
    """A loop, and what comes of it."""

    target: ast.expr
    items: ast.expr
    body: Sequence[ast.stmt]
    statement: ast.stmt
    """The statement that it is, or whose last part it is."""
    joined: ast.Call | None = None
    """The ``torch.stack`` or ``torch.cat`` that takes what each round makes."""
    made: ast.expr | None = None
    """What each round makes, where that is joined."""
    removed: tuple[ast.stmt, ...] = ()
    """The statements that go besides: the empty list, the loop that fills it."""
    lists: tuple[FilledList, ...] = ()
    """What a ``for`` fills, if that is several lists, or one that is joined later on."""
    total: str = ""
    """The name that each round adds ``made`` to, if that is all that it does with it."""
    grown: ast.Call | None = None
    """The ``torch.cat`` that puts ``made`` behind the ``total``, where it is not added."""
    begins: bool = False
    """Whether the total is what the first round makes, and nothing before it."""
    begun: ast.stmt | None = None
    """What sets a counter to zero that nobody else needs, or makes the empty list of ``picked``."""
    picked: str = ""
    """The list of the numbers of rounds that pass ``test``."""
    test: ast.expr | None = None
    """Which rounds are picked, or add to the total."""

    @property
    def is_statement(self) -> bool:
        """Whether it is a ``for`` that writes."""
        return self.joined is None

    @property
    def is_in_place(self) -> bool:
        """Whether it adds to the tensor itself: ``total += x[i]``."""
        return isinstance(self.statement, ast.For) and isinstance(
            self.statement.body[-1], ast.AugAssign
        )

    @property
    def first(self) -> ast.stmt:
        """The statement where it begins."""
        return next((s for s in self.removed if isinstance(s, ast.For)), self.statement)


def may_hold_loops(
    function: FunctionNode, text: str | None = None, words: frozenset[str] = _WORDS
) -> bool:
    """Tell whether a function has a loop whose counter or element is an index, joined, or a weight.

    Its ``words`` and ``text`` spare most functions the walk.
    """
    if _WORDS.isdisjoint(words) or (text is not None and _LIKELY.search(text) is None):
        return False
    for node in nodes_of(function):
        if isinstance(node, ast.Call) and last_name(node.func) in _NAMES and _comprehension(node):
            return True
        if isinstance(node, ast.Call) and _adds_up(node):
            return True
        if isinstance(node, (ast.For, ast.ListComp)) and any(map(_takes_rows, walk(node))):
            return True
        appends = isinstance(node, ast.For | ast.ListComp) and _appends_with(node)
        if (appends and _joins(function)) or changes_weights(node):
            return True
    return False


def _takes_rows(code: ast.AST) -> bool:
    made = isinstance(code, ast.Attribute) and code.attr in _MADE | _WRITING
    return made or isinstance(code, ast.Subscript)


def _appends_with(loop: ast.For | ast.ListComp) -> bool:
    """Tell whether a loop ends with appending something, and computes with its counter."""
    if isinstance(loop, ast.ListComp):  # ``[expert(x) for expert, x in zip(experts, xs)]``
        over = loop.generators[0].iter
        return isinstance(over, ast.Call) and last_name(over.func) == "zip"
    own = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    match loop.body[-1]:
        case ast.Expr(ast.Call(ast.Attribute(_, "append"), [_], [])) | ast.AugAssign(
            _, ast.Add(), ast.List([_])
        ):
            return any(isinstance(n, ast.Name) and n.id in own for n in walk(*loop.body))
    return False


def _joins(function: FunctionNode) -> bool:
    calls = (node.func for node in nodes_of(function) if isinstance(node, ast.Call))
    return any(last_name(func) in {"cat", "concat", "stack"} for func in calls)


def spell_out(function: FunctionNode, names: ModuleNames) -> tuple[FunctionNode, list[Loop]]:
    """Return a function with a ``for`` for each comprehension that is joined, and those loops.

    ``y = torch.stack([f(x[i]) for i in r])`` gets ``for i in r: _ = f(x[i])`` in front of it, so
    that the dataflow is read in there as well. It shares all its expressions with the original.
    """
    found: list[Loop] = []
    new = copy.copy(function)
    new.body = _spell_block(function.body, names, found)
    return (new, found) if found else (function, [])


def _spell_block(body: list[ast.stmt], names: ModuleNames, found: list[Loop]) -> list[ast.stmt]:
    made: list[ast.stmt] = []
    for number, statement in enumerate(body):
        loops = [_comprehended(c, statement) for c in _joining(statement, names)]
        listed = _listing(body, number, names)
        for loop in [*loops, *([listed] if listed else [])]:
            value = loop.made or loop.lists[0].made
            inner = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], value), value)
            spelled = ast.copy_location(ast.For(loop.target, loop.items, [inner], []), statement)
            made.append(ast.fix_missing_locations(spelled))
            found.append(loop)
        made.append(statement)
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.With)):
            made[-1] = changed = copy.copy(statement)
            changed.body = _spell_block(statement.body, names, found)
            if isinstance(changed, (ast.If, ast.For, ast.While)):
                changed.orelse = _spell_block(changed.orelse, names, found)
    return made


def _comprehended(call: ast.Call, statement: ast.stmt) -> Loop:
    """Return the loop of ``torch.stack([f(y) for y in ys])``."""
    comprehension = _comprehension(call)
    assert comprehension is not None  # noqa: S101 - that is how they were chosen
    over = comprehension.generators[0]
    return Loop(over.target, over.iter, [], statement, call, comprehension.elt)


def _listing(body: Sequence[ast.stmt], number: int, names: ModuleNames) -> Loop | None:
    """Return the loop of ``xs = [f(y) for y in ys]``, where ``xs`` is joined later on."""
    match body[number]:
        case ast.Assign([ast.Name(name)], ast.ListComp(elt, [over])) as statement if not (
            over.ifs or over.is_async
        ):
            joins = [(s, c) for s in body[number + 1 :] for c in _joining(s, names, name)]
            if len(joins) == 1:
                filled = FilledList(name, elt, None, *joins[0])
                return Loop(over.target, over.iter, [], statement, lists=(filled,))
    return None


def loops_in(body: Sequence[ast.stmt], names: ModuleNames) -> Iterator[Loop]:
    """Yield the ``for`` statements of a block and the blocks in it, the outer ones first."""

    @cache
    def uses() -> Counter[str]:
        return Counter(n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name))

    for number, statement in enumerate(body):
        if isinstance(statement, ast.For) and not statement.orelse:
            filled = _read_filling(body, number, names, uses) or _filling(body, number, names)
            filled = filled or _adding(statement) or _growing(statement, names)
            filled = filled or _beginning(statement, names)
            filled = filled or _picking(body, number) or _counting(body, number, uses)
            if filled is not None:
                yield filled
            else:
                yield Loop(statement.target, statement.iter, statement.body, statement)
        for inner in _blocks(statement):
            yield from loops_in(inner, names)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for part in ("body", "orelse", "finalbody"):
        block = getattr(statement, part, None)
        if block and not isinstance(
            statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
        ):
            yield block
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _read_filling(
    body: Sequence[ast.stmt], number: int, names: ModuleNames, uses: Callable[[], Counter[str]]
) -> Loop | None:
    """Return a loop that fills a list which is joined right after it, and used for nothing else.

    What it reads must still be the same where the list is joined.
    """
    loop = body[number]
    assert isinstance(loop, ast.For)  # noqa: S101 - the caller has looked
    match loop.body[-1]:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [made], [])):
            pass
        case _:
            return None
    # Only names can be bound in front of the statement that joins.
    if any(isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Tuple) for s in loop.body):
        return None
    after = body[number + 1] if number + 1 < len(body) else loop
    calls = list(_joining(after, names, name))
    if len(calls) != 1 or uses()[name] != 3:  # noqa: PLR2004 - made, filled, joined
        return None
    before = [s for s in body[:number] if _empty_lists(s) == {name}]
    if len(before) != 1:
        return None
    return Loop(
        loop.target, loop.iter, loop.body[:-1], after, calls[0], made, (before[0], loop)
    )  # fmt: skip


def _filling(body: Sequence[ast.stmt], number: int, names: ModuleNames) -> Loop | None:
    """Return a loop that ends with appending to lists which are joined afterwards, each once."""
    loop = body[number]
    assert isinstance(loop, ast.For)  # noqa: S101 - the caller has looked
    lists: list[FilledList] = []
    inner = list(loop.body)
    while inner:
        match inner[-1]:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [made], [])):
                before = [s for s in body[:number] if name in _empty_lists(s)]
                joins = [(s, c) for s in body[number + 1 :] for c in _joining(s, names, name)]
                if len(before) != 1 or len(joins) != 1:
                    return None
                lists.insert(0, FilledList(name, made, before[0], *joins[0]))
                inner.pop()
            case _:
                break
    found = {one.name for one in lists}
    empty = [one.empty for one in lists if one.empty is not None]
    if len(found) != len(lists) or not all(_empty_lists(one) <= found for one in empty):
        return None
    if not lists:
        return None
    return Loop(loop.target, loop.iter, inner, loop, lists=tuple(lists))


def _adding(loop: ast.For) -> Loop | None:
    """Return a loop that ends with adding to a name: ``total = total + f(x[i])``.

    Perhaps not in every round: ``if n[i] > 0: total += x[i]``, or behind ``continue``.
    """
    before, last = loop.body[:-1], loop.body[-1]
    test: ast.expr | None = None
    match last:
        case ast.If(asked, [inner], []):
            test, last = asked, inner
    match before:
        case [ast.If(skipped, [ast.Continue()], []), *before] if test is None:
            test = ast.copy_location(ast.UnaryOp(ast.Not(), skipped), skipped)
    match last:
        case ast.AugAssign(ast.Name(total), ast.Add(), made):
            pass
        case ast.AugAssign(ast.Name(total), ast.Sub(), taken):
            made = ast.copy_location(ast.UnaryOp(ast.USub(), taken), taken)
        case ast.Assign([ast.Name(total)], code) if (rest := _added_to(code, total)) is not None:
            made = rest
        case _:
            return None
    uses = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id == total]
    own = [n for n in ast.walk(last) if isinstance(n, ast.Name) and n.id == total]
    if len(uses) != len(own) or any(n in own for n in ast.walk(made)):
        return None
    return Loop(loop.target, loop.iter, before, loop, made=made, total=total, test=test)


def _growing(loop: ast.For, names: ModuleNames) -> Loop | None:
    """Return a loop that ends with ``out = torch.cat((out, f(x[i])), dim=0)``."""
    match loop.body[-1]:
        case ast.Assign(
            [ast.Name(total)],
            ast.Call(
                _, [ast.Tuple([ast.Name(first), made]) | ast.List([ast.Name(first), made]), *_]
            ) as call,
        ) if first == total and names.dotted(call.func) in _JOINED:
            pass
        case _:
            return None
    uses = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id == total]
    if len(uses) != 2 or last_name(call.func) == "stack":  # noqa: PLR2004 - read and bound
        return None
    return Loop(
        loop.target, loop.iter, loop.body[:-1], loop, made=made, total=total, grown=call
    )  # fmt: skip


def _beginning(loop: ast.For, names: ModuleNames) -> Loop | None:
    """Return a loop with ``if i == 0: total = f(x[i])`` and ``else: total = total + f(x[i])``."""
    match loop.body[-1]:
        case ast.If(test, [ast.Assign([ast.Name(total)], first)], [rest]):
            pass
        case ast.Assign([ast.Name(total) as target], ast.IfExp(test, first, later)) as last:
            rest = ast.copy_location(ast.Assign([target], later), last)
        case _:
            return None
    match loop.target, loop.iter:
        case ast.Name(counter), ast.Call(ast.Name("range"), [_], []):
            pass
        case ast.Tuple([ast.Name(counter), _]), ast.Call(ast.Name("enumerate"), [_], []):
            pass
        case _:
            return None
    whole = copy.copy(loop)
    whole.body = [*loop.body[:-1], rest]
    found = _adding(whole) or _growing(whole, names)
    if found is None or found.made is None or (found.total, found.test) != (total, None):
        return None
    alike = ast.dump(found.made) == ast.dump(first)
    is_first = ast.unparse(test) in {f"{counter} == 0", f"not {counter}"}
    stored = sum(counter in list_stored_names(statement) for statement in loop.body)
    if not alike or not is_first or stored:
        return None
    return replace(found, statement=loop, begins=True)


def _added_to(code: ast.expr, total: str) -> ast.expr | None:
    """Return ``1 - f(x)`` of ``total + 1 - f(x)``, ``None`` if it does not begin with the total."""
    match code:
        case ast.BinOp(ast.Name(name), ast.Add(), right) if name == total:
            return right
        case ast.BinOp(ast.Name(name), ast.Sub(), right) if name == total:
            return ast.UnaryOp(ast.USub(), right)
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            first = _added_to(left, total)
            return None if first is None else ast.BinOp(first, op, right)
    return None


def _counting(
    body: Sequence[ast.stmt], number: int, uses: Callable[[], Counter[str]]
) -> Loop | None:
    """Return a loop that counts by hand as ``enumerate`` does: ``k = 0``, at its end ``k += 1``."""
    loop = body[number]
    assert isinstance(loop, ast.For)  # noqa: S101 - the caller has looked
    match loop.body[-1]:
        case ast.AugAssign(ast.Name(counter), ast.Add(), ast.Constant(1)):
            pass
        case _:
            return None
    named = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id == counter]
    begun = [s for s in body[:number] if _is_zero(s, counter)]
    stored = sum(not isinstance(n.ctx, ast.Load) for n in named)
    if len(begun) != 1 or stored != 1 or uses()[counter] != len(named) + 1:
        return None
    if any(isinstance(node, ast.Continue) for node in ast.walk(loop)):
        return None  # not every round comes to its end
    both = ast.Tuple([ast.Name(counter, ast.Store()), loop.target], ast.Store())
    items = ast.Call(ast.Name("enumerate", ast.Load()), [loop.iter], [])
    return Loop(both, items, loop.body[:-1], loop, begun=begun[0])


def _picking(body: Sequence[ast.stmt], number: int) -> Loop | None:
    """Return a loop that collects the numbers of some rounds: ``if x[i] > 0: kept.append(i)``."""
    loop = body[number]
    assert isinstance(loop, ast.For)  # noqa: S101 - the caller has looked
    match loop.body[-1], loop.target:
        case (
            ast.If(
                test,
                [ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [ast.Name(i)]))],
                [],
            ),
            ast.Name(counter) | ast.Tuple([ast.Name(counter), _]),
        ) if i == counter:
            before = [s for s in body[:number] if _empty_lists(s) == {name}]
            if len(before) == 1:
                return Loop(
                    loop.target, loop.iter, loop.body[:-1], loop,
                    begun=before[0], picked=name, test=test,
                )  # fmt: skip
    return None


def _is_zero(statement: ast.stmt, counter: str) -> bool:
    match statement:
        case ast.Assign([ast.Name(name)], ast.Constant(0)):
            return name == counter
    return False


def _empty_lists(statement: ast.stmt) -> set[str]:
    """Return the names that a statement makes empty lists of: ``a, b = [], []``."""
    match statement:
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
            empty = all(map(_is_empty, values))
            named = {t.id for t in targets if isinstance(t, ast.Name)}
            return named if empty and len(named) == len(targets) else set()
        case ast.Assign([ast.Name(name)], ast.expr() as value) | ast.AnnAssign(
            ast.Name(name), _, ast.expr() as value
        ):
            return {name} if _is_empty(value) else set()
    return set()


def _is_empty(code: ast.expr) -> bool:
    match code:
        case ast.List([]) | ast.Call(ast.Name("list"), [], []):
            return True
    return False


def _joining(statement: ast.stmt, names: ModuleNames, of: str = "") -> Iterator[ast.Call]:
    """Yield the calls that join a comprehension, or the list of a name."""
    if not isinstance(statement, _SIMPLE):
        return
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)):
            continue
        if isinstance(node, ast.Call) and not (of or names.dotted(node.func)) and _adds_up(node):
            yield node
            continue
        if isinstance(node, ast.Call) and names.dotted(node.func) in _JOINED and node.args:
            first = node.args[0]
            if of and isinstance(first, ast.Name) and first.id == of:
                yield node
            if not of and _comprehension(node) is not None:
                yield node
                continue
        stack.extend(children(node))


def _adds_up(call: ast.Call) -> bool:
    """Tell whether code is ``sum(f(x[:, i]) for i in range(n))``."""
    made = _comprehension(call) if last_name(call.func) == "sum" and len(call.args) == 1 else None
    if made is None or not isinstance(call.func, ast.Name) or call.keywords:
        return False
    only = made.generators[0]
    counts = isinstance(only.iter, ast.Call) and last_name(only.iter.func) == "range"
    return counts and any(isinstance(n, ast.Subscript) for n in ast.walk(made.elt))


def _comprehension(call: ast.Call) -> ast.ListComp | ast.GeneratorExp | None:
    first = call.args[0] if call.args else None
    if not isinstance(first, (ast.ListComp, ast.GeneratorExp)) or len(first.generators) != 1:
        return None
    only = first.generators[0]
    return None if only.ifs or only.is_async else first
