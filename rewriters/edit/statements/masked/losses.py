"""Losses that are modules of torch, made by the class: ``self.l1_loss(x[m], y[m])``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.submodules import read_construction, submodule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.submodules import Submodule


def _made_as(here: Surroundings, code: ast.Call) -> Submodule | None:
    """Return the module of torch that a loss is the call of: ``self.l1(x, y)``."""
    match code.func:
        case ast.Attribute(ast.Name("self"), name) if here.flow.cls is not None:
            return submodule(here.flow.names, here.flow.cls, name)
        case ast.Call(function) as made:
            return read_construction(made, function, here.flow.names)
    return None


def settings_of(here: Surroundings, code: ast.Call) -> Sequence[ast.keyword]:
    """Return what a loss is told besides its tensors, in the call or where it was made."""
    made = _made_as(here, code)
    return code.keywords if made is None or made.call is None else made.call.keywords


def function_of(here: Surroundings, code: ast.Call) -> str:
    """Return the function that a loss is, as the file spells those: ``F.l1_loss``."""
    made = _made_as(here, code)
    if made is None:
        return here.text(code.func)
    return f"{here.functional or 'torch.nn.functional'}.{made.name}"
