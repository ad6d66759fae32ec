"""Operators that take several elements of a row together: reductions, sorts, products."""

from __future__ import annotations

import ast
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.aligning import with_rank
from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Value,
    behind_rounds,
    everything,
    integer,
    like,
    literal,
    method,
    new_axis,
    owned,
    parse,
    shift,
    subscript,
)
from npufix.rewriters.facts import row_operators as operators

if TYPE_CHECKING:
    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.facts.ranks import Rank

UNKNOWN_DIMENSION = "along which dimension an operator in it works is not known"
SEVERAL_RESULTS = "what one operator returns together is not taken apart where it is computed"
_MATRIX = 2


_OF_ALL = frozenset({"all", "any", "sum"})


class Together:
    """Those operators in one loop."""

    def __init__(self, of: Expressions) -> None:
        self.of: Expressions = weakref.proxy(of)  # it would keep the tree of the module
        self.taken_apart: ast.Call | None = None
        """The call whose results are told apart where it stands."""

    def is_of_two(self, code: ast.Call) -> bool:
        """Tell whether ``max(x, y)`` compares two tensors: it is elementwise then."""
        operands = _without_owner(self.of, code)
        return len(operands) == 1 and (
            self.of.depends(operands[0])
            or self.of.facts.is_tensor(operands[0]) is True
            or is_of_several(operands[0])
        )

    def returns_several(self, code: ast.Call) -> bool:
        """Tell whether an operator returns several tensors, each with the rows of the rounds."""
        node = self.of.facts.node(code)
        op = "" if node is None else node.op
        if op in operators.ALWAYS_SEVERAL:
            return True
        return op in operators.SEVERAL and not self.is_of_two(code) and bool(_dims(self.of, code))

    def several(self, code: ast.Call) -> Value:
        """Return what is taken apart at once: a tuple of tensors, of which all are alike."""
        if not self.returns_several(code):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        self.taken_apart = code
        return self.of.read(code)

    def along(self, code: ast.Call, op: str) -> Value:  # noqa: C901 - one case a kind
        """Return an operator along one dimension of the rows, or over all that a round has."""
        of = self.of
        if self.returns_several(code) and code is not self.taken_apart:
            raise CannotBatchError(SEVERAL_RESULTS)
        rest = _without_owner(of, code)
        owner = code.args[0] if len(rest) < len(code.args) else None
        is_method = owner is None
        assert isinstance(code.func, ast.Attribute) or not is_method  # noqa: S101 - it has an owner
        first = code.func.value if isinstance(code.func, ast.Attribute) and is_method else owner
        assert first is not None  # noqa: S101 - one of both
        before = operators.SECOND.get(op, 0)
        dims = _dims(of, code, before)
        of.is_counting = op in _OF_ALL and not dims and _is_of_names(first)
        value = of.operand(first, parts=True)
        of.is_counting = False
        others = [k for k in code.keywords if k.arg not in {"dim", "axis"}]
        if value.part is not None:
            if len(rest) > 1 or before:
                raise CannotBatchError(LENGTHS)
            return of.parts.reduced(op, value, dims, others, of.facts.dtype(first))
        for given in (*rest, *(k.value for k in code.keywords)):
            of.require_pure(given)
        if len(rest) > 1 + before or any(of.depends(k.value) for k in others):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if any(of.depends(r) for r in rest):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if not dims and op in operators.ALONG_LAST | operators.PARTS:
            dims = [literal(-1 if op in operators.ALONG_LAST else 0)]
        dim = integer(dims[0]) if dims else None
        if not isinstance(value.rank, int) and (dim is None or dim < 0):
            if dims:
                of.ask_for_dimension(value)
            value = of.aligner.in_front(value)
        func: ast.expr = code.func
        args: list[ast.expr] = [] if is_method else [value.code]
        if is_method and isinstance(code.func, ast.Attribute):
            func = ast.Attribute(value.code, code.func.attr, ast.Load())
        if not dims:
            return self._over_all(func, args, value, op, others)
        if dim is None or (isinstance(value.rank, int) and not -value.rank <= dim < value.rank):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        own = dim % value.rank if isinstance(value.rank, int) else dim
        behind = dim < 0 if own < 0 else own >= value.axis
        place = literal(dim if dim < 0 and behind else own + behind)
        made = ast.Call(func, [*args, *rest[:before]], [ast.keyword("dim", place), *others])
        kept = any(
            k.arg == "keepdim" and isinstance(k.value, ast.Constant) and k.value.value is True
            for k in others
        )
        fewer = 0 if kept else operators.ALONG[op]
        fresh = op not in operators.PARTS
        axis = value.axis if behind else value.axis - fewer
        found = replace(like(value, made, fresh=fresh), axis=axis)
        return with_rank(found, shift(value.rank, -fewer))

    def _over_all(
        self, func: ast.expr, args: list[ast.expr], value: Value, op: str, others: list[ast.keyword]
    ) -> Value:
        """Return ``x[i].sum()`` as the sum over all dimensions but that of the rounds."""
        if op not in operators.OVER_ALL | operators.OF_FLAT or value.rank == 0:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if not isinstance(value.rank, int) or (op in operators.OF_FLAT and value.rank > 1):
            return Together._over_rows(func, args, self.flat(value), op, others)
        func = _without_positions(func, op)
        places: list[ast.expr] = [literal(dim + (dim >= value.axis)) for dim in range(value.rank)]
        over = places[0] if len(places) == 1 else ast.Tuple(places, ast.Load())
        made = ast.Call(func, args, [ast.keyword("dim", over), *others])
        return replace(like(value, made, fresh=True), axis=0, rank=0)

    def over_all(self, value: Value, op: str) -> Value:
        """Return the mean, or another reduction, of all that a round has."""
        if value.rank == 0:
            return value
        return self._over_all(ast.Attribute(value.code, op, ast.Load()), [], value, op, [])

    def flat(self, value: Value) -> Value:
        """Return rows of one dimension, whatever a round has; of a number as well."""
        value = self.of.aligner.in_front(value)
        least = self.of.facts.likely(value.rank)  # it is indexed with so many
        if value.rank == 1:
            return value
        several = isinstance(least, int) and least > 0
        code = value.code if several else method(value.code, "unsqueeze", -1)
        made = method(code, "flatten", 1)
        return replace(value, code=made, rank=1, fresh=False, source=value.asked)

    @staticmethod
    def _over_rows(
        func: ast.expr, args: list[ast.expr], value: Value, op: str, others: list[ast.keyword]
    ) -> Value:
        """Return an operator over rows that are flat."""
        func = _without_positions(func, op)
        assert isinstance(func, ast.Attribute)  # noqa: S101 - of torch, or a method
        owner = func.value if args else value.code
        called = ast.Attribute(owner, func.attr, ast.Load())
        words = [ast.keyword("dim", literal(1)), *others]
        made = ast.Call(called, [value.code] if args else [], words)
        return replace(like(value, made, fresh=True), axis=0, rank=0)

    def turned(self, code: ast.Call, op: str) -> Value:  # noqa: C901 - one case a view
        """Return ``x[i].transpose(0, 1)``, ``x[i].unsqueeze(0)`` or ``x[i].flatten(1)``."""
        rest = _without_owner(self.of, code)
        is_method = len(rest) == len(code.args)
        first = code.func.value if is_method else code.args[0]  # type: ignore[attr-defined] # a method has an owner
        given = [*rest, *(k.value for k in code.keywords)]
        dims = [found for found in map(integer, given) if found is not None]
        value = self.of.operand(first)
        in_order = (len(rest), [k.arg for k in code.keywords]) in operators.NAMES_OF_TURNING
        if not operators.TURNING[op] <= len(dims) == len(given) or not in_order:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if op == "t":
            value = replace(value, rank=self.of.facts.assume(value.rank, _MATRIX, value.asked))
        rank: Rank = value.rank
        if not isinstance(rank, int):
            return self._turned_anyhow(value, op, dims)
        if not rank and op not in {"flatten", "unsqueeze"}:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if not rank and op == "flatten":
            return self.flat(value)
        room = rank + (op == "unsqueeze")
        if any(not -room <= dim < room for dim in dims):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if op in {"t", "flatten"}:
            dims = ([0, rank - 1] if op == "t" else dims) or [0]
        if any(dim % room < value.axis for dim in dims):
            value = self.of.aligner.in_front(value)
        if op == "flatten":
            rank = rank - max(0, (dims[1] if len(dims) > 1 else -1) % rank - dims[0] % rank)
        elif op == "squeeze":  # which keeps a dimension of another length than one
            rank = None
        called = "transpose" if op == "t" else op
        made = method(value.code, called, *map(behind_rounds, dims))
        fresh = value.fresh and op in {"squeeze", "unsqueeze"}
        return with_rank(like(value, made, fresh=fresh), shift(rank, op == "unsqueeze"))

    def _turned_anyhow(self, value: Value, op: str, dims: list[int]) -> Value:
        """Return rows turned of which nobody knows how many dimensions they have."""
        if op == "t":
            raise CannotBatchError(UNKNOWN_DIMENSION)
        value = self.of.aligner.in_front(value)
        if op == "flatten" and dims in ([], [0], [0, -1]):
            return self.flat(value)
        made = method(value.code, op, *map(behind_rounds, dims))
        rank: Rank = None
        if op == "flatten" and dims[0] >= 0 and dims[1:] in ([], [-1]):
            rank = dims[0] + 1
        elif op in {"transpose", "unsqueeze"}:
            rank = shift(value.rank, int(op == "unsqueeze"))
        fresh = value.fresh and op in {"squeeze", "unsqueeze"}
        return with_rank(like(value, made, fresh=fresh), rank)

    def shaped(self, code: ast.Call, op: str) -> Value:
        """Return ``x[i].permute(1, 0)`` or ``x[i].reshape(n, -1)``: the rounds stay in front."""
        owner = code.func.value if isinstance(code.func, ast.Attribute) else None
        if owner is None or not self.of.depends(owner) or code.keywords or not code.args:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        given = code.args[0].elts if isinstance(code.args[0], ast.Tuple) else code.args
        dims = list(map(integer, given))
        value = self.of.aligner.in_front(self.of.aligner.tensor(self.of.operand(owner)))
        if op == "permute":
            known = [dim for dim in dims if dim is not None]
            if len(known) != len(given):
                raise CannotBatchError(UNKNOWN_DIMENSION)
            turned = (dim % len(known) + 1 for dim in known)  # which names all there are
            made = method(value.code, op, 0, *turned)
            return with_rank(like(value, made, fresh=False), len(known))
        if dims == [-1]:
            return self.flat(value)
        facts = self.of.facts
        for dim, size in zip(dims, given, strict=True):
            if dim is None and (self.of.depends(size) or not facts.is_number(size)):
                raise CannotBatchError(UNKNOWN_DIMENSION)
        if -1 in dims and not self.of.is_joined:
            raise CannotBatchError(UNKNOWN_DIMENSION)  # of no rounds nobody knows the size
        front = self.of.domain.stop
        if isinstance(value.code, ast.Name):
            front = parse(f"{value.code.id}.shape[0]")
        elif self.of.domain.start:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        made = method(value.code, "reshape", front, *given)
        return with_rank(like(value, made, fresh=False), len(given))

    def product(self, *operands: Value, op: str = "matmul") -> Value:
        """Return the matrix product of two operands for all rounds."""
        if len(operands) != 2:  # noqa: PLR2004 - left and right
            raise CannotBatchError(UNKNOWN_DIMENSION)
        # torch asks for so many dimensions, where the operator is no ``matmul``
        ranks: tuple[Rank, ...] = operators.PRODUCTS.get(op) or tuple(v.rank for v in operands)
        operands = tuple(replace(v, rank=r) for v, r in zip(operands, ranks, strict=True))
        first, second = (v if v.kind is Kind.SAME else self.of.aligner.tensor(v) for v in operands)
        if not isinstance(second.rank, int):
            raise CannotBatchError(UNKNOWN_RANK)
        rank = first.rank if isinstance(first.rank, int) else 0
        if second.rank > _MATRIX or (rank > _MATRIX and second.kind is Kind.ROWS):
            return self._batches(first, second, max(rank, second.rank))
        if second.kind is Kind.SAME and second.rank == _MATRIX:
            rows = self.of.aligner.with_free_end(first, 1)
            return like(rows, ast.BinOp(rows.code, ast.MatMult(), second.code), fresh=True)
        made: ast.expr
        if first.rank == second.rank == 1:
            (a, b), _ = self.of.aligner.together(first, second)
            made = method(ast.BinOp(a, ast.Mult(), b), "sum", -1)
            return Value(Kind.ROWS, made, 0, fresh=True, source=first.asked)
        if first.rank != _MATRIX:
            raise CannotBatchError(UNKNOWN_RANK)
        left, right = (
            v if v.kind is Kind.SAME else self.of.aligner.in_front(v) for v in (first, second)
        )
        source = next(v for v in (left, right) if v.kind is not Kind.SAME)
        if second.rank == _MATRIX:
            made = ast.BinOp(left.code, ast.MatMult(), right.code)
            return Value(Kind.ROWS, made, _MATRIX, fresh=True, source=source.asked)
        if right.kind is Kind.SAME:
            made = ast.BinOp(left.code, ast.MatMult(), right.code)
        else:
            columns = subscript(right.code, [everything(), everything(), new_axis()])
            made = method(ast.BinOp(left.code, ast.MatMult(), columns), "squeeze", -1)
        return Value(Kind.ROWS, made, 1, fresh=True, source=source.asked)

    def repeated(self, code: ast.Call, op: str) -> Value:
        """Return ``x[i].expand(n[i], -1)`` or ``x[i:i+1].repeat(n[i], 1)`` of all rounds joined."""
        of = self.of
        owner = given = code.func.value if isinstance(code.func, ast.Attribute) else code
        sizes = code.args[0].elts if isinstance(code.args[0], ast.Tuple) else code.args
        rest = [integer(size) for size in sizes[1:]]
        if any(n != operators.REPEATING[op] for n in rest) or code.keywords or not rest:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        match owner:
            case ast.Subscript(base, ast.Slice(ast.Name(low) as row, upper, None)) if (
                upper is not None and ast.unparse(upper) == f"{low} + 1"
            ):
                owner = ast.Subscript(base, row, ast.Load())
            case ast.Call(ast.Attribute(single, "unsqueeze"), [ast.Constant(0)]) | ast.Subscript(
                single, ast.Constant(None)
            ):
                owner = single
            case _:
                pass
        value = of.read(owner)
        if value.kind is Kind.ENTRY:  # ``for row in rows: row.expand(n, -1)``
            of.ask_for_tensor(value.code)
            value = replace(value, kind=Kind.ROWS)
        value = of.aligner.tensor(value)
        if value.kind is not Kind.ROWS:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        rank = of.facts.assume(value.rank, len(rest), value.asked)
        several = rank == len(sizes) and op == "repeat" and owner is given
        if value.axis or not (several or rank == len(rest)):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        how_often = self._counts(sizes[0], value)
        words = [ast.keyword("dim", ast.Constant(0))]
        made = ast.Call(
            ast.Attribute(value.code, "repeat_interleave", ast.Load()), [how_often], words
        )
        if several:  # ``x[i].repeat(n[i], 1)`` of matrices: all of their rows, as often as that
            made = method(made, "flatten", 0, 1)
        return Value(Kind.REPEATED, made, len(sizes), fresh=True)

    def _counts(self, code: ast.expr, rows: Value) -> ast.expr:
        """Return ``max(int(n[i]), 0)`` of all rounds as a vector of integers."""
        match code:
            case ast.Call(ast.Name("max"), [inner, ast.Constant(0)] | [ast.Constant(0), inner]):
                return method(self._counts(inner, rows), "clamp_min", 0)
            case ast.Call(ast.Name("int"), [inner]):
                return method(self._counts(inner, rows), "long")
            case ast.Call(ast.Attribute(inner, "item"), []):
                return self._counts(inner, rows)
        value = self.of.read(code)
        if value.kind not in {Kind.ENTRY, Kind.ROWS} or value.axis:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if self.of.facts.assume(value.rank, 0, value.asked) != 0:
            raise CannotBatchError(UNKNOWN_RANK)
        made = parse(f"torch.as_tensor(0, device={owned(rows.asked)}.device)")
        assert isinstance(made, ast.Call)  # noqa: S101 - it was written so
        made.args = [value.code]
        return made

    def _batches(self, first: Value, second: Value, rank: int) -> Value:
        """Return products of batches of matrices: the rounds are one dimension more in front."""
        rows = [v for v in (first, second) if v.kind is Kind.ROWS]
        matrices = all(isinstance(v.rank, int) and v.rank >= _MATRIX for v in (first, second))
        if not matrices or any(v.rank != rank for v in rows):
            raise CannotBatchError(UNKNOWN_RANK)
        fronts = [self.of.aligner.in_front(v) if v in rows else v for v in (first, second)]
        made = ast.BinOp(fronts[0].code, ast.MatMult(), fronts[1].code)
        source = rows[0].asked
        return Value(Kind.ROWS, made, rank, fresh=True, source=source)


def is_of_several(code: ast.expr) -> bool:
    """Tell whether something is indexed along several dimensions: ``y[:, 0]`` is no number."""
    return isinstance(code, ast.Subscript) and isinstance(code.slice, ast.Tuple)


def _is_of_names(code: ast.expr) -> bool:
    """Tell whether code compares what is written out or has a name: ``labels == i``."""
    match code:
        case ast.Compare(left, _, [right]):
            return all(
                isinstance(c, (ast.Name, ast.Attribute, ast.Subscript)) for c in (left, right)
            )
    return False


def _without_positions(func: ast.expr, op: str) -> ast.expr:
    """Return ``amax`` for ``max``, which is called so over several dimensions."""
    assert isinstance(func, ast.Attribute)  # noqa: S101 - of torch, or a method
    return ast.Attribute(func.value, f"a{op}", ast.Load()) if op in operators.PAIRS else func


def _without_owner(of: Expressions, code: ast.Call) -> list[ast.expr]:
    """Return the arguments behind the tensor: ``x.sum(1)`` and ``torch.sum(x, 1)`` are alike."""
    is_method = isinstance(code.func, ast.Attribute) and of.depends(code.func.value)
    return code.args if is_method else code.args[1:]


def _dims(of: Expressions, code: ast.Call, before: int = 0) -> list[ast.expr]:
    """Return the dimension along which an operator works, if one is given."""
    named = [k.value for k in code.keywords if k.arg in {"dim", "axis"}]
    return named or _without_owner(of, code)[before:][:1]
