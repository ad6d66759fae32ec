"""Rows of which each round takes a part of its own length, kept as whole rows and what they have.

::

    out[i] = x[i, :n[i]].mean(0)      known = torch.arange(x.shape[1]) < n[:, None]
                                      y = x.masked_fill(~known[..., None], 0)
                                      out[:] = y.sum(1) / known.sum(1, keepdim=True)
    torch.cat([x[i, :l] ...])         x[known]

What a row does not have is zero before anything is computed of it, so that no gradient comes from
there, and what leaves the result as it is where the row is summed up.
"""

from __future__ import annotations

import ast
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.filling import ask_for_sign, limits
from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Part,
    Value,
    at_dimension,
    everything,
    integer,
    is_true,
    literal,
    method,
    name,
    new_axis,
    owned,
    parse,
    shift,
    subscript,
)
from npufix.rewriters.graph.modules.syntax import list_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.edit.loops.given.places import Place

_NAMES = ("known", "is_known", "known_too", "known_elements", "known_places")
_LEAST, _MOST = parse("float('-inf')"), parse("float('inf')")
_NEUTRAL: dict[str, ast.expr] = {
    "all": ast.Constant(value=True), "amax": _LEAST, "amin": _MOST, "any": ast.Constant(0),
    "argmax": _LEAST, "argmin": _MOST, "log_softmax": _LEAST, "logsumexp": _LEAST, "max": _LEAST,
    "mean": ast.Constant(0), "min": _MOST, "prod": ast.Constant(1), "softmax": _LEAST,
    "sum": ast.Constant(0), "var": ast.Constant(0),
}  # fmt: skip
"""What leaves the result as it is. The root in ``std`` has no gradient where all are alike."""
_OF_FLOATS = frozenset({"amax", "amin", "argmax", "argmin", "max", "min"})
"""Those that take integers as well, which have no infinity."""
_PLACES = frozenset({"argmax", "argmin"})
_PAIRS = frozenset({"max", "min"})
_WIDE = frozenset({"bfloat16", "float32", "float64"})
"""What holds the sums of all rows of means that it holds."""
_KEEPING = frozenset({"log_softmax", "softmax"})
_ELSEWHERE = frozenset({"all", "amax", "amin", "any", "log_softmax", "mean", "softmax", "sum"})
"""Those along a dimension that all rounds have, finite for zeros, with a finite gradient."""
_UNARY = frozenset(
    {"abs", "bfloat16", "bool", "clamp", "cos", "detach", "double", "exp", "float", "gelu", "half",
     "int", "long", "relu", "sigmoid", "sign", "silu", "sin", "softplus", "square", "tanh", "to"}
)  # fmt: skip
"""Operators that are finite for zero, and have a finite gradient there."""
_BINARY = (ast.Add, ast.Sub, ast.Mult)
_SHORT = (ast.Name, ast.Attribute, ast.Subscript)


class Parts:
    """The parts of rows that one loop takes."""

    def __init__(self, of: Expressions) -> None:
        self.of: Expressions = weakref.proxy(of)  # it would keep the tree of the module
        self.names: dict[str, str] = {}
        """The masks that are there, by what they compare."""
        self._wide: dict[str, tuple[ast.expr, str]] = {}
        """By the name of a mask: of what, and how wide that is."""

    def may_be(self, code: ast.expr) -> bool:
        """Tell whether an expression may be a part of each row."""
        for node in ast.walk(code):
            if isinstance(node, ast.Slice) and self.of.depends(node):
                return True
            if isinstance(node, ast.Name) and node.id in self.of.env and self.of.env[node.id].part:
                return True
        return False

    def take(self, place: Place, base: ast.expr, *, is_row: bool) -> Part:
        """Return what of each row ``x[i, a:b]`` has.

        Raises:
            CannotBatchError: the lengths are no numbers, or there are several.

        """
        if len(place.ragged) != 1 or place.pieces is not None:
            raise CannotBatchError(LENGTHS)
        (part,) = place.ragged
        source, dim = (base, part.source) if not is_row else (place.of(base), part.dim)
        if is_row:
            dim += dim >= place.axis
        positions = parse(
            f"torch.arange({owned(source)}.shape[{dim}], device={owned(base)}.device)"
        )
        tests: list[ast.expr] = []
        for bound, sign in ((part.lower, ast.GtE()), (part.upper, ast.Lt())):
            if bound is None:
                continue
            if isinstance(bound.code, ast.UnaryOp) or bound.part:
                raise CannotBatchError(LENGTHS)
            ask_for_sign(self.of, bound)
            limit = bound.code
            if bound.kind is not Kind.SAME:
                limit = limits(self.of, base, bound)
                one = bound.rank == 0  # else ``n[i]`` may have one element, of one dimension
                limit = at_dimension(limit, 1) if one else method(limit, "reshape", -1, 1)
            tests.append(ast.Compare(positions, [sign], [limit]))
        mask = tests[0] if len(tests) == 1 else ast.BinOp(tests[0], ast.BitAnd(), tests[1])
        ends = [b and ast.unparse(b.code) for b in (part.lower, part.upper)]
        written = {n for b in (part.lower, part.upper) if b for n in list_names(b.code)}
        written &= {n for key in self.of.own_rows for n in list_names(parse(key))}
        known = self._named(mask, is_new=bool(written))  # the lengths may have changed since
        self._wide.setdefault(known, (base, f"{owned(source)}.shape[{dim}]"))
        return Part(known, part.dim, repr(ends) + (known if written else ""))

    def _named(self, mask: ast.expr, *, is_new: bool = False) -> str:
        text = ast.unparse(mask)
        if is_new or text not in self.names:
            taken = self.of.facts.flow.taken | set(self._wide)
            free = [one for one in _NAMES if one not in taken]
            if not free:
                raise CannotBatchError(LENGTHS)
            self.names[text] = free[0]
            target = ast.Name(free[0], ast.Store())
            self.of.aligner.statements.append(ast.Assign([target], mask, lineno=0))
        return self.names[text]

    def _along(self, value: Value) -> ast.expr:
        """Return what each row has, along the dimensions of all rows."""
        assert value.part is not None  # noqa: S101 - the caller has looked
        known, before = name(value.part.known), value.part.dim
        if isinstance(value.rank, int):
            after = value.rank - 1 - before
            if before and after:
                middle = [everything(), *[new_axis()] * before, everything()]
                return subscript(known, [*middle, *[new_axis()] * after])
            if before:
                return subscript(known, [everything(), *[new_axis()] * before])
            return subscript(known, [ast.Constant(...), *[new_axis()] * after]) if after else known
        return parse(f"{value.part.known}.view(*{value.part.known}.shape,{self._behind(value)})")

    def _behind(self, value: Value) -> str:
        """Return the sizes of one along the dimensions behind a part of a row."""
        if (value.part and value.part.dim) or not isinstance(value.code, _SHORT):
            raise CannotBatchError(UNKNOWN_RANK)
        return f"*[1] * ({owned(value.code)}.dim() - 2)"

    def filled(self, value: Value, neutral: ast.expr) -> ast.expr:
        """Return all rows with a number where a row has nothing."""
        assert value.part is not None  # noqa: S101 - the caller has looked
        if value.part.outside == ast.unparse(neutral):
            return value.code
        outside = ast.UnaryOp(ast.Invert(), self._along(value))
        return method(value.code, "masked_fill", outside, neutral)

    def _zeroed(self, value: Value) -> Value:
        """Return rows that may be computed with."""
        assert value.part is not None  # noqa: S101 - the caller has looked
        value = self._in_front(value)
        part = replace(value.part, outside="0") if value.part else None
        return replace(value, code=self.filled(value, ast.Constant(0)), part=part, fresh=True)

    def _in_front(self, value: Value) -> Value:
        part = value.part
        return replace(self.of.aligner.in_front(replace(value, part=None)), part=part)

    def _computed(self, value: Value, code: ast.expr) -> Value:
        """Return what is computed of rows: what stands where a row has nothing is not known."""
        assert value.part is not None  # noqa: S101 - the caller has looked
        part = replace(value.part, outside="")
        return replace(value, code=code, part=part, fresh=True, source=value.asked)

    def negated(self, value: Value, code: ast.UnaryOp) -> Value:
        """Return ``-x[i, :n]`` or ``~x[i, :n]``."""
        value = self._zeroed(value)
        return self._computed(value, ast.UnaryOp(code.op, value.code))

    def binary(
        self,
        first: Value,
        second: Value,
        make: Callable[[ast.expr, ast.expr], ast.expr],
        code: ast.expr,
    ) -> Value:
        """Return a sum, product or comparison of which one operand is a part of each row."""
        op = code.op if isinstance(code, ast.BinOp) else None
        by_number = second.kind is Kind.SAME and self.of.facts.is_number(second.code)
        plain = op is None or isinstance(op, _BINARY)
        if not plain and not (by_number and isinstance(op, ast.Div)):
            exponent = integer(second.code) if isinstance(op, ast.Pow) else None
            if exponent is None or exponent < 1:
                raise CannotBatchError(LENGTHS)
        whole = first if first.part else second
        whole = self._zeroed(whole)
        codes = [self._beside(value, whole) for value in (first, second)]
        return self._computed(whole, make(*codes))

    def _beside(self, value: Value, whole: Value) -> ast.expr:
        """Return an operand of rows that have parts."""
        assert whole.part is not None  # noqa: S101 - the caller has looked
        if value.part:
            alike = value.part.bounds == whole.part.bounds and value.part.dim == whole.part.dim
            if not alike:
                raise CannotBatchError(LENGTHS)
            own = self._zeroed(self._under_one(value, value.part, whole.part.known))
            if own.rank is None:
                raise CannotBatchError(LENGTHS)
            if own.rank != whole.rank:
                both = isinstance(own.rank, int) and isinstance(whole.rank, int)
                raise CannotBatchError(LENGTHS if both else UNKNOWN_RANK)
            return own.code
        if value.kind is Kind.SAME and self.of.facts.is_number(value.code):
            return value.code
        ranks = value.rank, whole.rank
        if not isinstance(ranks[0], int) or not isinstance(ranks[1], int):
            raise CannotBatchError(UNKNOWN_RANK)
        if ranks[0] > ranks[1] - 1 - whole.part.dim:
            raise CannotBatchError(LENGTHS)  # it would meet the dimension of which a row has a part
        if ranks[0] == 0:
            self.of.ask_for_dtype(value.code, whole.asked)
        if value.kind is Kind.SAME:
            return value.code
        front = self.of.aligner.in_front(self.of.aligner.tensor(value))
        missing = ranks[1] - ranks[0]
        return subscript(front.code, [everything(), *[new_axis()] * missing, ast.Constant(...)])

    def _under_one(self, value: Value, part: Part, other: str) -> Value:
        """Return a part under the mask of another, of the same bounds, that it meets."""
        if part.known == other:
            return value
        (first, width), (second, as_wide) = self._wide[part.known], self._wide[other]
        nodes = self.of.facts.node(first), self.of.facts.node(second)
        alike = nodes[0] is not None and nodes[1] is not None
        if not alike or not any(self.of.facts.is_alike(a, b) for a, b in (nodes, nodes[::-1])):  # type: ignore[arg-type] # asked above
            self.of.conditions["one-width"] = None
            number = sum(name.startswith("widths") for name in self.of.shown)
            self.of.shown[f"widths{number}"] = parse(f"({width}, {as_wide})")
        if part.known in list_names(value.code):
            return value
        return replace(value, part=replace(part, known=other))

    def without_unread(
        self, statements: Sequence[ast.stmt], results: Sequence[ast.expr]
    ) -> list[ast.stmt]:
        """Return statements without the masks that nothing of them reads any more."""
        names = (n for c in (*statements, *results) for n in ast.walk(c) if isinstance(n, ast.Name))
        unread = set(self._wide) - {n.id for n in names if isinstance(n.ctx, ast.Load)}

        def is_kept(statement: ast.stmt) -> bool:
            match statement:
                case ast.Assign([ast.Name(mask), *_]):
                    return mask not in unread
            return True

        return list(filter(is_kept, statements))

    def loss(self, code: ast.Call) -> Value:
        """Return the loss of each element of two parts of rows."""
        first, second = (self.of.read(c, parts=True) for c in code.args)

        def make(left: ast.expr, right: ast.expr) -> ast.expr:
            return ast.Call(code.func, [left, right], code.keywords)

        if not (first.part and second.part):
            raise CannotBatchError(LENGTHS)
        return self.binary(first, second, make, code)

    def unary(self, code: ast.Call, op: str) -> Value | None:
        """Return ``x[i, :n].float()``, ``None`` if it is of no part of a row."""
        is_method = isinstance(code.func, ast.Attribute) and self.of.depends(code.func.value)
        owner = code.func.value if isinstance(code.func, ast.Attribute) and is_method else None
        first, *rest = [*([owner] if owner is not None else []), *code.args]
        if not self.may_be(first):
            return None
        value = self.of.read(first, parts=True)
        others = [*rest, *(k.value for k in code.keywords)]
        if value.part is None:
            return None
        if op not in _UNARY or any(self.of.depends(other) for other in others):
            raise CannotBatchError(LENGTHS)
        for other in others:
            if self.of.facts.is_tensor(other) is True:
                raise CannotBatchError(LENGTHS)
        value = self._zeroed(value)
        if owner is not None and isinstance(code.func, ast.Attribute):
            func: ast.expr = ast.Attribute(value.code, code.func.attr, ast.Load())
            return self._computed(value, ast.Call(func, code.args, code.keywords))
        return self._computed(value, ast.Call(code.func, [value.code, *rest], code.keywords))

    def mapped(self, value: Value, func: ast.expr, dims: int, more: int) -> Value:
        """Return what a module makes of the last dimensions of all rows."""
        assert value.part is not None  # noqa: S101 - the caller has looked
        if not isinstance(value.rank, int) or value.part.dim >= value.rank - dims + bool(more):
            raise CannotBatchError(UNKNOWN_RANK if dims else LENGTHS)
        value = self._zeroed(value)
        made = self._computed(value, ast.Call(func, [value.code], []))
        return replace(made, rank=shift(value.rank, more))

    def reduced(  # noqa: C901, PLR0912 - one case a kind of operator
        self,
        op: str,
        value: Value,
        dims: list[ast.expr],
        others: list[ast.keyword],
        dtype: str | None = None,
    ) -> Value:
        """Return an operator along a dimension of rows that have parts.

        ``dtype`` -- that of the parts, if it is known.

        Raises:
            CannotBatchError: it is none of those known.

        """
        own, value = value.part, self._in_front(value)
        assert own is not None  # noqa: S101 - the caller has looked
        dim = integer(dims[0]) if dims else None
        kept = any(k.arg == "keepdim" for k in others)
        words = [k for k in others if not (k.arg == "keepdim" and is_true(k.value))]
        if words or op not in _NEUTRAL or (dims and dim is None):
            raise CannotBatchError(LENGTHS)
        if dim is not None and dim < 0:
            if not isinstance(value.rank, int):
                raise CannotBatchError(UNKNOWN_RANK)
            dim %= value.rank
        if dim is not None and dim != own.dim:
            return self._elsewhere(op, value, dim, others)
        if dim is None and (op in _KEEPING or kept):
            raise CannotBatchError(LENGTHS)
        if not own.bounds.startswith("[None") and (op in _PLACES or (dims and op in _PAIRS)):
            raise CannotBatchError(LENGTHS)  # they say where in the part, not where in the row
        if op in _OF_FLOATS:
            self.of.conditions["float-values"] = None
        if dim is None and not isinstance(value.rank, int):
            raise CannotBatchError(UNKNOWN_RANK)
        filled = self.filled(value, _NEUTRAL[op])
        every = range(value.rank) if isinstance(value.rank, int) and dim is None else [dim or 0]
        places = [literal(d + 1) for d in every]
        over = places[0] if len(places) == 1 else ast.Tuple([*places], ast.Load())
        keep = [k for k in others if k.arg == "keepdim"]
        if op in _KEEPING:
            return self._computed(value, method(filled, op, over))
        rank = 0 if dim is None else shift(value.rank, -(not kept))
        result = replace(value, part=None, rank=rank, fresh=True, source=value.asked)
        if op not in {"mean", "var"}:
            if dim is None and op in _PAIRS:
                op = f"a{op}"
            if len(places) > 1 and op not in {"amax", "amin", "sum"}:
                raise CannotBatchError(LENGTHS)
            made = ast.Call(ast.Attribute(filled, op, ast.Load()), [over], keep)
            return replace(result, code=made)
        if dtype not in _WIDE:  # ``mean`` adds up halves in float32
            self.of.conditions["sum-fits-dtype"] = None
            self.of.shown.setdefault("x", value.asked)
        count = self._count(value, result, dim, every)
        made = ast.Call(ast.Attribute(filled, "sum", ast.Load()), [over], keep)
        mean = ast.BinOp(made, ast.Div(), count)
        if op == "mean":
            return replace(result, code=mean)
        return replace(result, code=self._squares(value, result, over, every))

    def _elsewhere(self, op: str, value: Value, dim: int, others: list[ast.keyword]) -> Value:
        """Return an operator along a dimension that all rounds have."""
        assert value.part is not None  # noqa: S101 - the caller has looked
        if op not in _ELSEWHERE:
            raise CannotBatchError(LENGTHS)
        value = self._zeroed(value)
        made = ast.Call(ast.Attribute(value.code, op, ast.Load()), [literal(dim + 1)], others)
        found = self._computed(value, made)
        if op in _KEEPING or others:
            return found
        assert found.part is not None  # noqa: S101 - it was made so
        moved = replace(found.part, dim=found.part.dim - (dim < found.part.dim))
        return replace(found, rank=shift(value.rank, -1), part=moved)

    def _count(
        self, value: Value, result: Value, dim: int | None, every: range | list[int]
    ) -> ast.expr:
        """Return how many elements each mean is of, in the shape of the result."""
        assert value.part is not None  # noqa: S101 - the caller has looked
        if dim is not None and result.rank == 1:
            return parse(f"{value.part.known}.sum(1,keepdim=True)")
        each = parse(f"{value.part.known}.sum(1)")
        if not isinstance(result.rank, int):
            return parse(f"{value.part.known}.sum(1).view(-1,{self._behind(value)})")
        if dim is not None:
            return at_dimension(each, result.rank)
        for other in every:
            if other != value.part.dim:
                if not isinstance(value.code, _SHORT):
                    raise CannotBatchError(LENGTHS)
                size = parse(f"{owned(value.code)}.shape[{other + 1}]")
                each = ast.BinOp(each, ast.Mult(), size)
        return each

    def _squares(
        self, value: Value, result: Value, over: ast.expr, every: range | list[int]
    ) -> ast.expr:
        """Return the variance as ``torch.var`` does: of one fewer elements."""
        assert value.part is not None  # noqa: S101 - the caller has looked
        if not isinstance(value.rank, int):
            raise CannotBatchError(UNKNOWN_RANK)
        zeroed = self.filled(value, ast.Constant(0))
        shape = [everything(), *[new_axis()] * value.rank]
        of_all = self._count(value, replace(result, rank=0), None, every)
        count = subscript(of_all, shape)
        wide = ast.keyword("keepdim", ast.Constant(value=True))
        total = ast.Call(ast.Attribute(zeroed, "sum", ast.Load()), [over], [wide])
        off = ast.BinOp(zeroed, ast.Sub(), ast.BinOp(total, ast.Div(), count))
        apart = self.filled(replace(value, code=off), ast.Constant(0))
        added = method(method(apart, "square"), "sum", over)
        of_others = ast.BinOp(of_all, ast.Sub(), ast.Constant(1))
        least = [ast.keyword("min", ast.Constant(0))]  # of none it is NaN, as of one
        fewer: ast.expr = ast.Call(ast.Attribute(of_others, "clamp", ast.Load()), [], least)
        if isinstance(result.rank, int):
            fewer = at_dimension(fewer, result.rank)
        return ast.BinOp(added, ast.Div(), fewer)


def joined(value: Value, dim: int) -> ast.expr:
    """Return ``torch.cat`` of parts of rows, one after the other.

    Raises:
        CannotBatchError: they are joined along another dimension.

    """
    if value.part is None or value.axis or value.part.dim or dim:
        raise CannotBatchError(LENGTHS)
    return subscript(value.code, [name(value.part.known)])
