"""Brings values of all rounds to one shape, so that an operator may take them together."""

from __future__ import annotations

import ast
import copy
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    OF_A_LIST,
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Value,
    at_dimension,
    difference,
    everything,
    method,
    new_axis,
    owned,
    owner_of,
    parse,
    subscript,
    view_in_front,
)
from npufix.rewriters.facts.ranks import RelativeRank
from npufix.rewriters.graph.modules.syntax import list_stored_names
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.facts.ranks import Rank

UNKNOWN_NUMBER = "a number in it is computed in a way that a tensor would round otherwise"
HARD_TO_READ = "what is written for so many dimensions is harder to read than the loop"
_MOST_BEHIND = 3
_KEEPS_INTEGERS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_OF_FLOATS = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def with_rank(value: Value, rank: Rank) -> Value:
    """Return the value as one of other many dimensions."""
    return replace(value, rank=rank)


class Aligner:
    """Aligns the values of one loop."""

    def __init__(self, of: Expressions) -> None:
        self.of: Expressions = weakref.proxy(of)  # it would keep the tree of the module
        self.numbers: dict[str, ast.expr] = {}
        """Names that the loop gives to numbers, with what they are."""
        self.vectors: dict[str, tuple[int, str]] = {}
        """Those that are vectors now: with how many dimensions behind, and of whose dtype."""
        self.is_compared = False
        """Whether what meets is compared."""
        self.is_joined = False
        """Whether what becomes of it is joined, and can be nothing but a tensor."""
        self.statements: list[ast.stmt] = []
        """What makes them."""

    def tensor(self, value: Value, *, number: bool = False) -> Value:
        """Return a value that must be a tensor of each round; ``number``: or a number."""
        if value.kind is Kind.REPEATED:
            raise CannotBatchError(LENGTHS)
        if value.kind is Kind.ENTRY:
            # As many rounds as a tensor has rows: what else is counted along may be one, too.
            if value.source is None or self.of.domain.stop_node.op != Op.SIZE:
                raise CannotBatchError(OF_A_LIST)
            self.of.ask_for_tensor(value.source)
            value = replace(value, kind=Kind.ROWS)
        if value.kind is Kind.NUMBER and not number:
            raise CannotBatchError(UNKNOWN_NUMBER)
        return replace(value, offset=None)

    def in_front(self, value: Value) -> Value:
        """Return rows along the first dimension."""
        if not value.axis:
            return value
        moved = (
            method(value.code, "transpose", 0, 1)
            if value.axis == 1
            else method(value.code, "movedim", value.axis, 0)
        )
        return replace(value, code=moved, axis=0, fresh=False, source=value.asked)

    def with_free_end(self, value: Value, dims: int) -> Value:
        """Return rows whose axis is none of the last dimensions of the tensor of one round."""
        free = isinstance(value.rank, int) and value.axis <= value.rank - dims
        return value if free else self.in_front(value)

    def together(  # noqa: C901 - one case a way to bring them together
        self, *values: Value
    ) -> tuple[list[ast.expr], Value]:
        """Return the operands of one operator that broadcasts, and its result but for the code.

        Raises:
            CannotBatchError: their dimensions are not known well enough.

        """
        given = [self.tensor(v, number=True) for v in values]
        if self.of.is_counting and [v.kind for v in given].count(Kind.NUMBER) == 1:
            given = [self._in_a_row(v) for v in given]
        rows = [v for v in given if v.kind is Kind.ROWS]
        same = [v for v in given if v.kind is Kind.SAME]
        counted = any(v.kind is Kind.NUMBER for v in given)
        tensors = [*rows, *(v for v in same if self.of.facts.is_tensor(v.code) and v.rank != 0)]
        if self.of.expected is None and (unknown := [v for v in same if self._is_anything(v)]):
            indexed = all(isinstance(v.rank, int) for v in unknown)  # ``rows = points[:, 0]``
            alone = not rows and len(same) == 1
            alone = alone and (self.is_joined or isinstance(unknown[0].code, ast.Subscript))
            if not indexed and not alone:
                raise CannotBatchError(UNKNOWN_RANK)
            for value in unknown:  # ``data["batch"] + 2 * i``
                self.of.ask_for_tensor(value.code)
            tensors = unknown if alone else [*tensors, *unknown]
        if self.of.carrier is not None:
            tensors.append(Value(Kind.SAME, self.of.carrier))
        if not tensors:
            raise CannotBatchError(UNKNOWN_NUMBER)
        self._ask_for_dtype(rows, same)
        if not counted and self._are_alike(rows, same):
            self.of.conditions["same-dimensions"] = None
            self.of.alike.append([v.code for v in rows])
            return [v.code for v in given], replace(rows[0], source=tensors[0].asked)
        try:
            whole = self._common(rows, same, counted=counted)
            codes = [self._place(v, whole, tensors[0]) for v in given]
        except CannotBatchError:
            if not counted and (found := self._beside_numbers(given, rows, same)):
                return found
            if not counted and any(v.axis for v in rows):  # ``pred[:, c] * (labels == c)``
                moved = [self.in_front(v) if v.kind is Kind.ROWS else v for v in given]
                if self._are_alike([v for v in moved if v.kind is Kind.ROWS], same):
                    return self.together(*moved)
            if counted or not self._are_deep(rows, same):
                raise
            shared = [subscript(v.code, [new_axis()]) for v in same if v.rank != 0]
            self.of.conditions["same-dimensions"] = None
            self.of.alike.append([*(v.code for v in rows), *shared])
            return [v.code for v in given], replace(rows[0], source=tensors[0].asked)
        return codes, replace(whole, source=tensors[0].asked)

    def _beside_numbers(
        self, given: list[Value], rows: list[Value], same: list[Value]
    ) -> tuple[list[ast.expr], Value] | None:
        """Return rows of unknown dimensions beside one number of each: ``x[:, i] - mean[i]``."""
        facts = self.of.facts
        places = {v.axis for v in rows if v.rank != 0}
        if facts.assumes and len(places) > 1:
            for value in rows:
                if not value.axis and isinstance(value.rank, RelativeRank):
                    facts.assume(value.rank, 0, value.asked)
                    numbered = replace(value, rank=facts.rank_of(value.rank))
                    given = [numbered if v is value else v for v in given]
            rows = [v for v in given if v.kind is Kind.ROWS]
        wide = [v for v in rows if v.rank != 0]
        if not wide or len(wide) == len(rows) or any(v.rank != 0 for v in same):
            return None
        whole, rank = wide[0], wide[0].rank
        known = isinstance(rank, RelativeRank) and facts.node(whole.asked) is rank.base
        if not known or any((v.rank, v.axis) != (rank, whole.axis) for v in wide):
            return None
        assert isinstance(rank, RelativeRank)  # noqa: S101 - asked above
        fewer = whole.axis - rank.more
        dims = f"({owned(whole.asked)}.dim() - {fewer})"
        codes = [
            view_in_front(v.code, dims) if v.kind is Kind.ROWS and v.rank == 0 else v.code
            for v in given
        ]
        return codes, whole

    def _are_deep(self, rows: list[Value], same: list[Value]) -> bool:
        """Tell whether rows meet a tensor that may have as many dimensions: ``x[i] - center``."""
        if self.of.expected is not None or not rows or any(v.axis for v in rows):
            return False
        if len({isinstance(v.rank, int) for v in rows}) > 1:
            return False
        one = all(v.rank is not None and v.rank == rows[0].rank for v in rows)
        if not one and not self._are_alike(rows, []):
            return False
        known = (v.rank == 0 or self.of.facts.is_tensor(v.code) is True for v in same)
        return all(known) and all(v.rank != 0 for v in rows)

    def _in_a_row(self, value: Value) -> Value:
        """Return a tensor of unknown dimensions as a vector, of which all elements are compared."""
        if value.kind is not Kind.SAME or isinstance(value.rank, int):
            return value
        if self.of.facts.is_tensor(value.code) is not True:
            self.of.ask_for_tensor(value.code)
        return replace(value, code=method(value.code, "flatten"), rank=1, source=value.code)

    def _are_alike(self, rows: list[Value], same: list[Value]) -> bool:
        """Tell whether nothing but rows of unknown dimensions meet: ``x[i] - y[i]``."""
        likely = {isinstance(self.of.facts.likely(v.rank), int) for v in rows if v.rank}
        if self.of.is_masking and len(likely) > 1:
            return False  # ``x[i, :, 1] > n[i]``: as likely one number
        if len({n for v in rows if isinstance(n := self.of.facts.likely(v.rank), int)}) > 1:
            return False  # ``minimum(x[i, :, 0], sizes[i, 0])``
        unknown = any(not isinstance(v.rank, int) for v in rows)
        differ = any(difference(rows[0].rank, v.rank) is None for v in rows[1:])
        plain = all(v.axis == 0 and v.rank != 0 for v in rows) and all(v.rank == 0 for v in same)
        return unknown and differ and plain and self.of.expected is None

    def _is_anything(self, value: Value) -> bool:
        """Tell whether a value may be a tensor or a number, for all that is known."""
        return value.rank != 0 and self.of.facts.is_tensor(value.code) is not True

    def _common(self, rows: list[Value], same: list[Value], *, counted: bool) -> Value:
        """Return the result: rank and axis."""
        tensors = [v for v in same if v.rank != 0]
        if rows and all(v.axis == rows[0].axis for v in rows):
            first = rows[0]
            if len(rows) == 1 and not tensors and not (counted and first.rank is None):
                return first
            alike = first.rank is not None and all(v.rank == first.rank for v in rows)
            room = [difference(first.rank, v.rank) for v in tensors]
            if alike and all(r is not None and r >= first.axis for r in room):
                return first
        if rows and not tensors and all(map(_ends_with_rounds, rows)):
            most = max(v.rank for v in rows if isinstance(v.rank, int))
            return Value(Kind.ROWS, rows[0].code, most, most)
        if not rows and len(tensors) == 1 and self.of.expected is None:
            return Value(Kind.ROWS, tensors[0].code, tensors[0].rank)
        ranks = [v.rank for v in (*rows, *tensors)]
        if self.of.expected is not None and all(v.rank is not None for v in rows):
            # What is written fits there, so no operand has more dimensions.
            ranks = [self.of.expected]
        widest = next(
            (r for r in ranks if all((difference(r, o) or -(r != o)) >= 0 for o in ranks)), None
        )
        if widest is None:
            raise CannotBatchError(UNKNOWN_RANK)
        return Value(Kind.ROWS, rows[0].code if rows else tensors[0].code, widest)

    def _place(  # noqa: C901, PLR0911 - one case a kind
        self, value: Value, whole: Value, source: Value
    ) -> ast.expr:
        if value.kind is Kind.SAME:
            return value.code
        if value.kind is Kind.NUMBER:
            if isinstance(whole.rank, int):
                return self.vector(value, whole.rank - whole.axis, source.asked)
            base = self.of.facts.node(source.asked)
            if whole.axis or whole.rank is None:
                raise CannotBatchError(UNKNOWN_RANK)
            fewer, asked = -whole.rank.more, f"{owned(source.asked)}.dim()"
            count = f"({asked} - {fewer})" if fewer else asked
            if whole.rank.base is not base:
                count = self.of.facts.count_of(whole.rank)
            if not count:
                raise CannotBatchError(UNKNOWN_RANK)
            return view_in_front(self.vector(value, 0, source.asked), count)
        if value.axis == whole.axis and value.rank == whole.rank:
            return value.code
        if _ends_with_rounds(value) and _ends_with_rounds(whole):
            return value.code  # ``x[:, i] > most[i]`` is ``x > most``
        front = self.in_front(value)
        missing = difference(whole.rank, front.rank)
        if missing is None and whole.rank == 0:
            self.of.conditions["no-broadcasting"] = None
            self.of.alike.append([front.code, parse("torch.zeros(1)")])  # a number of each round
            return front.code
        if missing is None or missing < 0:
            raise CannotBatchError(UNKNOWN_RANK)
        if not missing:
            return front.code
        return subscript(front.code, [everything(), *[new_axis()] * missing])

    def _ask_for_dtype(self, rows: list[Value], same: list[Value]) -> None:
        """Without a dimension a tensor does not decide the dtype of a sum, as rows it does."""
        tensors = [*rows, *(v for v in same if not self.of.facts.is_number(v.code))]
        ranks = {v.rank for v in tensors}
        self.of.met += [v.code for v in tensors if v.kind is Kind.SAME]
        if len(tensors) > 1 and 0 in ranks and (len(ranks) > 1 or len(same) > 0):
            self.of.ask_for_dtype(*(v.code for v in tensors))

    def spelled(self, code: ast.expr) -> ast.expr:
        """Return a number with what the loop's names for numbers stand for."""
        return _Filled(code, set(), self.numbers, {}).filled(code)

    def index(self, value: Value, device: ast.expr) -> ast.expr:
        """Return the integers of a counter as a vector."""
        return self._filled(value.code, self.arange(device, None), named=False)

    @property
    def counters(self) -> set[str]:
        """Return the names that count the rounds."""
        return {n for n, v in self.of.domain.names.items() if v.kind is Kind.NUMBER}

    def _filled(self, code: ast.expr, leaf: ast.expr, *, named: bool = True) -> ast.expr:
        vectors = self.vectors if named else {}
        return _Filled(leaf, self.counters, self.numbers, vectors).filled(code)

    def arange(self, device: ast.expr, dtype: ast.expr | None) -> ast.expr:
        """Return the counter of all rounds."""
        domain = self.of.domain
        first = f"{domain.start}, " if domain.start else ""
        if isinstance(dtype, ast.BinOp):
            device = self._operand_of(dtype)
            dtype = None
        kind = "" if dtype is None else f"dtype={owned(owner_of(dtype))}.dtype, "
        where = f"{kind}device={owned(owner_of(device))}.device"
        return parse(f"torch.arange({first}{ast.unparse(domain.stop)}, {where})")

    def _operand_of(self, code: ast.BinOp) -> ast.expr:
        """Return a tensor on the device of a quotient, which is of floating point.

        Integers of any dtype leave the dtype of such as it is, so they need none.
        """
        parts = (n for n in ast.walk(code) if isinstance(n, (ast.Name, ast.Attribute)))
        tensor = next((n for n in parts if self.of.facts.is_tensor(n) is True), None)
        if tensor is None or not isinstance(code.op, ast.Div):
            raise CannotBatchError(UNKNOWN_NUMBER)
        return tensor

    def rounds(self, device: ast.expr) -> ast.expr:
        """Return the numbers of all rounds, whatever the counter begins with."""
        domain = self.of.domain
        stop = ast.unparse(domain.stop)
        count = f"{stop} - {domain.start}" if domain.start else stop
        return parse(f"torch.arange({count}, device={owned(owner_of(device))}.device)")

    def named(self, code: ast.expr, called: str) -> ast.Name:
        """Return a name for a value that all rounds share, computed once."""
        taken = self.of.facts.flow.taken.union(*map(list_stored_names, self.statements))
        found = next((n for n in (called, f"{called}_too") if n not in taken), None)
        if found is None:
            raise CannotBatchError(UNKNOWN_NUMBER)
        self.statements.append(ast.Assign([ast.Name(found, ast.Store())], code, lineno=0))
        return ast.Name(found, ast.Load())

    def vector(self, value: Value, after: int, source: ast.expr) -> ast.expr:
        """Return a number of all rounds as a vector of the dtype of ``source``.

        ``after`` -- how many dimensions stand behind that of the rounds.
        """
        if after > _MOST_BEHIND:
            raise CannotBatchError(HARD_TO_READ)
        if isinstance(source, ast.BinOp) and not (
            value.integer and isinstance(value.code, ast.Name)
        ):
            raise CannotBatchError(UNKNOWN_NUMBER)
        if isinstance(value.code, ast.Name) or not value.integer:
            if not (value.integer or _is_made_of(value.code, _OF_FLOATS, self.numbers)):
                raise CannotBatchError(UNKNOWN_NUMBER)
            flags = self.is_compared and self.of.facts.is_mask(source)
            leaf = at_dimension(self.arange(source, None if flags else source), after)
            self._name_vectors(value.code, after, source, leaf)
            return self._filled(value.code, leaf)
        if not _is_made_of(value.code, _KEEPS_INTEGERS, self.numbers):
            raise CannotBatchError(UNKNOWN_NUMBER)
        whole = self._filled(value.code, self.arange(source, None), named=False)
        if self.is_compared:
            return at_dimension(whole, after)  # a flag meets 2 as an integer, no flag
        dtype = parse(f"{owned(owner_of(source))}.dtype")
        return at_dimension(method(whole, "to", dtype), after)

    def _name_vectors(self, code: ast.expr, after: int, source: ast.expr, leaf: ast.expr) -> None:
        """Make vectors of the names of numbers that an expression reads."""
        key = (after, ast.unparse(source))
        for node in ast.walk(code):
            if isinstance(node, ast.Name) and node.id in self.numbers:
                known = self.vectors.setdefault(node.id, key)
                if known[0] != after:
                    raise CannotBatchError(UNKNOWN_NUMBER)
                if known != key:
                    self.of.ask_for_dtype(parse(known[1]), source)
                if all(ast.unparse(s).split(" = ")[0] != node.id for s in self.statements):
                    made = self._filled(self.numbers[node.id], leaf)
                    target = ast.Name(node.id, ast.Store())
                    self.statements.append(ast.Assign([target], made, lineno=0))


def _ends_with_rounds(value: Value) -> bool:
    """Tell whether the rounds are the last dimension, where broadcasting begins."""
    return isinstance(value.rank, int) and value.axis == value.rank


class _Filled(ast.NodeTransformer):
    """Puts a vector in the place of the counter."""

    def __init__(
        self,
        leaf: ast.expr,
        counters: set[str],
        numbers: dict[str, ast.expr],
        named: dict[str, tuple[int, str]],
    ) -> None:
        self.leaf = leaf
        self.counters = counters
        self.numbers = numbers
        self.named = named

    def filled(self, code: ast.expr) -> ast.expr:
        """Return an expression of vectors."""
        made = self.visit(copy.deepcopy(code))
        assert isinstance(made, ast.expr)  # noqa: S101 - an expression stays one
        return made

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.named:
            return node
        if node.id in self.numbers:
            return self.filled(self.numbers[node.id])
        return self.leaf if node.id in self.counters else node


def _is_made_of(
    code: ast.expr, kinds: tuple[type[ast.operator], ...], numbers: dict[str, ast.expr]
) -> bool:
    """Tell whether a number is computed by nothing but these operators."""
    match code:
        case ast.BinOp(left, op, right):
            parts = (_is_made_of(part, kinds, numbers) for part in (left, right))
            return isinstance(op, kinds) and all(parts)
        case ast.UnaryOp(ast.USub(), operand):
            return _is_made_of(operand, kinds, numbers)
        case ast.Name(known) if known in numbers:
            return _is_made_of(numbers[known], kinds, numbers)
    return isinstance(code, (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Call))
