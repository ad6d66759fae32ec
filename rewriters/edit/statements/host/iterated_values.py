"""Values that Python takes out of tensors one by one, though nothing says ``item()`` once.

::

    if any(lengths > limit):                   if (lengths > limit).any():
    longest = max(lengths)                     longest = lengths.max()
    max([x[i + 1] - x[i]                       x.diff(dim=0).max().item()
         for i in range(len(x) - 1)]).item()
    [row.sum().item() for row in rows]         torch.stack([row.sum() for row in rows]).tolist()
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.element_reads import (
    IN_LOOP,
    is_covered,
    is_implied,
    read_before,
    waits_anyhow,
)
from npufix.rewriters.edit.statements.host.of_host import ON_HOST, is_of_host
from npufix.rewriters.edit.statements.host.seldom import is_seldom
from npufix.rewriters.edit.statements.proposal import Proposal, put
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, list_names, list_stored_names
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Evaluation, Node

_FORMS = {"any": "asked", "all": "asked", "max": "longest", "min": "longest", "sum": "summed"}
_REDUCTIONS = frozenset(
    {"all", "any", "argmax", "argmin", "count_nonzero", "max", "mean", "median", "min", "norm",
     "prod", "std", "sum", "var"}
)  # fmt: skip
_CONVERTS = frozenset({"float", "int", "bool"})


def reduced_by_python(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return a reduction of a tensor by its own method: ``x.max()`` for Python's ``max(x)``."""
    match code:
        case ast.Call(ast.Name(how), [tensor], []) if how in _FORMS:
            value = here.value(tensor)
        case _:
            return None
    if value is None or how in here.flow.names.imports or isinstance(tensor, ast.GeneratorExp):
        return None
    known = here.is_tensor(tensor)
    compared = value.op in operators.COMPARISONS  # a number has no elements to go through
    if known is False or not (known or compared) or is_of_host(here, tensor):
        return None
    at = here.evaluations[id(tensor)]
    if any(_is_array(here, at, part) for part in value.walk()):
        return None
    facts = here.facts(at, x=value)
    rank = facts.ndim("x")
    if rank is not None and (rank == 0 or (rank > 1 and how != "sum")):
        return None
    new = f"{here.text_of_owner(tensor)}.{how}({'0' if how == 'sum' else ''})"
    if how in {"any", "all"} and not _is_test(here, code):
        new = f"bool({new})"
    proven = {"is-tensor"} if known else set[str]()
    if rank is not None:
        proven.add("vector")
    if facts.is_bool_tensor("x") or facts.dtype("x") in {"int32", "int64"}:
        proven.add("never-nan")
    if facts.dtype("x") in {"bool", "int64"} or compared:
        proven.add("keeps-dtype")
    return put(
        here,
        code,
        new,
        form=_FORMS[how],
        asked=(("x", here.text(tensor)),),
        proven=proven,
    )


def furthest(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return ``x.diff(dim=0).max()`` for the largest ``x[i + 1] - x[i]``, where it is read.

    What Python compares there are single numbers, whatever shape they have; read they have none.
    """
    match code:
        case ast.Call(
            ast.Name(how),
            [
                ast.ListComp(differs, [ast.comprehension(ast.Name(i), rounds, [], 0)])
                | ast.GeneratorExp(differs, [ast.comprehension(ast.Name(i), rounds, [], 0)])
            ],
        ):
            pass
        case _:
            return None
    match differs:
        case ast.BinOp(
            ast.Subscript(tensor, ast.BinOp(ast.Name(first), ast.Add(), ast.Constant(1))),
            ast.Sub(),
            ast.Subscript(other, ast.Name(second)),
        ) if first == second == i and how not in here.flow.names.imports:
            of = ast.unparse(tensor)
        case _:
            return None
    ways = (f"{of}.size(0)", f"{of}.shape[0]", f"len({of})")
    counts = {"range(" + n + " - 1)": n for n in ways}
    count = counts.get(ast.unparse(rounds))
    plain = isinstance(tensor, (ast.Name, ast.Attribute)) and ast.unparse(other) == of
    if not plain or count is None or not _is_number_read(here, code):
        return None
    known = here.is_tensor(tensor)
    if known is False or is_of_host(here, tensor):
        return None
    new = f"{here.text_of_owner(tensor)}.diff(dim=0).{how}()"
    at = here.evaluations.get(id(tensor))
    dtype = here.facts(at, x=at.node).dtype("x") if at is not None else None
    return put(
        here,
        code,
        new,
        form="furthest",
        asked=(("x", here.text(tensor)),),
        proven=({"is-tensor"} if known or count.endswith(".size(0)") else set())
        | ({"never-nan"} if dtype in {"int32", "int64"} else set()),
    )


def _is_number_read(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a number is made of a value at once: ``max(x).item()``, ``int(max(x))``."""
    match here.parents.get(id(code)):
        case ast.Call(ast.Name("int" | "float"), [_], []):
            return True
        case ast.Attribute(attr="item"):
            return True
    return False


def _is_array(here: Surroundings, at: Evaluation, part: Node) -> bool:
    """Tell whether an array of NumPy takes part, or an argument that is none of torch."""
    given = part.op in {Op.ATTR, Op.PARAM} and not here.facts(at, x=part).is_number("x")
    return is_of_numpy(part) or (given and here.facts(at, x=part).is_tensor("x") is False)


def _is_test(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether nobody wants more than to know whether it is true."""
    inner: ast.AST = code
    for outer in here.around(code):
        match outer:
            case ast.UnaryOp(ast.Not()):
                return True
            case ast.BoolOp():
                pass
            case ast.If(test) | ast.While(test) | ast.Assert(test) | ast.IfExp(test):
                return test is inner
            case _:
                return False
        inner = outer
    return False


def read_by_implication(
    here: Surroundings, code: ast.Subscript, told: set[tuple[int, str]]
) -> Iterator[Proposal]:
    """Yield what to do where Python makes a number of an element: ``if x[i] > 0:``.

    ``told`` holds the loops and tensors that something was said of.
    """
    outer = here.parents.get(id(code))
    by_name = isinstance(outer, ast.Attribute) or (
        isinstance(outer, ast.Call) and last_name(outer.func) in _CONVERTS
    )
    if by_name or not isinstance(code.ctx, ast.Load) or not is_implied(here, code):
        return
    if is_of_host(here, code) or is_seldom(here, code) or is_covered(here, code):
        return
    place = (id(here.loop_of(code)), ast.unparse(code.value))
    if place not in told:
        told.add(place)
        loop = here.loop_of(code)
        if loop is None or not waits_anyhow(here, loop):
            yield read_before(here, code) or Proposal(code, IN_LOOP)


def read_together(
    here: Surroundings, code: ast.Call, tensor: ast.expr, how: str
) -> Proposal | None:
    """Return one read of what a list is made of, for ``[row.sum().item() for row in rows]``.

    ``code`` is the read of ``tensor`` in it. Where it makes lists of rows, or copies that stay
    tensors, no numbers are wanted: ``[row.cumsum(0).tolist() for ...]``, ``[row.sum().cpu() ...]``.
    """
    if how == "tolist" and (listed := _list_rows(here, code, tensor)) is not None:
        return listed
    if how in ON_HOST or (how == "tolist" and not _is_reduced(here, tensor)):
        return None
    outer = here.parents.get(id(code))
    kept = number_made(code) or number_made(outer)
    if isinstance(outer, ast.Call) and number_made(outer):
        code, outer = outer, here.parents.get(id(outer))
    behind, element = "", outer
    match outer:
        case ast.BinOp(left, sign, ast.Constant() as number) if left is code and not kept:
            outer = here.parents.get(id(outer))
            behind = ast.unparse(ast.BinOp(ast.Name("n"), sign, number))[1:]
        case _:
            element = code
    match outer:
        case ast.ListComp(elt, [ast.comprehension(target, items, [], 0)]) if elt is element:
            pass
        case _:
            return None
    if _computes_nothing(tensor, target):
        return None
    stack = f"torch.stack([{here.text(tensor)} for {here.text(target)} in {here.text(items)}])"
    if not here.imports_torch:
        return None
    proven = {"is-tensor"} if _is_of_torch(here, tensor) else set[str]()
    new = f"{stack}{'' if _is_reduced(here, tensor) else '.flatten()'}.tolist()"
    if kept or behind:
        name = "n" if "n" not in list_names(outer) else "number"
        made = f"{kept}({name})" if kept else f"{name}{behind}"
        parts = ("[", made, " for ", name, " in ", new, "]")
        new = "".join(parts)  # in one string it would be a message to be translated
    return put(
        here,
        outer,
        new,
        form="read_each",
        asked=(("rows", here.text(items)),),
        proven=proven,
    )


def _list_rows(here: Surroundings, code: ast.Call, row: ast.expr) -> Proposal | None:
    """Return ``rows.tolist()`` for ``[row.tolist() for row in rows]``, where that is a tensor."""
    outer = here.parents.get(id(code))
    match outer:
        case ast.ListComp(elt, [ast.comprehension(ast.Name(name), items, [], 0)]) if elt is code:
            pass
        case _:
            return None
    if not (isinstance(row, ast.Name) and row.id == name and here.is_tensor(items)):
        return None
    new = f"{here.text_of_owner(items)}.tolist()"
    return put(here, outer, new, form="listed_rows", proven={"is-tensor"})


def _is_of_torch(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether it is what a function of torch returns: ``torch.sum(x)``."""
    dotted = here.flow.names.dotted(code.func) if isinstance(code, ast.Call) else None
    return (dotted or "").startswith("torch.")


def _is_reduced(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether one number is left of a tensor: ``x.sum()``, ``torch.norm(x)``."""
    given = len(code.args) + len(code.keywords) if isinstance(code, ast.Call) else 0
    name = last_name(code.func) if isinstance(code, ast.Call) else ""
    return name in _REDUCTIONS and given == int(_is_of_torch(here, code))


def _computes_nothing(code: ast.expr, target: ast.expr) -> bool:
    """Tell whether elements are read as they are, or not what a tensor computes of each.

    ``[n.item() for n in x]``, ``[next(it).item() for _ in x]``
    """
    name = last_name(code.func) if isinstance(code, ast.Call) else ""
    own = list_stored_names(target)
    known = operators.canonical_name(name) in operators.TABLE
    return not known or own.isdisjoint(list_names(code))


def number_made(code: ast.AST | None) -> str:
    """Return which number is made: ``int`` of ``int(x)``, "" for others."""
    match code:
        case ast.Call(ast.Name(how), [_], []) if how in _CONVERTS:
            return how
    return ""
