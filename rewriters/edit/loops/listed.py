"""Integers that Python computes in each round, for all rounds as a list.

::

    for i, r in enumerate(ratios):              mask.masked_fill_(
        n = min(w, math.ceil(w * r))                torch.arange(w) < torch.as_tensor(
        mask[i, :n] = 1                                 [min(w, math.ceil(w * r)) for r in ratios]
                                                    )[:, None], 1)

The host computes them as before, each by itself, so that nothing is rounded in another way. What a
round takes out of a list is one as well, where it is nothing but a border of slices::

    for i in range(b):                          mask.masked_fill_(
        h, w = sizes[i]                             torch.arange(h_max) < torch.as_tensor(
        mask[i, :h] = 1                                 [sizes[i][0] for i in range(b)]
                                                    )[:, None], 1)
"""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import Kind, Value
from npufix.rewriters.graph.modules.syntax import list_names, nodes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.values import Domain

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
    return list_for_all(_Spelled(of.listed).visit(copy.deepcopy(code)), of.domain)


def list_for_all(code: ast.expr, domain: Domain) -> Value:
    """Return what Python makes in each of the rounds, as a list."""
    assert domain.over is not None  # noqa: S101 - each loop has one, once it is read
    target, items = domain.over
    match domain.over:
        case ast.Tuple([ast.Name(counter), element]), ast.Call(ast.Name("enumerate"), [over], []):
            if counter not in list_names(code):
                target, items = element, over
    clause = ast.comprehension(target, items, [], 0)
    return Value(Kind.ENTRY, ast.ListComp(code, [clause]), 0, is_listed=True)


def take_borders(names: Sequence[str], code: ast.expr, of: Expressions) -> dict[str, ast.expr]:
    """Return what ``h`` and ``w`` of ``h, w = sizes[i]`` are, none if they may be no borders."""
    rows = {k for k, v in of.env.items() if k in of.domain.names and v.kind is Kind.NUMBER}
    if list_names(code) & of.env.keys() - rows or not _is_listed(code, of):
        return {}
    if not are_borders(names, of.facts):
        return {}
    items = (ast.Subscript(code, ast.Constant(at), ast.Load()) for at in range(len(names)))
    return dict(zip(names, items, strict=True))


def _is_listed(code: ast.expr, of: Expressions) -> bool:
    """Tell whether code takes something out of a list or a dictionary: ``metas[i]["shape"]``."""
    is_listed = False
    while isinstance(code, ast.Subscript):
        named = isinstance(code.slice, ast.Constant) and isinstance(code.slice.value, str)
        is_listed |= named or of.facts.is_tensor(code.value) is False
        code = code.value
    simple = isinstance(code, ast.Name | ast.Attribute)
    return is_listed and simple and ast.unparse(code) not in of.own_rows


def are_borders(names: Sequence[str], facts: Facts) -> bool:
    """Tell whether the borders of slices alone read some names: ``m[i, :h, : w // 2] = 0``."""
    nodes = nodes_of(facts.flow.function)
    borders = {id(part) for n in nodes if isinstance(n, ast.Slice) for part in ast.walk(n)}
    read = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return all(id(n) in borders for n in read if n.id in names)


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
