"""What the tests above a line say about the values under which it runs."""

from __future__ import annotations

import ast
import copy
import enum
import itertools
import re
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from npufix.rewriters.graph.modules.syntax import list_defaults, names_bound_in, root_name, walk
from npufix.rewriters.verification.calls.coverage import Branch
from npufix.rewriters.verification.calls.values import find_nothing
from npufix.rewriters.verification.inputs.source.attributes import trees
from npufix.rewriters.verification.inputs.source.parameters import WIDTH, guess_attribute
from npufix.rewriters.verification.inputs.source.usage import (
    Use,
    find_function,
    find_last_line,
    list_arguments,
    note_unpacking,
)
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import CodeType

    from npufix.rewriters.verification.calls.coverage import Place
    from npufix.rewriters.verification.calls.values import Find
    from npufix.rewriters.verification.inputs.source.usage import Function

Goal: TypeAlias = "Mapping[str, object]"
"""Values by dotted names, as code writes them: ``self.config.pretraining_tp``, ``mode``."""
_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"
_ONLY_TENSOR = (
    r"['\"]?(torch\.)?(Float|Long|Half|Bool|Int)?Tensor['\"]?|\w+\[(torch\.)?Tensor, .*\]"
)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_DIVIDES = (ast.Div, ast.FloorDiv, ast.Mod)
_SIMPLE = (ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Expr, ast.Return)
_PERHAPS = frozenset(
    {ast.BoolOp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp}
)
"""What need not run all that stands in it."""
_ASK_S = 1.0
_ORDERS: dict[type[ast.cmpop], Callable[[int, list[object]], bool]] = {
    ast.Eq: lambda n, limits: n == limits[0],
    ast.NotEq: lambda n, limits: n != limits[0],
    ast.In: lambda n, limits: n in limits,
    ast.NotIn: lambda n, limits: n not in limits,
}
_MOST_SIZES = 3
_LARGEST_SIZE = 13
_TIMES = 4
_OF_KIND: dict[str, object] = {"int": 2, "float": 0.5, "numbers.Number": 2, "Number": 2}
"""What is of a kind, for ``isinstance(t, (int, float))``."""
_TINY = 1e-3
"""What is compared with less stands for nothing: ``beta < 1e-5``."""


def solve_path_condition(
    tree: ast.Module, place: Place, find: Find = find_nothing
) -> dict[str, object]:
    """Return values under which the tests around a line, and those it must get past, let it run.

    Of a way of a test, those under which the test turns out like that as well. ``find`` knows the
    constants of the module, and members of enumerations: ``if mode == Mode.EVERY:``.
    """
    line = place.line if isinstance(place, Branch) else place
    function = _around(tree, line)
    if function is None:
        return {}
    wanted: dict[str, object] = {}
    own = list(_tests_at(function, place)) if isinstance(place, Branch) else []
    # What is next to the line first: of ``if mode == "a": return``, "b" is asked for below.
    for test, outcome in (*own, *reversed([*_tests(function.body, line)])):
        for name, value in _satisfying(test, find, outcome=outcome):
            wanted.setdefault(name, value)
    return wanted


def find_setting(owner: type, attribute: str) -> dict[str, object]:
    """Return what ``__init__`` must be given so that it sets an attribute.

    ``{"context_features": 8}`` for ``if context_features is not None: self.context_layer = ...``.
    """
    for kind in owner.__mro__:
        for tree in trees(kind, "__init__") if "__init__" in vars(kind) else ():
            for node in (n for n in walk(tree) if isinstance(n, ast.Attribute)):
                found = node.attr == attribute and isinstance(node.ctx, ast.Store)
                if found and isinstance(tree, ast.Module):
                    return solve_path_condition(tree, node.lineno)
    return {}


def solve_sizes(
    tree: ast.Module, place: Place, known: Mapping[str, int], free: Sequence[str]
) -> dict[str, int]:
    """Return whole numbers for arguments under which tests of several let a line run.

    Of ``if h * w != self.grid**2 or h != w:``, with ``self.grid`` known, 4 and 4 to get past it,
    and 2 and 8 to ask the second part.
    """
    line = place.line if isinstance(place, Branch) else place
    function = _around(tree, line)
    if function is None:
        return {}
    own = list(_tests_at(function, place)) if isinstance(place, Branch) else []
    every = (*own, *_tests(function.body, line))
    asked = [(t, outcome) for t, outcome in every if _names_of_sizes(t) & {*free}]
    names = sorted({n for t, _ in asked for n in _names_of_sizes(t)} - known.keys())
    if not asked or not {*names} <= {*free} or len(names) > _MOST_SIZES:
        return {}
    codes = [(_compile_test(test), outcome) for test, outcome in asked]
    asked_of = {n for test, _ in asked for n in _names_of_sizes(test)}
    # ``step > total`` of ``total=1000``: no size, for which there would not be memory
    beside = (known[n] + more for n in asked_of & known.keys() for more in (-1, 0, 1))
    near = (n for n in known.values() if n <= WIDTH**2)
    sizes = sorted({*range(1, _LARGEST_SIZE), *(n for n in (*near, *beside) if n > 0)})
    # different ones first, and none that is one: with these least is hidden
    tried = itertools.product(sizes, repeat=len(names))
    likely = sorted(tried, key=lambda t: (1 in t, len({*t}) < len(t), t))
    for numbers in likely:
        scope = {
            _plain(n): v for n, v in {**known, **dict(zip(names, numbers, strict=True))}.items()
        }
        if all(bool(eval(code, {}, scope)) is outcome for code, outcome in codes):  # noqa: S307 - sums
            return dict(zip(names, numbers, strict=True))
    return {}


def _plain(name: str) -> str:
    return name.replace(".", "__")


def _names_of_sizes(test: ast.expr) -> set[str]:
    """Return the names in a test that is made of sums of whole numbers alone."""
    found: set[str] = set()
    parts: list[ast.expr] = [test]
    while parts:
        node = parts.pop()
        name = spell_dotted_name(node)
        if name:
            found.add(name)
        elif isinstance(node, ast.BoolOp):
            parts += node.values
        elif isinstance(node, ast.Compare):
            parts += [node.left, *node.comparators]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            parts += [node.left, node.right]
        elif isinstance(node, ast.UnaryOp):
            parts.append(node.operand)
        elif not (isinstance(node, ast.Constant) and type(node.value) is int):
            return set()
    return found


def _compile_test(test: ast.expr) -> CodeType:
    class Plain(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.Name:
            return ast.Name(_plain(spell_dotted_name(node)), ast.Load())

    whole = ast.Expression(Plain().visit(copy.deepcopy(test)))
    return compile(ast.fix_missing_locations(whole), "<a test of sizes>", "eval")


def _tests_at(function: _Function, branch: Branch) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the part of a test that a way begins with, and what must hold for it to be asked."""
    for node in walk(function):
        if isinstance(node, ast.BoolOp):
            for asked, part in enumerate(node.values):
                if (part.lineno, part.col_offset) == (branch.line, branch.column):
                    yield part, branch.holds
                    others = node.values[:asked]
                    yield from ((other, isinstance(node.op, ast.And)) for other in others)
        elif isinstance(node, ast.If | ast.IfExp | ast.While) and (
            (node.test.lineno, node.test.col_offset) == (branch.line, branch.column)
        ):
            yield node.test, branch.holds


def find_impossible(function: ast.AST, dims: Mapping[str, frozenset[int]]) -> set[Place]:
    """Return the lines and the ways of tests that no call can take.

    ``dims``: the arguments that are always tensors, and how many dimensions they have; no number
    where that is not known.
    """
    found: set[Place] = set()
    for node in walk(function):
        for holds in (True, False):
            if isinstance(node, ast.expr) and _is_never(node, dims, holds=holds):
                found.add(Branch(node.lineno, node.col_offset, holds))
        for body in (getattr(node, name, None) for name in ("body", "orelse")):
            if isinstance(body, list):
                found |= {line for block in _dead(body, dims) for line in _lines(block)}
    dead = {place for place in found if isinstance(place, int)}
    inside = (n for n in walk(function) if getattr(n, "lineno", 0) in dead)
    ways = ((n, holds) for n in inside if isinstance(n, ast.expr) for holds in (True, False))
    return found | {Branch(n.lineno, n.col_offset, holds) for n, holds in ways}


def _dead(body: list[ast.stmt], dims: Mapping[str, frozenset[int]]) -> Iterator[Sequence[ast.stmt]]:
    """Yield the blocks that never run, and what stands after one that always leaves."""
    for at, statement in enumerate(body):
        if isinstance(statement, ast.If):
            for holds, block, other in (
                (True, statement.body, statement.orelse),
                (False, statement.orelse, statement.body),
            ):
                if _is_never(statement.test, dims, holds=holds):
                    yield block
                    if other and isinstance(other[-1], _LEAVES):
                        yield body[at + 1 :]


def _lines(block: Sequence[ast.stmt]) -> Iterator[int]:
    for statement in block:
        yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _is_never(test: ast.expr, dims: Mapping[str, frozenset[int]], *, holds: bool) -> bool:
    """Say whether a test never turns out like that."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_never(test.operand, dims, holds=not holds)
    if isinstance(test, ast.BoolOp):
        one = isinstance(test.op, ast.And) is holds
        parts = (_is_never(part, dims, holds=holds) for part in test.values)
        return any(parts) if one else all(parts)
    if isinstance(test, ast.Call) and getattr(test.func, "id", "") == "isinstance":
        name, kind = map(ast.unparse, test.args)
        return not holds and name in dims and re.search(r"\bTensor\b", kind) is not None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    op, other = test.ops[0], test.comparators[0]
    if isinstance(other, ast.Constant) and other.value is None:
        return spell_dotted_name(test.left) in dims and isinstance(op, ast.Is) is holds
    counted = re.fullmatch(r"(\w+)\.(?:dim\(\)|ndim)|len\((\w+)\.shape\)", ast.unparse(test.left))
    known = dims.get(counted[1] or counted[2], frozenset()) if counted else frozenset[int]()
    way, limits = _ORDERS.get(type(op)), _constants(other)
    return bool(known and way and limits) and all(way(n, limits) is not holds for n in known)  # type: ignore[misc] # not None


def find_compared_constants(
    tree: ast.AST, qualname: str, find: Find = find_nothing
) -> dict[str, list[object]]:
    """Return the constants that a function compares a name with; ``find`` knows those by name."""
    name = qualname.partition(".<locals>")[0].rpartition(".")[2]
    found: dict[str, list[object]] = {}
    tables = dict(_tables(tree))
    for node in walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != name:
            continue
        for test in walk(node):
            for left, right in (*_sides(test), *_list_looked_up(test, tables)):
                known = found.setdefault(left, [])
                known += [v for v in _constants(right, find) if v not in known]
    return found


def _tables(tree: ast.AST) -> Iterator[tuple[str, ast.Dict]]:
    """Yield the dictionaries that are written out, by their names."""
    for node in walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            yield from ((spell_dotted_name(target), node.value) for target in node.targets)


def _list_looked_up(
    node: ast.AST, tables: Mapping[str, ast.Dict]
) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is looked up in a table that is written out, and each key of that."""
    if isinstance(node, ast.Subscript):
        held = node.value
        table = held if isinstance(held, ast.Dict) else tables.get(spell_dotted_name(held))
        for key in table.keys if table is not None else ():
            if key is not None:
                yield spell_dotted_name(node.slice), key


def _sides(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield spell_dotted_name(node.left), node.comparators[0]
        yield spell_dotted_name(node.comparators[0]), node.left
    elif isinstance(node, ast.Match):
        for case in node.cases:
            if isinstance(case.pattern, ast.MatchValue):
                yield spell_dotted_name(node.subject), case.pattern.value


def _constants(node: ast.expr, find: Find = find_nothing) -> list[object]:
    value: object = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    if isinstance(node, ast.Name):
        value = find(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        kind = find(node.value.id)
        member = getattr(kind, node.attr, None) if isinstance(kind, enum.EnumMeta) else None
        # as the text that equals it: each version of the module has members of its own
        value = getattr(member, "value", None) if isinstance(member, str | int) else None
    if type(value) in {str, int, float}:
        return [value]
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [value for item in node.elts for value in _constants(item, find)]
    return []


def spell_dotted_name(node: ast.expr) -> str:
    """Return a name and its attributes, as they are written; empty if it is something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = spell_dotted_name(node.value)
        return inner and f"{inner}.{node.attr}"
    return ""


def _around(tree: ast.Module, line: int) -> _Function | None:
    around = (f for f in _list_functions(tree) if f.lineno <= line <= (f.end_lineno or f.lineno))
    return max(around, key=lambda node: node.lineno, default=None)


@lru_cache(maxsize=2)  # of the two versions: each raise of a module is asked for
def _list_functions(tree: ast.Module) -> Sequence[_Function]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in walk(tree) if isinstance(node, functions)]


def _tests(body: Sequence[ast.stmt], line: int) -> Iterator[tuple[ast.expr, bool]]:
    for statement in body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            blocks = [("body", True), ("orelse", False), ("finalbody", True)]
            for name, outcome in blocks:
                block = getattr(statement, name, None)
                if not isinstance(block, list) or not any(_holds(s, line) for s in block):
                    continue
                if isinstance(statement, ast.If | ast.While):
                    yield statement.test, outcome
                yield from _tests(block, line)
            if isinstance(statement, ast.Try):
                for handler in (h for h in statement.handlers if _holds(h, line)):
                    yield from _list_raising(statement, handler)
                    yield from _tests(handler.body, line)
            return
        if isinstance(statement, ast.If) and isinstance(statement.body[-1], _LEAVES):
            yield statement.test, False


def _list_raising(tried: ast.Try, handler: ast.ExceptHandler) -> Iterator[tuple[ast.expr, bool]]:
    """Yield what holds where a block raises what a handler is for: a divisor is zero."""
    kinds = ast.unparse(handler.type) if handler.type is not None else ""
    if re.search(r"\b(ZeroDivision|Arithmetic)Error\b", kinds):
        for node in walk(*tried.body):
            if isinstance(node, ast.BinOp) and isinstance(node.op, _DIVIDES):
                yield ast.Compare(node.right, [ast.Eq()], [ast.Constant(0)]), True


def _holds(statement: ast.stmt | ast.ExceptHandler, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _satisfying(test: ast.expr, find: Find, *, outcome: bool) -> list[tuple[str, object]]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _satisfying(test.operand, find, outcome=not outcome)
    if isinstance(test, ast.BoolOp):
        # All parts of ``a and b`` must hold; that it does not hold is decided by one of them.
        every = isinstance(test.op, ast.And) is outcome
        parts = test.values if every else test.values[:1]
        return [pair for part in parts for pair in _satisfying(part, find, outcome=outcome)]
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod):
        test = ast.Compare(test, [ast.NotEq()], [ast.Constant(0)])
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if isinstance(test.left, ast.BinOp):
            return _of_remainder(test.left, test.ops[0], test.comparators[0], outcome=outcome)
        name = spell_dotted_name(test.left)
        known = _constants(test.comparators[0], find)
        value = _list_compared(name, test.ops[0], test.comparators[0], known, outcome=outcome)
        return [(name, value[0])] if name and value else []
    if isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance" and outcome:
        kinds = re.findall(r"[\w.]+", ast.unparse(test.args[-1]))
        return [(ast.unparse(test.args[0]), _OF_KIND[k]) for k in kinds if k in _OF_KIND][:1]
    name = spell_dotted_name(test)
    return [(name, outcome)] if name else []


def _list_compared(
    name: str, op: ast.cmpop, other: ast.expr, constants: Sequence[object], *, outcome: bool
) -> tuple[object, ...]:
    if isinstance(other, ast.Constant) and other.value is None:
        absent = isinstance(op, ast.Is | ast.Eq) is outcome
        return (None,) if absent else (_something(name),)
    if not constants:
        return ()
    first = constants[0]
    if isinstance(op, ast.Eq | ast.Is | ast.In):
        return (first,) if outcome else (_other(first, name),)
    if isinstance(op, ast.NotEq | ast.IsNot | ast.NotIn):
        return (_other(first, name),) if outcome else (first,)
    if isinstance(first, float):
        lower = first / 2 if first > _TINY else 0.0 if first else -1.0
        return (first * 2 or 1.0 if isinstance(op, ast.Gt | ast.GtE) is outcome else lower,)
    more = {ast.Gt: 1, ast.GtE: 0, ast.Lt: -1, ast.LtE: 0}
    less = {ast.Gt: 0, ast.GtE: -1, ast.Lt: 0, ast.LtE: 1}
    way = (more if outcome else less)[type(op)]
    whole = [first] if isinstance(first, int) else []
    return tuple(_other(n, name) if (n, way) == (0, 1) else n + way for n in whole)


def _of_remainder(
    left: ast.BinOp, op: ast.cmpop, other: ast.expr, *, outcome: bool
) -> list[tuple[str, object]]:
    """Return a value for ``name % divisor == rest``."""
    name, divisor, rest = spell_dotted_name(left.left), _constants(left.right), _constants(other)
    known = isinstance(left.op, ast.Mod) and isinstance(op, ast.Eq | ast.NotEq)
    if not (name and known and divisor and rest):
        return []
    (by,), (left_over,) = divisor, rest
    if not isinstance(by, int) or not isinstance(left_over, int):
        return []
    equal = isinstance(op, ast.Eq) is outcome
    return [(name, _TIMES * by + (left_over if equal else left_over + 1))]


def _other(value: object, name: str) -> object:
    """Return another value: of none, as many as may be, since by one nothing is repeated."""
    likely = _something(name, 0) if type(value) is int and value == 0 else 0
    if type(likely) is int and likely > 1:
        return likely
    return value + 1 if isinstance(value, int | float) else None


def _something(name: str, unknown: int = WIDTH) -> object:
    outcome = try_call(lambda: guess_attribute(name.rpartition(".")[2]), _ASK_S)
    return unknown if outcome.error else outcome.value


def list_always_called(tree: ast.Module, qualname: str) -> set[str]:
    """Return the names that every call of a function calls, or calls a method of.

    ``utils`` of ``n = utils.count(x)`` in its body; not below an ``if``, nor behind a ``return``.
    """
    function = find_function(tree, qualname)
    if function is None:
        return set()
    found: set[str] = set()
    left = list(function.body)
    while left:
        statement = left.pop(0)
        if isinstance(statement, ast.With):
            left = [*statement.body, *left]
            continue
        if isinstance(statement, _SIMPLE):
            calls = (n for n in walk(statement, closed=_PERHAPS) if isinstance(n, ast.Call))
            found |= {root_name(call.func) for call in calls}
        if any(isinstance(n, ast.Return) for n in walk(statement)):
            break
    given = {n.arg for n in walk(function.args) if isinstance(n, ast.arg)}
    return found - given - names_bound_in(function)


def find_proven_dims(function: Function) -> dict[str, frozenset[int]]:
    """Return the arguments that are always tensors, and how many dimensions they have.

    As far as every call that returns has passed it: ``b, t, d = x.shape`` and asserts at the
    top of a function, ``x: Tensor`` without another type or a default.
    """
    found: dict[str, frozenset[int]] = {}
    arguments = list_arguments(function)
    optional = list_defaults(function.args)
    for argument in arguments:
        annotated = ast.unparse(argument.annotation) if argument.annotation is not None else ""
        if re.fullmatch(_ONLY_TENSOR, annotated) and argument.arg not in optional:
            found[argument.arg] = frozenset()
    for statement in itertools.takewhile(_does_not_return, function.body):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
            target, value = ast.Tuple([], ast.Load()), statement.test
        else:
            continue
        for name in (a.arg for a in arguments):
            if statement.lineno <= find_last_line(function, name):
                use = Use()
                note_unpacking(use, target, value, name)
                asserted = re.fullmatch(
                    rf"{name}\.(?:dim\(\)|ndim) == (\d)|len\({name}\.shape\) == (\d)",
                    ast.unparse(value),
                )
                count = {int(asserted[1] or asserted[2])} if asserted else use.dims
                if count:
                    found[name] = frozenset(count)
    return found


def _does_not_return(statement: ast.stmt) -> bool:
    return not any(isinstance(node, ast.Return) for node in walk(statement))
