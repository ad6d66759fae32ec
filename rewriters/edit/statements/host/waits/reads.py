"""Calls that hand a value of the device to the host."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import (
    ARITHMETIC,
    READING,
    first_read,
    is_copied,
    is_tensor,
)
from npufix.rewriters.edit.statements.host.waits.limits import is_limit
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_REDUCTIONS = frozenset({"mean", "norm", "prod", "sum"})
_NUMBERS = frozenset({"float", "int", "bool"})
_OF_RANKS = re.compile(r"_?(all_)?reduce_?(mean|sum|avg|tensor)?")
"""A function that returns the mean or the sum of a tensor over all ranks."""


@dataclass(frozen=True, slots=True)
class Read:
    """A call that hands a value to the host."""

    code: ast.Call
    tensor: ast.expr
    how: str
    """``item``, ``tolist``, ``cpu``, ``numpy``, ``float``, ``int``, ``max``, ``min``."""


def read_of(  # noqa: PLR0911 - one case a call
    here: Surroundings, code: ast.Call
) -> Read | None:
    """Return what a call reads of a tensor, ``None`` for other calls."""
    match code:
        case ast.Call(ast.Attribute(tensor, "to"), [ast.Constant("cpu")], []) | ast.Call(
            ast.Attribute(tensor, "to"), [], [ast.keyword("device", ast.Constant("cpu"))]
        ):
            return None if here.is_tensor(tensor) is False else Read(code, tensor, "cpu")
        case ast.Call(ast.Attribute(tensor, how), [], []) if how in READING:
            sure = here.is_tensor(first_read(tensor))
            there = how == "numpy" and not is_copied(tensor)  # it raises for others
            tensor = first_read(tensor) if how == "item" else tensor
            return None if sure is False or there else Read(code, tensor, how)
        case ast.Call(
            ast.Name("int" | "float"), [ast.Call(ast.Attribute(tensor, "item" as how), [], [])], []
        ):
            tensor = first_read(tensor)
            return None if here.is_tensor(tensor) is False else Read(code, tensor, how)
        case ast.Call(ast.Name(how), [read], []) if how in _NUMBERS:
            sure = here.is_tensor(tensor := first_read(read))
            sure = sure or (sure is None and tensor is not read and is_copied(read))
            return Read(code, tensor, how) if sure else None
        case ast.Call(ast.Name("max" | "min" as how), [first, second], []):
            tensors = [c for c in (first, second) if not is_limit(here, c)]
            value = here.value(tensors[0]) if len(tensors) == 1 else None
            if value is None or _is_read_before(value):
                return None
            sure = here.is_tensor(tensors[0])
            if sure or (sure is None and (value.op in _REDUCTIONS or is_reduced(here, value))):
                return Read(code, tensors[0], how)
    return None


def _is_read_before(value: Node) -> bool:
    """Tell whether a number has been read, or is computed from one: ``x.sum().item() / 8``."""
    passes = {*ARITHMETIC, Op.AUGMENTED, Op.PHI, "py:max", "py:min"}
    parts = value.walk(lambda part: part.args if part.op in passes else ())
    return any(part.op in READING for part in parts)


def is_reduced(here: Surroundings, value: Node) -> bool:
    """Tell whether a value is what all ranks have of a tensor: ``reduce_mean(num_pos)``."""
    if value.op != Op.CALL or len(value.args) != 2:  # noqa: PLR2004 - the function and a tensor
        return False
    called = str(value.args[0].value).rpartition(".")[2]
    return _OF_RANKS.fullmatch(called) is not None and is_tensor(here, value.args[1])


def continues(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether what is read is read further: ``x.cpu()`` of ``x.cpu().numpy().tolist()``."""
    outer = here.parents.get(id(code))
    while isinstance(outer, (ast.Attribute, ast.Subscript)):
        above = here.parents.get(id(outer))
        if isinstance(outer, ast.Attribute) and isinstance(above, ast.Call):
            return outer.attr in {*READING, "tobytes"} or continues(here, above)
        outer = above
    return isinstance(outer, ast.Call) and ast.unparse(outer.func) in _NUMBERS
