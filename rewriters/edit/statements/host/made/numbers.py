"""What an expression is computed from, if it is of numbers alone."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.doubles import is_double
from npufix.rewriters.facts.occasions import is_in_loop, occasion
from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.graph.modules.syntax import last_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_RANGES = frozenset({"arange", "linspace"})
_MAKERS = frozenset(f"torch.{name}" for name in {*_RANGES, "eye", "full", "ones", "zeros"})
_GIVEN = frozenset({"dtype", "end", "fill_value", "m", "n", "size", "start", "step", "steps"})
"""Arguments that say nothing of where, and ask for no gradient."""
_COMPUTING = frozenset(
    {
        "abs", "bool", "cat", "clamp", "concat", "contiguous", "cos", "cumsum", "div",
        "eq", "exp", "expand", "flatten", "flip", "float", "ge", "gt", "half", "int", "le", "log",
        "logical_and", "logical_not", "logical_or", "long", "lt", "masked_fill", "mul", "ne",
        "outer", "pow", "repeat", "reshape", "rsqrt", "sin", "sqrt", "square", "squeeze", "stack",
        "sub", "t", "tile", "transpose", "tril", "triu", "unsqueeze", "view",
    }
)  # fmt: skip
_OF_NUMBERS = re.compile(r"math\.\w+|float|int|len")
"""What returns a number of Python, whatever it is given."""


class OtherSourceError(Exception):
    """Something else than numbers is read."""


class Made:
    """What an expression is computed from: makers of tensors, and what has to be numbers."""

    def __init__(self, here: Surroundings) -> None:
        self.here = here
        self.makers: list[ast.Call] = []
        self.named: list[ast.expr] = []
        """What has a name first that nothing else reads: ``rows = torch.arange(n)``."""
        self.numbers: list[ast.expr] = []
        self.steps: list[ast.expr] = []
        """Where ranges start, and their steps: what is no integer is rounded in another way."""

    def read(self, code: ast.expr) -> None:  # noqa: C901, PLR0912 - one case a kind of code
        """Take in an expression.

        Raises:
            OtherSourceError: another tensor takes part, or a call that may do anything.

        """
        match code:
            case ast.Call(func, args, words) if self.here.flow.names.dotted(func) in _MAKERS:
                name = last_name(code.func)
                filled = name != "arange" and args and self.here.is_tensor(args[-1])
                if filled or not all(map(_is_plain, words)):
                    raise OtherSourceError
                if name not in _RANGES and any(_holds_none(arg) for arg in args[:1]):
                    raise OtherSourceError  # nothing is copied
                self._refuse_double(k.value for k in words)
                self.makers.append(code)
                if name == "arange":
                    self.steps += _starts_and_steps(code)
            case ast.Call(ast.Attribute(owner, name), args, words) if name in _COMPUTING:
                self._refuse_double(k.value for k in words)
                is_method = self.here.flow.names.dotted(code.func) != f"torch.{name}"
                values = [k.value for k in words if k.arg not in {"dim", "dtype"}]
                for part in (*([owner] if is_method else []), *args, *values):
                    self.read(part)
            case ast.Call(
                ast.Attribute(owner, "to" | "type"), [ast.Attribute(ast.Name("torch")) as kind], []
            ):
                self._refuse_double([kind])
                self.read(owner)
            case ast.Call(ast.Attribute(owner, "to" | "type"), [kind], []) if (
                last_name(kind) == "dtype"
            ):
                self.read(owner)
            case ast.BinOp(left, _, right):
                self.read(left)
                self.read(right)
            case ast.Compare(
                left,
                [ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() | ast.Eq() | ast.NotEq()],
                [right],
            ):
                self.read(left)
                self.read(right)
            case ast.Subscript(whole, index) if not isinstance(whole, ast.Attribute) and (
                not isinstance(whole, ast.Name) or self.here.is_tensor(whole)
            ):
                self._take_view(whole, index)
            case ast.Name() if self.here.is_tensor(code):
                self._take_named(code)
            case ast.UnaryOp(_, inner):
                self.read(inner)
            case ast.List(parts) | ast.Tuple(parts):
                for part in parts:
                    self.read(part)
            case ast.Constant():
                pass
            case ast.Attribute(ast.Name("torch")):
                pass  # a dtype
            case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call():
                self._take_number(code)
            case _:
                raise OtherSourceError

    def _refuse_double(self, kinds: Iterable[ast.expr]) -> None:
        """Leave float64 to the host: no AI core computes it."""
        if any(is_double(self.here, kind) for kind in kinds):
            raise OtherSourceError

    def _take_view(self, whole: ast.expr, index: ast.expr) -> None:
        """Take in ``x[None]``, ``x[:, None]`` and ``x[..., :-1]``: no index is a tensor."""
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            match part:
                case ast.Slice(first, last, step):
                    limits = [limit for limit in (first, last, step) if limit is not None]
                case ast.Constant():
                    limits = []
                case _:
                    raise OtherSourceError
            for limit in limits:
                self.read(limit)
        before = len(self.makers)
        self.read(whole)
        if before == len(self.makers):
            raise OtherSourceError

    def _take_named(self, name: ast.Name) -> None:
        source = source_of(self.here, name)
        if source is None or isinstance(source, ast.Name):
            raise OtherSourceError
        self.named.append(source)
        self.read(source)

    def _take_number(self, code: ast.expr) -> None:
        if self.here.is_tensor(code):
            raise OtherSourceError
        if isinstance(code, ast.Call):
            if not _OF_NUMBERS.fullmatch(ast.unparse(code.func)):
                raise OtherSourceError
            return
        self.numbers.append(code)

    def has_integers(self) -> bool | None:
        """Tell whether all ranges go from integer to integer."""
        known = [_is_integer(self.here, code) for code in self.steps]
        return False if False in known else (True if all(known) else None)

    def are_numbers(self) -> bool:
        """Tell whether the source shows that no tensor of the host takes part."""
        lengths = {self.here.value(part) for m in self.makers for part in _lengths(m)}
        for code in self.numbers:
            value = self.here.value(code)
            if value is None:
                return False
            known = self.here.facts(self.here.evaluations[id(code)], x=value).is_number("x")
            if not known and value not in lengths:
                return False
        return True


def _is_plain(word: ast.keyword) -> bool:
    """Tell whether an argument says neither where, nor asks for a gradient."""
    match word:
        case ast.keyword("requires_grad", ast.Constant(False)):
            return True
    return word.arg in _GIVEN


def _holds_none(shape: ast.expr) -> bool:
    """Tell whether a tensor of some lengths has no elements: ``(0, n)``."""
    lengths = shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else [shape]
    return any(isinstance(n, ast.Constant) and n.value == 0 for n in lengths)


def _starts_and_steps(code: ast.Call) -> list[ast.expr]:
    given = code.args if len(code.args) > 1 else []
    return [*given[:1], *given[2:], *(k.value for k in code.keywords if k.arg in {"start", "step"})]


def _is_integer(here: Surroundings, code: ast.expr) -> bool | None:
    value = here.value(code)
    if isinstance(code, ast.Constant) or value is None:
        return isinstance(code, ast.Constant) and type(code.value) is int
    return here.facts(here.evaluations[id(code)], x=value).is_int("x")


def _lengths(maker: ast.Call) -> Iterator[ast.expr]:
    """Yield what is a number because it is the length of a tensor: ``half`` of ``arange(half)``."""
    for code in (*maker.args, *(k.value for k in maker.keywords if k.arg != "dtype")):
        yield from (n for n in ast.walk(code) if isinstance(n, (ast.Name, ast.Attribute)))


def proofs_of(here: Surroundings, code: ast.expr, made: Made) -> set[str]:
    """Return the conditions that the source shows of what is made."""
    proven = set[str]()
    if made.are_numbers():
        proven.add("numbers-alone")
    if made.has_integers():
        proven.add("integer-limits")
    if occasion(here.flow, code=code) is Occasion.STEP or is_in_loop(here.flow, code.lineno):
        proven.add("runs-often")
    return proven


def source_of(here: Surroundings, moved: ast.expr) -> ast.expr | None:
    """Return what is moved, also where it gets a name that nothing else reads."""
    if not isinstance(moved, ast.Name):
        return moved
    value = here.value(moved)
    if value is None or len(here.users(value)) != 1 or here.loop_of(moved) is not None:
        return None
    codes = [e.code for e in here.flow.evaluations if e.node is value]
    sources = [code for code in codes if isinstance(code, (ast.Call, ast.BinOp))]
    whole = [s for s in sources if isinstance(here.parents.get(id(s)), ast.Assign)]
    return whole[0] if len(whole) == 1 else None
