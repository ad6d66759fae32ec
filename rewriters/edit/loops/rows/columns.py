"""The integers of a loop's rounds as columns: ``start = i * n`` is ``rows * n`` for all of them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import parse
from npufix.rewriters.facts.annotations import annotation
from npufix.rewriters.graph.modules.syntax import (
    last_name,
    list_names,
    list_stored_names,
    nodes_of,
    walk,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop

_SIGNS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_KEEP = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}
"""Operators that make integers of integers, and of two that are not negative no negative one."""


FEW = 4
"""Rounds that are written out and hardly cost anything."""
_PURE = frozenset({"int", "len", "max", "min", "size"})
_PLAIN = (ast.Attribute, ast.BinOp, ast.Call, ast.Constant, ast.Name, ast.Subscript, ast.UnaryOp)


class NotAColumnError(Exception):
    """A number of a round is none that a column of all rounds can be computed of."""


@dataclass(frozen=True)
class Column:
    """An integer of each round, or one that is the same in all of them."""

    text: str
    differs: bool
    is_positive: bool
    """Whether it is surely not negative."""
    is_atom: bool = True

    @property
    def operand(self) -> str:
        """Return it as a part of a larger expression."""
        return self.text if self.is_atom else f"({self.text})"


def as_column(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a body with ``start += n`` for ``end = start + n`` and, at last, ``start = end``."""
    match body[-1]:
        case ast.Assign([ast.Name(start)], ast.Name(end)):
            for code in body[:-1]:
                match code:
                    case ast.Assign([ast.Name(name)], ast.BinOp(ast.Name(first), ast.Add(), more)):
                        if (name, first) == (end, start):
                            moved = ast.AugAssign(ast.Name(start, ast.Store()), ast.Add(), more)
                            return [*body[:-1], ast.copy_location(moved, body[-1])]
    return list(body)


class Columns:
    """The integers of one loop."""

    def __init__(self, loop: Loop, facts: Facts, device: str) -> None:
        self.facts = facts
        self.device = device
        self.loop = loop
        self.body = as_column(loop.body)
        self.lines: list[str] = []
        """What computes the columns."""
        self.conditions: dict[str, None] = {}
        self.begun: ast.stmt | None = None
        self.counter = ""
        """What the numbers of the rounds are."""
        self.positions: dict[str, None] = {}
        """The positions along the dimensions that are restricted."""
        self.tensors: list[ast.expr] = []
        """Those, as far as anybody knows, whose elements are columns."""
        self._asked: dict[str, None] = {}
        self._vectors: dict[str, None] = {}
        """What nobody has proven to be a vector of integers."""
        self._shown: dict[str, ast.expr] = {}
        self._elements: set[str] = set()
        """Those that may have fractions, for all that is known."""
        self._names: dict[str, str] = {}
        """The names of columns that have one."""
        self._known: dict[str, Column] = {}
        self._counter = ""
        self.first = 0
        self._stop = ""
        """Where the numbers of the rounds end."""
        self.rounds = self._over(loop.target, loop.items)
        self._moved = {
            code.target.id: code
            for code in (n for s in self.body for n in walk(s))
            if isinstance(code, ast.AugAssign) and isinstance(code.target, ast.Name)
        }
        self._is_moved: set[str] = set()
        self._guards: dict[str, str] = {}

    def shown(self) -> dict[str, ast.expr]:
        """Return what the conditions are about."""
        found = dict(self._shown)
        if self._vectors:
            found["index"] = parse(f"torch.cat([{', '.join(self._vectors)}])")
        if self._asked:
            parts = ", ".join(f"torch.as_tensor({text}).flatten()" for text in self._asked)
            found["indices"] = parse(f"torch.cat([{parts}])")
        return found

    def rank(self, base: str, count: int) -> int:
        """Return the dimensions of what is written, ``count`` if nobody knows."""
        for node in (n for s in self.loop.body for n in walk(s)):
            if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == base:
                rank = self.facts.rank(node)
                if isinstance(rank, int):
                    return rank
                self.conditions["known-dimensions"] = None
                self._shown[f"dims{count}_0"] = parse(base)
                return count
        raise NotAColumnError

    def is_counter(self, code: ast.expr) -> bool:
        """Tell whether code is the number of the round, counted from zero."""
        return isinstance(code, ast.Name) and code.id == self._counter and self.first == 0

    def is_place(self, code: ast.expr) -> bool:
        """Tell whether a number that all rounds share is surely an integer, and no flag or list."""
        match code:
            case ast.UnaryOp(ast.USub(), ast.Constant(int(number))) | ast.Constant(int(number)):
                return not isinstance(number, bool)
        node = self.facts.node(code)
        if node is None:
            return False
        said = annotation(self.facts.flow, str(node.value)) if node.op == Op.PARAM else ""
        return said == "int" or self.facts.is_count(node)

    def _over(self, target: ast.expr, items: ast.expr) -> str:
        """Read what the loop runs over, and return how many rounds it has."""
        match target, items:
            case ast.Name(counter), ast.Call(ast.Name("range"), [stop], []):
                return self._count(counter, 0, stop)
            case ast.Name(counter), ast.Call(ast.Name("range"), [ast.Constant(int(low)), stop], []):
                return self._count(counter, low, stop)
            case ast.Tuple([ast.Name(counter), element]), ast.Call(
                ast.Name("enumerate"), [over], []
            ):
                count = self._over(element, over)
                self._counter, self.first, self._stop = counter, 0, count
                rows = f"torch.arange({count}, device={self.device})[:, None]"
                self._known[counter] = Column(rows, differs=True, is_positive=True)
                self.counter = rows
                return count
            case ast.Name(element), ast.Name() | ast.Attribute():
                count = self._length(items)
                if self._is_read(element):
                    self._give_name(element, self._of_each(items, ""))
                    if not (self.facts.dtype(items) or "").startswith("int"):
                        self._elements.add(element)
                return count
        raise NotAColumnError

    def _count(self, counter: str, low: int, stop: ast.expr) -> str:
        number = self.facts.node(stop)
        if low < 0 or number is None or isinstance(stop, ast.Starred):
            raise NotAColumnError
        text = ast.unparse(stop)
        rounds = f"({text} - {low})" if low else text
        if low or not self.facts.is_count(number):
            self.conditions["nonnegative-count"] = None
            self._shown["repeats"] = parse(rounds) if low else stop
        first = f"{low}, " if low else ""
        rows = f"torch.arange({first}{text}, device={self.device})[:, None]"
        self._counter, self.first, self._stop, self.counter = counter, low, text, rows
        self._known[counter] = Column(rows, differs=True, is_positive=True)
        return rounds

    def _is_read(self, name: str) -> bool:
        return any(name in list_names(code) for code in self.body)

    def _length(self, over: ast.expr) -> str:
        text = ast.unparse(over)
        node = self.facts.node(over)
        if node is None or (node.op == Op.LIST and len(node.args) <= FEW):
            raise NotAColumnError
        return f"{text}.shape[0]" if self.facts.is_tensor(over) else f"len({text})"

    def _of_each(self, over: ast.expr, part: str, cut: str = "") -> Column:
        """Return the elements of a list, or of a vector, as a column."""
        rank = self.facts.rank(over)
        text = f"{ast.unparse(over)}{part}"
        if isinstance(rank, int) and rank != 1:
            raise NotAColumnError
        is_tensor = self.facts.is_tensor(over)
        self.tensors += [over] if is_tensor is not False else []
        if is_tensor:
            made = f"{text}.to({self.device})"
        else:
            cut = ""  # a list of fractions is none of integers, and float32 would round them
            made = f"torch.as_tensor({text}, device={self.device})"
        if not isinstance(rank, int) or is_tensor is None:
            self.conditions["number-index"] = None
            self._vectors[f"torch.as_tensor({text}){cut}"] = None
        return Column(f"{made}{cut}[:, None]", differs=True, is_positive=False)

    def bind(self, name: str, code: ast.expr) -> None:
        """Give a name to a column: a line of its own."""
        if name in self._known or name in self._moved:
            raise NotAColumnError
        column = self.read(code)
        if column.differs:
            self._give_name(name, column)
        else:
            self._known[name] = column

    def _give_name(self, name: str, column: Column) -> None:
        self.lines.append(f"{name} = {column.text}")
        self._known[name] = Column(name, differs=True, is_positive=column.is_positive)

    def move(self, name: str) -> None:
        """Read ``start += n``: from here on it is where the next round begins."""
        if name in self._is_moved or name not in self._moved:
            raise NotAColumnError
        self._start(name)
        more = self._added(name)
        before = self._known[name]
        self._is_moved.add(name)
        self._known[name] = Column(
            f"{before.text} + {more.text}",
            differs=True,
            is_positive=before.is_positive,
            is_atom=False,
        )

    def _start(self, name: str) -> Column:
        """Return where each round begins: what the rounds before it have added."""
        if name in self._known:
            return self._known[name]
        more = self._added(name)
        begun = self._begins(name)
        if more.differs and not more.text.isidentifier():
            counted = f"{name}_lengths"
            if counted in self.facts.flow.taken:
                raise NotAColumnError
            self.lines.append(f"{counted} = {more.text}")
            self._names[more.text] = counted
            more = Column(counted, differs=True, is_positive=more.is_positive)
        if more.differs:
            text = f"torch.cumsum({more.text}, 0) - {more.text}"
        else:
            text = f"torch.arange({self.rounds}, device={self.device})[:, None] * {more.operand}"
        self.require_positive(more)
        start = Column(f"{begun}{text}", differs=True, is_positive=True, is_atom=False)
        self._give_name(name, start)
        return self._known[name]

    def _added(self, name: str) -> Column:
        """Return what each round adds: nothing where it ends before it does so."""
        moved = self._moved[name]
        if moved not in self.body:
            raise NotAColumnError
        more = self.read(moved.value)
        for code in self.body[: self.body.index(moved)]:
            match code:
                case ast.If(test, [ast.Continue()], []):
                    text = f"{more.operand} * ~({self.test(test)})"
                    named = self._names.get(text)
                    sign = more.is_positive
                    more = Column(named or text, differs=True, is_positive=sign, is_atom=False)
        return more

    def _begins(self, name: str) -> str:
        """Return what a number counts from, and remember the zero that nobody else needs."""
        nodes = [n for n in nodes_of(self.facts.flow.function) if isinstance(n, ast.Name)]
        inside = {id(n) for n in walk(self.loop.statement)}
        outside = [n for n in nodes if n.id == name and id(n) not in inside]
        bound = [s for s in self._block() if name in list_stored_names(s)]
        if not bound:
            raise NotAColumnError  # it counts on where another round of a loop around has ended
        last = bound[-1]  # ``start += 1``, or ``if cls: start = 1``, is no zero
        if isinstance(last, ast.Assign) and ast.unparse(last) == f"{name} = 0":
            if outside == last.targets and self.begun is None:
                self.begun = last
            return ""
        self._asked[name] = None
        self.conditions["nonnegative-lengths"] = None
        return f"{name} + "

    def _block(self) -> list[ast.stmt]:
        """Return the statements of the same block that are before the loop."""
        for node in nodes_of(self.facts.flow.function):
            for part in ("body", "orelse", "finalbody"):
                block = getattr(node, part, None)
                if isinstance(block, list) and self.loop.statement in block:
                    return block[: block.index(self.loop.statement)]
        block = self.facts.flow.function.body
        return block[: block.index(self.loop.statement)] if self.loop.statement in block else []

    def require_positive(self, column: Column) -> None:
        """Ask whether a bound may be negative: a slice counts from the end then."""
        if not column.is_positive:
            self.conditions["nonnegative-lengths"] = None
            self._asked[self.spelled(column)] = None

    def require_apart(self, written: ast.expr) -> None:
        """Refuse where a round changes what a later one reads: ``for n in m[:, 0]: m[n] = 0``."""
        base = self.facts.node(written)
        for code in self.tensors:
            read = self.facts.node(code)
            shares = None if base is None or read is None else self.facts.may_share(base, read)
            if shares:
                raise NotAColumnError
            if shares is None:
                self.conditions["separate-memory"] = None

    def spelled(self, column: Column) -> str:
        """Return a column without the names that the lines before give to others."""
        text = column.text
        for line in reversed(self.lines):
            name, _, made = line.partition(" = ")
            text = "".join(f"({made})" if t == name else t for t in _words(text))
        return text

    def width(self, low: ast.expr, high: ast.expr) -> str:
        """Return ``w`` of the ends ``a`` and ``a + w``, which all rounds share."""
        end = self._value_of(high.id) if isinstance(high, ast.Name) else high
        match end:
            case ast.BinOp(left, ast.Add(), right):
                for first, more in ((left, right), (right, left)):
                    if ast.unparse(first) == ast.unparse(low):
                        found = self.read(more)
                        if not found.differs:
                            return found.text
        raise NotAColumnError

    def test(self, code: ast.expr) -> str:
        """Return a test of integers as a column of truths."""
        match code:
            case ast.UnaryOp(ast.Not(), operand):
                return f"~({self.test(operand)})"
            case ast.BoolOp(op, parts):
                sign = " & " if isinstance(op, ast.And) else " | "
                return sign.join(f"({self.test(part)})" for part in parts)
            case ast.Compare(left, [sign], [right]) if type(sign) in _SIGNS:
                first, second = self.read(left), self.read(right)
                if first.differs or second.differs:
                    return f"{first.text} {_SIGNS[type(sign)]} {second.text}"
        raise NotAColumnError

    def read(self, code: ast.expr) -> Column:
        """Return an integer of each round.

        Raises:
            NotAColumnError: it is none, or computed in a way that a tensor would round otherwise.

        """
        column = self._read(code)
        known = self._names.get(column.text)
        return (
            column if known is None else Column(known, differs=True, is_positive=column.is_positive)
        )

    def _read(self, code: ast.expr) -> Column:  # noqa: PLR0911 - one case a syntax
        own = list_names(code) & (self._known.keys() | self._moved.keys() | self._bound_later())
        if not own:
            return self._same(code)
        match code:
            case ast.Name(name) if name in self._known:
                return self._known[name]
            case ast.Name(name) if name in self._moved:
                return self._start(name)
            case ast.Name(name):
                return self.read(self._value_of(name))
            case ast.BinOp(left, op, right) if type(op) in _KEEP:
                return self._combine(op, self.read(left), self.read(right))
            case ast.Call(ast.Name("max" | "min" as which), [left, right], []):
                return self._extreme(which, self.read(left), self.read(right))
            case ast.Call(ast.Name("int"), [inner], []):
                return self._cut(inner)
            case ast.Call(ast.Attribute(inner, "item"), [], []) | ast.Attribute(inner, "data"):
                return self.read(inner)
            case ast.Subscript(over, index) if not list_names(over) & own:
                return self._of_each(over, self._part(index))
        raise NotAColumnError

    def _same(self, code: ast.expr) -> Column:
        """Return a number that all rounds share."""
        for part in walk(code):
            called = isinstance(part, ast.Call) and last_name(part.func) not in _PURE
            float_ = isinstance(part, ast.Constant) and type(part.value) is not int
            if called or float_ or (isinstance(part, ast.expr) and not isinstance(part, _PLAIN)):
                raise NotAColumnError
        if self.facts.is_tensor(code) is True:
            raise NotAColumnError
        node = self.facts.node(code)
        sure = node is not None and self.facts.is_count(node)
        return Column(
            ast.unparse(code),
            differs=False,
            is_positive=sure,
            is_atom=not isinstance(code, ast.BinOp),
        )

    def _bound_later(self) -> set[str]:
        stored = (n for s in self.body for n in walk(s) if isinstance(n, ast.Name))
        return {n.id for n in stored if isinstance(n.ctx, ast.Store)}

    def _value_of(self, name: str) -> ast.expr:
        """Return what a name is bound to, once and in each round, further down."""
        found = [
            code.value
            for code in self.body
            if isinstance(code, ast.Assign)
            and isinstance(code.targets[0], ast.Name)
            and code.targets[0].id == name
        ]
        if len(found) != 1 or list_names(found[0]) & {name}:
            raise NotAColumnError
        return found[0]

    def _part(self, index: ast.expr) -> str:
        """Return the elements of all rounds that ``i + c`` takes: "", ``[1:n + 1]``."""
        match index:
            case ast.Name(name):
                more = 0
            case ast.BinOp(ast.Name(name), ast.Add() | ast.Sub() as op, ast.Constant(int(more))):
                more = more if isinstance(op, ast.Add) else -more
            case _:
                raise NotAColumnError
        low = self.first + more
        if name != self._counter or low < 0:
            raise NotAColumnError
        stop = self._stop if not more else f"{self._stop} {'+' if more > 0 else '-'} {abs(more)}"
        return f"[{low or ''}:{stop}]"

    def _cut(self, code: ast.expr) -> Column:
        """Return ``int(n[i])``: what has no fraction stays as it is."""
        match code:
            case ast.Attribute(inner, "data") | ast.Call(ast.Attribute(inner, "item"), [], []):
                return self._cut(inner)
            case ast.Subscript(over, index) if self._counter not in list_names(over):
                cut = "" if (self.facts.dtype(over) or "").startswith("int") else ".long()"
                return self._of_each(over, self._part(index), cut)
            case ast.Name(name) if name in self._known and self._known[name].differs:
                column = self._known[name]
                if column.text in self._elements:
                    return Column(f"{column.text}.long()", differs=True, is_positive=False)
                return column
        raise NotAColumnError

    @staticmethod
    def _combine(op: ast.operator, first: Column, second: Column) -> Column:
        """Return ``a + b`` of each round."""
        if isinstance(op, ast.FloorDiv) and second.differs:
            raise NotAColumnError  # by zero too, in rounds that a test leaves out
        positive = first.is_positive and second.is_positive and not isinstance(op, ast.Sub)
        before = first.text if isinstance(op, ast.Add | ast.Sub) else first.operand
        after = second.text if isinstance(op, ast.Add) else second.operand
        text = f"{before} {_KEEP[type(op)]} {after}"
        return Column(text, first.differs or second.differs, positive, is_atom=False)

    @staticmethod
    def _extreme(which: str, left: Column, right: Column) -> Column:
        """Return ``max(a, b)`` of each round."""
        signs = left.is_positive, right.is_positive
        positive = any(signs) if which == "max" else all(signs)
        if left.differs and right.differs:
            text = f"torch.{which}imum({left.text}, {right.text})"
        elif left.differs or right.differs:
            one, bound = (left, right) if left.differs else (right, left)
            text = f"{one.operand}.clamp({'min' if which == 'max' else 'max'}={bound.text})"
        else:
            text = f"{which}({left.text}, {right.text})"
        return Column(text, differs=left.differs or right.differs, is_positive=positive)


def _words(text: str) -> list[str]:
    return re.split(r"(?<![\w.])(\w+)(?!\w)", text)
