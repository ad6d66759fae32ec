"""Reads an expression of a loop as a function of the loop variable, operator by operator."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.aligning import Aligner
from npufix.rewriters.edit.loops.batched import Batched
from npufix.rewriters.edit.loops.choosing import choose_value
from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    NO_TENSOR,
    CannotBatchError,
    Kind,
    Value,
    like,
    literal,
    method,
    name,
    parse,
)
from npufix.rewriters.edit.loops.indexing import Indexer
from npufix.rewriters.edit.loops.listed import list_integers
from npufix.rewriters.edit.loops.ragged import Parts
from npufix.rewriters.edit.loops.submodules import Calls, treat_images, without_one
from npufix.rewriters.edit.loops.together import Together, is_of_several
from npufix.rewriters.facts import row_operators as operators
from npufix.rewriters.facts.ranks import RelativeRank
from npufix.rewriters.graph.modules.syntax import last_name, list_names
from npufix.rewriters.graph.modules.torch_names import TORCH_FUNCTIONS
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.values import Domain

POWERS = "a tensor of exponents takes longer than the same powers one by one"
UNKNOWN_CALL = "a call in it may do anything, or treat the rows together"
RANDOM = "it draws random numbers, and would draw other ones"
UNKNOWN_CODE = "a part of it is not understood"
WRITTEN_READ = "what it reads may have been written in another round"
_CONVERSIONS = frozenset({"item", "py:int"})
_INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8"})


class Expressions:
    """The expressions of one loop."""

    def __init__(self, domain: Domain, facts: Facts) -> None:
        self.domain = domain
        self.facts = facts
        self.env: dict[str, Value] = dict(domain.names)
        """The names that depend on the round."""
        self.carrier: ast.expr | None = None
        """The tensor that the result is written to."""
        self.expected: int | None = None
        """How many dimensions a round has where the result is written to, if that is known."""
        self.under = ""
        """The mask whose elements are written: of what it picks all elements are computed."""
        self.is_joined = False
        """Whether the rounds are joined: of none of them that fails, as it does of all at once."""
        self.joined: ast.expr | None = None
        """What ``torch.cat`` or ``torch.stack`` joins: of no numbers."""
        self.is_masking = False
        """Whether it reads a mask, whose rows are compared with one number each."""
        self.is_counting = False
        """Whether all that a round compares is added up: ``(labels == i).sum()``."""
        self.taken: set[str] = set()
        """The names that are read as tensors, or as numbers of all rounds."""
        self.listed: dict[str, ast.expr] = {
            k: name(k) for k, v in domain.names.items() if v.is_listed
        }
        """The names of integers that Python computes in each round, with how."""
        self.positive: set[str] = set()
        """Numbers of a round that are asserted not to be negative."""
        self.means: set[str] = set()
        """The names of what is computed of means of parts of rows: they may be NaN."""
        self.own_rows: dict[str, tuple[int | str | None, int]] = {}
        """What the loop writes to, by its code, and which rows: those alone may be read."""
        self.measured: frozenset[str] = frozenset()
        """What the loop takes the length of."""
        self.conditions: dict[str, None] = dict.fromkeys(domain.conditions)
        """The conditions that nobody has proven, in the order met."""
        self.shown: dict[str, ast.expr] = dict(domain.shown)
        """What conditions are about, by the names that the verifier knows: ``index``."""
        self.tensors: list[ast.expr] = []
        """What nobody has proven to be tensors."""
        self.alike: list[list[ast.expr]] = []
        """Rows that meet, of which nobody has proven that they have one number of dimensions."""
        self.deep: list[ast.expr] = []
        """Rows of which nobody has proven that they have a dimension each."""
        self.met: list[ast.expr] = []
        """What all rounds share and meets what they do not: of one dtype where that is asked."""
        self.aligner = Aligner(self)
        self.indexer = Indexer(self)
        self.parts = Parts(self)
        self.calls = Calls(facts)
        self.together = Together(self)
        self.batched = Batched(self)

    def depends(self, code: ast.AST) -> bool:
        """Tell whether an expression depends on the round."""
        return not list_names(code).isdisjoint(self.env)

    def read(self, code: ast.expr, *, parts: bool = False) -> Value:
        """Return what an expression is for all rounds; ``parts``: it may have a part of each row.

        Raises:
            CannotBatchError: it treats the rounds in a way that one operator cannot.

        """
        value = without_one(self._read_any(code))
        if value.part is not None and not parts:
            raise CannotBatchError(LENGTHS)
        return value

    def _read_any(self, code: ast.expr) -> Value:
        asked = dict(self.conditions), dict(self.shown), set(self.taken)
        try:
            return self._read(code)
        except CannotBatchError:
            listed = list_integers(code, self)
            if listed is None:
                raise
            self.conditions, self.shown, self.taken = asked
            return listed

    def _read(self, code: ast.expr) -> Value:  # noqa: C901, PLR0911, PLR0912 - one case a syntax
        if not self.depends(code):
            return self._same(code)
        match code:
            case ast.Name(known):
                self.taken.add(known)
                return self.env[known]
            case ast.BinOp(left, ast.Pow(), right) if self.depends(right) and not (
                self.facts.is_number(left)
            ):
                raise CannotBatchError(POWERS)
            case ast.BinOp(left, op, right):
                return self._binary(left, right, lambda a, b: ast.BinOp(a, op, b), code)
            case ast.Compare(left, [sign], [right]) if not isinstance(
                sign, (ast.In, ast.NotIn, ast.Is, ast.IsNot)
            ):
                return self._binary(left, right, lambda a, b: ast.Compare(a, [sign], [b]), code)
            case ast.UnaryOp(ast.USub() | ast.Invert() as turned, operand):
                value = self.aligner.tensor(self.read(operand, parts=True))
                if value.part is not None:
                    return self.parts.negated(value, ast.UnaryOp(turned, operand))
                return like(value, ast.UnaryOp(turned, value.code), fresh=True)
            case ast.Subscript(ast.Call() as call, ast.Constant(int(which))) if (
                self.together.returns_several(call)
            ):
                parts = self.together.several(call)
                part = ast.Subscript(parts.code, literal(which), ast.Load())
                return like(parts, part, fresh=parts.fresh)
            case ast.Subscript(ast.Attribute(row, "shape"), ast.Constant(int(dim))):
                return self._size(row, dim)
            case ast.Subscript(base, index) if self.under and ast.unparse(index) == self.under:
                return self.read(base)
            case ast.Subscript():
                return self.indexer.read(code)
            case ast.Attribute(ast.Call() as call, "values" | "indices" as which):
                pair = self.together.several(call)
                return like(pair, ast.Attribute(pair.code, which, ast.Load()), fresh=True)
            case ast.Call():
                return self._call(code)
            case ast.IfExp(test, left, right):
                return choose_value(self, test, left, right)
        raise CannotBatchError(UNKNOWN_CODE)

    def _same(self, code: ast.expr) -> Value:
        for part in _values_in(code):
            if ast.unparse(part) in self.own_rows:
                raise CannotBatchError(WRITTEN_READ)
            if not self.facts.is_number(part):
                self.indexer.reads.append(part)
        self.require_pure(code)
        rank = 0 if self.facts.is_number(code) else self.facts.rank(code)
        fresh = isinstance(code, ast.BinOp)
        return Value(Kind.SAME, code, rank, fresh=fresh, integer=self.facts.is_int(code))

    def ask_for_dtype(self, *tensors: ast.expr) -> None:
        """Ask whether some tensors have one dtype."""
        self.conditions["same-dtype"] = None
        for tensor in tensors:
            self.shown[f"x{len(self.shown)}"] = tensor

    def ask_for_tensor(self, code: ast.expr) -> None:
        """Ask whether something is a tensor, not a list.

        Raises:
            CannotBatchError: it is a list.

        """
        if self.facts.is_tensor(code) is False:
            raise CannotBatchError(NO_TENSOR)
        self.conditions["is-tensor"] = None
        self.tensors.append(code)

    def ask_for_dimension(self, value: Value) -> None:
        """Ask whether rows have a dimension: of numbers the last one is that of the rounds."""
        rank = value.rank
        if isinstance(rank, RelativeRank):
            least = self.facts.likely(rank)
            known = self.facts.shapes.least_rank(rank.base) + rank.more
            if known > 0 or (isinstance(least, int) and least > 0):
                return
        self.conditions["rows-of-several"] = None
        self.deep.append(value.code)

    def is_vector(self, code: ast.expr) -> bool:
        """Tell whether an index has a length: it is no number."""
        return ast.unparse(code) in self.measured

    def require_pure(self, code: ast.expr) -> None:
        """Refuse what is another value in each round though it reads nothing of it.

        Raises:
            CannotBatchError: it draws random numbers, or calls what may do anything.

        """
        for inner in ast.walk(code):
            if isinstance(inner, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda)):
                raise CannotBatchError(UNKNOWN_CODE)
            if isinstance(inner, ast.Call):
                self._require_pure(inner)

    def _require_pure(self, call: ast.Call) -> None:
        node = self.facts.node(call)
        op = "" if node is None else node.op.removesuffix("(*)")
        if op in operators.RANDOM:
            raise CannotBatchError(RANDOM)
        if not op or op in {Op.CALL, Op.OPAQUE, "dropout"} or op.endswith("_"):
            raise CannotBatchError(UNKNOWN_CALL)

    def _binary(
        self,
        left: ast.expr,
        right: ast.expr,
        make: Callable[[ast.expr, ast.expr], ast.expr],
        code: ast.expr,
    ) -> Value:
        first, second = self.read(left, parts=True), self.read(right, parts=True)
        if first.part or second.part:
            return self.parts.binary(first, second, make, code)
        if isinstance(code, ast.BinOp) and isinstance(code.op, ast.MatMult):
            return self.together.product(first, second)
        if {first.kind, second.kind} <= {Kind.NUMBER, Kind.SAME} and _is_plain(first, second):
            return self._number(first, second, code)
        self.aligner.is_compared = isinstance(code, ast.Compare)
        self.aligner.is_joined = code is self.joined
        try:
            (a, b), whole = self.aligner.together(first, second)
        finally:
            self.aligner.is_compared = self.aligner.is_joined = False
        return like(whole, make(a, b), fresh=True)

    def _number(self, first: Value, second: Value, code: ast.expr) -> Value:
        """Return a number that is computed from the counter alone."""
        if isinstance(code, ast.Compare):
            raise CannotBatchError(UNKNOWN_CODE)
        offset = None
        match code:
            case ast.BinOp(_, ast.Add() | ast.Sub() as op, ast.Constant(int(more))):
                if first.offset is not None:
                    offset = first.offset + (more if isinstance(op, ast.Add) else -more)
            case ast.BinOp(ast.Constant(int(more)), ast.Add(), _) if second.offset is not None:
                offset = second.offset + more
        exact = isinstance(code, ast.BinOp) and isinstance(
            code.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
        )
        integer = exact and first.integer and second.integer
        return Value(Kind.NUMBER, code, 0, integer=integer, offset=offset)

    def _call(self, code: ast.Call) -> Value:  # noqa: C901, PLR0911, PLR0912 - one case a kind of operator
        node = self.facts.node(code)
        op = "" if node is None else node.op
        if last_name(code.func) == "unsqueeze":
            op = "unsqueeze"  # read as ``keepdim`` behind a sum, which the code does not say
        if op in operators.RANDOM or op == "dropout":
            raise CannotBatchError(RANDOM)
        if op in {"py:max", "py:min"} and len(code.args) == 2 and not code.keywords:  # noqa: PLR2004
            return self._extreme(code, op)
        match code:
            case ast.Call(ast.Attribute(row, "size"), [ast.Constant(int(dim))], []):
                return self._size(row, dim)
            case ast.Call(ast.Name("len"), [row], []) if "len" not in self.facts.flow.bound:
                return self._size(row, 0)
        if op == "where" and node is not None and len(node.args) == 1:
            raise CannotBatchError(UNKNOWN_CALL)  # the places of a mask: another number of them
        if op in _CONVERSIONS:
            owner = code.func.value if isinstance(code.func, ast.Attribute) else code.args[0]
            value = self.read(owner)
            if value.kind is Kind.NUMBER:
                if value.integer:
                    return value
                raise CannotBatchError(UNKNOWN_CODE)  # ``int(i / 2)``
            cut = op == "py:int" and not value.is_listed and not self._holds_integers(value, owner)
            if cut and value.kind is Kind.ROWS:
                value, cut = replace(value, code=method(value.code, "long")), False
            if value.rank == 0:
                return Value(Kind.ENTRY, value.code, 0, value.axis, is_cut=cut)
            return replace(value, is_cut=cut)
        match code:
            case ast.Call(ast.Name("abs"), [operand], []) if "abs" not in self.facts.flow.bound:
                value = self.aligner.tensor(self.read(operand))
                return like(value, method(value.code, "abs"), fresh=True)
        if op == "contiguous" and not code.args and isinstance(code.func, ast.Attribute):
            return replace(self.operand(code.func.value), fresh=False)  # a round has its own layout
        if op == "to" and self._is_operator(code):
            return self.converted(code)
        if op in operators.ELEMENTWISE and self._is_operator(code):
            if (part := self.parts.unary(code, op)) is not None:
                return part
            return self.elementwise(code, fresh=op in operators.NEW)
        repeats = op in operators.REPEATING and any(map(self.depends, code.args))
        if repeats and self._is_operator(code):
            return self.together.repeated(code, op)
        if op in operators.PRODUCTS and self._is_operator(code):
            called = last_name(code.func)
            return self.together.product(*map(self.read, self.batched.operands(code)), op=called)
        if op in operators.TURNING and self._is_operator(code):
            return self.together.turned(code, op)
        if op in operators.SHAPING and self._is_operator(code):
            return self.together.shaped(code, op)
        if op in operators.ALONG and self._is_operator(code):
            if op in operators.PAIRS and self.together.is_of_two(code):
                return self.elementwise(code, fresh=True)
            return self.together.along(code, op)
        treats = self.calls.how(code)
        if treats is not None and len(code.args) == 1 and not code.keywords:
            value = self.operand(code.args[0], parts=not treats.in_batches)
            if value.part is not None:
                return self.parts.mapped(value, code.func, treats.dims, treats.more)
            return self.calls.on_all(code, treats, value, self.aligner)
        found = None
        if self._is_operator(code):
            found = treat_images(code, self) or self.batched.read(code)
        if found is None:
            raise CannotBatchError(self.calls.reason or UNKNOWN_CALL)
        return found

    def _holds_integers(self, value: Value, one: ast.expr) -> bool:
        """Tell whether one number of a tensor or a list is surely an integer."""
        dtypes = {self.facts.dtype(code) for code in (one, value.code, value.asked)}
        return bool(dtypes & _INTEGERS) or self.facts.is_int(one)

    def _is_operator(self, code: ast.Call) -> bool:
        """Tell whether a call is one of an operator, not of a function that ends with one."""
        if self.facts.flow.names.dotted(code.func) is not None:
            module, _, _ = (self.facts.flow.names.dotted(code.func) or "").rpartition(".")
            return module in TORCH_FUNCTIONS
        match code.func:
            case ast.Attribute(owner):
                return self.depends(owner) or self.facts.is_tensor(owner) is True
        return False

    def _extreme(self, code: ast.Call, op: str) -> Value:
        """Return ``max(a, b)`` of Python for two numbers that are tensors."""
        first, second = (self.read(a) for a in code.args)
        one = next((v for v in (first, second) if v.kind is Kind.SAME), None)
        if one is not None and self.facts.is_number(one.code):
            other = self.aligner.tensor(second if one is first else first)
            if other.rank != 0:
                raise CannotBatchError(UNKNOWN_CALL)
            bound = "min" if op == "py:max" else "max"
            made = ast.Call(
                ast.Attribute(other.code, "clamp", ast.Load()), [], [ast.keyword(bound, one.code)]
            )
            self.conditions["no-nan"] = None
            self.conditions["float-values"] = None
            return like(other, made, fresh=True)
        (a, b), whole = self.aligner.together(first, second)
        if whole.rank != 0:
            raise CannotBatchError(UNKNOWN_CALL)
        self.conditions["no-nan"] = None
        called = ast.Attribute(ast.Name("torch", ast.Load()), f"{op[3:]}imum", ast.Load())
        return like(whole, ast.Call(called, [a, b], []), fresh=True)

    def elementwise(self, code: ast.Call, *, fresh: bool) -> Value:
        """Return an operator that needs of its operands the elements at one place."""
        owner = code.func.value if isinstance(code.func, ast.Attribute) else None
        is_method = owner is not None and self.depends(owner)
        if owner is not None and not is_method and self.facts.is_tensor(owner):
            is_method = True
        if any(isinstance(a, ast.Starred) for a in code.args):
            raise CannotBatchError(UNKNOWN_CODE)
        given = [*([owner] if is_method and owner is not None else []), *code.args]
        values = [self.read(a) for a in given]
        named = [self.read(k.value) for k in code.keywords]
        operands = [v for v in values if self._is_operand(v)]
        operands += [v for v in named if v.kind is not Kind.SAME]
        together, whole = self.aligner.together(*operands)
        aligned = iter(together)
        codes = [next(aligned) if self._is_operand(v) else v.code for v in values]
        words = [
            ast.keyword(k.arg, next(aligned) if v.kind is not Kind.SAME else v.code)
            for k, v in zip(code.keywords, named, strict=True)
        ]
        func: ast.expr = code.func
        if is_method and isinstance(code.func, ast.Attribute):
            func, codes = ast.Attribute(codes[0], code.func.attr, ast.Load()), codes[1:]
        return like(whole, ast.Call(func, codes, words), fresh=fresh)

    def _size(self, row: ast.expr, dim: int) -> Value:
        """Return the length of a dimension of each row, which all of them share."""
        value = self.operand(row)
        if dim < 0 or not isinstance(value.code, (ast.Name, ast.Attribute, ast.Subscript)):
            raise CannotBatchError(UNKNOWN_CODE)
        size = parse(f"{ast.unparse(value.code)}.shape[{dim + (dim >= value.axis)}]")
        self.facts.sizes.add(ast.unparse(size))
        return Value(Kind.SAME, size, 0, integer=True)

    def converted(self, code: ast.Call) -> Value:
        """Return ``x[i].to(y.device)``, which may be the row itself."""
        others = [*code.args, *(k.value for k in code.keywords)]
        if not isinstance(code.func, ast.Attribute) or any(map(self.depends, others)):
            raise CannotBatchError(UNKNOWN_CALL)
        for other in others:
            self.read(other)
        value = self.operand(code.func.value)
        func = ast.Attribute(value.code, code.func.attr, ast.Load())
        made = ast.Call(func, code.args, code.keywords)
        return replace(value, code=made, fresh=False, source=made)

    def operand(self, code: ast.expr, *, parts: bool = False) -> Value:
        """Return the tensor that an operator takes which does not broadcast."""
        outside = self.expected, self.carrier
        self.expected = self.carrier = None
        value = self.aligner.tensor(self.read(code, parts=parts))
        self.expected, self.carrier = outside
        if value.kind is not Kind.ROWS:
            raise CannotBatchError(UNKNOWN_CODE)
        return value

    def _is_operand(self, value: Value) -> bool:
        """Tell whether a value is a tensor that takes part, not a number or a dtype."""
        if value.kind is not Kind.SAME:
            return True
        known = self.facts.is_tensor(value.code) is not None or is_of_several(value.code)
        return value.rank != 0 and known


def _values_in(code: ast.AST) -> Iterator[ast.expr]:
    """Yield the names and attributes whose elements are read, not those asked for a shape."""
    match code:
        case ast.Attribute(_, "shape" | "device" | "dtype" | "ndim"):
            return
        case ast.Call(ast.Attribute(_, "size" | "dim" | "numel"), args):
            for arg in args:
                yield from _values_in(arg)
            return
        case ast.Call(ast.Name("len")):
            return
        case ast.Call(func) if isinstance(func, ast.Attribute):
            yield from _values_in(func.value)
            children: Iterable[ast.AST] = [*code.args, *code.keywords]
        case ast.Call():
            children = [*code.args, *code.keywords]
        case ast.Name() | ast.Attribute():
            yield code
            return
        case _:
            children = ast.iter_child_nodes(code)
    for child in children:
        yield from _values_in(child)


def _is_plain(*values: Value) -> bool:
    """Tell whether all are numbers."""
    return all(v.kind is Kind.NUMBER or v.rank == 0 for v in values)
