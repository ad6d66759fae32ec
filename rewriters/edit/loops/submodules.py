"""Which calls of modules treat the rows of what they get by themselves."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.row_proof import dimensions_lost
from npufix.rewriters.edit.loops.values import (
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Value,
    method,
    parse,
    subscript,
)
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.syntax import last_name
from npufix.rewriters.graph.modules.wrapped_modules import NN
from npufix.rewriters.graph.submodules import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.loops.aligning import Aligner
    from npufix.rewriters.edit.loops.facts import Facts

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
        if name in _PER_IMAGE and not _is_true(words.get("return_indices")):
            return Treatment(_PER_IMAGE[name], in_batches=True)
        if name in _RECURRENT and _is_true(words.get("batch_first")) and not words.get("dropout"):
            return Treatment(2, in_batches=True, is_tuple=True)
        return None

    def _of_all(self, parts: Sequence[ast.expr]) -> Treatment | None:
        found = [self._of_value(part) for part in parts]
        first = found[0] if found else None
        if first is None or any(f is None or f.is_tuple for f in found):
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
            return Value(Kind.ROWS, made, value.rank, value.axis, fresh=True, source=value.asked)
        if not isinstance(value.rank, int) and treats.dims <= _BESIDE_BATCH:
            aligner.of.conditions["batch-first"] = None
        elif not isinstance(value.rank, int) or value.rank <= treats.dims:
            raise CannotBatchError(UNKNOWN_RANK)
        if value.axis > 1:
            value = aligner.in_front(value)
        merged: ast.expr = ast.Call(code.func, [method(value.code, "flatten", 0, 1)], [])
        shape = parse(f"{ast.unparse(value.code)}.shape[:2]")
        if treats.is_tuple:
            merged = subscript(merged, [ast.Constant(0)])
        apart = method(merged, "unflatten", 0, shape)
        return Value(Kind.ROWS, apart, None, value.axis, fresh=True, source=value.asked)


def _is_true(code: ast.expr | None) -> bool:
    return isinstance(code, ast.Constant) and code.value is True


def _is_in_place(code: ast.expr) -> bool:
    words = code.keywords if isinstance(code, ast.Call) else []
    positional = isinstance(code, ast.Call) and last_name(code.func) == "ReLU" and bool(code.args)
    return positional or any(k.arg == "inplace" for k in words)
