"""One number that rounds write to ranges of positions, each worked out from numbers of its own.

::

    start = 0                               n = torch.as_tensor(lengths, device=m.device)[:, None]
    for n in lengths:                       start = torch.cumsum(n, 0) - n
        m[start : start + n,                positions = torch.arange(m.shape[0], device=m.device)
          start : start + n] = 0            in_rows = (positions >= start) & (positions < start + n)
        start += n                          in_columns = ...
                                            both = in_rows.T.float() @ in_columns.float()
                                            m.masked_fill_(both > 0, 0)

Every number of a round is a column of those of all rounds, what counts along a sum of those before,
and a test another column. As all rounds write one number, their order is of no account, and an
element is written if it lies in the ranges of any round: of two dimensions a product of matrices.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.filling import Pieces, statements_of
from npufix.rewriters.edit.loops.given.subscripts import flatten
from npufix.rewriters.edit.loops.rows.columns import FEW, Columns, NotAColumnError, as_column
from npufix.rewriters.graph.modules.syntax import list_indexes, list_names, list_stored_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop

_MOST = 4
"""Ranges of one tensor: what is written for more is harder to read than the loop."""
_SMALLEST_LARGEST = 127
_NAMES = ("in_rows", "in_columns", "in_range")


@dataclass(frozen=True)
class _Range:
    """Where the rounds write: which dimensions they restrict, and under which test."""

    base: str
    number: str
    view: tuple[str, ...]
    """The items of the index that are the same in all rounds; "" where they differ."""
    inside: tuple[str, ...]
    """For each dimension that is restricted which positions are meant: columns by positions."""
    own_row: bool
    """Whether the first of them is the number of the round itself."""
    guard: str
    """In which rounds: a column of truths, "" for all of them."""


@dataclass
class _Ranges:
    columns: Columns
    found: list[_Range] = field(default_factory=list)

    def block(self, code: Sequence[ast.stmt], guard: str = "", *, inner: bool = False) -> None:
        """Read statements of which a round runs those whose test holds."""
        if inner and any(
            isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) for s in code
        ):
            raise NotAColumnError  # what an arm binds may be bound otherwise, or not
        for number, statement in enumerate(code):
            match statement:
                case ast.If(test, [ast.Continue()], []) if not inner:
                    holds = self.columns.test(test)
                    self.block(code[number + 1 :], _both(guard, f"~({holds})"))
                    return
                case ast.If(test, then, other):
                    holds = self.columns.test(test)
                    self.block(then, _both(guard, holds), inner=True)
                    self.block(other, _both(guard, f"~({holds})"), inner=True)
                case ast.Assign([ast.Subscript() as target], value):
                    self._write(target, value, guard)
                case ast.AugAssign(ast.Name(name), ast.Add()) if not inner:
                    self.columns.move(name)
                case ast.Pass() | ast.Expr(ast.Constant()):
                    pass
                case _:
                    self._bind(statement)

    def _bind(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign([ast.Name(name)], value):
                self.columns.bind(name, value)
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)) if len(names) == len(values):
                plain = all(isinstance(name, ast.Name) for name in names)
                if not plain or list_stored_names(statement) & list_names(statement.value):
                    raise NotAColumnError
                for target, value in zip(names, values, strict=True):
                    self.columns.bind(ast.unparse(target), value)
            case _:
                raise NotAColumnError

    def _write(self, target: ast.Subscript, value: ast.expr, guard: str) -> None:
        base, index = flatten(target)
        number = _number(value)
        if not isinstance(base, ast.Name | ast.Attribute) or number is None:
            raise NotAColumnError
        if self.columns.facts.is_tensor(base) is not True:
            raise NotAColumnError
        items = list_indexes(index)
        rank = self.columns.facts.rank(base)
        dots = isinstance(items[0], ast.Constant) and items[0].value is ...
        if isinstance(rank, int) and rank < len(items) - dots:
            raise NotAColumnError
        name, view, inside, rows = ast.unparse(base), [], [], []
        for at, item in enumerate(items):
            if dots and not at:
                view.append("...")
                continue
            dim = at - len(items) if dots else at
            code, same, is_row = self._inside(item, f"{name}.shape[{dim}]")
            view.append(same)
            inside += [code] if code else []
            rows += [is_row] if code else []
        if not inside or len(inside) > 2 or all("==" in code for code in inside):  # noqa: PLR2004
            raise NotAColumnError
        own_row = rows[0] and len(rows) > 1
        self.found.append(_Range(name, number, tuple(view), tuple(inside), own_row, guard))

    def _inside(self, item: ast.expr, size: str) -> tuple[str, str, bool]:
        """Return which positions an item takes in each round, or what it is in all of them.

        Then whether it is the number of the round.
        """
        of = self.columns
        positions = f"torch.arange({size}, device={of.device})"
        if isinstance(item, ast.Slice):
            if item.step is not None:
                raise NotAColumnError
            ends = [of.read(b) if b else None for b in (item.lower, item.upper)]
            bounds = [(sign, b) for sign, b in zip((">=", "<"), ends, strict=True) if b]
            if not any(bound.differs for _, bound in bounds):
                return "", ":".join(b.text if b else "" for b in ends), False
            of.positions[positions] = None
            for _, bound in bounds:
                of.require_positive(bound)
            tests = [f"({positions} {sign} {bound.text})" for sign, bound in bounds]
            return " & ".join(tests), "", False
        one = of.read(item)
        if not one.differs:
            if not of.is_place(item):
                raise NotAColumnError  # a list, a vector or a flag: ``m[index]`` would be a copy
            return "", one.text, False
        of.positions[positions] = None
        of.require_positive(one)
        return f"({positions} == {one.text})", "", of.is_counter(item)


def read_ranges(loop: Loop, facts: Facts) -> tuple[Pieces, ast.stmt | None] | None:
    """Return what a loop is that only writes one number to ranges, ``None`` for any other loop.

    Besides it what sets the number to zero that it counts along, where nobody else needs that.
    """
    if not isinstance(loop.statement, ast.For) or loop.lists or loop.total or loop.picked:
        return None
    targets = [n for n in walk(*loop.body) if isinstance(n, ast.Subscript) and _is_stored(n)]
    if not targets:
        return None
    base = flatten(targets[0])[0]
    try:
        columns = Columns(loop, facts, f"{ast.unparse(base)}.device")
        ranges = _Ranges(columns)
        ranges.block(as_column(loop.body))
        statements = list(_written(columns, ranges.found))
        columns.require_apart(base)
    except NotAColumnError:
        return None
    if columns.rounds.isdigit() and int(columns.rounds) <= FEW:
        return None
    if _reads_written(loop, {ast.unparse(flatten(t)[0]) for t in targets}):
        return None
    if len(ranges.found) == 1 and _fills_for_settings(loop, facts, base):
        columns.conditions["many-rounds"] = None
    numbers = {one.number for one in ranges.found}
    if not all(map(_fits_all, numbers)):
        columns.conditions["value-fits-dtype"] = None
    return Pieces(statements, tuple(columns.conditions), columns.shown()), columns.begun


def _fills_for_settings(loop: Loop, facts: Facts, base: ast.expr) -> bool:
    """Tell whether a setting says how many rounds fill something, and the host knows where.

    ``for i in range(self.num_groups): m[n * i : n * (i + 1), n * i : n * (i + 1)] = 0`` launches
    one kernel a round, and what takes its place about ten.
    """
    match loop.items:
        case ast.Call(ast.Name("range"), [ast.Attribute(ast.Name("self"))], []):
            pass
        case _:
            return False
    loaded = [n for n in walk(*loop.body) if isinstance(n, ast.Name | ast.Attribute)]
    others = [n for n in loaded if ast.unparse(n) != ast.unparse(base)]
    return not any(facts.is_tensor(n) for n in others if isinstance(n.ctx, ast.Load))


def _written(columns: Columns, found: Sequence[_Range]) -> Iterator[ast.stmt]:
    """Yield what writes to all ranges at once."""
    bases = dict.fromkeys(one.base for one in found)
    if len(bases) != 1 or len({(one.number, one.view, one.own_row) for one in found}) != 1:
        raise NotAColumnError
    if len(found) > _MOST or columns.facts.flow.taken.intersection(_NAMES):
        raise NotAColumnError
    made = [ast.unparse(s) for s in _ranges_of(columns, found)]
    yield from statements_of(*_named(columns, [*columns.lines, *made]))


def _named(columns: Columns, lines: list[str]) -> list[str]:
    """Return lines with names for the numbers of the rounds, and for positions."""
    text = "\n".join(lines)
    named = {"rows": columns.counter}
    named |= dict(zip(("positions", "columns"), columns.positions, strict=False))
    for name, code in named.items():
        if code and text.count(code) > 1 and name not in columns.facts.flow.taken:
            text = f"{name} = {code}\n{text.replace(code, name)}"
    return text.splitlines()


def _ranges_of(columns: Columns, found: Sequence[_Range]) -> Iterator[ast.stmt]:
    """Yield what tells the ranges of all rounds, and the write."""
    first = found[0]
    restricted = [at for at, item in enumerate(first.view) if not item]
    if len(first.inside) == 1:
        yield from statements_of(f"in_range = {_any(found, 0)}")
        mask = "in_range.any(0)"
    elif first.own_row and len({one.inside[0] for one in found}) == 1:
        yield from statements_of(f"in_range = {_any(found, 1)}")
        mask = "in_range"
    else:
        rows = dict.fromkeys(one.inside[0] for one in found)
        if len(rows) != 1:
            raise NotAColumnError
        yield from statements_of(
            f"in_rows = {first.inside[0]}",
            f"in_columns = {_any(found, 1)}",
        )
        mask = "(in_rows.T.float() @ in_columns.float() > 0)"
    view = [item or ":" for item in first.view]
    if first.own_row and len(first.inside) > 1:
        view[restricted[0]] = f":{columns.rounds}"
    between = sum(":" in item for item in first.view[restricted[0] + 1 : restricted[-1]])
    behind = _behind(columns, first, restricted[-1])
    new = [":", *["None"] * between, *[":"] * (len(first.inside) - 1), *["None"] * behind]
    if "None" in new:
        mask = f"{mask}[{', '.join(new)}]"
    while view and view[-1] == ":":
        view.pop()
    written = f"{first.base}[{', '.join(view)}]" if view and view != ["..."] else first.base
    yield from statements_of(f"{written}.masked_fill_({mask}, {first.number})")


def _behind(columns: Columns, one: _Range, last: int) -> int:
    """Return how many dimensions are behind the last one that is restricted."""
    kept = sum(":" in item for item in one.view[last + 1 :])
    if one.view[0] == "...":
        return kept
    return kept + columns.rank(one.base, len(one.view)) - len(one.view)


def _any(found: Sequence[_Range], at: int) -> str:
    """Return where any of some ranges is, each told once with the rounds that write it."""
    guards: dict[str, list[str]] = {}
    for one in found:
        guards.setdefault(one.inside[at], []).append(one.guard)
    parts = []
    for inside, tests in guards.items():
        always = "" in tests or any(f"~({test})" in tests for test in tests)
        own = tests[0] if len(set(tests)) == 1 else _or(tests)
        parts.append(inside if always else f"{inside} & ({own})")
    return parts[0] if len(parts) == 1 else _or(parts)


def _or(parts: Sequence[str]) -> str:
    return " | ".join(f"({part})" for part in dict.fromkeys(parts))


def _both(guard: str, other: str) -> str:
    return f"({guard}) & ({other})" if guard else other


def _number(value: ast.expr) -> str | None:
    """Return a number that is written out, ``float("-inf")`` too."""
    match value:
        case ast.Constant(bool() | int() | float()):
            return ast.unparse(value)
        case ast.UnaryOp(ast.USub(), operand):
            return ast.unparse(value) if _number(operand) is not None else None
        case ast.Call(ast.Name("float"), [ast.Constant(str(text))], []):
            return ast.unparse(value) if text.lstrip("+-") in {"inf", "nan"} else None
        case ast.Attribute(ast.Name("torch" | "np" | "math"), "inf"):
            return ast.unparse(value)
    return None


def _fits_all(number: str) -> bool:
    """Tell whether every dtype holds a number, those of integers too."""
    try:
        value = ast.literal_eval(number)
    except ValueError:
        return False
    return abs(value) <= _SMALLEST_LARGEST and bool(value == int(value))


def _is_stored(node: ast.Subscript) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _reads_written(loop: Loop, written: set[str]) -> bool:
    """Tell whether a round reads what it writes, or binds it."""
    nodes = [n for n in walk(*loop.body) if isinstance(n, ast.Name | ast.Attribute)]
    stored = [n for n in walk(*loop.body) if isinstance(n, ast.Subscript) and _is_stored(n)]
    count = sum(ast.unparse(n) in written for n in nodes)
    bound = {name for s in loop.body for name in list_stored_names(s)} | list_names(loop.target)
    return count != len(stored) or any(name.split(".")[0] in bound for name in written)
