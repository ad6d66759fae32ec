"""Whether a ``forward`` treats the elements of its batch by themselves."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.rewriters.edit.loops.submodules import Treatment

_ELEMENTWISE = frozenset(
    {"abs", "clamp", "cos", "exp", "gelu", "log", "relu", "sigmoid", "silu", "sin", "softplus",
     "sqrt", "tanh"}
)  # fmt: skip
_REDUCING = frozenset({"sum", "mean", "amax", "amin", "max", "min"})
_KEEPING = frozenset({"softmax", "cumsum"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def dimensions_lost(
    forward: ast.FunctionDef, submodule: Callable[[str], Treatment | None]
) -> int | None:
    """Return how many dimensions fewer than the argument the smallest value in between has.

    ``None`` where row ``b`` of the result may need more than row ``b`` of the one argument.
    ``submodule`` says how ``self.name`` treats its argument.
    """
    params = forward.args.args
    if len(params) != 2 or forward.args.vararg or forward.args.kwonlyargs:  # noqa: PLR2004 - self, x
        return None
    reader = _Rows(submodule, params[1].arg)
    *before, last = forward.body
    if not all(map(reader.statement, before)):
        return None
    if not isinstance(last, ast.Return) or last.value is None or reader.rows(last.value) is None:
        return None
    return -reader.least


class _Rows:
    """Follows which names hold rows of the batch along their first dimension.

    For each it is known how many dimensions it has, compared with the argument.
    """

    def __init__(self, submodule: Callable[[str], Treatment | None], argument: str) -> None:
        self.submodule = submodule
        self.names = {argument: 0}
        self.least = 0

    def statement(self, code: ast.stmt) -> bool:
        """Follow one statement; tell whether it could be."""
        match code:
            case ast.Expr(ast.Constant()):
                return True
            case ast.Assign([ast.Name(target)], value):
                found = self.rows(value)
            case ast.Assign([ast.Tuple([ast.Name(target), ast.Name(rest)])], ast.Call() as call):
                # ``out, _ = self.lstm(x)``: the states have the batch in another dimension
                found = self._read_call(call, is_tuple=True)
                self.names.pop(rest, None)
            case _:
                return False
        if found is not None:
            self.names[target] = found
        return found is not None

    def rows(self, code: ast.expr) -> int | None:
        """Return the dimensions of rows, ``None`` if an expression is none."""
        found = self._rows(code)
        self.least = min(self.least, found or 0)
        return found

    def _rows(self, code: ast.expr) -> int | None:  # noqa: PLR0911 - one case a syntax
        match code:
            case ast.Name(known):
                return self.names.get(known)
            case ast.BinOp(left, op, right) if isinstance(op, _OPERATORS):
                first = self.rows(left)
                alike = isinstance(right, ast.Constant) or self.rows(right) == first
                return first if alike else None
            case ast.Subscript(value, ast.Tuple([ast.Slice(None, None, None), *rest])):
                base = self.rows(value)
                fixed = base is not None and all(map(_is_fixed, rest))
                dropped = sum(not isinstance(item, ast.Slice) for item in rest)
                return base - dropped if base is not None and fixed else None
            case ast.Subscript(ast.Call() as call, ast.Constant(0)):
                is_pair = _method_of(call) in {"max", "min"}
                return self._along(call) if is_pair else self._read_call(call, is_tuple=True)
            case ast.Attribute(ast.Call() as call, "values"):
                return self._along(call)
            case ast.Call():
                if _method_of(code) in (_REDUCING | _KEEPING) - {"max", "min"}:
                    return self._along(code)
                return self._read_call(code, is_tuple=False)
        return None

    def _read_call(self, code: ast.Call, *, is_tuple: bool) -> int | None:
        match code.func, code.args:
            case ast.Attribute(ast.Name("self"), attr), [argument] if not code.keywords:
                treats = self.submodule(attr)
                found = self.rows(argument)
                if treats is None or found is None or treats.is_tuple != is_tuple:
                    return None
                # What it takes together must not be the batch.
                self.least = min(self.least, found - max(0, treats.dims - 1))
                return found
            case ast.Attribute(ast.Name("torch" | "F"), called), [argument] if not is_tuple:
                return self.rows(argument) if called in _ELEMENTWISE else None
            case ast.Attribute(owner, called), [] if not is_tuple:
                return self.rows(owner) if called in _ELEMENTWISE else None
        return None

    def _along(self, code: ast.Call) -> int | None:
        """Return an operator along another dimension than the first."""
        called = _method_of(code)
        if not isinstance(code.func, ast.Attribute) or called not in _REDUCING | _KEEPING:
            return None
        words = {k.arg: k.value for k in code.keywords}
        dim = words.pop("dim", code.args[0] if code.args else None)
        positive = isinstance(dim, ast.Constant) and type(dim.value) is int and dim.value > 0
        base = self.rows(code.func.value)
        if base is None or not positive or words or len(code.args) > 1:
            return None
        return base - (called in _REDUCING)


def _method_of(code: ast.Call) -> str:
    return code.func.attr if isinstance(code.func, ast.Attribute) else ""


def _is_fixed(item: ast.expr) -> bool:
    match item:
        case ast.Slice(lower, upper, step):
            return all(b is None or _is_fixed(b) for b in (lower, upper, step))
        case ast.Constant(value):
            return type(value) is int
        case ast.UnaryOp(ast.USub(), ast.Constant()):
            return True
    return False
