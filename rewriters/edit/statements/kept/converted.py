"""Lists of an object that each call makes a tensor of, and puts back in their place.

::

    self.limits = torch.tensor(               self.limits = torch.as_tensor(
        self.limits, device=x.device)             self.limits, device=x.device)

From the second call on it is the tensor already, of which only ``torch.tensor`` makes a copy.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_WRITES = r"(\[[^\]]*\]\s*[-+*/]?=(?!=)|\.\w+_\(|\s*[-+*/]=)"
"""What writes into a tensor: each call had a copy of its own, which it might write into."""


def convert_once(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return ``torch.as_tensor`` for ``torch.tensor`` of an attribute that is bound again."""
    match code:
        case ast.Call(
            ast.Attribute(ast.Name(owner), "tensor") as made,
            [ast.Attribute(ast.Name("self"), name) as of],
            [_, *_] as words,
        ) if here.flow.names.dotted(made) == "torch.tensor":
            pass
        case _:
            return None
    match here.statement_of(code):
        case ast.Assign([ast.Attribute(ast.Name("self"), target)], value) if value is code:
            again = target == name
        case _:
            return None
    if not again or not {word.arg for word in words} <= {"device", "dtype"}:
        return None
    written = re.search(rf"\bself\.{name}{_WRITES}", "".join(here.lines))
    asked = [here.text(test) for test in here.tests_around(code)]
    if written or any(f"self.{name}" in t and t != f"self.{name} is not None" for t in asked):
        return None
    change = Change(here.span(made), f"{owner}.as_tensor")
    shown = here.text(code).replace(here.text(made), f"{owner}.as_tensor", 1)
    return Proposal(
        code, form="converted", changes=(change,), shown=shown, asked=(("x", here.text(of)),)
    )
