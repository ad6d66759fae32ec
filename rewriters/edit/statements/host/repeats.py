"""``repeat_interleave`` by a tensor: for how much comes out the host waits, unless it is told.

::

    largest = largest.repeat_interleave(counts, dim=0)
    x = (x - largest).exp()

    largest = largest.repeat_interleave(counts, dim=0, output_size=x.shape[0])
    x = (x - largest).exp()
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import is_of_host
from npufix.rewriters.edit.statements.proposal import Proposal, more_arguments
from npufix.rewriters.graph.modules.syntax import list_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

FORM_REPEATED = "repeated"
_COUNTS = re.compile(r"(^|_)(\w*lens|lengths|tokens_per_\w+)$")
_TOTAL = (
    "the host waits for the sum of the repeats: hand over what it knows of it, "
    "output_size=x.shape[0] of a tensor that the result meets, or the sum of the list that the "
    "repeats were made of"
)


def find_repeats(here: Surroundings) -> Iterator[Proposal]:
    """Yield what is repeated as often as a tensor of the device says, without its new length."""
    for node in here.nodes:
        if not isinstance(node, ast.Call) or any(
            k.arg in {"output_size", None} for k in node.keywords
        ):
            continue
        match node:
            case ast.Call(ast.Attribute(_, "repeat_interleave") as function, given):
                named = {k.arg: k.value for k in node.keywords}
                if here.flow.names.dotted(function) == "torch.repeat_interleave":
                    given = given[1:] or ([] if "repeats" in named else given)
                repeats = named.get("repeats") or next(iter(given), None)
                if repeats is None or not _is_of_device(here, repeats):
                    continue
                dim = named.get("dim") or next(iter(given[1:]), None)
                sized = _sized(here, node, dim) or _summed(here, node, repeats)
                yield sized or Proposal(node, _TOTAL)


def _is_of_device(here: Surroundings, repeats: ast.expr) -> bool:
    """Tell whether the repeats are a tensor that the device has computed."""
    value, sure = here.value(repeats), here.is_tensor(repeats)
    if value is None or sure is False or is_of_host(here, repeats):
        return False
    if "thw" in here.text(repeats):
        return False  # of a few images, whose sizes nobody has in another form
    named = getattr(repeats, "id", getattr(repeats, "attr", ""))
    has_dimensions = here.facts(here.evaluations[id(repeats)], x=value).ndim("x") != 0
    return has_dimensions and (sure is True or _COUNTS.search(named) is not None)


def _sized(here: Surroundings, code: ast.Call, dim: ast.expr | None) -> Proposal | None:
    """Return the call with the length of what the result is computed with: ``x - repeated``."""
    value = here.value(code)
    along = "-1" if dim is None else here.text(dim)
    first = here.statement_of(code)
    for evaluation in here.flow.evaluations:
        match evaluation.code:
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
                sides = [(left, right), (right, left)]
            case _:
                continue
        for own, other in sides:
            if value is None or here.value(own) is not value or not here.is_tensor(other):
                continue
            if not isinstance(other, ast.Name) or not _is_there(here, other.id, first):
                continue
            size = f"{other.id}.shape[{along}]"
            return _with_size(here, code, size, asked=(("y", other.id),), proven=set())
    return None


def _summed(here: Surroundings, code: ast.Call, repeats: ast.expr) -> Proposal | None:
    """Return the call with the sum of its repeats, where the host has read it before."""
    value = here.value(repeats)
    for node in here.nodes:
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name("int"), [read]) | read):
                pass
            case _:
                continue
        match read:
            case ast.Call(ast.Attribute(ast.Call(ast.Attribute(owner, "sum"), given), "item")):
                summed = given[0] if given else owner
            case _:
                continue
        statement = here.statement_of(code)
        same = here.value(summed) is value and node in here.block_of(statement)
        if same and _is_there(here, name, statement):
            return _with_size(here, code, name, asked=(), proven={"as-long"})
    return None


def _with_size(
    here: Surroundings,
    code: ast.Call,
    size: str,
    *,
    asked: tuple[tuple[str, str], ...],
    proven: set[str],
) -> Proposal | None:
    size = f"output_size={size}"
    change = more_arguments(code, here.lines, size)
    if change is None:
        return None
    return Proposal(
        code,
        form=FORM_REPEATED,
        changes=(change,),
        shown=f"{here.text(code)[:-1]}, {size})",
        asked=asked,
        proven=frozenset({"is-tensor", *proven}),
    )


def _is_there(here: Surroundings, name: str, before: ast.stmt) -> bool:
    """Tell whether a name is bound before a statement, and not again in it or behind it."""
    stores = [
        n
        for n in here.nodes
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
    ]
    function = here.flow.function.args
    given = {a.arg for a in (*function.posonlyargs, *function.args, *function.kwonlyargs)}
    bound = given | {n.id for n in stores if n.lineno < before.lineno}
    later = any(n.lineno > before.lineno for n in stores)
    return (
        name in bound
        and not later
        and name not in list_names(before) & {n.id for n in stores if n.lineno == before.lineno}
    )
