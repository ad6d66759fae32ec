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

from npufix.rewriters.edit.statements.proposal import Change, Proposal, text_after

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_WRITES = r"(\[[^\]]*\]\s*[-+*/]?=(?!=)|\.\w+_\(|\s*[-+*/]=)"
"""What writes into a tensor: each call had a copy of its own, which it might write into."""


def convert_once(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return ``torch.as_tensor`` for ``torch.tensor`` of an attribute that is bound again."""
    name = _bound_again(here, code, "tensor")
    if not name or not {word.arg for word in code.keywords} <= {"device", "dtype"}:
        return None
    written = re.search(rf"\bself\.{name}{_WRITES}", "".join(here.lines))
    asked = [here.text(test) for test in here.tests_around(code)]
    if written or any(
        f"self.{name}" in t and t.split() != [f"self.{name}", "is", "not", "None"] for t in asked
    ):
        return None
    made = here.text(code.func).removesuffix("tensor") + "as_tensor"
    change = Change(here.span(code.func), made)
    return Proposal(
        code,
        form="converted",
        changes=(change,),
        shown=text_after(here, code, [change]),
        asked=(("x", f"self.{name}"),),
    )


def is_converted(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether ``torch.as_tensor`` copies an attribute in the first call alone."""
    return bool(_bound_again(here, code, "as_tensor"))


def _bound_again(here: Surroundings, code: ast.Call, how: str) -> str:
    """Return ``limits`` of ``self.limits = torch.tensor(self.limits, device=d)``, "" for others."""
    match code:
        case ast.Call(made, [ast.Attribute(ast.Name("self"), name)], [_, *_]) if (
            here.flow.names.dotted(made) == f"torch.{how}"
        ):
            pass
        case _:
            return ""
    match here.statement_of(code):
        case ast.Assign([ast.Attribute(ast.Name("self"), target)], value) if value is code:
            return name if target == name else ""
    return ""
