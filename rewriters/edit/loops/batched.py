"""Operators that have a rule of their own for a batch of rows, as each has one in ``torch.vmap``.

::

    torch.tril(x[i])                        torch.tril(x)
    x[i].gather(1, at[i])                   x.gather(2, at)
    torch.einsum("bd,de->be", x[i], w)      torch.einsum("abd,de->abe", x, w)
    F.mse_loss(x[i], y[i])                  F.mse_loss(x, y, reduction="none").mean(dim=(1, 2))

The rounds stand in front, so dimensions counted from the end stay what they are, and those counted
from the front are one more.
"""

from __future__ import annotations

import ast
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import (
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
    parse,
    shift,
    subscript,
)
from npufix.rewriters.edit.loops.together import UNKNOWN_DIMENSION
from npufix.rewriters.graph.modules.syntax import last_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npufix.rewriters.edit.loops.expressions import Expressions

_TRAILING = {
    "cholesky": 0, "det": -2, "diag_embed": 1, "embedding": 1, "inv": 0, "inverse": 0,
    "layer_norm": 0, "linear": 0, "pad": 0, "logdet": -2, "matrix_exp": 0, "one_hot": 1, "pinv": 0,
    "pinverse": 0, "rms_norm": 0, "tril": 0, "triu": 0,
}  # fmt: skip
"""Those that take the last dimensions and leave any others, and how many more the result has."""
_LOSSES = frozenset(
    {"binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "kl_div", "l1_loss",
     "mse_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss"}
)  # fmt: skip
"""Losses of each element, which are averaged or added up unless ``reduction`` is "none"."""
_FINITE = frozenset(
    {"binary_cross_entropy_with_logits", "huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss"}
)
"""Those among them that are finite for zeros, and have a finite gradient there."""
_OF_LOSSES = frozenset({"beta", "delta", "log_target", "reduction"})
_OF_EACH = frozenset(
    {"addcdiv", "addcmul", "celu", "clamp_max", "clamp_min", "clone", "divide", "exp2", "fmod",
     "hardsigmoid", "hardtanh", "lgamma", "logit", "masked_fill", "multiply", "selu",
     "softsign", "subtract", "tanhshrink", "true_divide", "xlogy"}
)  # fmt: skip
"""Further operators that work element by element."""
_ALONG = {
    "cosine_similarity": "x1,x2,dim",
    "diagonal": "input,offset,dim1,dim2",
    "flip": "input,*dims",
    "gather": "input,dim,index",
    "index_select": "input,dim,index",
    "narrow": "input,dim,start,length",
    "norm": "input,p,dim,keepdim",
    "repeat_interleave": "input,repeats,dim",
    "roll": "input,shifts,dims",
    "scatter": "input,dim,index,src",
    "scatter_add": "input,dim,index,src",
    "vector_norm": "x,ord,dim,keepdim",
}
_OF_FULL = frozenset({"device", "dtype"})
_COUNTING = frozenset(
    {"double", "dtype", "float", "float32", "float64", "int", "int32", "int64", "long"}
)
"""Dtypes that hold the numbers of all rounds; one that is asked of a tensor is taken for such."""
_DIMS = frozenset({"dim", "dim1", "dim2", "dims", "*dims"})
_ONE_DIMENSION_FEWER = frozenset({"diagonal", "norm", "vector_norm"})
_MATRIX = 2


@dataclass(frozen=True)
class _Given:
    """The arguments of a call by the names of the parameters, the tensor too."""

    code: ast.Call
    by_name: dict[str, list[ast.expr]]
    is_method: bool

    def one(self, parameter: str) -> ast.expr | None:
        """Return an argument, ``None`` if it is not given."""
        found = self.by_name.get(parameter, [])
        return found[0] if found else None


class Batched:
    """Those operators in one loop."""

    def __init__(self, of: Expressions) -> None:
        self.of: Expressions = weakref.proxy(of)  # it would keep the tree of the module

    def read(self, code: ast.Call) -> Value | None:
        """Return what a call computes for all rounds, ``None`` if no rule for it is known.

        Raises:
            CannotBatchError: there is one, but not for these arguments.

        """
        called = last_name(code.func)
        if any(isinstance(a, ast.Starred) for a in code.args) or None in {
            k.arg for k in code.keywords
        }:
            return None
        if called in _OF_EACH:
            return self.of.elementwise(code, fresh=True)
        if called in _LOSSES:
            return self._loss(code)
        if called in _TRAILING:
            return self._trailing(code, called)
        if called in _ALONG:
            return self._along(code, called)
        own: dict[str, Callable[[ast.Call], Value]] = {
            "cat": self._joined, "concat": self._joined, "diag": self._diag,
            "einsum": self._einsum, "expand": self._repeated, "full": self._filled,
            "new_full": self._filled, "outer": self._outer, "repeat": self._repeated,
            "stack": self._joined, "trace": self._trace,
        }  # fmt: skip
        return own[called](code) if called in own else None

    def _front(self, code: ast.expr) -> Value:
        """Return the rows of a tensor, the rounds in front."""
        return self.of.aligner.in_front(self.of.operand(code))

    def _spread(self, code: ast.expr) -> Value:
        """Return rows of a tensor; of one that all rounds share, each has it."""
        if self.of.depends(code):
            return self._front(code)
        value = self.of.read(code)
        if self.of.facts.is_tensor(code) is True and not isinstance(code, ast.Name):
            code = self.of.aligner.named(code, "shared")
        elif self.of.facts.is_tensor(code) is not True:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        shape = ast.Starred(ast.Attribute(code, "shape", ast.Load()), ast.Load())
        made = method(code, "expand", self._count(), shape)
        return Value(Kind.ROWS, made, value.rank, source=code)

    def _count(self) -> ast.expr:
        """Return how many rounds there are."""
        domain = self.of.domain
        more = ast.Constant(domain.start)
        return ast.BinOp(domain.stop, ast.Sub(), more) if domain.start else domain.stop

    def _owner(self, code: ast.Call) -> ast.expr | None:
        """Return ``x`` of ``x.f(y)``, ``None`` for ``torch.f(x, y)``."""
        if not isinstance(code.func, ast.Attribute):
            return None
        if self.of.facts.flow.names.dotted(code.func) is not None:
            return None
        return code.func.value

    def operands(self, code: ast.Call) -> list[ast.expr]:
        """Return the operands of a function, or of a method and its owner: ``a.bmm(b)``."""
        owner = self._owner(code)
        return [*([] if owner is None else [owner]), *code.args]

    def _same(self, *codes: ast.expr | None) -> None:
        """Refuse what differs from round to round.

        Raises:
            CannotBatchError: something does.

        """
        for code in codes:
            if code is not None and self.of.depends(code):
                raise CannotBatchError(UNKNOWN_DIMENSION)
            if code is not None:
                self.of.read(code)

    def _call(
        self, code: ast.Call, given: Sequence[ast.expr], words: list[ast.keyword]
    ) -> ast.Call:
        """Return a call with other operands, a method of the first one if it was a method."""
        if self._owner(code) is None:
            return ast.Call(code.func, [*given], words)
        assert isinstance(code.func, ast.Attribute)  # noqa: S101 - it has an owner
        return ast.Call(ast.Attribute(given[0], code.func.attr, ast.Load()), [*given[1:]], words)

    def _trailing(self, code: ast.Call, called: str) -> Value:
        """Return an operator that takes the last dimensions of a tensor."""
        first, *rest = self.operands(code)
        self._same(*rest, *(k.value for k in code.keywords))
        if called == "one_hot" and not rest and not code.keywords:
            raise CannotBatchError(UNKNOWN_DIMENSION)  # as many classes as the largest one of all
        if called == "pad" and not (
            len(rest) == 1 and isinstance(rest[0], ast.Tuple) and _is_constant_padding(code)
        ):
            raise CannotBatchError(UNKNOWN_DIMENSION)  # other modes count all dimensions
        value = self._front(first)
        made = self._call(code, [value.code, *rest], code.keywords)
        source = None if called in {"one_hot", "embedding"} else value.asked
        rank = shift(value.rank, _TRAILING[called])
        return Value(Kind.ROWS, made, rank, 0, fresh=True, source=source)

    def _loss(self, code: ast.Call) -> Value:
        """Return a loss of elements, averaged or added up for each round."""
        words = {k.arg or "": k.value for k in code.keywords}
        reduction = words.pop("reduction", ast.Constant("mean"))
        how = reduction.value if isinstance(reduction, ast.Constant) else None
        if how not in {"mean", "none", "sum"} or words.keys() - _OF_LOSSES or len(code.args) != 2:  # noqa: PLR2004 - input and target
            raise CannotBatchError(UNKNOWN_DIMENSION)
        each = [k for k in code.keywords if k.arg != "reduction"]
        each.append(ast.keyword("reduction", ast.Constant("none")))
        if last_name(code.func) in _FINITE and any(map(self.of.parts.may_be, code.args)):
            part = self.of.parts.loss(ast.Call(code.func, code.args, each))
            return part if how == "none" else self.of.parts.reduced(str(how), part, [], [])
        value = self.of.elementwise(ast.Call(code.func, code.args, each), fresh=True)
        if how == "none":
            return value
        return self.of.together.over_all(value, str(how))

    def _bound(self, code: ast.Call, called: str) -> _Given:
        """Return the arguments of a call by their names."""
        names = _ALONG[called].split(",")
        operands = self.operands(code)
        found: dict[str, list[ast.expr]] = {}
        for at, argument in enumerate(operands):
            parameter = names[min(at, len(names) - 1)]
            if at >= len(names) and not parameter.startswith("*"):
                raise CannotBatchError(UNKNOWN_DIMENSION)
            found.setdefault(parameter, []).append(argument)
        for word in code.keywords:
            if word.arg not in {n.lstrip("*") for n in names}:
                raise CannotBatchError(UNKNOWN_DIMENSION)
            found[str(word.arg)] = [word.value]
        return _Given(code, found, self._owner(code) is not None)

    def _along(self, code: ast.Call, called: str) -> Value:  # noqa: C901, PLR0912 - one case an operator
        """Return an operator that names dimensions, each of them one more for all rounds."""
        given = self._bound(code, called)
        tensors = {"input", "x", "index", "src"}
        if called in {"norm", "vector_norm"} and given.one("dim") is None:
            return self._norm(given)
        if called == "index_select":
            return self._select(given)
        if called == "diagonal":
            for at, parameter in enumerate(("dim1", "dim2")):
                given.by_name.setdefault(parameter, [literal(at)])
        if called == "cosine_similarity":
            return self._similarity(given)
        if called not in {"diagonal", "flip", "roll"} and given.one("dim") is None:
            raise CannotBatchError(UNKNOWN_DIMENSION)  # of the flat tensor
        if called == "roll" and given.one("dims") is None:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        from_end = any((integer(c) or 0) < 0 for c in given.by_name.get("dim", []))
        values: list[Value] = []
        args: list[ast.expr] = []
        words: list[ast.keyword] = []
        for parameter, codes in given.by_name.items():
            if parameter in _DIMS:
                new = [_shifted(c) for c in codes]
            elif parameter in tensors and not (parameter == "src" and self._is_number(codes[0])):
                spread = [self._spread(c) for c in codes]
                for value in spread:
                    if from_end and not isinstance(value.rank, int):
                        self.of.ask_for_dimension(value)
                values += spread
                new = [v.code for v in spread]
            else:
                self._same(*codes)
                if parameter == "repeats" and not self.of.facts.is_number(codes[0]):
                    raise CannotBatchError(UNKNOWN_DIMENSION)
                new = codes
            plain = len(args) < len(self.operands(code)) or parameter.startswith("*")
            if plain and not words:
                args += new
            else:
                words.append(ast.keyword(parameter.lstrip("*"), new[0]))
        if not any(v.kind is Kind.ROWS for v in values):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        named = [dim for p in _DIMS for c in given.by_name.get(p, []) for dim in _integers(c)]
        ranks = [v.rank for v in values if isinstance(v.rank, int)]
        if any(not -rank <= dim < rank for rank in ranks for dim in named):
            raise CannotBatchError(UNKNOWN_DIMENSION)  # ``x[i]`` was taken for a number
        made = self._call(code, args, words)
        known = next((v.rank for v in values if isinstance(v.rank, int)), values[0].rank)
        kept = given.one("keepdim")
        fewer = called in _ONE_DIMENSION_FEWER
        if kept is not None:
            if not isinstance(kept, ast.Constant):
                raise CannotBatchError(UNKNOWN_DIMENSION)
            fewer = fewer and kept.value is not True
        fresh = called not in {"diagonal", "narrow"}
        return Value(Kind.ROWS, made, shift(known, -int(fewer)), 0, fresh=fresh,
                     source=values[0].asked)  # fmt: skip

    def _similarity(self, given: _Given) -> Value:
        """Return similarities of two tensors that are brought to one shape."""
        first, second = (given.one(p) for p in ("x1", "x2"))
        if first is None or second is None:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        (a, b), whole = self.of.aligner.together(self.of.read(first), self.of.read(second))
        if whole.axis or whole.kind is not Kind.ROWS:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        dim = _shifted(given.one("dim") or literal(1))
        words = [ast.keyword("dim", dim)]
        made = ast.Call(given.code.func, [a, b], words)
        return Value(Kind.ROWS, made, shift(whole.rank, -1), 0, fresh=True, source=whole.asked)

    def _is_number(self, code: ast.expr) -> bool:
        return not self.of.depends(code) and self.of.facts.is_number(code)

    def _norm(self, given: _Given) -> Value:
        """Return the norm of all elements of each round."""
        tensor, power = given.one("input") or given.one("x"), given.one("p") or given.one("ord")
        assert tensor is not None  # noqa: S101 - it is a call with a tensor
        if given.one("keepdim") is not None:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if power is not None and not self._is_number(power):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        value = self.of.together.flat(self.of.operand(tensor))
        called = ast.Attribute(value.code, "norm", ast.Load())
        made = ast.Call(called, [power] if power else [], [ast.keyword("dim", literal(1))])
        return Value(Kind.ROWS, made, 0, 0, fresh=True, source=value.asked)

    def _select(self, given: _Given) -> Value:
        """Return ``x[i].index_select(0, at[i])``: positions of each round along a dimension."""
        tensor, dim, at = (given.one(p) for p in ("input", "dim", "index"))
        if tensor is None or dim is None or at is None:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        where = integer(dim)
        if not self.of.depends(at):
            self._same(at)
            value = self._front(tensor)
            made = method(value.code, "index_select", _shifted(dim), at)
            return like(value, made, fresh=True)
        index = self.of.together.flat(self.of.operand(at))  # one number is taken as a vector
        if where != 0:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if not self.of.depends(tensor):
            same = self.of.read(tensor)
            if self.of.facts.is_tensor(tensor) is not True:
                self.of.ask_for_tensor(tensor)
            picked = subscript(same.code, [index.code])
            return Value(Kind.ROWS, picked, same.rank, 0, fresh=True, source=same.code)
        value = self._front(tensor)
        rows = subscript(self.of.aligner.rounds(value.asked), [everything(), new_axis()])
        return like(value, subscript(value.code, [rows, index.code]), fresh=True)

    def _joined(self, code: ast.Call) -> Value:
        """Return ``torch.cat([x[i], y[i]], 1)``: parts that each round joins."""
        parts, *rest = code.args or [ast.Constant(None)]
        words = {k.arg: k.value for k in code.keywords}
        dims = [*rest, *(words[w] for w in ("dim", "axis") if w in words)]
        if not isinstance(parts, ast.List | ast.Tuple) or set(words) - {"dim", "axis"}:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        values = [self._spread(part) for part in parts.elts]
        if len(dims) > 1 or not values:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        place = _shifted(dims[0] if dims else literal(0))
        made = ast.Call(
            code.func,
            [ast.List([v.code for v in values], ast.Load())],
            [ast.keyword("dim", place)],
        )
        known = next((v.rank for v in values if isinstance(v.rank, int)), values[0].rank)
        more = last_name(code.func) == "stack"
        return Value(Kind.ROWS, made, shift(known, int(more)), 0, fresh=True,
                     source=values[0].asked)  # fmt: skip

    def _einsum(self, code: ast.Call) -> Value:
        """Return an einsum with a letter more for the rounds."""
        match code.args:
            case [ast.Constant(str(equation)), *operands] if not code.keywords:
                pass
            case _:
                raise CannotBatchError(UNKNOWN_DIMENSION)
        given, arrow, result = equation.replace(" ", "").partition("->")
        parts = given.split(",")
        if not arrow or "." in equation or len(parts) != len(operands):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        letter = next((c for c in "abcdefghijklmnopqrstuvwxyz" if c not in equation), None)
        if letter is None:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        codes: list[ast.expr] = []
        source = None
        for at, operand in enumerate(operands):
            if self.of.depends(operand):
                value = self._front(operand)
                parts[at] = letter + parts[at]
                codes.append(value.code)
                source = source or value.asked
            else:
                self._same(operand)
                codes.append(operand)
        new = ast.Constant(f"{','.join(parts)}->{letter}{result}")
        made = ast.Call(code.func, [new, *codes], [])
        return Value(Kind.ROWS, made, len(result), 0, fresh=True, source=source)

    def _outer(self, code: ast.Call) -> Value:
        """Return outer products: columns times rows."""
        left, right = self.operands(code)
        values = [self._front(c) if self.of.depends(c) else self.of.read(c) for c in (left, right)]
        column, row = (method(v.code, "unsqueeze", -1 - at) for at, v in enumerate(values))
        rows = next(v for v in values if v.kind is Kind.ROWS)
        made = ast.BinOp(column, ast.Mult(), row)
        return Value(Kind.ROWS, made, _MATRIX, 0, fresh=True, source=rows.asked)

    def _trace(self, code: ast.Call) -> Value:
        """Return the sums of the diagonals."""
        value = self._front(*self.operands(code))
        diagonal = method(value.code, "diagonal", 0, -2, -1)
        made = method(diagonal, "sum", -1)
        return Value(Kind.ROWS, made, 0, 0, fresh=True, source=value.asked)

    def _filled(self, code: ast.Call) -> Value:
        """Return ``torch.full((n, 1), i)``, tensors of the number of their round."""
        owner, words = self._owner(code), {k.arg or "": k.value for k in code.keywords}
        owned = {} if owner is None else {w: ast.Attribute(owner, w, ast.Load()) for w in _OF_FULL}
        if owner is not None and not isinstance(owner, ast.Name):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        match code.args:
            case [ast.Tuple(sizes) | ast.List(sizes), number] if words.keys() <= _OF_FULL and sizes:
                pass
            case _:
                raise CannotBatchError(UNKNOWN_DIMENSION)
        counted, dtype = self.of.read(number), words.get("dtype")
        if counted.offset is None or not all(map(self._is_number, sizes)):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if dtype is not None and last_name(dtype) not in _COUNTING:
            raise CannotBatchError(UNKNOWN_DIMENSION)  # there are two of ``bool``
        self._same(*sizes, *words.values())
        start, stop = self.of.domain.start + counted.offset, self.of.domain.stop
        if counted.offset:
            stop = ast.BinOp(stop, ast.Add(), literal(counted.offset))
        given = [ast.keyword(w, v) for w, v in (owned | words).items()]
        bounds = [literal(start), stop] if start else [stop]
        made = ast.Call(parse("torch.arange"), bounds, given)
        rows = method(made, "view", -1, *[1] * len(sizes))
        whole = method(rows, "repeat", 1, *sizes)
        return Value(Kind.ROWS, whole, len(sizes), 0, fresh=True, source=owner or made)

    def _diag(self, code: ast.Call) -> Value:
        """Return matrices with a diagonal, or the diagonals of matrices."""
        value = self._front(*self.operands(code)[:1])
        if len(self.operands(code)) > 1 or code.keywords or value.rank not in {1, _MATRIX}:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        if value.rank == 1:
            made: ast.expr = method(value.code, "diag_embed")
            return Value(Kind.ROWS, made, _MATRIX, 0, fresh=True, source=value.asked)
        made = method(value.code, "diagonal", 0, -2, -1)
        return Value(Kind.ROWS, made, 1, 0, source=value.asked)

    def _repeated(self, code: ast.Call) -> Value:
        """Return ``x[i].repeat(3, 1)`` with numbers that all rounds share."""
        owner = self._owner(code)
        if owner is None or code.keywords or not code.args:
            raise CannotBatchError(UNKNOWN_DIMENSION)
        sizes = code.args[0].elts if isinstance(code.args[0], ast.Tuple) else code.args
        if not all(integer(s) is not None or self._is_number(s) for s in sizes):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        self._same(*sizes)
        value = self._front(owner)
        if not isinstance(value.rank, int) or value.rank > len(sizes):
            raise CannotBatchError(UNKNOWN_DIMENSION)
        between = [new_axis()] * (len(sizes) - value.rank)
        whole = subscript(value.code, [everything(), *between]) if between else value.code
        called = last_name(code.func)
        made = method(whole, called, -1 if called == "expand" else 1, *sizes)
        return Value(Kind.ROWS, made, len(sizes), 0, fresh=called == "repeat", source=value.asked)


def _is_constant_padding(code: ast.Call) -> bool:
    words = {k.arg: k.value for k in code.keywords}
    mode = words.get("mode", ast.Constant("constant"))
    return isinstance(mode, ast.Constant) and mode.value == "constant"


def _integers(code: ast.expr) -> Iterator[int]:
    """Yield the dimensions that are given, one or several."""
    parts = code.elts if isinstance(code, ast.Tuple | ast.List) else [code]
    yield from (dim for dim in map(integer, parts) if dim is not None)


def _shifted(code: ast.expr) -> ast.expr:
    """Return a dimension, or several, where the rounds are one more in front."""
    match code:
        case ast.Tuple(items) | ast.List(items):
            return ast.Tuple([_shifted(item) for item in items], ast.Load())
    dim = integer(code)
    if dim is None:
        raise CannotBatchError(UNKNOWN_DIMENSION)
    return literal(behind_rounds(dim))
