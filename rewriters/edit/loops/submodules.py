"""Which calls of modules treat the rows of what they get by themselves."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Value,
    is_true,
    method,
    owned,
    parse,
    shift,
    subscript,
)
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.syntax import last_name
from npufix.rewriters.graph.modules.wrapped_modules import NN
from npufix.rewriters.graph.submodules import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.rewriters.edit.loops.aligning import Aligner
    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.edit.loops.given.facts import Facts

MODULES = "each round uses another module, with weights of its own"
STATISTICS = "its batch norm takes its statistics from the rows of one round"
DROPOUT = "its dropout draws random numbers, and would draw other ones"
_ELEMENTWISE = (frozenset(FUNCTIONS) - {"Softmax", "LogSoftmax", "Flatten"}) | {
    "ELU", "Hardtanh", "LeakyReLU", "Softsign",
}  # fmt: skip
_LAST = frozenset({"Linear", "LayerNorm", "RMSNorm"})
_PER_IMAGE = {
    f"{kind}{dims}d": dims + 1
    for kind in (
        "AdaptiveAvgPool",
        "AdaptiveMaxPool",
        "AvgPool",
        "Conv",
        "ConvTranspose",
        "MaxPool",
    )
    for dims in (1, 2, 3)
}
"""Modules that treat each image of a batch by itself, and how many dimensions an image has."""
_OF_IMAGES = {re.sub("(?<!^)(?=[A-Z])", "_", name).lower(): n for name, n in _PER_IMAGE.items()}
"""Functions that do so, ``F.max_pool2d``; they also take one image that is no batch."""
_OF_BATCHES = {"grid_sample": (2, 3), "interpolate": (1, 2)}
"""How many batches others take, and how many dimensions each image has at least."""
_SETTINGS = {"max_pool": 5, "adaptive_max_pool": 1}
"""Behind these they are asked for positions as well."""
_FUNCTIONS = frozenset(
    {"abs", "clamp", "cos", "exp", "gelu", "log", "relu", "sigmoid", "silu", "sin", "softplus",
     "sqrt", "tanh"}
)  # fmt: skip
_REDUCING = frozenset({"sum", "mean", "amax", "amin", "max", "min"})
_KEEPING = frozenset({"softmax", "cumsum"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_BESIDE_BATCH = 2
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})


@dataclass(frozen=True)
class Treatment:
    """How a module treats what it gets."""

    dims: int = 0
    """How many of the last dimensions it takes together, or needs beside that of the batch."""
    in_batches: bool = False
    """Whether only the first dimension is independent of the others."""
    is_tuple: bool = False
    """Whether it returns the rows as the first of several results."""
    more: int = 0
    """How many dimensions it adds at the end: an embedding of indices has one."""


class Calls:
    """The calls of submodules in one loop."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.reason = ""
        """Why the last call is none that treats rows by themselves."""

    def how(self, code: ast.Call) -> Treatment | None:
        """Return how a call treats its argument, ``None`` if that is not known."""
        self.reason = ""
        match code.func:
            case ast.Attribute(ast.Name("self"), attr) if self.facts.flow.cls is not None:
                return self._of_attribute(self.facts.flow.cls, attr)
            case ast.Subscript():
                self.reason = MODULES
        return None

    def _of_attribute(self, cls: ast.ClassDef, attr: str) -> Treatment | None:
        names = self.facts.flow.names
        values = [value for _, value in list_assigned(names, cls, attr)]
        found = [None if v is None else self._of_value(v) for v in values]
        same = bool(found) and all(f is not None and f == found[0] for f in found)
        return found[0] if same else None

    def _of_value(self, value: ast.expr) -> Treatment | None:
        if not isinstance(value, ast.Call):
            return None
        names = self.facts.flow.names
        module, _, name = (names.dotted(value.func) or "").rpartition(".")
        if NN.fullmatch(module):
            return self._of_torch(value, name)
        if isinstance(value.func, ast.Name) and value.func.id in names.classes:
            return self._of_class(names.classes[value.func.id])
        return None

    def _of_torch(  # noqa: PLR0911 - one case a kind of module
        self, made: ast.Call, name: str
    ) -> Treatment | None:
        words = {k.arg: k.value for k in made.keywords}
        if name == "Sequential" and not words:
            return self._of_all(made.args)
        if "BatchNorm" in name:
            self.reason = STATISTICS
        if "ropout" in name:
            self.reason = DROPOUT
        if name in _ELEMENTWISE:
            return Treatment()
        if name in _LAST:
            shape = made.args[0] if made.args else words.get("normalized_shape")
            several = isinstance(shape, (ast.Tuple, ast.List))
            plain = name == "Linear" or isinstance(shape, (ast.Constant, ast.Name, ast.Attribute))
            if isinstance(shape, (ast.Tuple, ast.List)):
                return Treatment(len(shape.elts))
            return Treatment(1) if plain and not several else None
        if name == "Embedding" and not words.keys() & {"max_norm", "scale_grad_by_freq"}:
            return Treatment(more=1) if len(made.args) <= _BESIDE_BATCH else None
        if name in _PER_IMAGE and not is_true(words.get("return_indices")):
            return Treatment(_PER_IMAGE[name], in_batches=True)
        if name in _RECURRENT and is_true(words.get("batch_first")) and not words.get("dropout"):
            return Treatment(2, in_batches=True, is_tuple=True)
        return None

    def _of_all(self, parts: Sequence[ast.expr]) -> Treatment | None:
        found = [self._of_value(part) for part in parts]
        first = found[0] if found else None
        if first is None or any(f is None or f.is_tuple or f.more for f in found):
            return None
        if _is_in_place(parts[0]):
            return None
        all_of_them = [f for f in found if f is not None]
        batches = any(f.in_batches for f in all_of_them)
        return Treatment(max(f.dims for f in all_of_them), in_batches=batches)

    def _of_class(self, cls: ast.ClassDef) -> Treatment | None:
        """Return how a class of this file does, going by its ``forward``."""

        def submodule(attr: str) -> Treatment | None:
            return self._of_attribute(cls, attr)

        bases = [self.facts.flow.names.dotted(base) for base in cls.bases]
        forward = [m for m in cls.body if isinstance(m, ast.FunctionDef) and m.name == "forward"]
        if bases != ["torch.nn.Module"] or len(forward) != 1 or forward[0].decorator_list:
            return None
        lost = dimensions_lost(forward[0], submodule)
        return None if lost is None else Treatment(lost + 1, in_batches=True)

    def on_all(self, code: ast.Call, treats: Treatment, value: Value, aligner: Aligner) -> Value:
        """Return the call on the rows of all rounds."""
        if not treats.in_batches:
            value = aligner.with_free_end(value, treats.dims)
            made = ast.Call(code.func, [value.code], [])
            rank = shift(value.rank, treats.more)
            return Value(Kind.ROWS, made, rank, value.axis, fresh=True, source=value.asked)
        if not isinstance(value.rank, int):
            aligner.of.conditions["batch-first"] = None
        elif value.rank <= treats.dims:
            raise CannotBatchError(UNKNOWN_RANK)
        if value.axis > 1:
            value = aligner.in_front(value)
        merged: ast.expr = ast.Call(code.func, [_merge(value)], [])
        if treats.is_tuple:
            merged = subscript(merged, [ast.Constant(0)])
        apart = _take_apart(merged, value)
        return Value(Kind.ROWS, apart, None, value.axis, fresh=True, source=value.asked)


def treat_images(code: ast.Call, of: Expressions) -> Value | None:
    """Return a function of torch on the images of all rounds, each of which it treats by itself.

    ::

        F.grid_sample(x[i : i + 1], at[i : i + 1])[0]       F.grid_sample(x, at)
        F.interpolate(x[:, i], size=8)                      F.interpolate(x.flatten(0, 1), size=8)

    Raises:
        CannotBatchError: it is such a function, but other arguments differ between the rounds.

    """
    called = last_name(code.func)
    count, dims = _OF_BATCHES.get(called, (1, _OF_IMAGES.get(called, 0)))
    if not dims or len(code.args) < count:
        return None
    rest = code.args[count:]
    if _asks_positions(code, called, len(rest)):
        return None
    _require_settings(of, *rest, *(k.value for k in code.keywords))
    # The others have as many images as the first, or torch raises.
    images = [code.args[0], *map(_take_image, code.args[1:count])]
    values = [of.operand(image) for image in images]
    single = values[0].rank == dims and called in _OF_IMAGES
    if single or {v.axis for v in values} != {1}:
        values = [of.aligner.in_front(v) for v in values]
    first, given = values[0], [v.code for v in values]
    if any(isinstance(v.rank, int) and v.rank <= dims for v in values) and not single:
        raise CannotBatchError(UNKNOWN_RANK)
    if not isinstance(first.rank, int) and called in _OF_IMAGES:
        of.conditions["batch-first"] = None
    if not single:
        given = list(map(_merge, values))
    made: ast.expr = ast.Call(code.func, [*given, *rest], code.keywords)
    if not single:
        made = _take_apart(made, first)
    return Value(Kind.ROWS, made, first.rank, first.axis, fresh=True, source=first.asked)


def _asks_positions(code: ast.Call, called: str, settings: int) -> bool:
    """Tell whether a pooling may be asked where what it takes is, and returns two results."""
    return settings > _SETTINGS.get(called[:-2], settings) or any(
        k.arg == "return_indices" for k in code.keywords
    )


def _require_settings(of: Expressions, *settings: ast.expr) -> None:
    for other in settings:
        if of.depends(other):
            raise CannotBatchError(LENGTHS)
        of.read(other)


def _take_image(code: ast.expr) -> ast.expr:
    """Return ``x[i][None]`` for ``x[i : i + 1]``."""
    match code:
        case ast.Subscript(
            base, ast.Slice(ast.Name(low) as at, ast.BinOp(ast.Name(name), ast.Add(), more), None)
        ) if low == name and isinstance(more, ast.Constant) and more.value == 1:
            return subscript(subscript(base, [at]), [ast.Constant(None)])
    return code


def _merge(value: Value) -> ast.expr:
    """Return the batches of all rounds as one."""
    one = None if value.axis else _inside_one(value.code)
    return one or method(value.code, "flatten", 0, 1)


def _take_apart(made: ast.expr, value: Value) -> ast.expr:
    """Return what is made of one batch as that of each round again."""
    if not value.axis and _inside_one(value.code) is not None:
        return method(made, "unsqueeze", 1)
    return method(made, "unflatten", 0, parse(f"{owned(value.code)}.shape[:2]"))


def _inside_one(code: ast.expr) -> ast.expr | None:
    """Return ``x`` of ``x.unsqueeze(1)`` or ``x[:, None]``, where each round has one image."""
    match code:
        case ast.Call(ast.Attribute(inner, "unsqueeze"), [ast.Constant(1)], []):
            return inner
        case ast.Subscript(inner, ast.Tuple([ast.Slice(None, None, None), ast.Constant(None)])):
            return inner
    return None


def without_one(value: Value) -> Value:
    """Return ``x`` of ``x.unsqueeze(1)[:, 0]`` or ``x.unsqueeze(1).squeeze(1)``, else the same."""
    match value.code if value.kind is Kind.ROWS and not value.axis else None:
        case ast.Subscript(
            one, ast.Tuple([ast.Slice(None, None, None), ast.Constant(0)])
        ) | ast.Call(ast.Attribute(one, "squeeze"), [ast.Constant(1)], []):
            inner = _inside_one(one)
            if inner is not None:
                made = last_name(inner.func) if isinstance(inner, ast.Call) else ""
                fresh = value.fresh or made in {*_OF_IMAGES, *_OF_BATCHES}
                return replace(value, code=inner, fresh=fresh)
    return value


def _is_in_place(code: ast.expr) -> bool:
    words = code.keywords if isinstance(code, ast.Call) else []
    positional = isinstance(code, ast.Call) and last_name(code.func) == "ReLU" and bool(code.args)
    return positional or any(k.arg == "inplace" for k in words)


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
                if treats is None or found is None or treats.is_tuple != is_tuple or treats.more:
                    return None
                # What it takes together must not be the batch.
                self.least = min(self.least, found - max(0, treats.dims - 1))
                return found
            case ast.Attribute(ast.Name("torch" | "F"), called), [argument] if not is_tuple:
                return self.rows(argument) if called in _FUNCTIONS else None
            case ast.Attribute(owner, called), [] if not is_tuple:
                return self.rows(owner) if called in _FUNCTIONS else None
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
