"""Numbers that a function reads to return them, of which callers only keep a log."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.sentences import FOR_CALLER
from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings


def find_returned(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return what to do with ``return loss.item()`` where callers only add it up, or log it.

    Nothing else is done with ``return clip_grad_norm_(parameters, limit).item()``.
    """
    outer, tree = here.parents.get(id(code)), here.flow.names.tree
    match code.func:
        case ast.Attribute(ast.Call(called)) if last_name(called) == "clip_grad_norm_":
            return Proposal(code, FOR_CALLER) if isinstance(outer, ast.Return) else None
        case ast.Attribute(ast.Name(name)) if "loss" in name and _is_returned_by_step(here, code):
            return Proposal(code, FOR_CALLER)
    if not isinstance(outer, ast.Return) or tree is None:
        return None
    own = f"{'' if here.flow.cls is None else 'self.'}{here.flow.function.name}"
    every, told = 0, 0
    for node in nodes_of(tree):
        match node:
            case ast.Call(function) if ast.unparse(function) == own:
                every += 1
            case ast.AugAssign(_, ast.Add(), value) | ast.Expr(
                ast.Call(ast.Attribute(attr="append" | "add_scalar"), [*_, value])
            ):
                calls = (n for n in ast.walk(value) if isinstance(n, ast.Call))
                told += sum(ast.unparse(call.func) == own for call in calls)
    return Proposal(code, FOR_CALLER) if told and told == every else None


def _is_returned_by_step(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether what takes a step returns its loss: ``loss.backward()``, ``step()``, and then.

    ``return loss.item(), meta``. So does a layer that hands it out beside what it computes.
    """
    calls = {last_name(n.func) for n in here.nodes if isinstance(n, ast.Call)}
    outer = here.parents.get(id(code))
    listed = isinstance(outer, ast.Tuple) and isinstance(here.parents.get(id(outer)), ast.Return)
    if here.flow.function.name == "forward":
        return listed
    return {"backward", "step"} <= calls and (listed or isinstance(outer, ast.Return))
