"""Limits of what a setting makes a tensor, and what stays a number of Python without it.

::

    if self.sync:                               if self.sync:
        n = reduce_mean(x.new_tensor([n]))          n = reduce_mean(x.new_tensor([n]))
    n = max(n, 1)                               n = n.clamp(min=1) if self.sync else max(n, 1)
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.waits.limits import LIMITS, clamp, is_limit
from npufix.rewriters.edit.statements.host.waits.reads import is_reduced
from npufix.rewriters.edit.statements.proposal import Proposal, put
from npufix.rewriters.graph.modules.syntax import names_bound_in

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_MADE = frozenset({"as_tensor", "full", "new_full", "new_tensor", "tensor"})
"""What has no gradient: a tensor that is made of numbers."""


def limit_either(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return ``n.clamp(min=1)`` for the arm in which ``n`` of ``max(n, 1)`` is a tensor.

    Whoever gets it has got that tensor where it is above the limit.
    """
    statement = here.statement_of(code)
    match statement, code:
        case (
            ast.Assign([ast.Name(name)], value),
            ast.Call(ast.Name(how), [ast.Name(kept), ast.Constant() as limit], []),
        ) if value is code and kept == name and how in LIMITS and is_limit(here, limit):
            block = here.block_of(statement)
        case _:
            return None
    place = block.index(statement)
    match block[place - 1] if place else None:
        case ast.If(ast.Attribute(ast.Name("self")) as test, body, []):
            made = [s for s in body if name in names_bound_in(s)]
        case _:
            return None
    match made:
        case [ast.Assign([ast.Name()], reduced)] if (node := here.value(reduced)) is not None:
            pass
        case _:
            return None
    if not is_reduced(here, node):
        return None
    clamped = name + clamp(here, code, counts=False)
    new = " ".join((clamped, "if", here.text(test), "else", here.text(code)))
    proven = {"is-tensor", "same-dtype", "takes-tensors", "never-nan"}
    if node.args[1].op in _MADE:
        proven.add("without-gradient")
    return put(here, code, new, form="limit", asked=(("x", name),), proven=proven)
