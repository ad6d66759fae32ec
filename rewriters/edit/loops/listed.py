"""Integers that Python computes in each round, for all rounds as a list.

::

    for i, r in enumerate(ratios):              mask.masked_fill_(
        n = min(w, math.ceil(w * r))                torch.arange(w) < torch.as_tensor(
        mask[i, :n] = 1                                 [min(w, math.ceil(w * r)) for r in ratios]
                                                    )[:, None], 1)

The host computes them as before, each by itself, so that nothing is rounded in another way.
"""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import Kind, Value
from npufix.rewriters.graph.modules.syntax import list_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.edit.loops.expressions import Expressions

_TO_INTEGERS = frozenset({"int", "round", "math.ceil", "math.floor", "math.trunc"})
_OF_SEVERAL = frozenset({"max", "min"})
_OF_NUMBERS = frozenset({"abs", "float", "math.exp", "math.log", "math.pow", "math.sqrt"})
_KEEP_INTEGERS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def list_integers(code: ast.expr, of: Expressions) -> Value | None:
    """Return what Python computes of numbers in each round, ``None`` if it may be anything else."""
    if not isinstance(code, (ast.Call, ast.BinOp)) or of.domain.over is None:
        return None
    if not _is_integer(code, of) or not _computes(code, of):
        return None
    spelled = _Spelled(of.listed).visit(copy.deepcopy(code))
    target, items = of.domain.over
    match target, items:
        case ast.Tuple([ast.Name(counter), element]), ast.Call(ast.Name("enumerate"), [over], []):
            if counter not in list_names(spelled):
                target, items = element, over
    clause = ast.comprehension(target, items, [], 0)
    return Value(Kind.ENTRY, ast.ListComp(spelled, [clause]), 0, is_listed=True)


def _is_integer(code: ast.expr, of: Expressions) -> bool:
    """Tell whether code makes an integer of Python, of each round or of all of them."""
    if not of.depends(code):
        return of.facts.is_int(code)
    match code:
        case ast.Name(name):
            known = of.env.get(name)
            counts = known is not None and known.kind is Kind.NUMBER and known.integer
            return counts or name in of.listed
        case ast.Call(_, args, []) if _called(code, of) in _TO_INTEGERS:
            return len(args) == 1
        case ast.Call(_, args, []) if _called(code, of) in _OF_SEVERAL:
            # The lengths of tensors are integers as well: ``min(x.size(1), int(n * r))``.
            return len(args) > 1 and all(_is_integer(a, of) or _is_count(a, of) for a in args)
        case ast.BinOp(left, op, right) if isinstance(op, _KEEP_INTEGERS):
            return all(_is_integer(a, of) or _is_count(a, of) for a in (left, right))
    return False


def _is_count(code: ast.expr, of: Expressions) -> bool:
    """Tell whether code is an integer by what it is or by how the function uses it."""
    plain = isinstance(code, ast.Name) or of.facts.is_int(code)
    return plain and not of.depends(code) and of.facts.is_number(code)


def _computes(code: ast.expr, of: Expressions) -> bool:  # noqa: PLR0911 - one case a syntax
    """Tell whether nothing but Python computes with numbers here: no tensor takes part."""
    match code:
        case ast.Constant():
            return True
        case ast.Name(name):
            if not of.depends(code):
                return of.facts.is_tensor(code) is not True
            known = of.env[name]
            given = name in of.domain.names and (
                known.kind is Kind.NUMBER or of.facts.is_tensor(known.code) is not True
            )
            return name in of.listed or (given and known.kind in {Kind.NUMBER, Kind.ENTRY})
        case ast.UnaryOp(ast.USub(), operand):
            return _computes(operand, of)
        case ast.BinOp(left, _, right):
            return _computes(left, of) and _computes(right, of)
        case ast.Call(_, args, []) if _called(code, of) in (
            _TO_INTEGERS | _OF_SEVERAL | _OF_NUMBERS
        ):
            return all(_computes(a, of) for a in args)
    return not of.depends(code) and of.facts.is_number(code)


def _called(code: ast.Call, of: Expressions) -> str:
    """Return the function of Python that is called, "" if it is none."""
    names = of.facts.flow
    if isinstance(code.func, ast.Name) and code.func.id not in names.bound:
        return names.names.dotted(code.func) or code.func.id
    return names.names.dotted(code.func) or ""


class _Spelled(ast.NodeTransformer):
    """Puts what a name of the loop stands for in its place."""

    def __init__(self, listed: Mapping[str, ast.expr]) -> None:
        self.listed = listed

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.listed[node.id]) if node.id in self.listed else node
