"""Attributes that an object gets after ``__init__``: by ``fit``, ``setup``, a trainer, a server.

Where no call runs for want of them, each is what the code of the class says: what it is set to
elsewhere, how it is annotated, and what is done with it.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import last_name, root_name, walk
from npufix.rewriters.verification.calls.values import Spec, Tensor, Value
from npufix.rewriters.verification.inputs.objects.kept import read_methods
from npufix.rewriters.verification.inputs.objects.offers import make_layer, make_stand_in
from npufix.rewriters.verification.inputs.source.attributes import list_attributes_read, trees
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    guess_scalars,
)
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BUILD_S = 5.0
_MOST = 12
"""More of them are no few that were forgotten."""
_SHAPES = ((WIDTH,), (4, WIDTH), (2, 3, WIDTH), ())
_ROWS = 4
_TORCH = frozenset({"torch", "F", "nn", "th", "functional"})
_OF_TENSORS = frozenset(dir(torch.Tensor)) - frozenset(
    [*dir(torch.nn.Module), *dir(list), *dir(dict), *dir(str), *dir(int), *dir(torch.device)]
)
_INDEX = r"(^|_)(idx|ids?|ind(ex|ices)|labels?|edge_index)$"
_MASK = r"mask|(^|_)(valid|event)$"
_LAYER = r"(?!Parameter$|Buffer$)[A-Z]"
"""What takes numbers, and no tensors: ``nn.Embedding(self.num_queries, 8)``."""


def find_late(owner: type, method: str, made: object) -> Iterator[tuple[tuple[str, Spec], ...]]:
    """Yield what may be set of an object that ``__init__`` leaves out and the method reads.

    Of what are tensors, nobody says how many dimensions they have.
    """
    names = [] if made is None else _list_absent(owner, method, made)
    if not 0 < len(names) <= _MOST:
        return
    told = {name: _find_told(owner, name) for name in names}
    for shape in _SHAPES if None in told.values() else _SHAPES[:1]:
        yield tuple((n, _of_shape(n, shape) if s is None else s) for n, s in told.items())


def _list_absent(owner: type, method: str, made: object) -> list[str]:
    """Return what a method reads that is not there, or is None without a test of that."""
    absent: list[str] = []
    nodes = [n for tree in trees(owner, method) for n in walk(tree)]
    own = {ast.unparse(t) for n in nodes if isinstance(n, ast.Assign) for t in n.targets}
    for name in dict.fromkeys(n for n, _ in list_attributes_read(owner, method)):
        held = try_call(lambda n=name: [getattr(made, n)], _BUILD_S).value  # type: ignore[misc] # a default binds it
        if f"self.{name}" in own or getattr(owner, name, None) is not None:
            continue
        if held is None or (held == [None] and not _is_tested(nodes, name)):
            absent.append(name)
    return absent


def _is_tested(nodes: Sequence[ast.AST], name: str) -> bool:
    """Say whether a method may do without an attribute: ``if self.mask is not None``."""
    own = f"self.{name}"
    for node in nodes:
        match node:
            case ast.Assert():
                continue
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                if re.search(rf"{re.escape(own)}\b(?! is None)(?!\.)", ast.unparse(test)):
                    return True
    return False


def _find_told(owner: type, name: str) -> Spec | None:
    """Return what an attribute is by all that the class says; None for a tensor."""
    source, tree = read_methods(owner)
    own, annotation, tensor = f"self.{name}", "", False
    for node in walk(tree):
        match node:
            case ast.AnnAssign(target, said) if ast.unparse(target) == own:
                annotation = annotation or ast.unparse(said)
            case ast.Assign(targets, value) if own in map(ast.unparse, targets):
                if found := _find_set(name, value):
                    return found
                tensor |= _makes_tensor(value)
            case ast.Call(called, [first, *_]) if ast.unparse(first) == own:
                makes = re.match(_LAYER, last_name(called)) is not None  # of so many rows
                tensor |= root_name(called) in _TORCH and not makes
            case ast.Attribute(inner, part) if ast.unparse(inner) == own:
                tensor |= part in _OF_TENSORS
            case ast.Subscript(inner, at) if ast.unparse(inner) == own:
                tensor |= isinstance(at, ast.Slice | ast.Tuple | ast.Name)
    if "Tensor" in annotation or (tensor and not annotation):
        return None
    if re.search(rf"{re.escape(own)}\(", source):
        return make_stand_in(name)
    guesses = guess_scalars(Parameter(name, annotation, None))
    plain = next((s for s in guesses if isinstance(s, Value)), None)
    return plain or Value(_share(name))


def _find_set(name: str, value: ast.expr) -> Spec | None:
    match value:
        case ast.Constant(bool() | int() | float() | str() as known):
            return Value(known)
        case ast.Call(ast.Name("len" | "int"), _):
            return Value(_ROWS)
        case ast.Call(ast.Attribute(ast.Name("nn") | ast.Attribute(attr="nn"), kind)):
            made = getattr(torch.nn, kind, None)
            if isinstance(made, type) and issubclass(made, torch.nn.Module):
                return make_layer(kind, sum(map(ord, name)))
    return None


def _makes_tensor(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else value
    return isinstance(value, ast.Call) and (
        root_name(called) in _TORCH or last_name(called) in _OF_TENSORS
    )


def _share(name: str) -> float:
    """Return a number that no other attribute has, and no change hides behind."""
    return (sum(map(ord, name)) % 29 + 4) / 32


def _of_shape(name: str, shape: tuple[int, ...]) -> Spec:
    if re.search(_INDEX, name):
        return Tensor(shape, "int", 2, sound=True)
    return Tensor(shape, "bool" if re.search(_MASK, name) else "float")
